"""Several runs beside each other, as one self-contained HTML file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from lagwise.analysis.page import Section, write_page
from lagwise.analysis.plots import learning_curves
from lagwise.analysis.recorded import RecordedRun, facts_table, recorded_run
from lagwise.analysis.settings import different_settings, training_command
from lagwise.files import RECIPE_FILE, beside
from lagwise.tasks import Table
from lagwise.training import load_recipe


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
    return write_page(out, f"{len(recorded)} runs: {', '.join(recorded)}", _sections(recorded))


def _by_name(runs: Sequence[Path]) -> dict[str, Path]:
    """The runs by the names of their folders, or if two are the same, by their paths below a common folder."""
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


def _sections(runs: Mapping[str, RecordedRun]) -> list[Section]:
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
    """The headline metric and the training loss over steps, and over seconds if all runs have logged them."""
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
    """Tables of results with the same columns as one: with a column for each run if the tables have one value per row,
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
