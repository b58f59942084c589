"""Series and signals as rows: recordings, lines of tables, sounds alone or in pairs, lists in records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lagwise.data.arrow as pa
import lagwise.data.hf as hf
from lagwise.data.arrays import SERIES, array_column, list_column, row_arrays
from lagwise.data.find import Data
from lagwise.data.reading import TEXT_TABLES, file_kind, read_columns, read_head, read_text_table, read_whole
from lagwise.data.rows import RATE, RowSource, open_rows
from lagwise.data.series_files import SOUNDS, read_sound
from lagwise.data.text_tables import TextTable, count_up, is_data, no_header
from lagwise.tables import counted, known, refuse

TARGETS = "target_values"  # the column of the targets of signals
UNNAMED = "Unnamed: 0"  # a first column without a name
TARGET = ("target",)  # columns of the targets in tables and records, where none are named
_MIN_COUNTED_ROWS, _HEAD_ROWS = 5, 100  # rows that show whether a column counts them, of those that are read
_INDEX = re.compile(r"index|idx|level_0|(\w+[ _])?id|row([ _]\w+)?", re.IGNORECASE)  # names of numbers of rows
_KEY_COLUMNS = 4  # columns, the first ones, that may say which series a line is of, and when


class Signal(NamedTuple):
    """A signal and its target, ``(samples, features)`` each, NaN where a sample is missing."""

    where: str  # its file and row, for people
    inputs: np.ndarray
    targets: np.ndarray
    rate: int | None  # the sampling rate of a sound, in Hz


class Layout(NamedTuple):
    """The layout of tables, by what the first lines of .csv and .tsv files say."""

    lines: bool  # whether every line is a series
    labels: bool  # whether any table has the column of labels
    numbers: list[str]  # the columns of the first table that number its rows
    features: dict[Path, list[str]]  # the columns of each table that may be features


@dataclass(frozen=True)
class SeriesSource(RowSource):
    """A source of rows whose .csv and .tsv files are series; see `open_series` and `open_signals`."""

    _: KW_ONLY
    labels: tuple[str, ...] = ()  # columns of labels; none of signals
    #: columns of the targets of signals; empty where these are the inputs themselves, None of series with labels
    targets: tuple[str, ...] | None = None
    partners: Mapping[Path, Path] = field(default_factory=dict)  # the sound that is the target of another
    per_sample: bool = False
    features: Sequence[str] | None = None
    lines: bool | None = None
    time: str | None = None
    group: str | None = None  # a column that is kept and is no feature

    def __post_init__(self) -> None:
        names, others = self.features or (), (*self.labels, *(self.targets or ()))
        refuse(
            (
                self.time is not None and self.time in (*others, *names, SERIES),
                f"`time` must be a column of its own, not one of labels, `features` or `targets`, got {self.time!r}",
            ),
            (
                {*others} & {*names} or len(set(names)) < len(names),
                "`features` must be different columns without those of labels or targets, "
                f"{', '.join(map(repr, others))}, got {names!r}",
            ),
        )

    def reading_options(self) -> dict[str, Any]:
        """The options of `open_series` or `open_signals` that read other files as these: ``rate`` if there are sounds;
        if there are tables, ``lines``, and ``features`` if all tables have the same. ValueError for options of tables
        that are given without such files."""
        sound = next(iter(self.of_kind(SOUNDS)), None)
        options: dict[str, Any] = {} if sound is None else {"rate": read_sound(read_whole(sound), sound)[0]}
        if self.targets is not None:
            return options or {"features": self.inputs}
        tables = self.layout.features
        if not tables and (self.features or self.lines is not None):
            raise ValueError(f"`features` and `lines` are for .csv and .tsv files, but {self.name!r} has none")
        if tables and not self.per_sample:
            options["lines"] = self.layout.lines
        if tables and (self.features or len({*map(frozenset, tables.values())}) == 1):
            options["features"] = self.inputs
        return options

    @property
    def notes(self) -> tuple[str, ...]:
        if self.targets is not None:
            return self.file_notes
        left = "is an index of the rows and is left out (`features` can name it)"
        return (*self.file_notes, *(f"column {name!r} {left}" for name in self.layout.numbers))

    def key(self) -> str:
        partners = {
            split: [self.partners[p] for p in paths if p in self.partners] for split, paths in self.files.items()
        }
        pairs = [(one.name, other.name) for one, other in self.partners.items()]
        columns = [self.inputs, self.layout.lines] if self.layout.features else [self.features]
        return self.hashed([*self._declared(), self.time, self.targets, *columns, pairs], partners)

    @cached_property
    def inputs(self) -> list[str]:
        """The columns of the inputs of tables and records, in order."""
        return list(self.features or next(iter(self.layout.features.values()), [SERIES]))

    def signals(self, split: str) -> Iterator[Signal]:
        """The signals of a split that the data name, in order. ValueError names the file and what is wrong with it."""
        names = [SERIES, TARGETS, RATE, "file"]
        own = None if self.dataset is None else self._of_dataset(split).with_format("arrow")[:]
        for table in self.tables(split, names, {}) if own is None else [own]:
            columns = {name: row_arrays(table.column(name)) for name in names[:2] if name in table.column_names}
            rates = table.column(RATE).to_pylist() if RATE in table.column_names else [None] * table.num_rows
            for where, rate in zip(table.column("file").to_pylist(), rates, strict=True):
                arrays = {name: next(rows).copy() for name, rows in columns.items()}
                yield Signal(where, arrays[SERIES], arrays.get(TARGETS, arrays[SERIES]), rate)

    # Names of columns, before files are read.

    @cached_property
    def layout(self) -> Layout:
        """Read what the tables hold, by their first lines. ValueError for a table whose first line is a row."""
        columns = {path: read_columns(path) for path in self.of_kind(TEXT_TABLES)}
        for path, names in columns.items():
            if self.labels and self.labels[0] not in names and not self.features and is_data(names):
                raise ValueError(no_header(path, names))
        labels = any(name in names for name in self.labels[:1] for names in columns.values())
        several = len(self.labels) > 1  # a folder's name is one label only
        lines = not self.per_sample and (labels or several if self.lines is None else self.lines)
        if lines and columns and self.time is not None:
            raise ValueError(
                f"`time` {self.time!r} names a column of times, which tables whose lines are series have not"
            )
        others = {path: self._others(names) for path, names in columns.items()}
        numbers: list[str] = []
        for path, names in list(others.items())[: not self.features]:  # the first
            numbers = _row_numbers(path, names, samples=self.targets is not None or not lines)
        features = {path: [name for name in names if name not in numbers] for path, names in others.items()}
        return Layout(lines, labels, numbers, features)

    def _others(self, columns: Sequence[str]) -> list[str]:
        return [name for name in columns if name not in (*self.labels, *(self.targets or ()), self.time, self.group)]

    def _own_features(self, path: Path) -> list[str]:
        """The features of a table: those named, or of the first table, in its order; where lines are series, whose
        lengths may differ, a table's own."""
        own = self.layout.features[path]
        if self.features or set(own) == set(self.inputs) or self.targets is not None:
            return self.inputs
        if self.layout.lines:
            return own
        raise ValueError(
            f"{path} has other columns ({', '.join(own)}) than {next(iter(self.layout.features))} "
            f"({', '.join(self.inputs)}); choose those that all recordings have with `features=[NAME,NAME]`"
        )

    def _folder_column(self, path: Path) -> str | None:
        if file_kind(path) not in TEXT_TABLES:
            return super()._folder_column(path)
        return None if not self.labels or self.layout.labels or self.layout.lines else self.labels[0]

    def _check_columns(self, names: Sequence[str], existing: Sequence[str], where: str) -> None:
        if tuple(names) == TARGET and not {*names} & {*existing}:
            raise ValueError(
                f"{where} has no column {TARGET[0]!r} (columns: {', '.join(existing)}); name the columns of the "
                "targets with `targets=[COLUMN]`, or let `noise` or `hide` make inputs of the signals"
            )
        for name in names:
            known(name, existing, f"column of {where}")

    # Files.

    def _of_dataset(self, split: str) -> Any:
        rows = super()._of_dataset(split)
        if self.targets is None and self.time is None:
            return rows
        return hf.Dataset(self._stacked(rows.with_format("arrow")[:], f"{self.name} {split}"))

    def _table(self, path: Path, columns: Sequence[str] | None = None) -> Any:
        if file_kind(path) in TEXT_TABLES:
            table = self._text_table(path, columns)
        else:
            table = super()._table(path)
            if path in self.partners:
                other, rate = self.partners[path], table.column(RATE)[0].as_py()
                own, targets = read_sound(read_whole(other), other)
                if own != rate:
                    raise ValueError(f"{path} has a sampling rate of {rate} Hz, its partner {other} one of {own} Hz")
                table = table.append_column(TARGETS, array_column(targets[None]))
            elif self.time is not None or (self.targets is not None and file_kind(path) not in SOUNDS):
                table = self._stacked(table, self.named(path))
        return table if columns is None else table.select([name for name in table.column_names if name in columns])

    def _text_table(self, path: Path, columns: Sequence[str] | None) -> Any:
        """A .csv or .tsv file, whose lines are series, or are the samples of one."""
        table = read_text_table(path)
        features = self._own_features(path)
        if self.targets is None and not self.features:
            _check_long(table, self._others(table.names), self.per_sample)
        if self.layout.lines:
            missing = [name for name in features if name not in table.names]
            if 0 < len(missing) < len(features):
                raise ValueError(
                    f"{path} lacks {counted(len(missing), 'column')} of {len(features)}, first {missing[0]!r}: a line "
                    "is a series, and its samples are in these columns. Write series of other lengths as lists of "
                    f"numbers, a .jsonl with {SERIES} in each line"
                )
            others = {name: cells for name, cells in table.columns.items() if name not in (*features, SERIES)}
            other_columns: dict[str, Any] = {name: pa.array(cells, pa.string()) for name, cells in others.items()}
            return pa.table({**other_columns, SERIES: array_column(self._samples(table, features))})
        values = self._samples(table, features)
        if self.time is not None:
            values = with_times(values, table.times(self.time), str(path))
        row: dict[str, Any] = {"file": pa.array([self.named(path)])}
        for label in self.labels[:1]:
            row[label] = pa.array([self._label_of(table, label, columns)])
        if self.group in table.columns:
            row[self.group] = pa.array(table.columns[self.group][:1])
        row[SERIES] = array_column(values[None])
        if self.targets:
            row[TARGETS] = array_column(self._samples(table, self.targets)[None])
        return pa.table(row)

    def _label_of(self, table: TextTable, label: str, columns: Sequence[str] | None) -> Any:
        """The label of a recording, or those of its samples: of its column, else the name of its folder, unless other
        recordings have the column."""
        own = table.columns.get(label)
        if own is None and not self.layout.labels:
            return self._class(table.path)
        if own is None and columns is not None and label in columns:
            raise ValueError(f"{table.path} has no column {label!r}, which other recordings have (`label`)")
        if self.per_sample:
            return [""] * len(table.lines) if own is None else own
        if len(different := sorted({*(own or ())})) > 1:
            raise ValueError(
                f"{table.path} has samples with different labels ({', '.join(map(repr, different[:2]))}, ...); a "
                "recording has one, but the task sequence_labelling learns those of samples"
            )
        return own[0] if own else None

    def _samples(self, table: TextTable, names: Sequence[str]) -> np.ndarray:
        """The numbers of columns as float32 ``(lines, columns)``. ValueError for an unknown column, and for a cell that
        is not a number."""
        if not names or not table.lines:
            raise ValueError(f"{table.path} has no samples")
        self._check_columns(names, table.names, str(table.path))
        try:
            return table.numbers(*names).astype(np.float32)
        except ValueError as error:
            label = f", {self.labels[0]!r}" if self.labels else ""
            raise ValueError(
                f"{error}; name the columns of numbers with `features`: by default all but that of the labels{label}"
            ) from error

    def _stacked(self, table: Any, where: str) -> Any:
        """Convert records with columns of lists to rows with inputs, of several columns side by side, after their times
        if they have some, and of signals with targets."""
        times, targets = [] if self.time is None else [self.time], self.targets or ()
        inputs = [SERIES] if self.targets is None else self.inputs
        for names in (inputs, targets, times):
            self._check_columns(names, table.column_names, where)
        if self.targets is not None and not table.num_rows:
            raise ValueError(f"{where} has no rows")
        row_names = [f"{where}, row {i}" for i in range(1, table.num_rows + 1)]

        def stacked(names: Sequence[str]) -> list[np.ndarray]:
            try:
                rows = zip(row_names, *(row_arrays(table.column(each)) for each in names), strict=True)
                return [_beside(arrays, row_name) for row_name, *arrays in rows]
            except TypeError as error:
                raise ValueError(
                    f"{where}: a signal must be a list of numbers or of equally long vectors ({error})"
                ) from error

        x = stacked(inputs)
        for name in times:
            x = [with_times(*each) for each in zip(x, row_arrays(table.column(name)), row_names, strict=True)]
        columns = {SERIES: _vectors(x, where)}
        if self.targets is not None:
            columns["file"] = pa.array(row_names)
        if targets:
            columns[TARGETS] = _vectors(stacked(targets), where)
        left = [each for each in table.column_names if each not in (*inputs, *targets, *times, *columns)]
        return pa.table({**{each: table.column(each) for each in left}, **columns})


