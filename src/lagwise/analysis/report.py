"""A run, or a comparison of several, as one self-contained HTML file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lagwise.analysis.kernels import kernel_curves, kernel_matrices, learned_kernels
from lagwise.analysis.page import Section, write_page
from lagwise.analysis.recorded import (
    RecordedRun,
    different_settings,
    facts_table,
    recorded_run,
    training_command,
    undamaged,
)
from lagwise.figures import columns, single
from lagwise.files import RECIPE_FILE, beside
from lagwise.models import generate_text, load_model
from lagwise.models.embeddings import patch_side
from lagwise.tasks import Table
from lagwise.training import load_recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLE_FILE = "sample.txt"
_KERNEL_LENGTH = 2048  # lags of a learned kernel that are drawn
_SAMPLE_TOKENS = 300


def plot_run(run: Path) -> list[Path]:
    """Draw all plots of a run into ``RUN/plots`` and collect them in ``RUN/report.html``.

    Results of `lagwise evaluate` are included if they exist. Returns the files written. FileNotFoundError if the folder
    is not a finished run; ValueError if a file in it is damaged.
    """
    return undamaged(run, lambda: _plot_run(run))


def _plot_run(folder: Path) -> list[Path]:
    model, tokenizer = load_model(folder)
    run = recorded_run(folder)
    size = getattr(run.task, "size", None)  # of images
    kernels = learned_kernels(model, max(size) // patch_side(model.config) if size else _KERNEL_LENGTH)
    figures = run.task.figures(run.metrics, run.evaluation)
    first, *others = figures  # the first shows the learning, the others the results
    sections = [
        Section("Summary", [run.recipe.description], tables=[facts_table({"": run.facts()})]),
        Section("Reproduce", code=training_command(folder, run.processes)),
    ]
    if any("loss" in line for line in run.metrics):  # not where a first answer is all there is
        sections.append(Section("Learning", plots={first: figures[first]()}))
    if run.tables:
        notes = [f"Scored on other data than the run's own: {run.other_data}."] if run.other_data else ()
        sections.append(Section("Results", notes, plots={name: figures[name]() for name in others}, tables=run.tables))
    if kernels:
        rows = [(k.layer, k.energy_within(0.5), k.energy_within(0.99)) for k in kernels]
        plots = {"kernels": kernel_curves(kernels), "matrices": kernel_matrices(kernels)}
        table = Table("Reach", ("layer", "lags with half the energy", "with 99 %"), rows)
        sections.append(Section("Learned kernels", plots=plots, tables=[table]))
    written = (folder / SAMPLE_FILE).read_text(encoding="utf-8") if (folder / SAMPLE_FILE).is_file() else ""
    count = min(_SAMPLE_TOKENS, (model.length_limit or _SAMPLE_TOKENS + 1) - 1)  # after the start of a document
    if not written and tokenizer is not None and run.task.predicts == "bits_per_byte" and count > 0:
        written = generate_text(model, tokenizer, "", max_new_tokens=count, seed=0)
    if written:
        sections.append(Section("A sample", code=written))
    sections += [
        Section("Recipe", code=run.recipe.to_yaml(), folded=True),
        Section("Machine and versions", tables=[facts_table({"": run.machine()})]),
    ]
    return write_page(folder, f"{folder.resolve().name}: {run.facts()['task']}", sections)


def compare_runs(runs: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Draw the learning curves of several runs of one task on the same axes, and show their scores, the settings that
    differ and their machines side by side.

    Unfinished runs can be compared too.

    Args:
        runs: At least two folders of runs.
        out: The folder for ``report.html`` and ``plots``; by default ``comparison`` beside the first run.

    Returns:
        The files written, the page last.

    Raises:
        FileNotFoundError: If a folder is not a run, or nothing has been logged in it yet.
        ValueError: If a run is given twice, the tasks or their headline metrics differ, ``out`` is a run, or a file is
            damaged.
    """
    out = beside(runs[0], "").parent / "comparison" if out is None else out
    if (out / "recipe.yaml").exists():
        raise ValueError(f"out must not be the folder of a run, got {str(out)!r}")
    recorded = {name: recorded_run(run) for name, run in _by_name(runs).items()}
    _require_same("task", {name: run.recipe.task["name"] for name, run in recorded.items()})
    _require_same("headline metric", {name: run.headline[0] for name, run in recorded.items()})
    return write_page(out, f"{len(recorded)} runs: {', '.join(recorded)}", _compared(recorded))


