"""Prediction of new rows by a trained run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lagwise.data import FORMATS, label_cells
from lagwise.data.arrays import row_arrays
from lagwise.data.find import files_below
from lagwise.data.reading import file_kind, inner_suffix
from lagwise.data.series_files import SOUNDS
from lagwise.data.signals import open_inputs
from lagwise.data.writing import rows_as_csv, write_sounds
from lagwise.files import write_whole
from lagwise.models import LagwiseForSignalRegression
from lagwise.models.loading import default_device, load_model
from lagwise.runs.evaluate import open_run
from lagwise.tasks import Task


def predict_run(
    run: Path, rows: Iterable[Mapping[str, Any]] | None = None, *, source: str | None = None, progress: bool = True
) -> list[dict[str, Any]]:
    """Predict rows: return them with the model's predictions as new columns (`Task.predict`). Needs neither labels nor
    the training data.

    Give either the rows, as mappings from columns, or a source: a table as the run's task opens it (`Task.rows`),
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
    read = [list(rows or ())] if source is None else task.rows(source).read().values()
    tables: list[Any] = [table for table in read if len(table)]
    if not tables:
        raise ValueError("there are no rows to predict")
    first = 1
    for table in tables:
        _check(table, task.columns(), task.predicts, first)
        first += len(table)
    model, tokenizer = load_model(run, device=default_device())
    predicted: list[dict[str, Any]] = []
    for table in tables:
        added = task.predict(model, tokenizer, table, progress=progress)
        records = table if isinstance(table, list) else _cells(table)
        _check_new(added[0], {name for row in records for name in row})
        predicted += [{**row, **new} for row, new in zip(records, added, strict=True)]
    return predicted


def check_output(task: Task, out: Path, source: str | None = None) -> None:
    """Raise ValueError for a file or folder that `save_predictions` does not write for the rows of a source."""
    of_signals = task.head is LagwiseForSignalRegression
    if not out.parent.is_dir() or (out.suffix != ".csv" if out.suffix or not of_signals else out.is_file()):
        expected = "a .csv file, or of sounds a folder," if of_signals else "a .csv file"
        raise ValueError(f"`out` must be {expected} in an existing folder, got {str(out)!r}")
    if out.suffix:
        return
    if sound := next((path for path in files_below(out) if inner_suffix(path) in SOUNDS), None):
        raise ValueError(f"`out` {str(out)!r} has sounds, such as {sound}; give a new folder, so that none is lost")
    paths = () if source is None else open_inputs(source).paths
    if not (kinds := {file_kind(path) for path in paths}) or not kinds <= {*SOUNDS}:
        raise ValueError(
            f"`out` {str(out)!r} has no .csv at its end, but only sounds are written to a folder, and {source!r} has "
            "others"
        )


def save_predictions(task: Task, rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write rows with their predictions to a .csv file, or signals as sounds to a folder."""
    if out.suffix:
        write_whole(out, rows_as_csv(task.table(rows)))
    else:
        write_sounds({row["file"]: (row["predicted"], row["sampling_rate"]) for row in rows}, out)


def _check_new(new: Iterable[str], existing: Collection[str]) -> None:
    """Raise ValueError if a column of predictions has the name of another column."""
    if taken := next((name for name in new if name in existing), None):
        raise ValueError(f"the rows already have a column {taken!r}, which predictions use; rename it")


def _check(rows: Any, columns: Sequence[str], new: str, first: int) -> None:
    """Raise ValueError for a row without one of the columns, or rows with a column ``new``. first: The number of the
    first row."""
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
