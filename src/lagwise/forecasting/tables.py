"""Tables of series with a column of times, read and checked before anything is fitted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lagwise.data.numbers import count_up, decimal_separator, is_missing, usual_decimal
from lagwise.data.reading import check_spreadsheet, inner_suffix
from lagwise.data.row_files import RECORDS, TEXT_TABLES, read_columns, read_table
from lagwise.data.text_tables import read_head, read_text_table
from lagwise.files import one_line
from lagwise.forecasting.clock_changes import is_skipped, skipped_note
from lagwise.forecasting.columns import Columns
from lagwise.forecasting.grids import Grid
from lagwise.forecasting.long_tables import (
    Places,
    find_ids,
    find_target,
    find_time,
    later_note,
    long_notes,
    place_rows,
)
from lagwise.forecasting.month_names import in_english
from lagwise.forecasting.numbers import missing_codes, to_numbers
from lagwise.forecasting.table_columns import TableColumns, beside_columns, check_beside
from lagwise.forecasting.times import MONTH_NAME, Times, date_formats, is_clock, regular_times
from lagwise.forecasting.year_parts import Writer
from lagwise.tables import known, shown

_UNNAMED = "Unnamed: 0"  # pandas' name for a first column without a name: the index of a table that pandas wrote
_MONTHS = 12
_NAMED = 3  # columns in a note
_MOST_BELOW = 20  # lines below the rows, such as totals and notes


@dataclass(frozen=True)
class SeriesTable:
    """Series at regular times: a DataFrame of numbers, NaN where missing, indexed by time, notes on how it was read,
    its grid of times, and the function that writes times as the table had them. Of a long table also the ids of its
    series, ``(series, columns of ids)``, and the name of the column to forecast. Columns beside the series, if any, and
    a zone whose clock changes the times show."""

    frame: pd.DataFrame
    notes: tuple[str, ...]
    grid: Grid
    write: Writer
    ids: pd.DataFrame | None = None
    target: str = ""
    beside: TableColumns | None = None
    zone: str | None = None

    @property
    def ends(self) -> np.ndarray:
        """The number of rows up to the end of each series: in a long table, its last value."""
        rows = len(self.frame)
        if self.ids is None:
            return np.full(self.frame.shape[1], rows)
        return rows - self.frame.notna().to_numpy()[::-1].argmax(0)

    @property
    def values(self) -> np.ndarray:
        """The numbers ``(rows, series)``, in which all series end in the last row."""
        x = self.frame.to_numpy(np.float64)
        at = np.arange(len(x))[:, None] + self.ends - len(x)
        return np.where(at >= 0, np.take_along_axis(x, at.clip(0), axis=0), np.nan)

    def columns(self, horizon: int) -> Columns | None:
        """The columns beside `values`, with those of the future for the horizon; ValueError names a value that is not
        there. None without any."""
        if self.beside is None:
            return None
        names = list(self.frame.columns)
        return self.beside.aligned(names, self.ends, len(self.frame), horizon, self.next_times, self.exist)

    def next_times(self, count: int, end: int | None = None) -> pd.Index:
        """The times of the next rows, by default after all rows."""
        after = self.grid.following(count)
        return after if end is None else self.frame.index[end:].append(after)[:count]

    def exist(self, times: pd.Index) -> np.ndarray:
        """Whether each time exists: not where the clock goes forward."""
        return ~is_skipped(times, self.zone)


def read_series(
    path: str | Path,
    time: str | None = None,
    columns: Sequence[str] | None = None,
    *,
    ids: Sequence[str] | None = None,
    target: str | None = None,
    beside: Mapping[str, Sequence[str]] | None = None,
) -> SeriesTable:
    """Read a table with a column of times and columns of numbers, or a long table, with a row for each series and time.

    Rows are sorted by time, as `lagwise.forecasting.times.regular_times` reads it. Times that are missing from a
    regular grid become rows of missing values, with a note. So do numbers such as -999, far from all others, that stand
    for a missing value. Lines such as totals below the rows are left out, with a note.

    Args:
        path: A table as `lagwise.data.open_rows` reads it, or any other text file with a line for each time.
        time: The name of the column of times, dates or evenly spaced numbers; by default the first column.
        columns: The series; by default all other columns.
        ids: The columns that tell the series of a long table apart; by default found where times repeat: a column with
            a usual name (id, unique_id, item_id, series_id, series) or of text.
        target: The column to forecast; by default, in a long table, the only one with numbers or one named y, target or
            value.
        beside: Columns that help, by kind: ``future`` ones, whose values are known in advance, in rows without a value
            to forecast below; ``past`` ones; and in a long table ``static`` ones, with one value for each series.

    Raises:
        ValueError: For a table without rows or series, times that cannot be used, text or infinity in a column of
            numbers, and in a long table a row without an id, a time that occurs twice in a series, and an unclear
            target.

    >>> import tempfile
    >>> import pandas as pd
    >>> months = pd.DataFrame({"month": ["2024-01", "2024-02", "2024-03"], "sales": ["1.200,5", "1.310,0", "1.290,7"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     months.to_csv(f"{folder}/months.csv", sep=";", index=False)
    ...     table = read_series(f"{folder}/months.csv")
    >>> table.frame["sales"].tolist(), str(table.frame.index[0])[:10]
    ([1200.5, 1310.0, 1290.7], '2024-01-01')
    """
    path = Path(path)
    frame, usual, titles = _frame(path)
    if frame.empty or frame.shape[1] < (1 if time is None else 2):
        raise ValueError(f"{str(path)!r} has no rows, or no column besides the times")
    frame.columns = names = [str(name) for name in frame.columns]
    notes = []
    if time is None and len(names) > 2 and _numbers_rows(frame):
        notes.append(f"the column {names[0]!r} numbers the rows; the times are those in {names[1]!r}")
        frame = frame.drop(columns=names[0])
    elif names[0] == _UNNAMED and time in (None, _UNNAMED):
        frame = frame.rename(columns={_UNNAMED: "time"})
    elif names[0] == _UNNAMED:  # the row number
        frame = frame.drop(columns=_UNNAMED)
    names = list(frame.columns)
    time = find_time(frame, ids or ()) if time in (None, _UNNAMED) else known(time, names, "column of times")
    frame, parts, joined = _joined_times(frame, time)
    beside = {kind: list(some) for kind, some in (beside or {}).items() if some}
    used = check_beside(beside, names, [time, *parts, *(ids or ()), *(columns or ()), *([target] if target else [])])
    rest = [name for name in names if name not in (time, *parts, *used)]
    found = find_ids(frame, time, rest) if ids is None and columns is None else []
    if ids or found:
        ids = [known(name, rest, "column of ids") for name in ids or found]
        start = _Start(path, time, usual, (*titles, *notes, *joined))
        return _long(frame, start, ids, target, [name for name in rest if name not in ids], bool(found), beside)
    if beside.get("static"):
        raise ValueError("static columns need a table with a row for each series and time; name its series with `id`")
    columns = [target] if target is not None else columns
    chosen = [known(name, names, "column") for name in columns or () if name not in (time, *parts)]
    if columns is None:
        chosen = rest
    if not chosen:
        others = f" and {', '.join(map(repr, used))}, which are known beside it" if used else ""
        raise ValueError(f"{str(path)!r} has no column to forecast besides the times in {time!r}{others}")
    if len(chosen) == _MONTHS and all(re.fullmatch(MONTH_NAME, name) for name in chosen):
        notes.append("the columns of months are a series each; if they are one, write a row for each month")
    frame, below = _without_totals(frame[[time, *chosen, *used]], time)
    try:
        values, codes = _values(frame[chosen], usual)
    except ValueError:
        regular_times(frame[time])  # a wrong column of times is what to name first
        raise
    some = values.notna().any(axis=1).to_numpy()
    times = regular_times(frame[time], some)
    kept = some | times.times.isin(times.grid.times)
    grid, extra = times.grid, None
    if used:
        grid = Grid(grid.times[grid.times <= times.times[some].max()], grid.make)
        rows = times.grid.times.get_indexer(times.times, method="nearest")
        places = Places(None, [""], times, np.zeros(len(rows), dtype=int), np.where(kept, rows, -1))
        extra = beside_columns(frame, beside, _decimal(frame[used], usual), places.spread)
        extra = extra.of(np.zeros(len(chosen), dtype=int))
        kept &= np.asarray(times.times <= grid.times[-1])
    full, more = _regular(values[kept], times._replace(times=times.times[kept], grid=grid))
    said = (*titles, *notes, *joined, *below, *times.notes, *codes, *more, *_early_ends(full))
    return SeriesTable(full, said, grid, times.write, beside=extra, zone=times.zone)


class _Start(NamedTuple):
    """What is known of a table before its series are."""

    path: Path
    time: str
    usual: str | None
    notes: tuple[str, ...]


def _long(
    frame: pd.DataFrame,
    start: _Start,
    ids: Sequence[str],
    target: str | None,
    rest: Sequence[str],
    found: bool,
    beside: Mapping[str, Sequence[str]],
) -> SeriesTable:
    """The series of a long table."""
    frame, below = _without_totals(frame, start.time)
    chosen = target is None
    target = find_target(frame, rest) if target is None else known(target, rest, "column to forecast")
    read, codes = _values(frame[[target]], start.usual)
    numbers = read[target].to_numpy()
    some = ~np.isnan(numbers)
    places, notes = place_rows(frame, start.time, ids, some)
    spread = places.spread(numbers)
    kept, more = long_notes(places, spread)
    rows = int(np.flatnonzero(~np.isnan(spread).all(1))[-1]) + 1
    index, make = places.times.grid.times[:rows], places.times.grid.make
    full = pd.DataFrame(
        spread[:rows, kept], index=index, columns=[n for n, k in zip(places.names, kept, strict=True) if k]
    )
    said = [f"series are told apart by {' and '.join(map(repr, ids))}"] if found else []
    said += [f"the column to forecast is {target!r}"] if chosen else []
    said = ["; ".join(said)] if said else []
    assert places.ids is not None
    keys = places.ids[kept].reset_index(drop=True)
    table = SeriesTable(full, (), Grid(index, make), places.times.write, keys, target, zone=places.times.zone)
    if beside:
        decimal = _decimal(frame[[name for some in beside.values() for name in some]], start.usual)
        table = replace(table, beside=beside_columns(frame, beside, decimal, places.spread).of(kept))
    more += later_note(frame[some], frame[places.rows >= rows], ids, target, [] if beside.get("future") else rest)
    observed, skipped = full.notna().to_numpy(), ~table.exist(index)
    more += skipped_note(index[skipped])
    inside = int((table.ends - observed.argmax(0) - (observed | skipped[:, None]).sum(0)).sum())
    if inside:
        more.append(
            f"{inside:,} values are missing within series; as inputs, the last value before each stands in for it"
        )
    return replace(table, notes=(*start.notes, *said, *below, *notes, *codes, *more))


def _early_ends(frame: pd.DataFrame) -> list[str]:
    """A note if series without values in the last rows, which others have, may be forecast from these others."""
    rows = frame.notna().to_numpy()[::-1].argmax(0)  # without values, at the end
    early, others = frame.columns[rows > 1], frame.columns[rows == 0]
    if not len(early) or not len(others):
        return []
    return [
        f"series {early[0]!r} has no value in the last {rows.max()} rows; if {', '.join(map(repr, others[:_NAMED]))} "
        f"{'are' if len(others) > 1 else 'is'} known in advance, name {'them' if len(others) > 1 else 'it'} with "
        "`future`, to forecast these rows"
    ]


def _numbers_rows(frame: pd.DataFrame) -> bool:
    """Whether the first column counts the rows, and the second has no numbers, as times."""
    numbers, times = (frame[name] for name in frame.columns[:2])
    dates = pd.api.types.is_datetime64_any_dtype(times) or pd.to_numeric(times, errors="coerce").isna().all()
    return count_up(numbers.astype(str).tolist()) and bool(dates)


def table_columns(path: str | Path) -> list[str] | None:
    """The names of the columns of a table of series, or of a table of rows; None for other files."""
    path = Path(path)
    if path.is_file() and inner_suffix(path) in RECORDS:
        return list(read_columns(path))
    if path.is_file() and inner_suffix(path) in (*TEXT_TABLES, ".txt"):
        return read_head(path, titles=True).names
    return None


def _frame(path: Path) -> tuple[pd.DataFrame, str | None, tuple[str, ...]]:
    """A table, of text files as text, with the decimal separator that is usual in it, and notes on lines that are no
    rows."""
    if not path.is_file():
        raise FileNotFoundError(
            f"{str(path)!r} is a folder; give a file in it" if path.is_dir() else f"no file {str(path)!r}"
        )
    check_spreadsheet(path)
    try:
        if inner_suffix(path) in RECORDS:
            frame = read_table(path).to_pandas()
            # Times are often the index; integers without a name are the rows that a selection kept.
            left_over = frame.index.name is None and pd.api.types.is_integer_dtype(frame.index)
            return frame.reset_index(drop=left_over), ".", ()
        table = read_text_table(path, titles=True)
        if not table.names:
            raise ValueError("it is empty")
    except (ValueError, EOFError, OSError) as error:  # parsing errors of the libraries are ValueErrors
        if str(path) in str(error):
            raise
        raise ValueError(f"{str(path)!r} cannot be read as a table: {one_line(error)}") from error
    cells = {
        name: [None if not cell[-1:].isdigit() and is_missing(cell) else cell for cell in column]
        for name, column in table.columns.items()
    }
    frame = pd.DataFrame(cells, dtype=str).dropna(how="all").reset_index(drop=True)
    return frame, usual_decimal(table.separator), table.notes


def _joined_times(frame: pd.DataFrame, time: str) -> tuple[pd.DataFrame, list[str], list[str]]:
    """The table with whole times in the column ``time`` where they are spread over columns: a date and a time of day,
    or year, month and day; the other columns that they came from; and notes."""
    parts = {name.lower(): name for name in frame.columns if name.lower() in ("year", "month", "day")}
    clocks = [name for name in frame.columns if name != time and is_clock(frame[name])]
    if time in parts.values() and {"year", "month"} <= parts.keys():
        values: Any = {key: pd.to_numeric(frame[name], errors="coerce") for key, name in parts.items()}
        times = pd.to_datetime({"day": 1, **values}, errors="coerce")
        others = [name for name in parts.values() if name != time]
    elif len(clocks) == 1 and not is_clock(frame[time]) and pd.api.types.is_string_dtype(frame[time]):
        others = clocks
        times = frame[time].str.strip() + " " + frame[others[0]].str.strip()
    else:
        return frame, [], []
    if times.isna().any():
        return frame, [], []
    names = " and ".join(map(repr, [time, *others]))
    return frame.assign(**{time: times}), others, [f"times are those of columns {names} together"]


def _form(text: object) -> str:
    return re.sub(r"\d+", "0", str(text).strip())


def _without_totals(frame: pd.DataFrame, time: str) -> tuple[pd.DataFrame, list[str]]:
    """The rows without those at the end that have a word, or nothing, for a time (Total, Source: ...), and notes."""
    if not (pd.api.types.is_object_dtype(frame[time]) or pd.api.types.is_string_dtype(frame[time])):
        return frame, []
    count, notes = len(frame), []
    form = _form(frame[time].iloc[0])
    while len(frame) - count < _MOST_BELOW and count > 3:
        row = frame.iloc[count - 1]
        text = "" if pd.isna(row[time]) else str(row[time]).strip()
        word = re.match(r"[\W_]*[^\W\d_]{3,}", text)
        if word and (_form(text) == form or date_formats(text) or in_english(pd.Series([text])) is not None):
            break  # a time that begins with a word
        if not (text == "" or (word and pd.isna(pd.to_datetime(text, errors="coerce")))):
            break
        notes.insert(0, f"the last row, {shown(', '.join(map(str, row.dropna())))}, has no time; it is left out")
        count -= 1
    above = frame[time].iloc[:count].astype("string").str.contains(r"\d").fillna(False).astype(bool)
    return (frame.iloc[:count], notes) if above.any() else (frame, [])


def _decimal(frame: pd.DataFrame, usual: str | None) -> str:
    texts = frame.select_dtypes(exclude=["number", "bool", "datetime", "datetimetz", "timedelta"])
    return decimal_separator([column.dropna().astype(str).tolist() for _, column in texts.items()], usual)


def _values(frame: pd.DataFrame, usual: str | None) -> tuple[pd.DataFrame, list[str]]:
    """The numbers of a table without codes for missing ones, and notes."""
    decimal = _decimal(frame, usual)
    values, notes = {}, []
    for name in frame.columns:
        values[name], own = missing_codes(name, to_numbers(frame[name], decimal))
        notes += own
    return type(frame)(values), notes


def _regular(frame: pd.DataFrame, times: Times) -> tuple[pd.DataFrame, list[str]]:
    """The rows at their positions on the grid, missing values between them, and notes."""
    grid = times.grid.times
    at = times.times
    if at.has_duplicates:
        frame = frame.groupby(at).mean()
        at = frame.index
    values = np.full((len(grid), frame.shape[1]), np.nan)
    # Numbers of a grid may differ from those of the table by rounding.
    values[grid.get_indexer(at, method="nearest")] = frame.to_numpy()
    full = pd.DataFrame(values, index=grid, columns=frame.columns)
    skipped = is_skipped(grid, times.zone)
    notes = skipped_note(grid[skipped])
    if added := len(full) - len(frame) - int(skipped.sum()):
        notes.append(
            "1 time is missing from the grid; it counts as a row without values"
            if added == 1
            else f"{added:,} times are missing from the grid; they count as rows without values"
        )
    if missing := int(full[~skipped].isna().to_numpy().sum()):
        notes.append(
            f"{missing:,} of {full.size:,} values {'is' if missing == 1 else 'are'} missing; as inputs, the last value "
            "before each stands in for it"
        )
    for name in full.columns[(full.max() == full.min()).to_numpy()]:
        notes.append(f"series {name!r} is constant")
    return full, notes