def with_times(values: np.ndarray, times: np.ndarray, where: str) -> np.ndarray:
    """Put the time since the sample before in front of the features of samples ``(samples, features)``, 0 for the first
    sample. ValueError for times that are missing, do not increase, or are not as many."""
    values, times = values.reshape(len(values), -1), np.asarray(times, dtype=np.float64).reshape(-1)
    if len(times) != len(values):
        raise ValueError(f"{where} has {len(values):,} samples and {len(times):,} times")
    since = np.diff(times, prepend=times[:1])
    wrong = np.flatnonzero(~np.isfinite(times) | ~np.isfinite(since) | ((since <= 0) & (np.arange(len(times)) > 0)))
    if len(wrong):
        at = int(wrong[0])
        time = "no time" if not np.isfinite(times[at]) else f"the time {times[at]:g}, which is not after the one before"
        raise ValueError(f"{where}: sample {at + 1} has {time}; sort the samples, and leave out those without a time")
    return np.concatenate([since[:, None], values], axis=1).astype(np.float32)


def _beside(arrays: Sequence[np.ndarray], where: str) -> np.ndarray:
    """Join the series of one row side by side, ``(samples, features)``."""
    sizes = sorted({len(array) for array in arrays})
    if len(sizes) > 1:
        raise ValueError(f"{where} has features of {sizes[0]} and of {sizes[-1]} samples")
    return np.concatenate([array.astype(np.float32).reshape(len(array), -1) for array in arrays], axis=1)


