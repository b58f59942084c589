"""Collect evaluated runs in a results file, a table and a plot.

    python benchmarks/compare_runs.py OUT.json RUN [RUN ...]

Each RUN is a folder written by `lagwise train` and `lagwise evaluate`. The file contains each run's recipe, size,
threads, validation curve, training speed and scores at every length.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import yaml

from lagwise.training import read_metrics
from lagwise_papers.bench.timing import save_results

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def gather(run: Path) -> dict[str, Any]:
    metrics = read_metrics(run)
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["data"]["source"] = Path(recipe["data"]["source"]).name
    about = json.loads((run / "run.json").read_text())
    evaluation = json.loads((run / "evaluation.json").read_text())
    evaluation["data"] = Path(evaluation["data"]).name
    summary = next(line for line in reversed(metrics) if "train_runtime" in line)
    seconds = summary["train_runtime"] - sum(line.get("eval_runtime", 0.0) for line in metrics)
    return {
        "recipe": recipe,
        "parameters": about["parameters"],
        "threads": about["threads"],
        "steps_per_second": recipe["training"]["steps"] / seconds,
        "validation": [(m["step"], m["eval_bits_per_byte"]) for m in metrics if "eval_bits_per_byte" in m],
        "evaluation": evaluation,
    }


def draw(runs: dict[str, dict[str, Any]], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for name, run in runs.items():
        steps, values = zip(*run["validation"], strict=True)
        left.plot(steps, values, label=name)
        scores = run["evaluation"]["test"]
        right.plot([s["length"] for s in scores], [s["bits_per_byte"] for s in scores], marker="o", label=name)
    left.set(xlabel="step", ylabel="validation bits per byte", title="Learning")
    right.set(xlabel="context length", ylabel="test bits per byte", xscale="log", title="Longer contexts, same bytes")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=130)


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, folders = Path(sys.argv[1]), [Path(a) for a in sys.argv[2:]]
    runs = {folder.name: gather(folder) for folder in folders}
    names = " ".join(f"runs/{name}" for name in runs)
    save_results(out, f"python benchmarks/compare_runs.py {out} {names}", runs)
    draw(runs, out.with_suffix(".png"))


if __name__ == "__main__":
    main()
