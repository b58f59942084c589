"""Sections about language models of one size, their ablations, and other people's code, once there are results."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from tables import has_results, measured_table, results

#: Test perplexities of TNN's table 2, 45 million parameters on WikiText-103.
PUBLISHED = {
    "transformer": 24.78,
    "transformer-ls": 24.05,
    "flash": 26.70,
    "linear-elu": 28.05,
    "performer": 63.16,
    "cosformer": 27.06,
    "synthesizer-dense": 32.43,
    "synthesizer-random": 34.78,
    "gmlp": 29.13,
    "s4": 39.66,
    "dss": 41.07,
    "gss": 30.74,
    "tnn": 24.67,
}
#: Validation perplexities of TNN's tables 7 to 10, and the averages over lengths of table 10.
ABLATED = {
    "tnn": (23.98, 23.70),
    "decay-0.9": (25.28, 25.22),
    "decay-0.95": (24.56, 24.63),
    "decay-0.999": (23.98, 24.56),
    "decay-1": (24.03, 672.72),
    "decay-learned": (27.65, 24.39),
    "without-rpe": (26.45, None),
    "gtu-only": (25.19, None),
    "attention-glu": (27.40, None),
}


def loss_at(run: dict[str, Any], step: float) -> float:
    """The validation loss of a run at a step, between the evaluations by a straight line."""
    points = run["curve"]
    for (before, loss), (after, later) in itertools.pairwise(points):
        if before <= step <= after:
            return loss + (later - loss) * (step - before) / (after - before)
    return points[0][1] if step < points[0][0] else points[-1][1]


def _perplexities(run: dict[str, Any]) -> dict[int, float]:
    return {score["length"]: score["perplexity"] for score in run["scores"]["test"]}


def _runs_of(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A model's runs, with all seeds."""
    return [run for key, run in found.items() if key.partition("-seed")[0] == name]


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def comparison() -> str:
    name = "language-family-cpu.json"
    if not has_results(name):
        return ""
    found = results(name)["results"]
    common = min(run["curve"][-1][0] for run in found.values())
    lengths = sorted({n for run in found.values() for n in _perplexities(run)})
    rows: list[list[Any]] = []
    for model in dict.fromkeys(key.partition("-seed")[0] for key in found):
        runs = _runs_of(found, model)
        scores = [_perplexities(run) for run in runs]
        rows.append(
            [
                model,
                f"{runs[0]['parameters'] / 1e6:.2f}M",
                f"{runs[0]['tokens_per_second']:,.0f}",
                f"{statistics.fmean(loss_at(run, common) for run in runs):.3f}",
                *(_mean([s[n] for s in scores]) if n in scores[0] else "–" for n in lengths),
                PUBLISHED.get(model, "–"),
            ]
        )
    rows.sort(key=lambda row: float(row[4].partition(" ")[0]))
    columns = ["model", "parameters", "tokens/s", f"loss at step {common:,}", *lengths, "TNN's table 2"]
    return f"""## Language models of one size

Six layers with about 2.5 million parameters without embeddings, BPE of 8,192 tokens on 100 novels, sequences of 512,
the same time for each on one thread, in batches of 4 at one learning rate, 0.002. Test perplexity by length (– for
lengths that a model does not have), with the standard deviation over seeds where there are several. Losses at one step
are from runs whose schedules end at different steps. The last column is from the paper: 45 million parameters,
WikiText-103.

{measured_table(name, columns, rows)}"""


def ablations() -> str:
    name = "language-ablations-cpu.json"
    if not has_results(name):
        return ""
    family = "language-family-cpu.json"
    base = {"tnn": results(family)["results"]["tnn"]} if has_results(family) else {}
    rows = []
    for model, run in {**base, **results(name)["results"]}.items():
        scores = _perplexities(run)
        paper = ABLATED.get(model, (None, None))
        average = f"{statistics.fmean(scores.values()):.1f}" if len(scores) > 1 else "–"
        rows.append([model, *(f"{scores[n]:.1f}" for n in sorted(scores)[:1]), average, *(p or "–" for p in paper)])
    columns = ["variant", "test at 512", "average over lengths", "paper, validation", "paper, average over lengths"]
    return f"""### Ablations of TNN

TNN's tables 7 to 10 at this size: perplexity at the trained length, and the average over 512 to 14,336 tokens, for
variants that have all lengths.

{measured_table(name, columns, rows)}"""


def other_code() -> str:
    name = "peer-speed-cpu.json"
    if not has_results(name):
        return ""
    found = results(name)["results"]["rows"]
    lengths = sorted({row["length"] for row in found})
    rows = []
    for model in dict.fromkeys(row["model"] for row in found):
        own = {row["length"]: row for row in found if row["model"] == model}
        trained = [
            f"{own[n]['step_tokens'] / own[n]['step']['median']:,.0f}" if own[n]["step"] else "–" for n in lengths
        ]
        made = [f"{1 / own[n]['token']['median']:,.0f}" for n in lengths]
        rows.append([model, f"{own[lengths[0]]['parameters'] / 1e6:.2f}M", *trained, *made])
    columns = ["model", "parameters", *(f"trained at {n:,}" for n in lengths), *(f"made after {n:,}" for n in lengths)]
    return f"""## Other people's language models

Six layers of about 2.5 million parameters on bytes, in turn: tokens a second of a training step on 8,192 tokens, and of
greedy generation of one sequence after a prompt. – is a step that takes too long: Mamba's backward pass in PyTorch is
quadratic.

{measured_table(name, columns, rows)}"""
