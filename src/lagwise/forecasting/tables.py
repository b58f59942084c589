"""Read and check tables of series with a column of times, before anything is fitted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from lagwise.data.dates import CLOCK
from lagwise.data.find import find
from lagwise.data.reading import (
    RECORDS,
    TEXT_TABLES,
    inner_suffix,
    read_columns,
    read_head,
    read_table,
    read_text_table,
)
from lagwise.data.text_tables import count_up, decimal_separator, is_missing, to_floats, usual_decimal
from lagwise.files import one_line
from lagwise.forecasting.times import Grid, regular_times
from lagwise.tables import known, shown

_MIN_VALUES = 3  # per series of a long table
_DECIMAL_OF_THOUSANDS = {",": ".", ".": ",", " ": None, "'": None, None: None}


@dataclass(frozen=True)
class SeriesTable:
    """Table of series at regular times.

    Attributes:
        frame: the numbers ``(rows, series)``, NaN where missing, indexed by time.
        notes: how the table was read.
        grid: the times, and what continues them.
        ids: of a long table, the ids of its series ``(series, columns of ids)``.
        target: of a long table, the column to forecast.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...]
    grid: Grid
    ids: pd.DataFrame | None = None
    target: str = ""

    @property
    def ends(self) -> np.ndarray:
        """The number of rows up to the end of each series: in a long table, its last value."""
        observed = self.frame.notna().to_numpy()
        return len(observed) - (observed if self.ids is not None else observed | True)[::-1].argmax(0)

    @property
    def values(self) -> np.ndarray:
        """The numbers ``(rows, series)``, moved so that all series end in the last row."""
        x, rows = self.frame.to_numpy(np.float64), len(self.frame)
        at = np.arange(rows)[:, None] + self.ends - rows
        return np.where(at >= 0, np.take_along_axis(x, at.clip(0), axis=0), np.nan)

    def next_times(self, count: int, end: int | None = None) -> pd.Index:
        """Return the times of the next rows, by default after all rows."""
        after = self.grid.following(count)
        return after if end is None else self.frame.index[end:].append(after)[:count]


