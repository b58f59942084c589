"""Predictions of a trained run for new rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lagwise.data import label_cells
from lagwise.data.formats import FORMATS
from lagwise.models.loading import default_device, load_model
from lagwise.runs.evaluate import open_run


def predict_run(
    run: Path, rows: Iterable[Mapping[str, Any]] | None = None, *, source: str | None = None, progress: bool = True
) -> list[dict[str, Any]]:
    """Rows with the model's predictions as new columns (`Task.predict`). Needs neither labels nor the training data.

    Give either the rows, as mappings from columns, or a source: a table as the run's task opens it (`Task.open_rows`),
    whose splits are read one after the other. For a run that forecasts, a table of series over time gives the rows that
    follow it (`Task.continuation`). ValueError for rows without the columns that the run reads, and for a column with
    the name of a new one.
    """
    if (rows is None) == (source is None):
        raise ValueError("give either rows or a source")
    _, task = open_run(run)
    continuation = None if source is None else task.continuation(source)
    if continuation is not None:
        return continuation(load_model(run, device=default_device())[0])
    if rows is not None and task.data.format is not None:
        layout = FORMATS[task.data.format]  # texts as in its files
        rows = [{k: layout.cleaned(cell) if k in layout.texts else cell for k, cell in row.items()} for row in rows]
    tables: Any = [rows] if source is None else map(_named, task.open_rows(source).read().values())
    kept = [dict(row) for table in tables for row in table]
    if not kept:
        raise ValueError("there are no rows to predict")
    for number, row in enumerate(kept, 1):
        if missing := [name for name in task.columns() if row.get(name) is None]:
            columns = ", ".join(map(str, row)) or "nothing"
            raise ValueError(f"row {number} has no {missing[0]!r}, which this run reads (it has {columns})")
    added = task.predict(*load_model(run, device=default_device()), kept, progress=progress)
    if taken := sorted(set(added[0]) & {name for row in kept for name in row}):
        raise ValueError(f"the rows already have a column {taken[0]!r}, which predictions use; rename it")
    return [row | new for row, new in zip(kept, added, strict=True)]


def _named(rows: Any) -> Any:
    """Rows with the names of classes in place of their numbers."""
    for column, feature in rows.features.items():
        if hasattr(feature, "names"):
            rows = rows.remove_columns(column).add_column(column, label_cells(rows, column))
    return rows


def write_rows(rows: Sequence[Mapping[str, Any]], file: IO[str]) -> None:
    """Write rows as .csv, with every column that any of them has, except series and pictures."""
    names = dict.fromkeys(name for row in rows for name in row)
    kept = [name for name in names if not any(isinstance(row.get(name), list | bytes) for row in rows)]
    writer = csv.DictWriter(file, fieldnames=kept, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
