"""The recipe `chip` beside larger models: the language of a spoken prompt, and heart beats; with the sizes of its code.

    python benchmarks/sound_rates.py prepare root/ work/
    lagwise train --recipe chip --data work/sounds --out runs/chip-prompts task.stride=32 training.epochs=12 \
      training.seed=1
    lagwise train --recipe signal --data work/sounds --out runs/signal-prompts task.stride=32 training.epochs=12 \
      training.seed=1 model.causal=true training.first_answer=none
    python benchmarks/ecg.py train rows/ runs/chip-ecg model.hidden_size=32 'model.block=...'    # that of the recipe
    python benchmarks/chip.py runs/chip-prompts runs/signal-prompts runs/chip-ecg --out benchmarks/results/chip-cpu.json

Both models of prompts are causal and have as many steps of training. The larger model of beats is that of `ecg.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from ecg import score
from lagwise.runs import evaluate_run, export_run
from lagwise.training import load_recipe
from lagwise_papers.bench.timing import save_results

_FIGURES = ("constant_bytes", "flash_bytes", "state_bytes", "stack_bytes", "multiplications", "samples", "difference")


def code(run: Path, **options: Any) -> dict[str, Any]:
    """Measure the sizes of a run's step as C code, and the score of one in 8-bit integers."""
    with tempfile.TemporaryDirectory() as folder:
        figures = export_run(run, Path(folder, "c"), format="c", progress=False, **options)
    return {name: figures[name] for name in (*_FIGURES, "int8") if name in figures}


def result(run: Path) -> dict[str, Any]:
    """Score a run on its test data, and its step as C code; that of `chip` for prompts also in 8-bit integers."""
    if load_recipe(str(run / "recipe.yaml")).task["name"] == "sequence_labelling":
        scores = score(run)
        copied = ("parameters", "seconds", "steps", "without_positions", "with_positions")
        return {**{name: scores[name] for name in copied}, "float": code(run)}
    about = json.loads((run / "run.json").read_text())
    figures = {"parameters": about["parameters"], "test": evaluate_run(run, progress=False)["test"]}
    return {**figures, "float": code(run), **({"int8": code(run, quantize="int8")} if "chip" in run.name else {})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    results = {run.name: result(run) for run in options.runs}
    save_results(options.out, f"python benchmarks/chip.py {' '.join(sys.argv[1:])}", results)


if __name__ == "__main__":
    main()
