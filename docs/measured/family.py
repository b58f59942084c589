"""Sections about language models of one size, their ablations, and other people's code, once there are results."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from tables import has_results, measured_table, paragraph, results

#: Perplexities of TNN's tables 2 and 15, 45 million parameters on WikiText-103: at 512 tokens, the trained
#: length, and at 14,336. Table 15 has the names of S4 and GSS interchanged, by its first column; here they are as in
#: table 2.
PUBLISHED: dict[str, tuple[float, float]] = {
    "transformer": (24.78, 486.86),
    "transformer-alibi": (24.15, 21.99),
    "transformer-ls": (24.05, 36.05),
    "flash": (26.70, 1.28e20),
    "linear-elu": (28.05, 589.83),
    "performer": (63.16, 20971.31),
    "cosformer": (27.06, 3951.26),
    "synthesizer-dense": (32.43, 627.03),
    "synthesizer-random": (34.78, 861.72),
    "gmlp": (29.13, 9.41e22),
    "s4": (39.66, 101.47),
    "dss": (41.07, 39.43),
    "gss": (30.74, 29.78),
    "tnn": (24.67, 23.46),
}
#: Validation perplexities of TNN's tables 7 to 10, and the averages over lengths of table 10.
ABLATED = {
    "decay-0.99": (23.98, 23.70),
    "decay-0.9": (25.28, 25.22),
    "decay-0.95": (24.56, 24.63),
    "decay-0.999": (23.98, 24.56),
    "decay-1": (24.03, 672.72),
    "decay-learned": (27.65, 24.39),
    "inputs-normalized": (24.11, None),
    "inputs-sincos": (24.04, None),
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


def perplexities(run: dict[str, Any]) -> dict[int, float]:
    """A run's test perplexities by length."""
    return {score["length"]: score["perplexity"] for score in run["scores"]["test"]}


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def by_model(content: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The runs of each model, with all seeds, the lowest test perplexity at the trained length first."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for key, run in content.items():
        runs.setdefault(key.partition("-seed")[0], []).append(run)
    return dict(sorted(runs.items(), key=lambda item: at_trained_length(item[1])))


def at_trained_length(runs: Sequence[dict[str, Any]]) -> float:
    """The mean test perplexity of a model's runs at the trained length."""
    return statistics.fmean(min(perplexities(run).items())[1] for run in runs)


def comparison() -> str:
    name = "language-family-cpu.json"
    if not has_results(name):
        return ""
    content = results(name)["results"]
    models = by_model(content)
    common = min(run["curve"][-1][0] for run in content.values())
    lengths = sorted({n for run in content.values() for n in perplexities(run)})
    rows: list[list[Any]] = []
    for model, runs in models.items():
        scores = [perplexities(run) for run in runs]
        published = ", ".join(f"{value:,.2f}" if value < 1e6 else f"{value:.0e}" for value in PUBLISHED.get(model, ()))
        rows.append(
            [
                model,
                f"{runs[0]['parameters'] / 1e6:.2f}M",
                f"{runs[0]['tokens_per_second']:,.0f}",
                f"{statistics.fmean(loss_at(run, common) for run in runs):.3f}",
                _mean([run["scores"]["valid"]["perplexity"] for run in runs]),
                *(_mean([s[n] for s in scores]) if n in scores[0] else "–" for n in lengths),
                published or "–",
            ]
        )
    columns = ["model", "parameters", "tokens/s", f"loss at step {common:,}", "validation, 512", *lengths]
    columns.append("TNN's tables: 512, 14336")
    elapsed = [run["elapsed_seconds"] / 60 for run in content.values()]
    introduction = f"""Six layers with about 2.5 million parameters without embeddings, BPE of 8,192 tokens on 100
novels, sequences of 512, in batches of 4 at one learning rate, 0.002. Each model takes the steps that
{next(iter(content.values()))["minutes"]:g} minutes of one idle thread hold; two runs at a time, on a machine with other
work, took {min(elapsed):.0f} to {max(elapsed):.0f}. Perplexity on validation text, and on test text by length (a dash
for lengths that a model does not have), of one seed, or with the standard deviation over seeds where there are several.
Losses at one step are from runs whose schedules end at different steps. The last column is from TNN's tables 2 and 15:
45 million parameters, WikiText-103."""
    if bfloat16 := [name for name, run in content.items() if run["machine"]["bfloat16"]]:
        introduction += f" Another processor trained {' and '.join(sorted(bfloat16))}, in bfloat16, for as many steps."
    return f"""## Language models of one size

{paragraph(introduction)}

{measured_table(name, columns, rows)}

![Perplexity over speed, and over length](figures/language.png)

{_agreement(models)}""".rstrip()


def _agreement(models: dict[str, list[dict[str, Any]]]) -> str:
    """How our order agrees with the published one, and how sure it is."""
    shared = [model for model in models if model in PUBLISHED]
    parts = []
    if len(shared) > 2:
        published = sorted(shared, key=lambda model: PUBLISHED[model][0])
        moved = {model: shared.index(model) - published.index(model) for model in shared}
        better, worse = min(moved, key=moved.__getitem__), max(moved, key=moved.__getitem__)
        correlation = 1 - 6 * sum(d * d for d in moved.values()) / (len(shared) * (len(shared) ** 2 - 1))
        parts.append(
            f"Spearman's correlation of our order at 512 with that of the paper is {correlation:.2f} over "
            f"{len(shared)} models. Of these, {better} moved furthest up ({-moved[better]}) and {worse} furthest down "
            f"({moved[worse]})."
        )
    spreads = {model: [at_trained_length([run]) for run in runs] for model, runs in models.items() if len(runs) > 1}
    if spreads:
        relative = max(statistics.stdev(each) / statistics.fmean(each) for each in spreads.values())
        parts.append(
            f"Between seeds, the standard deviation is at most {relative:.1%} of the perplexity ({len(spreads)} "
            f"model{'s' if len(spreads) > 1 else ''}): models that differ by less than twice as much are not told "
            "apart."
        )
    return paragraph(" ".join(parts))


def ablations() -> str:
    name = "language-ablations-cpu.json"
    if not has_results(name):
        return ""
    content = results(name)["results"]
    minutes = next(iter(content.values()))["minutes"]
    rows = []
    for model, run in content.items():
        scores = perplexities(run)
        paper = ABLATED.get(model, (None, None))
        average = f"{statistics.fmean(scores.values()):.1f}" if len(scores) > 1 else "–"
        rows.append(
            [
                model,
                *(f"{scores[n]:.1f}" for n in sorted(scores)[:1]),
                average,
                *(f"{p:.2f}" if p else "–" for p in paper),
            ]
        )
    columns = ["variant", "test at 512", "average over lengths", "paper, validation", "paper, average over lengths"]
    return f"""### Ablations of TNN

TNN's tables 7 to 10 at this size, after {minutes:g} minutes of one thread, one seed: perplexity at the trained length,
and the average over 512 to 14,336 tokens, for variants that have all lengths.

{measured_table(name, columns, rows)}

{_decays({model: perplexities(run) for model, run in content.items() if model.startswith("decay-")})}""".rstrip()


def _decays(scores: dict[str, dict[int, float]]) -> str:
    """Which decays extrapolate."""
    growth = {name.removeprefix("decay-"): each[max(each)] / each[min(each)] - 1 for name, each in scores.items()}
    if not {"0.99", "0.999", "1"} <= growth.keys():
        return ""
    flat = [name for name in growth if growth[name] <= 0]
    best = min(scores, key=lambda name: scores[name][min(scores[name])]).removeprefix("decay-")
    return paragraph(
        f"Decays that extrapolate ({', '.join(flat)}) have no higher perplexity at 14,336 tokens than at 512. From 512 "
        f"to 14,336 it grows by {growth['0.999']:.0%} with 0.999 and by {growth['1']:.0%} without decay; in the paper, "
        f"after a longer training, the average over lengths without decay is 28 times that of 0.99. The best decay at "
        f"512 is {best} here and 0.99 or 0.999 in the paper."
    )


def _speed(tokens: float) -> str:
    return f"{tokens:,.0f}" if tokens >= 10 else f"{tokens:.2g}"


def other_code() -> str:
    name = "peer-speed-cpu.json"
    if not has_results(name):
        return ""
    content = results(name)["results"]["rows"]
    lengths = sorted({row["length"] for row in content})
    rows = []
    for model in dict.fromkeys(row["model"] for row in content):
        by_length = {row["length"]: row for row in content if row["model"] == model}
        at_lengths = [by_length[n] for n in lengths]
        trained = [f"{row['step_tokens'] / row['step']['median']:,.0f}" if row["step"] else "–" for row in at_lengths]
        generated = [_speed(1 / row["token"]["median"]) for row in at_lengths]
        rows.append([model, f"{by_length[lengths[0]]['parameters'] / 1e6:.2f}M", *trained, *generated])
    columns = ["model", "parameters", *(f"trained at {n:,}" for n in lengths), *(f"made after {n:,}" for n in lengths)]
    return f"""## Other people's language models

Six layers of about 2.5 million parameters on bytes, in turn: tokens a second of a training step on 8,192 tokens, and of
greedy generation of one sequence after a prompt. – is a step that takes too long: Mamba's backward pass in PyTorch is
quadratic.

{measured_table(name, columns, rows)}"""
