"""Time the engines of the Toeplitz product on a CUDA card, in picoseconds per token and channel.

    python benchmarks/gpu_engines.py OUT.json [--lags 16,64,256,1833,8192] [--batch 4] [--length 8192] [--channels 512]

A call is a causal product of a bfloat16 signal with float32 taps, and its gradients to both, as a CUDA graph, which
takes the time of the card alone. ``direct`` is left out above 256 lags. An engine is timed only if its result and
gradients are within 1 % of those in float64.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lagwise.models.compiled import capture
from lagwise.ops import toeplitz_product
from lagwise_papers.bench.timing import Timing, interleaved, save_results

ENGINES = {"direct": 256, "fft": 1 << 20}  # engines, and the most lags of each
TOLERANCE = 0.01


def call(x: Tensor, taps: Tensor, cotangent: Tensor, engine: str) -> tuple[Tensor, ...]:
    """A product and its gradients to the signal and the taps."""
    y = toeplitz_product(x, taps, engine=engine)
    return y.detach(), *torch.autograd.grad(y, (x, taps), cotangent)


def check(results: tuple[Tensor, ...], exact: tuple[Tensor, ...], engine: str) -> None:
    """Raise ValueError for a result or gradient that is not the exact one."""
    errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(results, exact, strict=True)]
    if not max(errors) <= TOLERANCE:
        raise ValueError(f"engine {engine!r} has the relative errors {errors}; it is not timed")


def replay(run: Callable[[], tuple[Tensor, ...]], device: torch.device) -> Callable[[], Any]:
    """A call as a CUDA graph."""
    return capture(run, lambda: run()[0], device)[0]


def measure(batch: int, length: int, channels: int, lags: int, repeats: int) -> dict[str, Timing]:
    """Measure the seconds of a call, by engine."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    x, cotangent = (torch.randn(batch, length, channels, device=device, dtype=torch.bfloat16) for _ in range(2))
    taps = torch.randn(channels, lags, device=device) / lags**0.5
    exact = call(x.double().requires_grad_(), taps.double().requires_grad_(), cotangent.double(), "fft")
    calls: dict[str, Callable[[], Any]] = {}
    for engine, max_lags in ENGINES.items():
        if lags > max_lags:
            continue
        run = partial(call, x.requires_grad_(), taps.requires_grad_(), cotangent, engine)
        try:
            check(run(), exact, engine)
            calls[engine] = replay(run, device)
        except (ValueError, RuntimeError) as error:
            print(f"{engine}, {lags} lags: {str(error).splitlines()[0]}", flush=True)
    return interleaved(calls, repeats=repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--lags", default="16,64,256,1833,8192")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("There is no CUDA card here.")
    rows = []
    for lags in map(int, args.lags.split(",")):
        times = measure(args.batch, args.length, args.channels, lags, args.repeats)
        numbers = args.batch * args.length * args.channels
        picoseconds = {engine: time.median / numbers * 1e12 for engine, time in times.items()}
        rows.append({"lags": lags, "seconds": times, "picoseconds": picoseconds})
        print(f"{lags:6} lags: " + ", ".join(f"{engine} {value:.1f} ps" for engine, value in picoseconds.items()))
        shape = {"batch": args.batch, "length": args.length, "channels": args.channels}
        save_results(args.out, " ".join(["python", *sys.argv]), {**shape, "rows": rows})


if __name__ == "__main__":
    main()