def _vectors(rows: Sequence[np.ndarray], where: str) -> Any:
    """A column of series ``(samples, features)``."""
    if len({row.shape[1] for row in rows}) > 1:
        raise ValueError(f"{where} has series of different numbers of features")
    return list_column(rows, pa.list_(pa.list_(pa.float32(), rows[0].shape[1] if rows else 1)))


def _row_numbers(path: Path, names: Sequence[str], *, samples: bool) -> list[str]:
    """The columns, out of ``names``, that number the rows of a file; of ``samples`` other columns than an index may
    count, such as times."""
    table = read_head(path, _HEAD_ROWS)

    def numbers_rows(name: str) -> bool:
        cells, called = table.columns[name], _INDEX.fullmatch(name.strip()) is not None
        if len(cells) < _MIN_COUNTED_ROWS or not all(cell.isdecimal() for cell in cells) or (samples and not called):
            return False
        return count_up(cells) or (called and not samples and len(set(map(int, cells))) == len(cells))

    return [name for name in names if name == UNNAMED or numbers_rows(name)]


def _check_long(table: TextTable, names: Sequence[str], per_sample: bool) -> None:
    """Raise ValueError if a series is on several lines: if one of the columns ``names`` is the same on lines one after
    the other, and another one rises on these, and begins anew on those that follow."""
    for group in names[:_KEY_COLUMNS]:
        cells = table.columns[group]
        starts = [i for i, cell in enumerate(cells) if not i or cell != cells[i - 1]]
        alike = 2 <= len(starts) <= len(cells) // 3 and len(starts) <= len(set(cells))
        for name in names[:_KEY_COLUMNS]:
            if alike and name != group and _restarts(table.columns[name], starts):
                advice = f"write a file for each {group!r}"
                if not per_sample:
                    advice = (
                        "put each series on a line of its own (pandas: frame.pivot, with the times as columns) or into "
                        "a file of its own, in a folder for each class; for a class of every sample there is the "
                        "recipe signal-steps, with a file for each series"
                    )
                raise ValueError(
                    f"{table.path} has several lines for each series: {name!r} begins anew for each {group!r}; "
                    f"{advice}; or name the columns of numbers with `features`"
                )


def _restarts(cells: Sequence[str], starts: Sequence[int]) -> bool:
    """Whether cells rise, as numbers or dates, from each start to the next, and no other rises from end to start."""
    values: list[Any] = list(cells)
    with suppress(ValueError):
        values = [float(cell) for cell in cells]
    inside = set(range(len(values))) - set(starts)
    return all(values[i] > values[i - 1] for i in inside) and all(values[i] <= values[i - 1] for i in starts[1:])


def open_series(
    name: Data,
    label: str | Sequence[str],
    *,
    per_sample: bool = False,
    features: Sequence[str] | None = None,
    lines: bool | None = None,
    rate: int | None = None,
    any_rate: bool = False,
    time: str | None = None,
    group: str | None = None,
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
        group: a column that is kept and is no feature, such as the subject; a recording has one value.

    Errors as `open_rows`.
    """
    labels = (label,) if isinstance(label, str) else tuple(label)
    options: dict[str, Any] = {"rate": rate, "any_rate": any_rate, "time": time, "group": group, "lines": lines}
    options |= {"per_sample": per_sample, "features": features, "labels": labels}
    return SeriesSource(**{**vars(open_rows(name)), **options})