def _by_name(runs: Sequence[Path]) -> dict[str, Path]:
    """Name the runs by their folders, or if two names are the same, by their paths below a common folder."""
    folders = [run.resolve() for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if folders.count(folder) > 1:
            raise ValueError(f"a comparison needs different runs, got {str(run)!r} twice")
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        common = os.path.commonpath([folder.parent for folder in folders])
        names = [os.path.relpath(folder, common) for folder in folders]
    return dict(zip(names, runs, strict=True))


def _require_same(what: str, values: Mapping[str, str]) -> None:
    (first, expected), *others = values.items()
    for name, value in others:
        if value != expected:
            raise ValueError(f"only runs of one {what} can be compared: {first!r} has {expected}, {name!r} has {value}")


def _compared(runs: Mapping[str, RecordedRun]) -> list[Section]:
    # As given, with the tokenizer that each run has copied.
    recipes = {name: load_recipe(str(run.folder / RECIPE_FILE)) for name, run in runs.items()}
    differences = different_settings(recipes)
    pending = ", ".join(name for name, run in runs.items() if not run.tables)
    summary = []
    if len({run.about.get("data") for run in runs.values()}) > 1:
        summary = ["The runs were trained on different data, or encoded the same data differently."]
    notes = [f"Not evaluated yet: {pending}. Use lagwise evaluate RUN."] if pending else []
    notes += [
        f"{name} was scored on other data than its own: {r.other_data}." for name, r in runs.items() if r.other_data
    ]
    commands = [training_command(run.folder, run.processes) for run in runs.values()]
    return [
        Section("Summary", summary, tables=[facts_table({name: run.facts() for name, run in runs.items()})]),
        _learning(runs),
        Section("Results", notes, tables=_merged({name: run.tables for name, run in runs.items()})),
        Section(
            "Recipes",
            () if differences else ["All recipes are the same."],
            tables=[Table("Settings that differ", ("setting", *runs), differences)] if differences else (),
        ),
        Section("Reproduce", code="\n\n".join(commands)),
        Section("Machine and versions", tables=[facts_table({name: run.machine() for name, run in runs.items()})]),
    ]


def _learning(runs: Mapping[str, RecordedRun]) -> Section:
    """Draw the headline metric and the training loss over steps, and over seconds if all runs have logged them."""
    untimed = ", ".join(name for name, run in runs.items() if not run.curve("seconds"))
    metric, label, _ = next(iter(runs.values())).headline
    plots = {}
    for over in ("step", "seconds")[: 1 if untimed else 2]:
        for name, logged, what in (
            ("validation", f"eval_{metric}", f"validation {label}"),
            ("loss", "loss", "training loss"),
        ):
            curves = {each: run.curve(logged, over) for each, run in runs.items()}
            plots[f"{name}-{over}"] = learning_curves(curves, over, what)
    note = f"No curves over seconds: these runs have no times in their logs: {untimed}."
    return Section("Learning", [note] if untimed else (), plots=plots)


def _merged(tables: Mapping[str, Sequence[Table]]) -> list[Table]:
    """Merge tables of results with the same columns: with a column for each run if the tables have one value per row,
    and otherwise with the rows of the same name one below the other."""
    groups: dict[tuple[int, tuple[str, ...]], dict[str, Table]] = {}
    for name, each in tables.items():
        for place, table in enumerate(each):
            groups.setdefault((place, tuple(table.head)), {})[name] = table
    merged = []
    for (_, head), group in groups.items():
        first = dict.fromkeys(row[0] for table in group.values() for row in table.rows)
        title = " / ".join(dict.fromkeys(table.title for table in group.values()))
        if len(head) == 2:
            values = [{row[0]: row[1] for row in table.rows} for table in group.values()]
            rows = [(key, *(each.get(key, "-") for each in values)) for key in first]
            merged.append(Table(f"{title}: {head[1]}", (head[0], *group), rows))
            continue
        rows = []
        for key in first:
            cells = {name: tuple(row[1:]) for name, table in group.items() for row in table.rows if row[0] == key}
            if len(cells) == len(tables) and len(set(cells.values())) == 1:  # such as compressors of the same text
                cells = {"all": next(iter(cells.values()))}
            rows += [(key, name, *each) for name, each in cells.items()]
        merged.append(Table(title, (head[0], "run", *head[1:]), rows))
    return merged


def learning_curves(curves: Mapping[str, Sequence[tuple[float, float]]], over: str, label: str) -> Figure:
    """Plot a metric of several runs over steps or seconds, one line per run."""
    figure, axes = single()
    for number, points in enumerate(curves.values()):
        style = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--"}  # there are ten colours
        axes.plot(*columns(points), linewidth=1.4, marker="o" if len(points) <= 40 else None, markersize=3, **style)
    axes.set(xlabel=over, ylabel=label, title=f"{label.capitalize()} over {'steps' if over == 'step' else over}")
    legend = axes.legend(axes.lines, curves.keys(), fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)  # names of folders may have dollars
    return figure
