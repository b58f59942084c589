"""Train language models of one size for equal times, with one thread per run: TNN's tables 2, 7 to 10 and 15, small.

    python benchmarks/language.py DATA RUNS [--plan family|ablations] [--models tnn,mega,...] [--minutes 20]
        [--seeds 1] [--workers 2] [--results FILE]

Every model has six layers and the width at which its blocks have about 2.5 million parameters. All models share a
vocabulary of 8,192 BPE tokens from the text DATA, sequences of 512 tokens, batches of 8, warm-up, a cosine schedule and
AdamW. The learning rate is 0.002 for attention and state spaces and 0.004 otherwise; neither is tuned. The number of
steps is what fits into the minutes. It is estimated from the mean time of some steps that the models take in turn and
kept in RUNS/steps.json, so a busy machine affects a run's duration but not its result. Finished runs are skipped and
interrupted runs are resumed, so the command may be stopped and repeated.

A finished run is tested on the first 262,144 tokens at lengths 512 to 14336, except lengths that a model does not
support. Its scores and curve are added to the results file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from run_queue import finish, keep, planned, scores

from lagwise.models.presets import PRESETS

Fields = dict[str, Any]
_LAYERS, _SIZE, _STEP = 6, 2_500_000, 16  # number of blocks, parameters of all blocks, and step of widths
_LENGTHS, _TOKENS, _EVALUATIONS = "512,1024,2048,4096,8192,14336", 262_144, 10
_ATTENTION_RATE, _RATE = 0.002, 0.004


def _kernel(name: str, rate: float = _RATE, **options: Any) -> tuple[float, Fields]:
    """TNN's block with a kernel."""
    block = PRESETS["tnn"]["block"]
    return rate, {**block, "token_mixer": {**block["token_mixer"], "kernel": {"name": name, **options}}}


def _mixer(name: str, rate: float = _RATE, **options: Any) -> tuple[float, Fields]:
    """The Transformer's block with a token mixer."""
    mlp = {"name": "mlp", "expansion": 4}
    return rate, {
        "name": "prenorm",
        "norm": "layer",
        "token_mixer": {"name": name, **options},
        "channel_mixer": mlp,
    }


def _layer(name: str, rate: float = _RATE, **options: Any) -> tuple[float, Fields]:
    """A gated mixer without a channel mixer, as published."""
    mixer = {"name": name, **options}
    return rate, {"name": "prenorm", "norm": "layer", "token_mixer": mixer, "channel_mixer": {"name": "none"}}


def _preset(word: str) -> tuple[float, Fields]:
    """The block of the preset ``model=WORD``."""
    return _RATE, PRESETS[word]["block"]


_A = _ATTENTION_RATE
_RPE = {"layers": 3, "hidden": 32}
_HEADS = {"heads": 4}

#: Learning rate and block of each model.
FAMILY: dict[str, tuple[float, Fields]] = {
    "tnn": _preset("tnn"),
    "transformer-alibi": _mixer("attention", _A, **_HEADS, position="alibi"),
    "fd-tnn": _preset("fd-tnn"),
    "ski-tnn": _preset("ski-tnn"),
    "mega": _preset("mega"),
    "tcnca": _preset("tcnca"),
    "transformer": _mixer("attention", _A, **_HEADS, position="none"),
    "hyena": _mixer("hyena"),
    "s4d": _kernel("s4d", _A),
    "gss": _layer("gss", _A),
    "flash": _layer("flash", _A),
    "short-conv": _mixer("short_conv"),
    "lru": _mixer("lru", _A),
    "s4": _kernel("s4", _A),
    "dss": _kernel("dss", _A),
    "sgconv": _kernel("sgconv"),
    "linear-elu": _mixer("linear_attention", _A, **_HEADS),
    "performer": _mixer("linear_attention", _A, **_HEADS, feature_map="favor"),
    "cosformer": _mixer("linear_attention", _A, **_HEADS, feature_map="cosformer"),
    "transformer-ls": _mixer("long_short", _A, **_HEADS),
    "synthesizer-dense": _mixer("synthesizer", _A, **_HEADS, form="dense", max_length=512),
    "synthesizer-random": _mixer("synthesizer", _A, heads=1, form="random", max_length=512),
    "gmlp": _layer("gmlp", _A),
    "s5": _mixer("s5", _A),
    "spectral": _kernel("spectral"),
}

#: Tables 7 (structure), 8 (inputs of the RPE), 9 (with and without it) and 10 (decay). Their first row is ``tnn`` of
#: `FAMILY`.
ABLATIONS: dict[str, tuple[float, Fields]] = {
    "decay-0.9": _kernel("rpe", **_RPE, decay=0.9),
    "decay-0.95": _kernel("rpe", **_RPE, decay=0.95),
    "decay-0.999": _kernel("rpe", **_RPE, decay=0.999),
    "decay-1": _kernel("rpe", **_RPE, decay=1.0),
    "decay-learned": _kernel("rpe", **_RPE, learn_decay=True),
    "inputs-normalized": _kernel("rpe", **_RPE, inputs="normalized"),
    "inputs-sincos": _kernel("rpe", **_RPE, inputs="sincos"),
    "without-rpe": _kernel("free", max_length=512),
    "gtu-only": (_RATE, {**PRESETS["tnn"]["block"], "channel_mixer": {"name": "none"}}),
    "attention-glu": (
        _A,
        {**PRESETS["tnn"]["block"], "token_mixer": {"name": "attention", **_HEADS, "position": "alibi"}},
    ),
}
PLANS = {"family": FAMILY, "ablations": ABLATIONS}

