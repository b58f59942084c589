"""The section about trainings on Long Range Arena."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tables

_NAME = "arena-cpu.json"
_PUBLISHED_AS = {  # rows of the table of published figures, by the last part of a run's name
    "tnn": "TNN",
    "tnn-2d": "TNN",
    "fd-tnn": "FD-TNN",
    "ski-tnn": "SKI-TNN",
    "tcn-mlp": "TCN-MLP (TCNCA, table 6)",
    "tcn-mlp-2d": "TCN-MLP (TCNCA, table 6)",
    "transformer": "Transformer (TNN, table 4)",
}
_PATH_X = "path-x-tnn-2d"


def trainings() -> str:
    """Runs beside published figures, or nothing before there are results."""
    if not tables.has_results(_NAME):
        return ""
    runs, published = tables.results(_NAME)["results"], _published()
    rows = [_row(name, run, published) for name, run in runs.items() if name != _PATH_X]
    columns = ["run", "parameters", "layers x width", "minutes", "rows seen", "validation", "test", "published"]
    parts = [_INTRODUCTION, tables.measured_table(_NAME, columns, rows), _overrides(runs), _FIGURE]
    return "\n\n".join([*parts, *_path_x(runs)])


_INTRODUCTION = """## Long Range Arena

The recipes lra-TASK-small with one seed, 0, on one thread, two at a time. Steps are as many as fit into the same CPU
time for all models of a task, by the cost of a step that was measured before; image-ski-tnn, which reads pixels as one
sequence, has a quarter more than image-tnn-2d. Minutes are of the clock: they include validation, and waiting for other
work on the machine. Validation is the accuracy after a third and two thirds of the run and at its end, or after its
half and at its end; the test accuracy is that of the best validation checkpoint, in per cent.

The published models were trained longer, TNN for 40 passes over the rows of ListOps, 32 of Text, 20 of Retrieval, and
200 of Image and of Pathfinder, and most are wider or deeper
([sizes](../papers/docs/arena.md#published-accuracy)). Our models of text
and of retrieval have embeddings of three to six bytes together (`model.ngram_sizes`), which are nearly all of their
parameters and which the published ones have not. Our retrieval asks whether two passages are of the same book; the
published one, whether two papers cite each other."""

_FIGURE = "![Validation accuracy over time](../papers/docs/figures/arena.png)"


def _row(name: str, run: dict[str, Any], published: dict[str, dict[str, str]]) -> list[str]:
    task, _, model = name.partition("-")
    row = _PUBLISHED_AS.get(model)
    figure = published[row][task] if row else "-"
    test = f"{100 * run['scores']['test']['accuracy']:.2f}"
    if "curve" not in run:  # a baseline
        return [name, "-", "-", "-", f"{run['rows_seen']:,}", "-", test, figure]
    curve = [100 * accuracy for _, _, accuracy in run["curve"]]
    thirds = curve if len(curve) < 3 else [curve[len(curve) * part // 3 - 1] for part in (1, 2, 3)]
    size = [f"{run['machine']['parameters']:,}", f"{run['layers']} x {run['width']}"]
    cost = [f"{run['elapsed_seconds'] / 60:.0f}", f"{run['rows_seen']:,}"]
    return [name, *size, *cost, ", ".join(f"{each:.1f}" for each in thirds), test, figure]


def _overrides(runs: dict[str, Any]) -> str:
    """What runs change in their recipes, besides the data."""
    changes = {name: [o for o in run.get("overrides", ()) if not o.startswith("data.")] for name, run in runs.items()}
    rows = [[name, f"`{' '.join(changed)}`"] for name, changed in changes.items() if changed and name != _PATH_X]
    return tables.table(["run", "changes of the recipe"], rows)


def _path_x(runs: dict[str, Any]) -> Iterator[str]:
    if _PATH_X in runs:
        run = runs[_PATH_X]
        losses = [loss for _, loss in run["losses"]]
        minutes = f"{run['elapsed_seconds'] / 60:.0f} minutes"
        yield (
            f"Path-X: {run['losses'][-1][0]} steps of the recipe {run['recipe']} with {run['rows_seen']:,} images, "
            f"one at a time, took {minutes} and at most {tables.mebibytes(run['memory'])} MB. This measures time and "
            "memory only: no model learns this task in so few steps. The training loss is "
            f"{losses[-1]:.3f} at the end (ln 2 is 0.693)."
        )


def _published() -> dict[str, dict[str, str]]:
    """The figures of the page on Long Range Arena, by model and task."""
    text = (tables.ROOT / "papers" / "docs" / "arena.md").read_text().partition("## Published accuracy")[2]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    head, _, *rows = lines
    tasks = [task.lower() for task in head]
    return {row[0]: dict(zip(tasks, row, strict=True)) for row in rows}
