"""Time one streaming step of every causal mixer, eager, beside another version of lagwise.

    python benchmarks/mixer_steps.py --peer OTHER/src --out benchmarks/results/mixer-steps-cpu.json

Both versions run in processes of their own, one after the other, several times. A ratio below 1 means that this version
is faster. Every mixer first streams a signal and must equal its own whole forward.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

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


def measure(batch: int) -> dict[str, float]:
    """Median microseconds of a step, by case."""
    import torch

    from lagwise.mixers import MIXERS

    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = {}
    with torch.no_grad():
        for name, (kind, options) in CASES.items():
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the folder src of the other version")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps(measure(chosen.batch)))
        return
    sources = {"this": str(Path(__file__).parents[1] / "src"), **({"peer": chosen.peer} if chosen.peer else {})}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    for _ in range(chosen.repeats):
        for name, source in sources.items():
            command = [sys.executable, __file__, "--child", "--batch", str(chosen.batch)]
            done = subprocess.run(
                command, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=True
            )
            runs[name].append(json.loads(done.stdout.splitlines()[-1]))
    rows = {case: {name: min(run[case] for run in each) for name, each in runs.items()} for case in CASES}
    for case, row in rows.items():
        ratio = f"{row['this'] / row['peer']:7.2f}" if "peer" in row else ""
        print(f"{case:28}", *(f"{name} {value:8.1f} µs" for name, value in row.items()), ratio)
    if chosen.out:
        chosen.out.write_text(json.dumps({"batch": chosen.batch, "channels": CHANNELS, "microseconds": rows}, indent=1))


if __name__ == "__main__":
    main()
