"""Train language models of one size for equal times, with one thread per run: TNN's tables 2, 7 to 10 and 15, small.

    python papers/benchmarks/language.py DATA RUNS [--plan family|ablations] [--models tnn,mega,...] [--minutes 20]
        [--seeds 1] [--workers 2]

Every model has six layers and the width at which its blocks have about 2.5 million parameters; the ablations have TNN's
width. All models share a vocabulary of 8,192 BPE tokens from the text DATA, sequences of 512 tokens, and, as in the
papers, one setting of the training: batches of 4, AdamW, a learning rate of 0.002 with warm-up and a cosine schedule.

The number of steps is what fits into the minutes. It is estimated from the mean CPU time of some steps that the models
take in turn, and of a validation, both kept in RUNS/costs.json, so a busy machine affects a run's duration but not its
result. Finished runs are skipped and interrupted runs are resumed, so the commands may be stopped and repeated.

A finished run is tested on the first 131,072 tokens at lengths 512 to 14336, except lengths that a model does not
support. Its scores and curve are added to the plan's results file.
"""

from __future__ import annotations

import argparse
import bisect
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from lagwise.models.presets import PRESETS
from lagwise_papers.bench.run_queue import cadence, finish, keep, planned, scores, together

Fields = dict[str, Any]
LENGTH = 512
_SIZE, _STEP = 2_500_000, 8  # parameters of all blocks, and step of widths
_BATCH, _RATE = 4, 0.002  # small batches, because so short a run takes few steps
_LENGTHS, _TOKENS = "512,1024,2048,4096,8192,14336", 131_072
_EVALUATIONS = 10
_RESULTS = Path("benchmarks/results")


@dataclass(frozen=True)
class Model:
    """A block, and how often it is repeated; the width is fitted to the common size if it is not given."""

    block: Fields
    layers: int = 6
    width: int | None = None
    sinusoidal: bool = False  # positions for mixers without any, scaled to the embeddings as in fairseq


def _kernel(name: str, width: int | None = None, **options: Any) -> Model:
    """TNN's block with a kernel."""
    block = PRESETS["tnn"]["block"]
    mixer = {**block["token_mixer"], "kernel": {"name": name, **options}}
    return Model({**block, "token_mixer": mixer}, width=width)


def _mixer(name: str, sinusoidal: bool = False, **options: Any) -> Model:
    """The Transformer's block with a token mixer."""
    mixer, mlp = {"name": name, **options}, {"name": "mlp", "expansion": 4}
    block = {"name": "prenorm", "norm": "layer", "token_mixer": mixer, "channel_mixer": mlp}
    return Model(block, sinusoidal=sinusoidal)


def _layer(name: str, **options: Any) -> Model:
    """A gated mixer without a channel mixer, as published."""
    mixer = {"name": name, **options}
    return Model({"name": "prenorm", "norm": "layer", "token_mixer": mixer, "channel_mixer": {"name": "none"}})


def _preset(word: str) -> Model:
    """The block of the preset ``model=WORD``."""
    return Model(PRESETS[word]["block"])


_RPE = {"layers": 3, "hidden": 32}
_HEADS = {"heads": 4}
_SPAN = {"span": LENGTH}  # lags to which a kernel is scaled: those that are trained

FAMILY: dict[str, Model] = {
    "tnn": _preset("tnn"),
    "transformer-alibi": _mixer("attention", **_HEADS, position="alibi"),
    "fd-tnn": _preset("fd-tnn"),
    "ski-tnn": _preset("ski-tnn"),
    "mega": _preset("mega"),
    "tcnca": _preset("tcnca"),
    "transformer": _mixer("attention", sinusoidal=True, **_HEADS, position="none"),
    # The kernel of the published language models: 33 inputs, sines of frequency 14.
    "hyena": _mixer("hyena", kernel={"name": "hyena", "bands": 16, "frequency": 14.0, **_SPAN}),
    "s4d": _kernel("s4d"),
    "gss": _layer("gss"),
    "flash": _layer("flash"),
    "short-conv": _mixer("short_conv"),
    "lru": _mixer("lru"),
    "s4": _kernel("s4", **_SPAN),
    "dss": _kernel("dss"),
    "sgconv": _kernel("sgconv", scales=5),  # ends after 512 lags, because taps that are not trained stay random
    "linear-elu": _mixer("linear_attention", sinusoidal=True, **_HEADS),
    "performer": _mixer("linear_attention", sinusoidal=True, **_HEADS, feature_map="favor", count=192),
    "cosformer": _mixer("linear_attention", **_HEADS, feature_map="cosformer", **_SPAN),
    "transformer-ls": _mixer("long_short", **_HEADS),
    "synthesizer-dense": _mixer("synthesizer", **_HEADS, form="dense", max_length=LENGTH),
    "synthesizer-random": _mixer("synthesizer", heads=1, form="random", max_length=LENGTH),
    "gmlp": _layer("gmlp", max_length=LENGTH),
    "s5": _mixer("s5"),
    "spectral": _kernel("spectral", **_SPAN),
}

_WIDTH = 256  # the width of ``tnn``
_STRUCTURE = PRESETS["tnn"]["block"]

