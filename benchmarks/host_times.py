r"""Time the host's part of a layer's training step on a GPU, without one, beside another version of lagwise.

    make test-triton  # which installs Triton into build/triton
    PYTHONPATH=build/triton python benchmarks/host_times.py --peer OTHER/src \
        --out benchmarks/results/host-times-cpu.json

A step is a forward and a backward pass under bfloat16 autocast, of tensors so small that computing takes little beside
the Python around it: one row of 48 tokens, 8 channels. The CPU stands for the card: fused kernels serve it, chosen as
for one, and a launch ends where Triton would call the driver; its launcher in Python runs, if Triton is installed. What
remains is the host's: modules, checks, autograd, PyTorch's dispatcher and Triton's launcher. The driver's part of about
5 microseconds a call comes on top.

A layer's time is the difference between models of three layers and of one; the chain of best-lm counts as four layers.
Each version runs in processes of its own, in turns, timed in CPU seconds of the process; the fastest of the runs
counts. ``--profile MODEL`` prints where the time goes instead.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib.metadata
import importlib.util
import json
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

MODELS = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm", "best-lm", "transformer-alibi-lm", "torch.fft")
PEERS = ("torch.fft", "literal TNO", "GPT-2")
HIDDEN, LENGTH, STEPS = 8, 48, 30
launches = 0


def launched(*_: Any, **__: Any) -> None:
    """Called in place of the driver."""
    global launches
    launches += 1


def pretend_card() -> None:
    """Have fused kernels serve the CPU, without running."""
    from lagwise.ops import fused

    fused._installed = True
    fused._devices[:] = ["cpu"]
    if importlib.util.find_spec("triton") is None:
        language = ModuleType("triton.language")
        language.constexpr = Any  # type: ignore[attr-defined]
        jit = lambda _: mock.MagicMock(__getitem__=lambda *_: launched)  # noqa: E731
        stub = SimpleNamespace(jit=jit, language=language)
        sys.modules |= {"triton": stub, "triton.language": language}  # type: ignore[dict-item]
        return
    from triton.runtime import driver, jit  # pyrefly: ignore[missing-import]

    from steps.triton_card import absent_card

    card, kernel = absent_card(launched)

    def compiled(self: Any, key: Any, _: Any, device: int, *__: Any) -> Any:
        self.device_caches[device][0][key] = kernel
        return kernel

    driver.set_active(card)
    jit.JITFunction._do_compile = compiled  # type: ignore[method-assign]


def training_step(name: str, layers: int) -> Callable[[], None]:
    """A model's step on the pretended card."""
    from steps.step_models import build

    torch.manual_seed(0)
    model, ids = build(name, HIDDEN, layers, LENGTH).train(), torch.randint(1, 257, (1, LENGTH))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(ids)
        loss.backward()

    for _ in range(3):
        step()
    return step


def measure(name: str) -> dict[str, float]:
    """Measure the CPU microseconds of the host and launches of Triton's kernels, a layer."""
    from steps.step_models import layers_between

    steps = {layers: training_step(name, layers) for layers in (1, 3)}
    best, counts = {layers: float("inf") for layers in steps}, {}
    for _ in range(STEPS):  # in turns, so that both meet the same machine
        for layers, step in steps.items():
            before, began = launches, time.process_time()
            step()
            best[layers] = min(best[layers], time.process_time() - began)
            counts[layers] = launches - before
    between = layers_between(name)
    return {
        "microseconds": (best[3] - best[1]) * 1e6 / between,
        "launches": (counts[3] - counts[1]) / between,
    }


def profile(name: str, order: str) -> None:
    """Print the functions of a step of three layers, by time."""
    step, profiler = training_step(name, 3), cProfile.Profile()
    with torch.autograd.set_multithreading_enabled(False):
        step()
        profiler.enable()
        for _ in range(20):
            step()
        profiler.disable()
    pstats.Stats(profiler).sort_stats(order).print_stats(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the folder src of the other version")
    parser.add_argument("--peer-name", help="such as a commit, for the file of results")
    parser.add_argument("--models", default=",".join([*MODELS, *PEERS[1:]]))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", metavar="MODEL")
    parser.add_argument("--order", default="tottime", help="of the profile: tottime or cumtime")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child or args.profile:
        torch.set_num_threads(1)
        pretend_card()
        if args.profile:
            profile(args.profile, args.order)
        else:
            print(json.dumps({name: measure(name) for name in args.models.split(",")}))
        return
    sources = {"this": str(Path(__file__).parents[1] / "src"), **({"peer": args.peer} if args.peer else {})}
    runs: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in sources}
    command = [sys.executable, __file__, "--child", "--models", args.models]
    for _ in range(args.repeats):
        for name, source in sources.items():
            path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
            environment = {**os.environ, "PYTHONPATH": path, "LAGWISE_NATIVE": "0"}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    for model in args.models.split(","):
        row: dict[str, Any] = {"model": model}
        for name, each in runs.items():
            row[name] = min((run[model] for run in each), key=lambda figures: figures["microseconds"])
        rows.append(row)
        texts = (f"{name} {row[name]['microseconds']:7.0f} µs {row[name]['launches']:5.1f} launches" for name in runs)
        print(f"{model:22}", "  ".join(texts), flush=True)
    if args.out:
        from lagwise_papers.bench.timing import save_results

        triton = None if importlib.util.find_spec("triton") is None else importlib.metadata.version("triton")
        command = "python benchmarks/host_times.py --peer OTHER/src"
        save_results(args.out, command, {"triton": triton, "peer": args.peer_name, "rows": rows})


if __name__ == "__main__":
    main()