#: Position embeddings for mixers without positions, and the final norm for blocks with layer norm.
_SINUSOIDAL = ("transformer", "linear-elu", "performer")


def fields(name: str, block: Mapping[str, Any], width: int) -> Fields:
    """Fields of a model's configuration."""
    norm = "layer" if block.get("norm") == "layer" or block["name"] == "mega" else "rms"
    position = {"position_embedding": "sinusoidal"} if name in _SINUSOIDAL else {}
    return {"hidden_size": width, "num_hidden_layers": _LAYERS, "norm": norm, **position, "block": dict(block)}


def size(name: str, block: Mapping[str, Any], width: int) -> int:
    """Parameters of a model's blocks, kernels included."""
    import torch

    from lagwise.models import LagwiseConfig, LagwiseForCausalLM

    with torch.device("meta"):
        model = LagwiseForCausalLM(LagwiseConfig(vocab_size=1, **fields(name, block, width)))
    return sum(p.numel() for p in model.model.parameters()) - width


def fitted(name: str, block: Mapping[str, Any]) -> tuple[int, int]:
    """The width at which the blocks are closest to the common size, and their parameters."""
    widths: Iterator[int] = iter(range(128, 513, _STEP))
    sizes = {width: size(name, block, width) for width in widths}
    return min(sizes.items(), key=lambda each: abs(each[1] - _SIZE))


def recipe(name: str, plan: str, data: Path, folder: Path) -> tuple[Path, Fields]:
    """Write a model's recipe; return its path, and the model's width, size and learning rate."""
    rate, block = PLANS[plan][name]
    width, parameters = fitted(name, block)
    path = folder / f"{name}.yaml"
    text = {
        "description": f"{name}, {parameters:,} parameters without embeddings",
        "model": fields(name, block, width),
        "data": {"source": str(data.resolve()), "tokenizer": "bpe", "vocab_size": 8192, "length": 512},
        "training": {"batch_size": 8, "learning_rate": rate},
    }
    path.write_text(yaml.safe_dump(text, sort_keys=False))
    return path, {"plan": plan, "width": width, "parameters": parameters, "learning_rate": rate, "block": block}


def train(name: str, seed: int, path: Path, about: Fields, runs: Path, results: Path) -> None:
    count = about["steps"]
    run = runs / (name if seed == 0 else f"{name}-seed{seed}")
    every = max(1, count // _EVALUATIONS)
    new = [
        *("--recipe", str(path), f"training.steps={count}", f"training.warmup_steps={max(1, count // 20)}"),
        *(f"training.evaluate_every={every}", f"training.save_every={every}", f"training.seed={seed}"),
    ]
    done = finish(run, new, ["--lengths", _LENGTHS, "--tokens", str(_TOKENS)])
    found = scores(run)
    curve = [(m["step"], m["eval_loss"]) for m in done["evaluations"]]
    keep(
        results,
        run.name,
        {
            "seed": seed,
            **about,
            "tokens_per_second": 8 * 512 / about["seconds"],
            "machine": done["machine"],
            "curve": curve,
            "scores": {split: found[split] for split in ("valid", "test")},
        },
    )
    last = found["test"][0]
    print(f"{run.name}: {count} steps, test perplexity {last['perplexity']:.2f} at {last['length']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="a text file, or a folder with train.txt, valid.txt and test.txt")
    parser.add_argument("runs", type=Path, help="folder for the runs")
    parser.add_argument("--plan", choices=PLANS, default="family")
    parser.add_argument("--models", help="models of the plan, separated by commas (all)")
    parser.add_argument("--minutes", type=float, default=20, help="minutes per run (20)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each model (1)")
    parser.add_argument("--workers", type=int, default=2, help="concurrent runs (2)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/language-cpu.json"))
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    names = given.models.split(",") if given.models else list(PLANS[given.plan])
    if unknown := set(names) - set(PLANS[given.plan]):
        parser.error(f"unknown models {', '.join(sorted(unknown))}; available: {', '.join(PLANS[given.plan])}")
    made = {name: recipe(name, given.plan, given.data, given.runs) for name in names}
    steps = planned({n: (str(path), []) for n, (path, _) in made.items()}, given.minutes, given.runs / "steps.json")
    with ThreadPoolExecutor(given.workers) as pool:
        jobs = [
            pool.submit(train, name, seed, path, {**about, **steps[name]}, given.runs, given.results)
            for seed in range(given.seeds)
            for name, (path, about) in made.items()
        ]
        for job in jobs:
            job.result()


if __name__ == "__main__":
    main()
