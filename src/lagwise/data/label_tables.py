"""Tables beside sounds and images that have the label of each file, as the folders of datasets do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lagwise.data.row_files import read_table

_NAMES = ("metadata.csv", "metadata.tsv", "metadata.jsonl", "metadata.parquet", "labels.csv", "labels.tsv")
_FILE = ("file_name", "filename", "file", "image", "path")  # columns, the first of which a table has


def label_tables(found: Sequence[Path]) -> list[Path]:
    """The files called as tables of labels that have a column of names of files."""
    return [path for path in found if path.name.lower() in _NAMES and {*read_table(path).column_names} & {*_FILE}]


def listed_labels(tables: Sequence[Path], files: Sequence[Path], label: str = "label") -> dict[Path, str | None]:
    """The label of each file that the tables list, by the names in them, which are relative to a table's folder.

    label: the column of the labels; without it, the only column beside the names. ValueError for a table with several
    other columns, a name that is none of ``files``, and a name that is listed twice.
    """
    existing, labels = {*files}, dict[Path, str | None]()
    for table in tables:
        rows = read_table(table, written=[label])
        column = next(name for name in _FILE if name in rows.column_names)
        others = [name for name in rows.column_names if name != column]
        if label not in others and len(others) != 1:
            has = ", ".join(rows.column_names)
            raise ValueError(f"{table} has no column {label!r} (columns: {has}); name the column of labels so")
        own = rows.column(label if label in others else others[0]).to_pylist()
        for number, (name, value) in enumerate(zip(rows.column(column).to_pylist(), own, strict=True), 1):
            path = table.parent / str(name)
            if path not in existing:
                raise ValueError(f"{table}, row {number}: there is no file {str(path)!r}; add it or remove the row")
            if path in labels:
                raise ValueError(f"{table}, row {number}: {name!r} is listed twice; keep one of the rows")
            labels[path] = None if value is None or value == "" else str(value)
    return labels
