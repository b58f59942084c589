"""A model in continuous time at other sampling rates than that of its training: classes of heart beats.

    python benchmarks/rates.py rows/ runs/rates --out benchmarks/results/rates-cpu.json

rows/ is that of `benchmarks/ecg.py prepare`. A second of one lead around each annotated beat is normal (N) or
ventricular (V), as many of each. The model, of S4D's kernels, is trained on the patients of DS1 at 360 Hz; the same
beats of DS2 are then resampled (polyphase) and classified by `load_model(folder, rate=...)`, and by the model as it is.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from scipy.signal import resample_poly

from ecg import RATE
from ecg_beats import read
from lagwise.models import load_model
from lagwise.training import load_recipe, train
from lagwise_papers.bench.timing import save_results

HALF = RATE // 2  # samples on each side of a beat
MAX_BEATS = 1200  # beats of each class in a split
RATES = {"720": (2, 1), "360": (1, 1), "180": (1, 2), "120": (1, 3), "90": (1, 4)}  # Hz, and the ratio to 360 Hz
OPTIONS = [
    *("model.causal=true", "model.hidden_size=32", "model.num_hidden_layers=2", "task.stride=1"),
    "model.block={name: prenorm, norm: layer, token_mixer: {name: gtu, expansion: 1, kernel: {name: s4d, modes: 16}}, "
    "channel_mixer: {name: mlp, expansion: 2}}",
    *("training.steps=400", "training.batch_size=32", "training.first_answer=none"),
    *("training.evaluate_every=100", "data.length=360"),
]


def windows(rows: Path, split: str) -> dict[str, np.ndarray]:
    """Read beats as ``input_values (beats, samples)`` and ``label``, the same number of N and V, from all records."""
    random = np.random.default_rng(0)
    beats_by_class: dict[str, list[np.ndarray]] = {"N": [], "V": []}
    for beats in read(rows, split).values():
        lead = beats["samples"][:, 0]
        for at, name in zip(beats["positions"], beats["classes"], strict=True):
            if name in beats_by_class and HALF <= at < len(lead) - HALF:
                beats_by_class[name].append(lead[at - HALF : at + HALF])
    count = min(MAX_BEATS, *map(len, beats_by_class.values()))
    selected = [each[i] for each in beats_by_class.values() for i in random.choice(len(each), count, replace=False)]
    return {"input_values": np.stack(selected).astype(np.float32), "label": np.repeat(list(beats_by_class), count)}


@torch.inference_mode()
def accuracy(run: Path, rate: float, x: np.ndarray, labels: np.ndarray) -> float:
    """Measure the accuracy of a model that is loaded for ``rate``, relative to that of training."""
    model, _ = load_model(run, rate=rate)
    chunks = torch.tensor(x, dtype=torch.float32)[..., None].split(100)
    predicted = torch.cat([model.eval()(input_values=chunk).logits.argmax(-1) for chunk in chunks])
    return float(np.mean([model.config.id2label[int(i)] == label for i, label in zip(predicted, labels, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    folder = options.run.with_name(f"{options.run.name}-beats")
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "valid", "test"):
        np.savez(folder / f"{split}.npz", **windows(options.rows, split))
    recipe = load_recipe("signal", OPTIONS)
    recipe.data.source = str(folder)
    train(recipe, options.run)
    test = np.load(folder / "test.npz")
    results = []
    for hertz, (up, down) in RATES.items():
        x = resample_poly(test["input_values"], up, down, axis=1, padtype="line")
        scaled, unscaled = (accuracy(options.run, rate, x, test["label"]) for rate in (up / down, 1.0))
        accuracies = {"accuracy": scaled, "unscaled": unscaled}
        results.append({"hertz": int(hertz), "rate": up / down, "beats": len(x), **accuracies})
        print(json.dumps(results[-1]), flush=True)
    save_results(options.out, f"python benchmarks/rates.py {' '.join(sys.argv[1:])}", results)


if __name__ == "__main__":
    main()