#: Tables 7 (structure), 8 (inputs of the RPE), 9 (with and without it) and 10 (decay). The published TNN is
#: ``decay-0.99``; all have the width of ``tnn``, and the structures as many parameters.
ABLATIONS: dict[str, Model] = {
    "decay-0.9": _kernel("rpe", _WIDTH, **_RPE, decay=0.9),
    "decay-0.95": _kernel("rpe", _WIDTH, **_RPE, decay=0.95),
    "decay-0.99": _kernel("rpe", _WIDTH, **_RPE, decay=0.99),
    "decay-0.999": _kernel("rpe", _WIDTH, **_RPE, decay=0.999),
    "decay-1": _kernel("rpe", _WIDTH, **_RPE, decay=1.0),
    "decay-learned": _kernel("rpe", _WIDTH, **_RPE, learn_decay=True),
    "inputs-normalized": _kernel("rpe", _WIDTH, **_RPE, inputs="normalized"),
    "inputs-sincos": _kernel("rpe", _WIDTH, **_RPE, inputs="sincos"),
    "without-rpe": _kernel("free", _WIDTH, max_length=LENGTH),
    "gtu-only": Model({**_STRUCTURE, "channel_mixer": {"name": "none"}}, layers=12, width=_WIDTH),
    "attention-glu": Model(
        {
            **_STRUCTURE,
            "token_mixer": {"name": "attention", **_HEADS, "position": "alibi"},
            "channel_mixer": {"name": "glu", "expansion": 0.67},
        },
        width=_WIDTH,
    ),
}
PLANS = {"family": FAMILY, "ablations": ABLATIONS}


def fields(model: Model, width: int) -> Fields:
    """Return the fields of a model's configuration."""
    norm = "layer" if model.block.get("norm") == "layer" or model.block["name"] == "mega" else "rms"
    values = {"hidden_size": width, "num_hidden_layers": model.layers, "norm": norm, "block": dict(model.block)}
    return {**values, "position_embedding": "sinusoidal", "scale_embeddings": True} if model.sinusoidal else values


def size(model: Model, width: int) -> int:
    """Count the parameters of a model's blocks, kernels included."""
    import torch

    from lagwise.models import LagwiseConfig, LagwiseForCausalLM

    with torch.device("meta"):
        model_on_meta = LagwiseForCausalLM(LagwiseConfig(vocab_size=1, **fields(model, width)))
    return sum(p.numel() for p in model_on_meta.model.parameters()) - width


def fitted(model: Model) -> tuple[int, int]:
    """Choose the model's width, or that at which the blocks are closest to the common size, and their parameters."""
    if model.width:
        return model.width, size(model, model.width)
    widths = range(128, 513, _STEP)
    above = bisect.bisect_left(widths, _SIZE, key=lambda width: size(model, width))  # sizes grow with the width
    near = {width: size(model, width) for width in widths[max(0, above - 1) : above + 1]}
    return min(near.items(), key=lambda each: abs(each[1] - _SIZE))


def recipe(name: str, model: Model, data: Path, folder: Path) -> tuple[Path, Fields]:
    """Write a model's recipe; return its path, and the model's width and size."""
    width, parameters = fitted(model)
    path = folder / f"{name}.yaml"
    text = {
        "description": f"{name}, {parameters:,} parameters without embeddings",
        "model": fields(model, width),
        "data": {"source": str(data.resolve()), "tokenizer": "bpe", "vocab_size": 8192, "length": LENGTH},
        "training": {"batch_size": _BATCH, "learning_rate": _RATE},
    }
    path.write_text(yaml.safe_dump(text, sort_keys=False))
    return path, {"width": width, "parameters": parameters, "block": model.block}


def train(run: Path, seed: int, path: Path, about: Fields, results: Path) -> None:
    """Train a run, test it, and keep its results."""
    count = about["steps"]
    new = ["--recipe", str(path), *cadence(count, _EVALUATIONS), f"training.seed={seed}"]
    done = finish(run, new, ["--lengths", _LENGTHS, "--tokens", str(_TOKENS)])
    run_scores = scores(run)
    keep(
        results,
        run.name,
        {
            "seed": seed,
            **about,
            "elapsed_seconds": done["seconds"],
            "tokens_per_second": _BATCH * LENGTH / about["seconds"],
            "machine": done["machine"],
            "curve": [(m["step"], m["eval_loss"]) for m in done["evaluations"]],
            "scores": {split: run_scores[split] for split in ("valid", "test")},
        },
    )
    last = run_scores["test"][0]
    print(
        f"{run.name}: {count} steps, {last['bits_per_byte']:.4f} bits per byte, perplexity {last['perplexity']:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="a text file, or a folder with train.txt, valid.txt and test.txt")
    parser.add_argument("runs", type=Path, help="folder for the runs")
    parser.add_argument("--plan", choices=PLANS, default="family")
    parser.add_argument("--models", help="models of the plan, separated by commas (all)")
    parser.add_argument("--minutes", type=float, default=20, help="minutes per run (20)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each model (1)")
    parser.add_argument("--workers", type=int, default=2, help="concurrent runs (2)")
    args = parser.parse_args()
    models = PLANS[args.plan]
    names = args.models.split(",") if args.models else list(models)
    if unknown := set(names) - set(models):
        parser.error(f"unknown models {', '.join(sorted(unknown))}; available: {', '.join(models)}")
    runs = args.runs / args.plan
    runs.mkdir(parents=True, exist_ok=True)
    recipes = {name: recipe(name, models[name], args.data, runs) for name in names}
    jobs = {name: (str(path), list[str]()) for name, (path, _) in recipes.items()}
    plan = planned(jobs, args.minutes, args.runs / "costs.json", _EVALUATIONS)
    results = _RESULTS / f"language-{args.plan}-cpu.json"
    calls = []
    for seed in range(args.seeds):
        for name, (path, about) in recipes.items():
            run = runs / (name if seed == 0 else f"{name}-seed{seed}")
            about = {**about, "minutes": args.minutes, **plan[name]}
            calls.append(partial(train, run, seed, path, about, results))
    together(args.workers, calls)


if __name__ == "__main__":
    main()
