"""Series of which samples are missing at random: read by their times, as gaps, or as if nothing were missing.

    python benchmarks/irregular.py work/ --out benchmarks/results/irregular-cpu.json [--sets GunPoint,ArrowHead]

The series are those that come with sktime. A share of the samples of every series, train and test alike, is removed at
random. The same model, of S4D's kernels, learns the rest in three ways: each sample with its time (``task.time``), all
places with NaN where a sample is missing, or the samples one after the other. A model that was trained on whole series
is also tested on the rest, with its kernels stepped by time and not. OUT gets the results as they come, and keeps those
of other sets.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lagwise.data.series import with_times
from lagwise.models import load_model
from lagwise.runs import evaluate_run
from lagwise.training import load_recipe, train
from lagwise_papers.bench.timing import save_results

SHARES = (0.3, 0.5)
WAYS = ("times", "gaps", "ignored")
OPTIONS = [
    *("task.stride=1", "model.hidden_size=32", "model.num_hidden_layers=2", "training.first_answer=none"),
    "model.block={name: prenorm, norm: batch, token_mixer: {name: gtu, expansion: 1, kernel: {name: s4d, modes: 8}}, "
    "channel_mixer: {name: mlp, expansion: 2}}",
    *("training.steps=250", "training.evaluate_every=250", "training.save_every=250", "training.batch_size=16"),
    "training.learning_rate=0.005",
]


def series(name: str) -> dict[str, tuple[np.ndarray, list[str]]]:
    """Load series ``(rows, samples)`` and labels of each split, without those of other lengths."""
    from sktime.datasets import load_UCR_UEA_dataset

    by_split = {}
    for split in ("train", "test"):
        x, labels = load_UCR_UEA_dataset(name, split=split, return_X_y=True, return_type="numpy3d")
        by_split[split] = np.asarray(x)[:, 0], [str(label) for label in labels]
    return by_split


def keep_mask(shape: tuple[int, ...], share: float, seed: int) -> np.ndarray:
    """Draw which samples of each series stay."""
    return np.random.default_rng(seed).random(shape) >= share


def write(folder: Path, data: dict[str, tuple[np.ndarray, list[str]]], share: float, way: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, (x, labels)) in enumerate(data.items()):
        keep, times = keep_mask(x.shape, share, seed), np.arange(x.shape[1])
        lines = []
        for row, keep_row, label in zip(x, keep, labels, strict=True):
            values = row[keep_row] if way != "gaps" else np.where(keep_row, row, np.nan)
            cells = [None if np.isnan(value) else round(float(value), 6) for value in values]
            record: dict[str, Any] = {"input_values": cells, "label": label}
            lines.append(json.dumps(record | ({"t": times[keep_row].tolist()} if way == "times" else {})))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def run_of(folder: Path, out: Path, options: Sequence[str] = ()) -> Path:
    if not (out / "config.json").is_file():
        recipe = load_recipe("series", [*OPTIONS, *options])
        recipe.data.source = str(folder)
        train(recipe, out, progress=False)
    return out


@torch.inference_mode()
def transfer(run: Path, x: np.ndarray, labels: list[str], share: float, *, timed: bool) -> float:
    """Measure the accuracy of a model of whole series on what is left of them, by their times or without."""
    plain, _ = load_model(run)
    inputs = plain.config.inputs
    scale = {"mean": [0.0, *inputs["mean"]], "std": [1.0, *inputs["std"]]}
    model = load_model(run, inputs={**inputs, "features": 2, "time": 1.0, **scale})[0] if timed else plain
    right = 0
    for row, keep_row, label in zip(x, keep_mask(x.shape, share, 1), labels, strict=True):
        values = with_times(row[keep_row], np.flatnonzero(keep_row), "a series") if timed else row[keep_row][:, None]
        logits = model(input_values=torch.tensor(values, dtype=torch.float32)[None]).logits
        right += model.config.id2label[int(logits.argmax())] == label
    return right / len(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default="GunPoint,ArrowHead,ItalyPowerDemand")
    options = parser.parse_args()
    names = options.sets.split(",")
    earlier = json.loads(options.out.read_text())["results"] if options.out.is_file() else []
    results: list[dict[str, Any]] = [row for row in earlier if row["set"] not in names]
    for name in names:
        data, root = series(name), options.work / name
        write(root / "whole", data, 0.0, "ignored")
        began = time.process_time()
        full_run = run_of(root / "whole", root / "run-whole")
        score = evaluate_run(full_run, progress=False)["test"]["accuracy"]
        seconds = round(time.process_time() - began, 1)
        results.append({"set": name, "missing": 0.0, "way": "whole", "accuracy": score, "cpu_seconds": seconds})
        x, labels = data["test"]
        for share in SHARES:
            for way in WAYS:
                began = time.process_time()
                write(root / f"{share}-{way}", data, share, way)
                run = run_of(root / f"{share}-{way}", root / f"run-{share}-{way}", ["task.time=t"] * (way == "times"))
                score = evaluate_run(run, progress=False)["test"]["accuracy"]
                seconds = round(time.process_time() - began, 1)
                results.append({"set": name, "missing": share, "way": way, "accuracy": score, "cpu_seconds": seconds})
                print(json.dumps(results[-1]), flush=True)
            for way, timed in (("trained whole, times", True), ("trained whole, ignored", False)):
                score = transfer(full_run, x, labels, share, timed=timed)
                results.append({"set": name, "missing": share, "way": way, "accuracy": score})
                print(json.dumps(results[-1]), flush=True)
            save_results(options.out, f"python benchmarks/irregular.py {' '.join(sys.argv[1:])}", results)


if __name__ == "__main__":
    main()
