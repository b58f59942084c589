"""Time one streaming step of every causal mixer, beside another version of lagwise.

    python benchmarks/mixer_steps.py --peer OTHER/src --out benchmarks/results/mixer-steps-cpu.json
    python benchmarks/mixer_steps.py --peer OTHER/src --compiled --out benchmarks/results/mixer-steps-compiled-cpu.json

The step is eager, or, with --compiled, that of a language model of one layer with the mixer, compiled. Both versions
run in processes of their own, one after the other, several times. A ratio below 1 means that this version is faster;
the ratio is that of the fastest runs. Every mixer first streams a signal and must equal its own whole forward. A file
of results keeps the cases that are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "toeplitz (rpe, decay .99)": ("toeplitz", {}),
    "toeplitz (no decay)": ("toeplitz", {"kernel": {"name": "rpe", "decay": 1.0}}),
    "toeplitz (ski)": ("toeplitz", {"kernel": {"name": "warped"}, "engine": "ski"}),
    "toeplitz (modal)": ("toeplitz", {"kernel": {"name": "modal"}}),
    "toeplitz (s4d)": ("toeplitz", {"kernel": {"name": "s4d"}}),
    "gtu": ("gtu", {}),
    "ema": ("ema", {}),
    "ema (truncated)": ("ema", {"truncation": 100}),
    "tcn": ("tcn", {}),
    "chunked attention": ("chunked_attention", {}),
    "attention": ("attention", {}),
    "relative attention": ("relative_attention", {}),
    "linear attention": ("linear_attention", {}),
    "flash": ("flash", {}),
    "short convolution": ("short_conv", {}),
    "hyena": ("hyena", {}),
    "lru": ("lru", {}),
    "s5": ("s5", {}),
    "gss": ("gss", {}),
}
CHANNELS, PROMPT, STEPS = 256, 200, 400


def measure(cases: Sequence[str], batch: int) -> dict[str, float]:
    """Median microseconds of a mixer's step, by case."""
    from lagwise.mixers import MIXERS

    found = {}
    for name in cases:
        kind, options = CASES[name]
        mixer: Any = MIXERS[kind](CHANNELS, **options).eval()
        x = torch.randn(batch, PROMPT + STEPS, CHANNELS)
        expected, (_, state), times = mixer(x), mixer.prefill(x[:, :PROMPT], mixer.init_state(batch)), []
        outputs = []
        for token in x[:, PROMPT:].unbind(1):
            began = time.perf_counter()
            y, state = mixer.step(token, state)
            times.append(time.perf_counter() - began)
            outputs.append(y)
        error = (torch.stack(outputs, 1) - expected[:, PROMPT:]).abs().max() / expected.abs().max()
        assert error < 1e-4, f"{name}: a stream is off by {error:.1e}"
        found[name] = statistics.median(times) * 1e6
    return found


def measure_compiled(cases: Sequence[str], batch: int) -> dict[str, float | None]:
    """Median microseconds of a model's compiled step, by case; None for a mixer that has none."""
    from lagwise.models import LagwiseConfig, LagwiseForCausalLM

    found: dict[str, float | None] = {}
    for name in cases:
        kind, options = CASES[name]
        block = {"name": "prenorm", "token_mixer": {"name": kind, **options}, "channel_mixer": {"name": "none"}}
        model = LagwiseForCausalLM(LagwiseConfig(hidden_size=CHANNELS, num_hidden_layers=1, block=block)).eval()
        try:
            model.compile_step(batch)
        except ValueError:
            found[name] = None
            continue
        ids, times = torch.randint(0, 256, (batch, PROMPT + STEPS)), []
        cache = model(ids[:, :PROMPT], use_cache=True).past_key_values
        for token in ids[:, PROMPT:].split(1, 1):
            began = time.perf_counter()
            model(token, past_key_values=cache)
            times.append(time.perf_counter() - began)
        found[name] = statistics.median(times) * 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the folder src of the other version")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--cases", nargs="*", default=list(CASES), help="all by default")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        with torch.no_grad():
            print(json.dumps((measure_compiled if chosen.compiled else measure)(chosen.cases, chosen.batch)))
        return
    sources = {"this": str(Path(__file__).parents[1] / "src"), **({"peer": chosen.peer} if chosen.peer else {})}
    there = chosen.out is not None and chosen.out.is_file()
    rows: dict[str, dict[str, float | None]] = json.loads(chosen.out.read_text())["results"] if there else {}
    for cases in [[case] for case in chosen.cases] if chosen.compiled else [chosen.cases]:  # compilers need memory
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
        for _ in range(chosen.repeats):
            for name, source in sources.items():
                command = [sys.executable, __file__, "--child", "--batch", str(chosen.batch), "--cases", *cases]
                done = subprocess.run(
                    [*command, *["--compiled"] * chosen.compiled],
                    env={**os.environ, "PYTHONPATH": source},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                runs[name].append(json.loads(done.stdout.splitlines()[-1]))
        for case in cases:
            rows[case] = row = {
                name: min((run[case] for run in each if run[case] is not None), default=None)
                for name, each in runs.items()
            }
            both = row["this"] is not None and row.get("peer") is not None
            ratio = f"{row['this'] / row['peer']:7.2f}" if both else ""
            print(
                f"{case:28}", *(f"{name} {value or math.nan:8.1f} µs" for name, value in row.items()), ratio, flush=True
            )
        if chosen.out:
            from lagwise.analysis.timing import save_results  # which the other version need not have

            options = " --compiled" * chosen.compiled + f" --repeats {chosen.repeats}"
            save_results(chosen.out, f"python benchmarks/mixer_steps.py --peer OTHER/src{options}", rows)


if __name__ == "__main__":
    main()
