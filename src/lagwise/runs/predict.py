"""Prediction of new rows by a trained run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lagwise.data import label_cells
from lagwise.data.arrays import row_arrays
from lagwise.data.published import FORMATS
from lagwise.models.loading import by_rate, default_device, load_model
from lagwise.runs.evaluate import open_run
from lagwise.tasks import Task


def predict_run(
    run: Path, rows: Iterable[Mapping[str, Any]] | None = None, *, source: str | None = None, progress: bool = True
) -> list[dict[str, Any]]:
    """Predict rows: return them with the model's predictions as new columns (`Task.predict`). Needs neither labels nor
    the training data.

    Give either the rows, as mappings from columns, or a source: a table as the run's task opens it (`Task.open_rows`),
    whose splits are read one after the other, series as arrays. For a run that forecasts, a table of series over time
    gives the rows that follow it (`Task.continuation`). ValueError for rows without the columns that the run reads, and
    for a column with the name of a new one.
    """
    if (rows is None) == (source is None):
        raise ValueError("give either rows or a source")
    _, task = open_run(run)
    continuation = None if source is None else task.continuation(source)
    if continuation is not None:
        return continuation(load_model(run, device=default_device())[0])
    if rows is not None and task.data.format is not None:
        format = FORMATS[task.data.format]  # texts as in its files
        rows = [{k: format.cleaned(cell) if k in format.texts else cell for k, cell in row.items()} for row in rows]
    read = [list(rows or ())] if source is None else task.open_rows(source).read().values()
    tables: list[Any] = [table for table in read if len(table)]
    if not tables:
        raise ValueError("there are no rows to predict")
    first = 1
    for table in tables:
        _check(table, task.columns(), task.predicts, first)
        first += len(table)
    model, tokenizer = load_model(run, device=default_device())
    found: list[dict[str, Any]] = []
    for table in tables:
        added = _predictions(task, model, tokenizer, table, progress)
        given = table if isinstance(table, list) else _cells(table)
        _check_new(added[0], {name for row in given for name in row})
        found += [{**row, **new} for row, new in zip(given, added, strict=True)]
    return found


def _predictions(task: Task, model: Any, tokenizer: Any, table: Any, progress: bool) -> list[dict[str, Any]]:
    """Predict the rows of one table. Sounds may have other sampling rates than those of training."""
    names = table[0] if isinstance(table, list) else table.column_names
    if task.rate is None or "sampling_rate" not in names:
        return task.predict(model, tokenizer, table, progress=progress)
    hertz = [row["sampling_rate"] for row in table] if isinstance(table, list) else table["sampling_rate"][:]
    found: list[Any] = [None] * len(table)
    for own, places in by_rate(model, hertz, task.rate):
        part = [table[i] for i in places] if isinstance(table, list) else table.select(places)
        for place, row in zip(places, task.predict(own, tokenizer, part, progress=progress), strict=True):
            found[place] = row
    return found


def _check_new(new: Iterable[str], existing: Collection[str]) -> None:
    """ValueError if a column of predictions has the name of another column."""
    if taken := next((name for name in new if name in existing), None):
        raise ValueError(f"the rows already have a column {taken!r}, which predictions use; rename it")


def _check(rows: Any, columns: Sequence[str], new: str, first: int) -> None:
    """ValueError for a row without one of the columns, or rows with a column ``new``. first: The number of the first
    row."""
    _check_new([new], {name for row in rows for name in row} if isinstance(rows, list) else rows.column_names)
    for name in columns:
        if isinstance(rows, list):
            absent = [row.get(name) is None for row in rows]
        elif name in rows.column_names:
            absent = rows.select_columns(name).with_format("arrow")[:].column(name).is_null().to_pylist()
        else:
            absent = [True]
        if any(absent):
            number = absent.index(True)
            has = ", ".join(map(str, rows[number] if isinstance(rows, list) else rows.column_names)) or "nothing"
            raise ValueError(f"row {first + number} has no {name!r}, which this run reads (it has {has})")


def _cells(rows: Any) -> list[dict[str, Any]]:
    """Convert a table to rows, with the names of classes, and series as arrays."""
    for column, feature in rows.features.items():
        if hasattr(feature, "names"):
            rows = rows.remove_columns(column).add_column(column, label_cells(rows, column))
    table = rows.with_format("arrow")[:]
    columns = {}
    for name in table.column_names:
        try:
            columns[name] = [array.copy() for array in row_arrays(table.column(name))]
        except (TypeError, ValueError):  # no series
            columns[name] = table.column(name).to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
