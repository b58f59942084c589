"""Archives of series, UCR and UEA: their files .ts and .arff, as tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import lagwise.data.arrow as pa
from lagwise.data.arrays import FOLDER_LABEL, SERIES, list_column

_RELATION = re.compile(r"""^(['"])(.*)\1\s*,\s*(.*)$""")  # quoted dimensions, and the class


def ts_table(text: str, path: Path) -> pa.Table:
    """A row for each line: dimensions between colons, each of the same number of values between commas, and last the
    class or number, if the header has @classLabel or @targetLabel. ``?`` and NaN are missing values.

    ValueError names the line of an error; series with time stamps are not read.
    """
    labelled = False

    def header(key: str, value: str) -> None:
        nonlocal labelled
        if key in ("classlabel", "targetlabel"):
            labelled = value.lower().startswith("true")
        if key == "timestamps" and value.lower() == "true":
            raise ValueError("has time stamps; write the values alone, at equal distances")

    def row(line: str) -> tuple[list[str], str | None]:
        *dimensions, last = line.split(":")
        return (dimensions, last.strip()) if labelled else ([*dimensions, last], None)

    return _table(text, path, "#", header, row)


def arff_table(text: str, path: Path) -> pa.Table:
    r"""A row for each line: the values of one dimension between commas, or in quotes several dimensions, which ``\n``
    separates, and last the class. Errors as `ts_table`, and for a class among the values."""
    nominal = False

    def header(key: str, value: str) -> None:
        nonlocal nominal
        if key == "attribute":
            if nominal:
                raise ValueError("follows an attribute that is a class, which must be the last; move it there")
            nominal = value.endswith("}")

    def row(line: str) -> tuple[list[str], str]:
        match = _RELATION.match(line)
        if match:
            return match[2].split(r"\n"), match[3].strip()
        values, _, label = line.rpartition(",")
        return [values], label.strip().strip("'\"")

    return _table(text, path, "%", header, row)


def _table(
    text: str,
    path: Path,
    comment: str,
    header: Callable[[str, str], None],
    row: Callable[[str], tuple[list[str], str | None]],
) -> pa.Table:
    rows: list[np.ndarray] = []
    labels: list[str | None] = []
    begun = False
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(comment):
            continue
        try:
            if not begun:
                if not line.startswith("@"):
                    raise ValueError("is before @data, but does not begin with @")
                key, value = (*line[1:].split(maxsplit=1), "", "")[:2]
                begun = key.lower() == "data"
                header(key.lower(), value)
                continue
            dimensions, label = row(line)
            rows.append(_values(dimensions))
            labels.append(label)
            if rows[-1].shape[1] != rows[0].shape[1]:
                raise ValueError(f"has {rows[-1].shape[1]} dimensions, and the first series {rows[0].shape[1]}")
        except ValueError as error:
            raise ValueError(f"{path}, line {number} {error}") from error
    if not rows:
        raise ValueError(f"{path} has no series after @data")
    columns = {SERIES: list_column(rows, pa.list_(pa.list_(pa.float32(), rows[0].shape[1])))}
    return pa.table(columns if labels[0] is None else {**columns, FOLDER_LABEL: pa.array(labels)})


def _values(dimensions: Sequence[str]) -> np.ndarray:
    """Parse the texts of a series as an array ``(samples, dimensions)``. ValueError for other values than numbers, and
    other lengths."""
    parts = [["nan" if cell.strip() == "?" else cell for cell in dimension.split(",")] for dimension in dimensions]
    lengths = sorted({len(part) for part in parts})
    if not parts:
        raise ValueError("has no values")
    if len(lengths) > 1:
        raise ValueError(f"has dimensions of {lengths[0]} to {lengths[-1]} values; resample them to one rate")
    try:
        return np.array(parts, dtype=np.float32).T
    except ValueError as error:
        raise ValueError(f"has a value that is not a number ({error})") from error
