"""Search for the byte-level language model that learns most in some minutes on one thread.

    python benchmarks/best_lm.py RUNS --data novels=FOLDER,enwik8=FILE,stdlib=stdlib --minutes 5 --rates 0.002,0.004
        [--models fd-tnn-lm,fd-local,fd-local+4,...] [--workers 2] [--results FILE]

Models are recipes of the package, as a baseline, and those of `CANDIDATES`: stacks of layers with different mixers. A
model with +N also embeds n-grams of 2 to N bytes, one with @N.M what followed the last N and M bytes before. One that
ends in -muon is trained by Muon, the others by AdamW. All read bytes in sequences of 512, in batches of 4, with warm-up
and a cosine schedule. The number of steps is what fits into the minutes, by the measured cost of a step and of a
validation (RUNS/costs.json). Each run is tested at 512, 2,048 and 14,336 bytes, and added to the results file under
DATA/MINUTES/MODEL/RATE. Finished runs are skipped and interrupted ones resumed. A search is several calls: short runs
of all models on one text, then longer ones of the best on all three.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from lagwise.training import load_recipe
from lagwise_papers.bench.run_queue import cadence, finish, keep, planned, scores, together

Fields = dict[str, Any]
BASELINES = ("transformer-alibi-lm", "fd-tnn-lm", "tnn-lm", "mega-lm", "tcnca-lm")
_LENGTHS, _TOKENS, _EVALUATIONS = "512,2048,14336", 131_072, 5
_MUON = "-muon"
_FREQUENCY: Fields = {"name": "frequency", "layers": 3, "hidden": 32, "inputs": "omega"}


def _layer(mixer: Fields) -> Fields:
    return {"name": "prenorm", "token_mixer": mixer, "channel_mixer": {"name": "glu", "expansion": 1}}


def _model(*layers: Fields, width: int = 256, repeated: int = 1, **options: Any) -> Fields:
    block = layers[0] if len(layers) == 1 else {"name": "chain", "blocks": list(layers), **options}
    return {"hidden_size": width, "num_hidden_layers": repeated, "block": block}


_FAR = _layer({"name": "gtu", "expansion": 1, "kernel": _FREQUENCY})  # a kernel as long as the text
_MODAL = _layer({"name": "gtu", "expansion": 1, "kernel": {"name": "s4d"}})
_NEAR = _layer({"name": "chunked_attention", "heads": 4, "chunk": 128, "position": "rope"})
_NEXT = _layer({"name": "short_conv", "kernel_size": 4})
_SCAN = _layer({"name": "lru"})

CANDIDATES: dict[str, Fields] = {
    "fd-local": _model(_FAR, _NEAR, repeated=2),  # far and near in turn
    "fd-local-last": _model(_FAR, _FAR, _FAR, _NEAR),
    "conv-fd-local": _model(_NEXT, _FAR, _NEXT, _NEAR),  # neighbours first
    "conv-local": _model(_NEXT, _NEXT, _NEAR, repeated=2),  # without a long kernel
    "conv-fd": _model(_NEXT, _FAR, repeated=2),
    "conv-s4d-local": _model(_NEXT, _MODAL, _NEXT, _NEAR),
    "lru-local": _model(_SCAN, _NEAR, repeated=2),
    "fd-wide": _model(_FAR, width=384, repeated=3),
    "fd-deep": _model(_FAR, width=192, repeated=6),
    "conv-fd-local-wide": _model(_NEXT, _FAR, _NEAR, width=320),
    "conv-fd-local-input": _model(_NEXT, _FAR, _NEXT, _NEAR, input_residual=True),
}


def parse_name(model: str) -> tuple[str, str, str]:
    """Parse the layers of a model, its longest n-gram, and its sizes of matches, from its name."""
    name, _, matches = model.removesuffix(_MUON).partition("@")
    name, _, longest = name.partition("+")
    return name, longest, matches


def recipe(model: str, rate: float, source: str, folder: Path) -> Path:
    """Write the recipe of a run."""
    optimizer = "muon" if model.endswith(_MUON) else "adamw"
    name, longest, matches = parse_name(model)
    fields = CANDIDATES[name] if name in CANDIDATES else load_recipe(name).model
    if longest:
        fields = {**fields, "ngram_sizes": list(range(2, int(longest) + 1))}
    if matches:
        fields = {**fields, "match_sizes": [int(size) for size in matches.split(".")]}
    text = {
        "description": f"{model} on bytes",
        "model": fields,
        "data": {"source": source, "tokenizer": "bytes", "length": 512},
        "training": {"batch_size": 4, "learning_rate": rate, "optimizer": optimizer},
    }
    path = folder / f"{model}-{rate}.yaml"
    path.write_text(yaml.safe_dump(text, sort_keys=False))
    return path


def train(run: Path, key: str, path: Path, plan: dict[str, Any], results: Path) -> None:
    count = plan["steps"]
    new = ["--recipe", str(path), *cadence(count, _EVALUATIONS)]
    done = finish(run, new, ["--lengths", _LENGTHS, "--tokens", str(_TOKENS)])
    run_scores = scores(run)
    curve = [(m["step"], m["eval_loss"]) for m in done["evaluations"]]
    result = {**plan, "machine": done["machine"], "model": load_recipe(str(path)).model, "curve": curve}
    keep(results, key, {**result, "scores": {split: run_scores[split] for split in ("valid", "test")}})
    by_length = " ".join(f"{score['bits_per_byte']:.4f}" for score in run_scores["test"])
    print(f"{key}: {count} steps, test bits per byte at {_LENGTHS}: {by_length}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder for the runs")
    parser.add_argument("--data", required=True, help="NAME=SOURCE, separated by commas")
    parser.add_argument("--models", default=",".join([*BASELINES[:2], *CANDIDATES]), help="separated by commas")
    parser.add_argument("--rates", default="0.002,0.004", help="learning rates, separated by commas")
    parser.add_argument("--minutes", type=float, default=5, help="minutes per run (5)")
    parser.add_argument("--workers", type=int, default=2, help="concurrent runs (2)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/best-lm-cpu.json"))
    args = parser.parse_args()
    models = args.models.split(",")
    if unknown := {parse_name(model)[0] for model in models} - {*BASELINES, *CANDIDATES}:
        parser.error(f"unknown models {', '.join(sorted(unknown))}; known: {', '.join([*BASELINES, *CANDIDATES])}")
    jobs_by_key = {}
    for pair in args.data.split(","):
        name, _, source = pair.partition("=")
        folder = args.runs / f"{name}-{args.minutes:g}"
        folder.mkdir(parents=True, exist_ok=True)
        source = source if source == "stdlib" else str(Path(source).resolve())
        for model in models:
            for rate in map(float, args.rates.split(",")):
                path = recipe(model, rate, source, folder)
                jobs_by_key[f"{name}/{args.minutes:g}/{model}/{rate}"] = folder / f"{model}-{rate}", path
    jobs = {key: (str(path), list[str]()) for key, (_, path) in jobs_by_key.items()}
    plan = planned(jobs, args.minutes, args.runs / "costs.json", _EVALUATIONS)
    runs = (partial(train, run, key, path, plan[key], args.results) for key, (run, path) in jobs_by_key.items())
    together(args.workers, runs)
    results = json.loads(args.results.read_text())["results"]
    for key in sorted(jobs_by_key, key=lambda key: results[key]["scores"]["valid"]["bits_per_byte"]):
        print(f"{results[key]['scores']['valid']['bits_per_byte']:.4f}  {key}")


if __name__ == "__main__":
    main()
