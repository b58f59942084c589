"""Tables of labelled rows: first answers, models alone, and the simple answers of other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from tables import has_results, measured_table, results

_FILE = "first-answers-cpu.json"
_MODELS = {
    "first answer": "first answer",
    "recipe": "recipe as it is",
    "trained alone": "trained model",
    "layers alone": "layers alone",
}


def first_answers() -> str:
    if not has_results(_FILE):
        return ""
    content = results(_FILE)["results"]
    models = {kind: head for kind, head in _MODELS.items() if any(kind in kinds for kinds in content.values())}
    rows = []
    for name, kinds in content.items():
        simple = {kind: scored for kind, scored in kinds.items() if "metric" not in scored[0]}
        metric = kinds["first answer"][0]["metric"]
        simple_scores = "; ".join(f"{kind} {_scores(scored)}" for kind, scored in simple.items())
        rows.append([name, metric, *(_scores(kinds.get(kind, ()), " (one seed)") for kind in models), simple_scores])
    columns = ["rows", "metric", *models.values(), "simple answers of libraries"]
    return f"""## Rows with labels

[First answers](first-answers.md); the recipes as they are, which end with the better model on held-out rows; their
trained models, most of which are joined with a first answer, compared with nothing (`--alone`); their layers alone
(`--layers`; for IMDb with embeddings of pairs of tokens); and the simple answers of other libraries on the same rows.
Test scores of three seeds, with the smallest and the largest if they differ, or of one; of ArrowHead, whose 36 training
and 175 test rows leave a standard error of 2.7 points, ten. In brackets CPU seconds of one thread, those of fitting the
first answer included. SMS spam was measured on an older machine, which takes about 2.5 times as long.

{measured_table(_FILE, columns, rows)}"""


def _scores(runs: Sequence[dict[str, Any]], once: str = "") -> str:
    """Such as "0.956 (0.955 to 0.959) [2 s]". once: what follows the score of a single run."""
    if not runs:
        return ""
    scores = [run["score"] for run in runs]
    low, high = f"{min(scores):.3f}", f"{max(scores):.3f}"
    spread = once if len(runs) == 1 else f" ({low} to {high})" if low != high else ""
    return f"{mean(scores):.3f}{spread} [{mean(run['seconds'] for run in runs):.0f} s]"