def read_series(
    data: Any,
    time: str | None = None,
    columns: Sequence[str] | None = None,
    *,
    ids: Sequence[str] | None = None,
    target: str | None = None,
    date_order: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    missing: Sequence[float] | None = None,
) -> SeriesTable:
    """Read a table with a column of times and columns of numbers, or a long table, with a row for each series and time.

    Rows are sorted by time, as `lagwise.forecasting.times.regular_times` reads it. Times that are missing from a
    regular grid become rows of missing values, and rows after the last value are left out.

    Args:
        data: The path of a .csv, .tsv, .parquet, .json or .jsonl file, also compressed, or of any other text file with
            a line for each time; or a DataFrame of pandas or polars, or a table of pyarrow.
        time: The name of the column of times, dates or evenly spaced numbers; by default the first column.
        columns: The series; by default all other columns.
        ids: The columns that tell the series of a long table apart; by default, where times repeat, the only one of
            text.
        target: The column to forecast; by default, in a long table, the only one with numbers.
        date_order: What dates of three numbers begin with: ``day``, ``month`` or ``year``; by default what gives the
            shortest regular grid.
        decimal: The decimal separator of text, "." or ","; by default as the numbers show.
        thousands: The separator between thousands of text: ",", ".", a space or an apostrophe; as for ``decimal``.
        missing: Numbers that stand for a missing value, such as -999.

    Raises:
        ValueError: For a table without rows or series, times that cannot be used, text or infinity in a column of
            numbers, and in a long table a row without an id, a time that occurs twice in a series, series with
            different steps, and an unclear target. What is not read here can be read with pandas.

    >>> months = pd.DataFrame({"month": ["2024-01", "2024-02", "2024-03"], "sales": ["1.200,5", "1.310,0", "1.290,7"]})
    >>> table = read_series(months)
    >>> table.frame["sales"].tolist(), str(table.frame.index[0])[:10]
    ([1200.5, 1310.0, 1290.7], '2024-01-01')
    """
    name = shown(str(data)) if isinstance(data, str | Path) else "the table"
    known(thousands, _DECIMAL_OF_THOUSANDS, "separator between thousands")
    if decimal is not None and decimal == thousands:
        raise ValueError(f"decimal and thousands must differ, got {decimal!r} for both")
    decimal = known(decimal or _DECIMAL_OF_THOUSANDS[thousands], (".", ",", None), "decimal separator")
    frame, usual, notes = _frame(data)
    if frame.empty or frame.shape[1] < 2:
        raise ValueError(f"{name} has no rows, or no column besides the times")
    named = [*(ids or ()), *(columns or ()), *([target] if target is not None else [])]
    frame = without_row_numbers(frame, [time, *named])
    names = list(frame.columns)
    time = find_time(frame, ids or ()) if time is None else known(time, names, "column of times")
    not_time = [each for each in names if each != time]
    inferred_ids = find_ids(frame, time, not_time) if ids is None and columns is None else []
    ids = [known(each, not_time, "column of ids") for each in ids or inferred_ids]
    not_ids = [each for each in not_time if each not in ids]
    if ids and target is None:
        target = only_number(frame, not_ids)
    if inferred_ids:
        notes.append(f"series are told apart by {ids[0]!r}; the column to forecast is {target!r}")
    requested = [target] if target is not None else columns
    selected = not_ids if requested is None else [known(each, not_time, "column") for each in requested]
    if not selected:
        raise ValueError(f"{name} has no column to forecast besides {time!r}")
    try:
        texts = [frame[each] for each in selected if not pd.api.types.is_numeric_dtype(frame[each])]
        mark = decimal or decimal_separator([each.dropna().astype(str).tolist() for each in texts], usual)
        values = [to_numbers(frame[each], mark, missing or ()) for each in selected]
    except ValueError:
        regular_times(frame[time], date_order=date_order)  # a wrong column of times is reported first
        raise
    has_value: np.ndarray = np.atleast_1d(~np.isnan(np.stack(values)).all(0))
    positions, time_notes = _locate_rows(frame, time, ids, has_value, date_order)
    notes += [*time_notes, *(note for pair in zip(selected, values, strict=True) for note in outlier_notes(*pair))]
    size = int(positions.rows[has_value].max()) + 1
    x = np.concatenate([positions.spread(numbers) for numbers in values], axis=1)[:size]
    full = pd.DataFrame(x, positions.grid.times[:size], positions.names if ids else selected)
    long_enough = np.flatnonzero(full.count() >= (_MIN_VALUES if ids else 0))
    if not len(long_enough):
        name = shown(positions.names[0])
        raise ValueError(f"no series has {_MIN_VALUES} values; {name} has {full.iloc[:, 0].count()}")
    for each in full.columns.delete(long_enough):
        notes.append(f"series {each!r} has fewer than {_MIN_VALUES} values; no forecast is made")
    full = full.iloc[:, long_enough]
    if ids:
        _check_steps(full)
    keys = positions.ids.iloc[long_enough].reset_index(drop=True) if ids else None
    table = SeriesTable(full, (), Grid(full.index, positions.grid.make), keys, selected[0] if ids else "")
    return replace(table, notes=(*notes, *_gap_notes(table)))


def table_columns(path: str | Path) -> list[str] | None:
    """List the columns of a table of series, or of a table of rows; None for other files."""
    path = Path(path)
    if path.is_file() and inner_suffix(path) in RECORDS:
        return list(read_columns(path))
    if path.is_file() and inner_suffix(path) in (*TEXT_TABLES, ".txt"):
        return read_head(path, titles=True).names
    return None


