"""Recordings as rows: sound files, and tables with a line for each sample."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import lagwise.data.arrow as pa
from lagwise.data.arrays import array_column
from lagwise.data.folders import folder_name
from lagwise.data.numbers import count_up
from lagwise.data.reading import inner_suffix, read_whole
from lagwise.data.sample_times import read_times, with_times
from lagwise.data.sound_files import SOUNDS, read_sound
from lagwise.data.text_tables import TextTable, read_head
from lagwise.tables import counted, known

SERIES = "input_values"
FOLDER_LABEL = "label"  # the column of the names of folders
SOUND_COLUMNS = (FOLDER_LABEL, "sampling_rate", "file", SERIES)
UNNAMED = "Unnamed: 0"  # a first column without a name
_COUNTED, _HEAD = 5, 100  # rows that show whether a column counts them: the least, and the first ones that are read
_INDEX = re.compile(r"index|idx|level_0|(\w+[ _])?id|row([ _]\w+)?", re.IGNORECASE)  # names of numbers of rows
_KEYS = 4  # columns, the first ones, that may say which series a line is of, and when


def wav_table(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    """One row: the samples, the sampling rate, the name of the file, and as label the name of its folder."""
    rate, samples = read_sound(data, path)
    return _row({SERIES: samples, FOLDER_LABEL: folder_name(path), "sampling_rate": rate, "file": path.name}, columns)


def lines_table(
    table: TextTable,
    label: str,
    features: Sequence[str],
    wanted: Sequence[str] | None,
    written: Sequence[str] = (),
) -> pa.Table:
    """The lines of a .csv or .tsv file as series of one feature: their numbers in the columns ``features``, in this
    order. Of other columns, those ``written`` stay as they are, and numbers in the rest have decimal points; only those
    ``wanted`` are returned, or all. Errors as `recording_table`, and
    for a file that has only some of the features."""
    missing = [name for name in features if name not in table.names]
    if 0 < len(missing) < len(features):
        raise ValueError(
            f"{table.path} lacks {counted(len(missing), 'column')} of {len(features)}, first {missing[0]!r}: a line is "
            "a series, and its samples are in these columns. Write series of other lengths as lists of numbers, a "
            f".jsonl with {SERIES} in each line"
        )
    values = _samples(table, label, features)
    others = [name for name in table.names if name not in (*features, SERIES)]
    cells = {name: table.columns[name] if name in written else table.cells(name) for name in others}
    kept: dict[str, Any] = {name: pa.array(column, pa.string()) for name, column in cells.items()}
    kept[SERIES] = array_column(values)
    return pa.table({name: column for name, column in kept.items() if wanted is None or name in wanted})


def recording_table(
    table: TextTable,
    label: str,
    features: Sequence[str],
    wanted: Sequence[str] | None,
    folder: str | None,
    *,
    name: str,
    per_sample: bool,
    labelled: bool,
    time: str | None = None,
) -> pa.Table:
    """One row: the recording in a .csv or .tsv file, with a line for each sample and a column for each feature.

    Args:
        features: their columns, in order.
        wanted: the columns that are returned, None for all.
        name: of the file, in the column ``file``.
        per_sample: the column ``label`` has a label for each sample; otherwise it has one label, that of the recording.
        time: the column of the samples' times (`with_times`); None if it has none.

    Without that column, the name of its ``folder`` is the recording's label, unless other recordings have the column
    (``labelled``).

    A missing number (`MISSING`) is NaN. ValueError names the line and column of any other field that is not a number, a
    feature without a column, a recording with several labels, and one without the column if it is wanted and others
    have it.
    """
    path, found = table.path, folder
    values: Any = _samples(table, label, features)
    if time is not None:
        values = with_times(values, read_times(table, time), str(path))
    own: Any = found
    if label in table.columns:
        own = table.cells(label)
        if not per_sample:
            if len(set(own)) > 1:
                raise ValueError(
                    f"{path} has samples with different labels ({', '.join(map(repr, sorted(set(own))[:2]))}, ...); "
                    "a recording has one, but the task sequence_labelling learns those of samples"
                )
            own = own[0]
    elif labelled:
        if wanted is not None and label in wanted:
            raise ValueError(f"{path} has no column {label!r}, which other recordings have (task.label)")
        own = [""] * len(values) if per_sample else None
    return _row({SERIES: values, "file": name, label: own}, wanted)


def _samples(table: TextTable, label: str, features: Sequence[str]) -> np.ndarray:
    if not features or not table.lines:
        raise ValueError(f"{table.path} has no samples")
    for name in features:
        known(name, table.names, f"column of {table.path}")
    try:
        return table.numbers(*features).astype(np.float32)
    except ValueError as error:
        raise ValueError(
            f"{error}; all columns but that of the labels, task.label={label!r}, are read as numbers unless "
            "task.features names some"
        ) from error


def long_columns(table: TextTable, names: Sequence[str]) -> tuple[str, str] | None:
    """Two of the columns ``names``, if a series is on several lines: one that is the same on lines one after the other,
    and one that rises on these, and begins anew on those that follow. None for other tables."""
    for group in names[:_KEYS]:
        cells = table.columns[group]
        starts = [i for i, cell in enumerate(cells) if not i or cell != cells[i - 1]]
        if not 2 <= len(starts) <= len(cells) // 3 or len(starts) > len(set(cells)):
            continue
        for name in names[:_KEYS]:
            if name != group and _restarts(table.columns[name], starts):
                return group, name
    return None


def _restarts(cells: Sequence[str], starts: Sequence[int]) -> bool:
    """Whether cells rise, as numbers or dates, from each start to the next, and no other rises from end to start."""
    values: list[Any] = list(cells)
    with suppress(ValueError):
        values = [float(cell) for cell in cells]
    inside = set(range(len(values))) - set(starts)
    return all(values[i] > values[i - 1] for i in inside) and all(values[i] <= values[i - 1] for i in starts[1:])


def first_rate(files: Mapping[str, Sequence[Path]]) -> int | None:
    """The sampling rate in Hz of the first sound of files in splits; None if there is none."""
    sound = next((path for paths in files.values() for path in paths if inner_suffix(path) in SOUNDS), None)
    return None if sound is None else read_sound(read_whole(sound), sound)[0]


def row_numbers(path: Path, names: Sequence[str], *, samples: bool) -> list[str]:
    """Those of the columns ``names`` of a file that number its rows: a first one without a name, as pandas and R write,
    one called as an index with a different integer for each row, and any that counts from one row to the next.

    samples: the rows are samples, of which other columns than an index may count, such as times.
    """
    table = read_head(path, _HEAD)
    return [name for name in names if name == UNNAMED or _numbers_rows(name, table.columns[name], samples)]


def _numbers_rows(name: str, cells: Sequence[str], samples: bool) -> bool:
    called = _INDEX.fullmatch(name.strip()) is not None
    if len(cells) < _COUNTED or not all(cell.isdecimal() for cell in cells) or (samples and not called):
        return False
    return count_up(cells) or (called and not samples and len(set(map(int, cells))) == len(cells))


def check_sounds(tables: Mapping[Path, pa.Table], rate: int | None = None, *, any_rate: bool = False) -> None:
    """ValueError if sounds, read by `wav_table`, have different numbers of channels, or, unless they may have any_rate,
    different sampling rates or others than ``rate``, in Hz."""
    wanted, by = rate, "the model was trained at"
    channels: tuple[int, Path] | None = None
    for path, table in tables.items():
        own, vectors = table.column("sampling_rate")[0].as_py(), table.schema.field(SERIES).type.value_type
        if wanted is None:
            wanted, by = own, f"{path} has"
        if own != wanted and not any_rate:
            raise ValueError(
                f"{path} has a sampling rate of {own} Hz, {by} {wanted} Hz; resample the sounds to one rate"
            )
        channels = channels or (vectors.list_size, path)
        if vectors.list_size != channels[0]:
            raise ValueError(
                f"{path} has {counted(vectors.list_size, 'channel')}, {channels[1]} has {channels[0]}; give all sounds "
                f"as many, for example with 'ffmpeg -i {path.name} -ac 1 mono-{path.name}'"
            )


def _row(values: Mapping[str, Any], columns: Sequence[str] | None) -> pa.Table:
    row: dict[str, Any] = {name: pa.array([value]) for name, value in values.items() if name != SERIES}
    row[SERIES] = array_column(values[SERIES][None])
    return pa.table({name: column for name, column in row.items() if columns is None or name in columns})
