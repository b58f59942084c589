"""Fit time and memory of closed-form forecasters against scikit-learn's Ridge on explicit windows and DLinear in torch.

    python papers/benchmarks/forecast_peers.py FOLDER --out benchmarks/results/forecast-peers-cpu.json

FOLDER contains ETTh1.csv or ETTm1.csv (also .xz), as for ``lagwise bench forecast``. Each method runs in a separate
process: it reads the data, then fits one map for all series to the training part, with look-back 720. CPU time and
memory are those of the fit on one thread (set OMP_NUM_THREADS=1). Test errors use the same protocol, so that the
methods' accuracies can be compared too. DLinear is trained as published (Zeng et al. 2023): a moving average over 25
steps separates trend and season, with a linear map for each; Adam for at most 10 epochs, with the learning rate halved
after each, stopped after 3 epochs without improvement.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.cli.terminal import print_table
from lagwise_papers.bench.forecasting import BENCHMARKS, read_benchmark
from lagwise_papers.bench.harness import in_new_process, process_bytes
from lagwise_papers.bench.timing import save_results

LOOK_BACK = 720
Predict = Callable[[np.ndarray], np.ndarray]


def split_rows(x: np.ndarray, name: str) -> list[np.ndarray]:
    """Split into standardized training, validation and test rows; the latter two begin one look-back earlier."""
    train, valid, test = BENCHMARKS[name].split(len(x))
    z = (x - x[:train].mean(0)) / x[:train].std(0)
    return [z[:train], z[train - LOOK_BACK : valid], z[valid - LOOK_BACK : test]]


def windows(x: np.ndarray, horizon: int) -> np.ndarray:
    """Return all windows ``(windows, look_back + horizon)`` of all series."""
    return np.concatenate([sliding_window_view(series, LOOK_BACK + horizon) for series in x.T])


def fit_lagwise(train: np.ndarray, valid: np.ndarray, horizon: int, model: str) -> Predict:
    """Fit `LagForecaster`, with the best of 15 penalties on the validation rows."""
    from lagwise.forecasting import LagForecaster

    rows = np.concatenate([train, valid[LOOK_BACK:]])
    n_held_out = len(valid) - LOOK_BACK
    fitted = LagForecaster(horizon, LOOK_BACK, model=model, shared=True, validation=n_held_out, refit=False).fit(rows)
    maps = fitted.maps_[0]
    return lambda u: u @ maps


def fit_ridge(train: np.ndarray, valid: np.ndarray, horizon: int, penalty: float) -> Predict:
    """Fit scikit-learn's Ridge on centred windows, for one penalty."""
    from sklearn.linear_model import Ridge

    centred = windows(train, horizon)
    centred = centred - centred[:, :LOOK_BACK].mean(1, keepdims=True)
    ridge = Ridge(alpha=penalty * len(centred), fit_intercept=False).fit(centred[:, :LOOK_BACK], centred[:, LOOK_BACK:])
    return lambda u: ridge.predict(u - u.mean(1, keepdims=True)) + u.mean(1, keepdims=True)


def fit_dlinear(train: np.ndarray, valid: np.ndarray, horizon: int) -> Predict:
    """Fit DLinear with one map for all series."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class DLinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.season, self.trend = nn.Linear(LOOK_BACK, horizon), nn.Linear(LOOK_BACK, horizon)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ends = torch.cat([x[:, :1].expand(-1, 12), x, x[:, -1:].expand(-1, 12)], 1)
            trend = nn.functional.avg_pool1d(ends[:, None], 25, 1)[:, 0]
            return self.season(x - trend) + self.trend(trend)

    model, rate = DLinear(), 5e-4
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    series = torch.from_numpy(train.T.copy()).float()
    held_out = torch.from_numpy(valid.T.copy()).float()
    width = LOOK_BACK + horizon

    def batch(x: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = x.unfold(1, width, 1)[:, starts].flatten(0, 1)
        return pairs[:, :LOOK_BACK], pairs[:, LOOK_BACK:]

    best, best_error, patience = copy.deepcopy(model.state_dict()), np.inf, 0
    for _ in range(10):
        for starts in torch.randperm(series.shape[1] - width + 1).split(32):
            u, y = batch(series, starts)
            optimizer.zero_grad()
            (model(u) - y).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            chunks = torch.arange(held_out.shape[1] - width + 1).split(256)
            error = sum(float((model(u) - y).square().sum()) for u, y in (batch(held_out, c) for c in chunks))
        if error < best_error:
            best, best_error, patience = copy.deepcopy(model.state_dict()), error, 0
        else:
            patience += 1
            if patience == 3:
                break
        for group in optimizer.param_groups:
            group["lr"] /= 2
    model.load_state_dict(best)
    return lambda u: model(torch.tensor(u, dtype=torch.float32)).detach().double().numpy()


METHODS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "lagwise ridge, 15 penalties": (fit_lagwise, ("ridge",)),
    "lagwise Toeplitz kernel, 15 penalties": (fit_lagwise, ("toeplitz",)),
    "scikit-learn Ridge on windows, 1 penalty": (fit_ridge, (0.01,)),
    "DLinear in torch": (fit_dlinear, ()),
}


def measure(folder: str, name: str, horizon: int, method: str) -> dict[str, Any]:
    """Measure CPU seconds and bytes of a fit, and its test error. Runs in a separate process."""
    train, valid, test = split_rows(read_benchmark(Path(folder), name), name)
    fit, arguments = METHODS[method]
    fit(train[: LOOK_BACK + horizon + 50], valid[: LOOK_BACK + horizon + 50], horizon, *arguments)  # imports, buffers
    before, began = process_bytes("VmRSS"), time.process_time()
    predict = fit(train, valid, horizon, *arguments)
    seconds, peak = time.process_time() - began, process_bytes("VmHWM") - before
    error, count = 0.0, 0
    for series in test.T:
        pairs = sliding_window_view(series, LOOK_BACK + horizon)
        for start in range(0, len(pairs), 2048):
            chunk = pairs[start : start + 2048]
            error += float(((predict(chunk[:, :LOOK_BACK]) - chunk[:, LOOK_BACK:]) ** 2).sum())
            count += chunk[:, LOOK_BACK:].size
    return {"data": name, "horizon": horizon, "method": method, "seconds": seconds, "bytes": peak, "mse": error / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--data", default="ETTh1,ETTm1")
    parser.add_argument("--horizon", type=int, default=96)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = []
    for name in options.data.split(","):
        for method in METHODS:
            rows.append(in_new_process(measure, options.folder, name, options.horizon, method))
            print(rows[-1], flush=True)
    print_table(
        f"Fit of all series, look-back {LOOK_BACK}, horizon {options.horizon}",
        ("", "data", "seconds", "MiB", "test error"),
        [
            (r["method"], r["data"], f"{r['seconds']:.1f}", f"{r['bytes'] / 2**20:,.0f}", f"{r['mse']:.4f}")
            for r in rows
        ],
    )
    command = f"python papers/benchmarks/forecast_peers.py FOLDER --data {options.data} --horizon {options.horizon}"
    save_results(options.out, command, {"rows": rows})


if __name__ == "__main__":
    main()