class _RowPositions(NamedTuple):
    """Position of each row of a table: the index of its series and of its time, -1 for a time that is not on the grid,
    with the ids ``(series, ids)`` and names of the series (one if it is no long table) and the grid of times."""

    ids: pd.DataFrame
    names: list[str]
    grid: Grid
    series: np.ndarray
    rows: np.ndarray

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Arrange one value per row as ``(times, series)``, NaN where the table has none."""
        spread = np.full((len(self.grid.times), len(self.names)), np.nan)
        on_grid = self.rows >= 0
        spread[self.rows[on_grid], self.series[on_grid]] = values[on_grid]
        return spread


def _locate_rows(
    frame: pd.DataFrame, time: str, ids: Sequence[str], has_value: np.ndarray, date_order: str | None
) -> tuple[_RowPositions, tuple[str, ...]]:
    """Find the series and time of each row, and return notes too. All series share one grid, which contains the time of
    each row that ``has_value``. ValueError for a row without an id, and a time that occurs twice in a series."""
    if (missing := frame[ids].isna().to_numpy()).any():
        row, index = np.argwhere(missing)[0]
        raise ValueError(f"column {ids[index]!r} has no value in row {row + 1}; every row needs the id of its series")
    series = frame.groupby(list(ids), sort=False).ngroup().to_numpy() if ids else np.zeros(len(frame), dtype=int)
    keys = frame[ids].iloc[np.unique(series, return_index=True)[1]].reset_index(drop=True)
    names = [" / ".join(str(value).strip() for value in row) for row in keys.itertuples(index=False)] or [""]
    times, grid, notes = regular_times(frame[time], has_value, date_order)
    repeated = pd.DataFrame({"series": series, "time": times}).duplicated().to_numpy()
    if repeated.any():
        row = int(repeated.argmax())
        raise ValueError(
            f"{f'series {names[series[row]]!r}: ' if ids else ''}column {time!r} has {times[row]} more than once; keep "
            "one row for each time, name the columns that tell series apart with `id`, join date and time if they are "
            "in several columns, and write local times with their UTC offset if the clock was changed"
        )
    all_times = grid.make(grid.times[0], max(times.max(), grid.times[-1]), None).rename(time)
    rows = all_times.get_indexer(times, method=None if isinstance(times, pd.DatetimeIndex) else "nearest")
    return _RowPositions(keys, names, Grid(all_times, grid.make), series, rows), notes


def _gap_notes(table: SeriesTable) -> list[str]:
    """Note values that are missing before the end of their series, also of times that are missing."""
    observed = table.frame.notna().to_numpy()
    sizes = table.ends - (0 if table.ids is None else observed.argmax(0))
    if not (missing := int((sizes - observed.sum(0)).sum())):
        return []
    return [
        f"{missing:,} of {sizes.sum():,} values are missing; as inputs, the last value before each stands in for it"
    ]


def _check_steps(frame: pd.DataFrame) -> None:
    """Raise ValueError for a series all of whose steps are multiples of several times of the grid that it shares."""
    for name, observed in frame.notna().items():
        gcd = np.gcd.reduce(np.diff(np.flatnonzero(observed)))
        if gcd > 1 and observed.sum() > _MIN_VALUES:
            raise ValueError(
                f"series {name!r} has other steps than the table, one row for every {gcd} of its times; put series "
                "with the same steps and times into a table of their own"
            )


def _frame(data: Any) -> tuple[pd.DataFrame, str | None, list[str]]:
    """Read a table, text files as text, and return with it its usual decimal separator and notes on lines that are no
    rows."""
    if isinstance(data, str | Path):
        path = Path(data)
        if path.is_dir() or not path.exists():
            raise FileNotFoundError(f"no file {str(path)!r}; give the path of a table")
        path = find(str(path), ".csv").path
        try:
            if inner_suffix(path) not in RECORDS:
                table = read_text_table(path, titles=True)
                frame = pd.DataFrame(table.columns, dtype=str)
                frame = frame.mask(frame.map(is_missing)).dropna(how="all").reset_index(drop=True)
                return frame, usual_decimal(table.separator), list(table.notes)
            data = read_table(path)
        except (ValueError, EOFError, OSError) as error:  # parsing errors of the libraries are ValueErrors
            if str(path) in str(error):
                raise
            raise ValueError(f"{str(path)!r} cannot be read as a table: {one_line(error)}") from error
    frame = data if isinstance(data, pd.DataFrame) else pa.table(data).to_pandas()
    # Times are often the index, but integers without a name are the rows that a selection kept.
    left_over = frame.index.name is None and pd.api.types.is_integer_dtype(frame.index)
    frame = frame.reset_index(drop=left_over)
    return frame.set_axis([str(name) for name in frame.columns], axis=1), None, []


# Columns: what they are for, and their numbers.

_ID_NAMES = ("unique_id", "item_id", "series_id", "id", "series")  # lower case
_TIME_NAMES = ("date", "datetime", "timestamp", "time", "ds", "week", "month", "quarter", "day", "period", "year")
_UNNAMED = "Unnamed: 0"  # the name that a first column without one gets: the index of a table that pandas wrote
_OUTLIER_DEVIATIONS = 30  # robust deviations from the median: a value worth a note
_MAX_OUTLIER_SHARE = 0.05
_BOOLEANS = {"true": "1", "false": "0"}


def without_row_numbers(frame: pd.DataFrame, used: Sequence[str | None]) -> pd.DataFrame:
    """Leave out a first column that counts the rows, as pandas and R write it, if another one has a usual name of
    times."""
    first, *others = frame.columns
    counts = len(others) > 1 and first not in used and count_up(frame[first].astype(str).tolist())
    if counts and (first == _UNNAMED or any(name.lower() in _TIME_NAMES for name in others)):
        return frame[others]
    return frame if _UNNAMED in used else frame.rename(columns={_UNNAMED: "time"})


def find_time(frame: pd.DataFrame, ids: Sequence[str]) -> str:
    """Find the column of times: the first that is no id or, if its values repeat, one with a usual name."""
    candidates = [str(name) for name in frame.columns if name not in ids and name.lower() not in _ID_NAMES]
    candidates = candidates or [str(frame.columns[0])]
    if not frame[candidates[0]].duplicated().any() or candidates[0].lower() in _TIME_NAMES:
        return candidates[0]
    return next((name for name in candidates if name.lower() in _TIME_NAMES), candidates[0])


def find_ids(frame: pd.DataFrame, time: str, names: Sequence[str]) -> list[str]:
    """Find the column that tells series apart, where times repeat: the only one of text, or with a usual name. Without
    such a column there is none."""
    if not frame[time].duplicated().any():
        return []
    candidates = [name for name in names if name.lower() in _ID_NAMES or _is_text(frame[name])]
    return candidates if len(candidates) == 1 and frame[candidates[0]].duplicated().any() else []


def only_number(frame: pd.DataFrame, columns: Sequence[str]) -> str:
    """Find the only column with numbers. ValueError if there are several or none."""
    numbers = [name for name in columns if not _is_text(frame[name])]
    if len(numbers) == 1:
        return numbers[0]
    names = ", ".join(map(repr, numbers)) or "none has numbers"
    raise ValueError(f"name the column to forecast with `target`; the columns besides ids and times: {names}")


def _is_text(column: pd.Series) -> bool:
    """Whether the first value has a letter, and is no time of day."""
    values = column.dropna().astype(str)
    return len(values) > 0 and re.search(r"[^\W\d_]", re.sub(CLOCK, "", values.iloc[0])) is not None


def to_numbers(column: pd.Series, decimal: str, missing: Sequence[float] = ()) -> np.ndarray:
    """Read a column of numbers, percentages, or true and false as float64: NaN where missing or one of the codes for a
    missing value.

    Text is read as by `lagwise.data.text_tables.to_floats`. ValueError names the row and value of anything else, and of
    infinity.
    """
    name = str(column.name)
    if pd.api.types.is_datetime64_any_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        raise ValueError(f"column {name!r} has times, not numbers; choose columns with `columns` or `time`")
    if pd.api.types.is_numeric_dtype(column):
        numbers, row = column.to_numpy(np.float64, na_value=np.nan), None
    else:
        cells = column.fillna("").astype(str).str.strip()
        lower = cells.str.lower()
        cells = lower.map(_BOOLEANS) if lower.isin(_BOOLEANS).all() else cells
        cells = cells.str.removesuffix("%") if cells[cells != ""].str.endswith("%").all() else cells
        numbers, row = to_floats(cells.tolist(), decimal)
    if row is None and np.isinf(numbers).any():
        row = int(np.isinf(numbers).argmax())
    if row is not None:
        raise ValueError(
            f"column {name!r} has {shown(str(column.iloc[row]))} in row {row + 1}, which is not a number; leave it "
            "empty if it is missing, choose columns with `columns` or `time`, name with `id` the column that tells "
            "series apart, or read the table with pandas and give the DataFrame to read_series"
        )
    numbers = np.where(np.isin(numbers, missing), np.nan, numbers)
    if np.isnan(numbers).all():
        raise ValueError(f"column {name!r} has no value at all; choose columns with `columns`")
    return numbers


def outlier_notes(name: str, values: np.ndarray) -> list[str]:
    """Note values of a series that are so far from all others that they may stand for missing ones."""
    middle = np.nanmedian(values)
    deviation = 1.4826 * np.nanmedian(np.abs(values - middle))
    with np.errstate(over="ignore"):
        far = np.abs(values - middle) > _OUTLIER_DEVIATIONS * deviation
    if not (deviation > 0 and 0 < far.sum() <= _MAX_OUTLIER_SHARE * np.count_nonzero(~np.isnan(values))):
        return []
    row = int(far.argmax())
    more = f" and {far.sum() - 1:,} more" if far.sum() > 1 else ""
    return [
        f"series {name!r} has {values[row]:g} in row {row + 1}{more}, over {_OUTLIER_DEVIATIONS} deviations from its "
        f"median of {middle:g}; if it stands for a missing value, name it with `missing`"
    ]
