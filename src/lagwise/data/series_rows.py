"""Series as rows: recordings, and tables whose lines are series."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import lagwise.data.arrow as pa
from lagwise.data.arrays import list_column, row_arrays
from lagwise.data.folders import class_folders, nested_note
from lagwise.data.row_files import TEXT_TABLES, file_kind, read_columns
from lagwise.data.rows import RowSource, open_rows
from lagwise.data.sample_times import with_times
from lagwise.data.series_files import (
    SERIES,
    first_rate,
    lines_table,
    long_columns,
    recording_table,
    row_numbers,
)
from lagwise.data.text_tables import is_data, no_header, read_text_table
from lagwise.files import expanded
from lagwise.tables import known


@dataclass(frozen=True)
class SeriesSource(RowSource):
    """Rows whose .csv and .tsv files are series; see `open_series`."""

    _: KW_ONLY
    label: str
    more_labels: Sequence[str] = ()
    per_sample: bool = False
    features: Sequence[str] | None = None
    lines: bool | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        names = self.features or ()
        if self.time in (self.label, *self.more_labels, *names, SERIES):
            raise ValueError(f"task.time must be a column of its own, not one of labels or features, got {self.time!r}")
        if self.time is not None and (self.lines or self.dataset is not None):
            what = "tables whose lines are series" if self.lines else "data sets of the hub"
            raise ValueError(f"task.time {self.time!r} names a column of times, which {what} have not")
        if {self.label, *self.more_labels} & {*names} or len(set(names)) < len(names):
            raise ValueError(
                f"task.features must be different columns without that of the labels, "
                f"{', '.join(map(repr, (self.label, *self.more_labels)))}, got {names!r}"
            )

    def reading_options(self) -> dict[str, Any]:
        """The options of `open_series` that read other files as these: ``rate`` if there are sounds; if there are
        tables, ``lines``, and ``features`` if all tables have the same. ValueError for options of tables that are given
        without such files."""
        options: dict[str, Any] = {}
        rate = first_rate(self.files)
        if rate is not None:
            options["rate"] = rate
        if not self._tables and (self.features or self.lines is not None):
            raise ValueError(f"task.features and task.lines are for .csv and .tsv files, but {self.name!r} has none")
        if self._tables and not self.per_sample:
            options["lines"] = self._has_lines
        same = len(set(map(frozenset, map(self._features_of, self._columns_of_tables)))) == 1
        if self._tables and (self.features or same):
            options["features"] = list(self.features or self._first)
        return options

    @property
    def notes(self) -> tuple[str, ...]:
        left = [] if self.features or not self._tables else self._row_numbers
        numbers = [
            f"column {name!r} is an index of the rows and is left out (task.features can name it)" for name in left
        ]
        return (*self.file_notes, *self._nested, *numbers)

    @property
    def _nested(self) -> list[str]:
        """A note if the class folders of recordings have folders."""
        tables = [path for path in self._tables if self._folder_column(path) is not None]
        return nested_note(class_folders(expanded(self.name), tables)) if any(self.classes.values()) else []

    def key(self) -> str:
        whole = super().key()
        if not self._tables:
            return whole if self.time is None else hashlib.sha256(f"{self.time}:{whole}".encode()).hexdigest()
        usual = self._all_features(self._columns_of_tables[0]), self._has_labels and not self.per_sample
        chosen = [*(self.features or self._first), *([] if self.time is None else [None, self.time])], self._has_lines
        return whole if chosen == usual else hashlib.sha256(f"{chosen}:{whole}".encode()).hexdigest()

    def _folder_column(self, path: Path) -> str | None:
        if not self._is_table(path):
            return super()._folder_column(path)
        return None if self._has_labels or self._has_lines else self.label

    def _columns_of(self, path: Path) -> tuple[str, ...]:
        if not self._is_table(path):
            return super()._columns_of(path)
        if not self._has_lines:
            return tuple(dict.fromkeys(("file", self.label, SERIES)))
        names = read_columns(path)
        features = self.features or self._default_features(path, names)
        return (*(name for name in names if name not in (*features, SERIES)), SERIES)

    def _table(self, path: Path, columns: Sequence[str] | None = None) -> Any:
        if not self._is_table(path):
            return self._timed_rows(path, columns) if self.time else super()._table(path, columns)
        table = read_text_table(path)
        features = self.features or self._default_features(path, table.names)
        if not self.features and (keys := long_columns(table, self._all_features(table.names))):
            raise ValueError(_long(path, *keys, self.per_sample))
        if self._has_lines and self.time is not None:
            raise ValueError(f"task.time {self.time!r} names a column of times, but each line of {path} is a series")
        if self._has_lines:
            return lines_table(table, self.label, features, columns, self.written)
        kind: dict[str, Any] = {"name": self._name(path), "per_sample": self.per_sample, "labelled": self._has_labels}
        return recording_table(table, self.label, features, columns, self._class(path), **kind, time=self.time)

    def _timed_rows(self, path: Path, columns: Sequence[str] | None) -> Any:
        """Rows of a file that have the times of their samples in a column of lists."""
        assert self.time is not None
        table = super()._table(path)
        for name in (SERIES, self.time):
            known(name, table.column_names, f"column of {path} (task.time)")
        both = zip(row_arrays(table.column(SERIES)), row_arrays(table.column(self.time)), strict=True)
        rows = [with_times(x, times, f"{path}, row {i}") for i, (x, times) in enumerate(both, 1)]
        kind = pa.list_(pa.list_(pa.float32(), rows[0].shape[1] if rows else 1))
        if len({row.shape[1] for row in rows}) > 1:
            raise ValueError(f"{path} has series of different numbers of features")
        table = table.drop_columns([self.time])
        table = table.set_column(table.column_names.index(SERIES), SERIES, list_column(rows, kind))
        return table if columns is None else table.select([name for name in table.column_names if name in columns])

    def _default_features(self, path: Path, columns: Sequence[str]) -> list[str]:
        """Those of the first table, in its order; of lines, which may be series of different lengths, their own."""
        own = self._features_of(columns)
        if set(own) == set(self._first):
            return self._first
        if self._has_lines:
            return own
        raise ValueError(
            f"{path} has other columns ({', '.join(own)}) than {self._tables[0]} ({', '.join(self._first)}); choose "
            "those that all recordings have with task.features=[NAME,NAME]"
        )

    def _all_features(self, columns: Sequence[str]) -> list[str]:
        return [name for name in columns if name not in (self.label, *self.more_labels, self.time)]

    def _features_of(self, columns: Sequence[str]) -> list[str]:
        return [name for name in self._all_features(columns) if name not in self._row_numbers]

    def _is_table(self, path: Path) -> bool:
        return file_kind(path) in TEXT_TABLES

    @cached_property
    def _tables(self) -> list[Path]:
        return list(filter(self._is_table, chain(*self.files.values())))

    @cached_property
    def _columns_of_tables(self) -> list[tuple[str, ...]]:
        """ValueError for a table whose first line is a row."""
        found = []
        for path in self._tables:
            columns = read_columns(path)
            if self.label not in columns and not self.features and is_data(columns):
                raise ValueError(no_header(path, columns))
            found.append(columns)
        return found

    @cached_property
    def _row_numbers(self) -> list[str]:
        """Columns of the first table that number its rows."""
        return row_numbers(self._tables[0], self._all_features(self._columns_of_tables[0]), samples=not self._has_lines)

    @property
    def _first(self) -> list[str]:
        """The features of the first table."""
        return self._features_of(self._columns_of_tables[0])

    @property
    def _has_labels(self) -> bool:
        """Whether any table has the column of labels."""
        return any(self.label in columns for columns in self._columns_of_tables)

    @property
    def _has_lines(self) -> bool:
        """Whether every line of a table is a series."""
        several = bool(self.more_labels)  # of which a folder has no name
        return not self.per_sample and (self._has_labels or several if self.lines is None else self.lines)


def _long(path: Path, group: str, name: str, per_sample: bool) -> str:
    """The message about a table whose series are on several lines each."""
    each = f"{path} has several lines for each series: {name!r} begins anew for each {group!r}"
    if per_sample:
        return f"{each}; write a file for each {group!r}, or name the columns of numbers with task.features"
    return (
        f"{each}; put each series on a line of its own (pandas: frame.pivot, with the times as columns) or into a file "
        "of its own, in a folder for each class; for a class of every sample there is the recipe signal-steps, with a "
        "file for each series; or name the columns of numbers with task.features"
    )


def open_series(
    name: str,
    label: str | Sequence[str],
    *,
    per_sample: bool = False,
    features: Sequence[str] | None = None,
    lines: bool | None = None,
    rate: int | None = None,
    any_rate: bool = False,
    time: str | None = None,
) -> SeriesSource:
    """Find series by name, as `open_rows` finds rows.

    A .csv or .tsv file with a column ``label`` has a series on every line, or with ``per_sample`` a sample. Without
    that column it is a recording with a sample on every line, and the name of its folder is its class.

    Args:
        label: the column of the labels, or, where lines are series, several.
        features: columns of the numbers, in this order; by default all but ``label``, in the order of the first file.
        lines: whether every line is a series, if the column ``label`` does not say so: a recording may have a column of
            its one label, and series may have none.
        rate: the sampling rate that sound files must have, in Hz.
        any_rate: whether each may have another one.
        time: the column of the times of samples, which makes the time since the sample before the first feature
            (`with_times`): of a recording, or a column of lists.

    Errors as `open_rows`.
    """
    found = open_rows(name)
    first, *more = (label,) if isinstance(label, str) else label
    options: dict[str, Any] = {
        **vars(found),
        "per_sample": per_sample,
        "features": features,
        "lines": lines,
        "rate": rate,
        "any_rate": any_rate,
        "time": time,
    }
    return SeriesSource(**options, label=first, more_labels=more)
