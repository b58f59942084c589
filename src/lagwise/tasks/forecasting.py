"""Forecasts of series over time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lagwise.data.examples import epoch_order
from lagwise.data.options import DataOptions
from lagwise.data.splits import split_sizes
from lagwise.files import expanded, file_digest
from lagwise.forecasting.gaps import carry_forward, scales
from lagwise.models import LagwiseForPrediction
from lagwise.tables import Count
from lagwise.tasks.base import Metric, Records, Sizes, Table, Task, TaskData, finite

_TENTHS = (7, 1)  # tenths of the rows for train and valid; the rest is for test
_BATCH = 256  # windows of an evaluation


class Forecasting(Task):
    """The next rows of series over time, from the rows before them; each series separately, with the same weights.

    Data: a table as in `lagwise.forecasting.read_series`; its first 70 percent of rows are for training, the next 10
    for validation, the rest for testing. The latter two begin ``data.length`` rows earlier, so that each of their rows
    is forecast.

    Options:
        horizon: rows to forecast.
        patch: rows per token of the model.
        time: the column of times, by default the first.
        columns: the series, by default all other columns.

    data.length is the number of rows that a forecast reads. Metrics: mean squared error, the headline, and mean
    absolute error, of series standardised by their training rows.
    """

    headline = Metric("mse", "mean squared error", greater_is_better=False)
    _needs = "forecasting needs series to learn from; give a table with `source`, such as sensors.csv"
    head = LagwiseForPrediction
    predicts = "forecast"
    inputs = "values"
    _unit = "window"

    def __init__(
        self,
        data: DataOptions,
        *,
        horizon: Count = 96,
        patch: Count = 8,
        time: str | None = None,
        columns: list[str] | None = None,
    ):
        super().__init__(data)
        self.horizon, self.patch = horizon, patch
        self.time, self.series = time, columns

    def fields(self) -> dict[str, Any]:
        return {"inputs": {"name": "values", "features": 2 * self.patch}, "prediction_length": self.horizon}

    def key(self) -> str:
        return f"{file_digest(expanded(str(self.data.source))).hex()}-{self.time}-{self.series}"

    def _read(self, source: str) -> Any:
        from lagwise.forecasting import read_series  # needs pandas

        try:
            return read_series(expanded(source), self.time, self.series)
        except ValueError as error:
            raise ValueError(str(error).replace("`columns`", "`series`")) from error

    def _open_other(self, source: str, run: Path, progress: bool) -> SeriesParts:
        return self._open(run, progress, source)

    def _open(self, run: Path | None, progress: bool, source: str | None = None) -> SeriesParts:
        table = self._read(source or str(self.data.source))
        x = table.frame.to_numpy(np.float64)
        length, width = self.data.length, self.data.length + self.horizon
        sizes = split_sizes(len(x), *_TENTHS)
        train, valid = sizes["train"], sizes["train"] + sizes["valid"]
        train = len(x) if source is not None else train
        mean, deviation = scales(x[:train])
        z = ((x - mean) / deviation).astype(np.float32)
        if source is not None:
            parts = {"test": z}
        else:
            bounds = {"train": (0, train), "valid": (train - length, valid), "test": (valid - length, len(x))}
            parts = {name: z[max(0, start) : stop] for name, (start, stop) in bounds.items()}
        for name, part in parts.items():
            if len(part) < width:
                large = "`horizon`" if self.horizon > len(part) - length else "`length`"
                advice = f"; make {large} smaller by {width - len(part)}" if source is None else ""
                raise ValueError(
                    f"`length` {length} and `horizon` {self.horizon} need {width} rows; the {name} part of "
                    f"{source or self.data.source!r} has {len(part)}{advice}"
                )
        return SeriesParts(self, parts, table.notes)

    def continuation(self, source: str) -> Callable[[Any], list[dict[str, Any]]] | None:
        """The next rows of a table over time, on the scale of the table, with the training columns or by default all;
        None for one with lists of past values. Only the last ``data.length`` rows are used."""
        from lagwise.forecasting.tables import table_columns

        names = table_columns(expanded(source))
        return None if names is None or "past_values" in names else partial(self._next_rows, source)

    def _next_rows(self, source: str, model: Any) -> list[dict[str, Any]]:
        from lagwise.forecasting.times import plain_times

        table = self._read(source)
        past = table.frame.to_numpy(np.float64)[-self.data.length :].copy()
        for name, values in zip(table.frame.columns, past.T, strict=True):
            if np.isnan(values).all():
                raise ValueError(f"column {name!r} of {source!r} has no value in the last {len(past)} rows")
        forecasts = self.forecast(model, torch.from_numpy(past)[None])[0]
        names = [str(table.frame.index.name), *table.frame.columns]
        rows = zip(plain_times(table.next_times(self.horizon)), forecasts.tolist(), strict=True)
        return [dict(zip(names, [at, *row], strict=True)) for at, row in rows]

    def columns(self) -> tuple[str, ...]:
        return ("past_values",)

    def _encoded(self, model: Any, tokenizer: Any, rows: Records) -> list[dict[str, Tensor]]:
        """Read each row's ``past_values``: numbers of one series on any scale, null where missing; only the last
        ``data.length`` are used."""
        encoded = []
        for row in rows:
            cell = row["past_values"]
            try:
                values = np.asarray(json.loads(cell) if isinstance(cell, str) else cell, dtype=np.float64)
            except (ValueError, TypeError) as error:
                raise ValueError(f"past_values must be a list of numbers, got {cell!r:.80}") from error
            if values.ndim != 1 or not len(values) or np.isnan(values).all():
                raise ValueError(f"past_values must be the numbers of one series, got {cell!r:.80}")
            encoded.append({"past_values": torch.from_numpy(values[-self.data.length :])[:, None]})
        return encoded

    def _batches(
        self, model: Any, tokenizer: Any, rows: Any, indices: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], np.ndarray]]:
        """Forecast windows together, rows of any length one by one."""
        size = _BATCH if isinstance(rows, Windows) else 1
        for start in range(0, len(indices), size):
            chosen = indices[start : start + size]
            yield chosen, self.forecast(model, torch.stack([rows[i]["past_values"] for i in chosen]))

    def _answer(self, model: Any, output: np.ndarray) -> dict[str, Any]:
        """``forecast``, the next values, as a list in JSON."""
        return {"forecast": json.dumps(output[:, 0].tolist())}

    @torch.inference_mode()
    def forecast(self, model: Any, past: Tensor) -> np.ndarray:
        """Forecast ``(batch, horizon, series)`` from past values."""
        past = past.float() if model.device.type == "mps" else past  # mps has no float64
        output = model(past_values=past.to(model.device)).prediction_outputs
        return finite(output.cpu().numpy(), "forecasts")

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        rows = [(name, f"{s['mse']:.4f}", f"{s['mae']:.4f}") for name, s in evaluation["test"].items()]
        title = f"{evaluation['horizon']} rows forecast in {evaluation['windows']:,} test windows (standardised)"
        return [Table(title, ("", "squared error", "absolute error"), rows)]


class SeriesParts(TaskData):
    """Standardised series ``(rows, series)`` by split."""

    task: Forecasting

    def __init__(self, task: Forecasting, parts: dict[str, np.ndarray], noted: Sequence[str]):
        super().__init__(task)
        self.parts, self.noted = parts, noted

    def notes(self) -> Sequence[str]:
        return self.noted

    def sizes(self, batch_size: int) -> Sizes:
        length = self.task.data.length
        return Sizes(-(-self._windows("train").count // batch_size), float(length), length)

    def training_examples(self, steps: int, batch_size: int, seed: int) -> Dataset:
        return self._windows("train", drawn=steps * batch_size, seed=seed)

    def validation_examples(self, tokens: int) -> Dataset:
        return self._windows("valid", drawn=max(1, tokens // self.task.data.length))

    def reduce(self, logits: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return squared and absolute errors; the first of the model's outputs are its forecasts."""
        errors = (logits[0] if isinstance(logits, tuple) else logits).float() - labels
        return errors.square(), errors.abs()

    def counted(self, batch: Mapping[str, Tensor]) -> Tensor:
        return (~batch["future_values"].isnan()).sum()

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        return {"mse": float(np.nanmean(predictions)), "mae": float(np.nanmean(labels))}

    def evaluate(
        self, model: Any, *, lengths: Sequence[int] | None = None, max_tokens: int | None = None, progress: bool = True
    ) -> dict[str, Any]:
        """Compute errors on the windows of the test part (all, or as many evenly spaced ones as ``max_tokens`` rows
        allow), beside those of repeating the last value."""
        drawn = None if max_tokens is None else max(1, max_tokens // self.task.data.length)
        self._scored = {"test": self._windows("test", drawn=drawn)}
        result = super().evaluate(model, lengths=lengths, progress=progress)
        return {**result, "windows": len(self._scored["test"]), "horizon": self.task.horizon}

    def _measured(self, output: np.ndarray, rows: Any, i: int) -> tuple[np.ndarray, np.ndarray]:
        window, future = rows[i]["past_values"].numpy(), rows[i]["future_values"].numpy()
        return output - future, carry_forward(window)[-1:] - future

    def _scores(self, split: str, measured: Sequence[Any], model: Any) -> dict[str, Any]:
        scores = {}
        for name, errors in zip(("model", "last value"), zip(*measured, strict=True), strict=True):
            each = np.stack(errors)
            scores[name] = {"mse": float(np.nanmean(each**2)), "mae": float(np.nanmean(np.abs(each)))}
        return {split: scores}

    def _windows(self, part: str, *, drawn: int | None = None, seed: int | None = None) -> Windows:
        return Windows(self.parts[part], self.task.data.length, self.task.horizon, drawn=drawn, seed=seed)


class Windows(Dataset):
    """A data set of windows of series ``(rows, series)``, one series each: past_values ``(length, 1)`` and
    future_values ``(horizon, 1)``, NaN where missing. All in order, or ``drawn``: with a seed in an order drawn anew
    for every epoch, without one spread evenly."""

    def __init__(self, x: np.ndarray, length: int, horizon: int, *, drawn: int | None, seed: int | None):
        self.x, self.length, self.horizon = x, length, horizon
        self.starts = len(x) - length - horizon + 1
        self.count = self.starts * x.shape[1]
        self.size = self.count if drawn is None else drawn if seed is not None else min(drawn, self.count)
        self.seed = seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.seed is None:
            position = index * self.count // self.size
        else:
            epoch, position = divmod(index, self.count)
            position = int(epoch_order(self.count, self.seed, epoch)[position])
        series, start = divmod(position, self.starts)
        window = torch.from_numpy(self.x[start : start + self.length + self.horizon, series, None])
        return {"past_values": window[: self.length], "future_values": window[self.length :]}
