"""Tables of series with a column of times, read and checked before anything is fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from lagwise.data.numbers import decimal_separator, is_missing, usual_decimal
from lagwise.data.reading import check_spreadsheet, inner_suffix
from lagwise.data.row_files import RECORDS, TEXT_TABLES, read_columns, read_table
from lagwise.data.text_tables import parse_text_table, read_head, read_text_table
from lagwise.files import one_line
from lagwise.forecasting.columns import KINDS, Columns
from lagwise.forecasting.grids import Grid
from lagwise.forecasting.numbers import to_numbers, without_codes
from lagwise.forecasting.roles import (
    find_ids,
    find_target,
    find_time,
    with_joined_times,
    without_lines_below,
    without_row_numbers,
)
from lagwise.forecasting.times import plain_times, regular_times
from lagwise.tables import counted, known, shown

_MAX_TEXTS = 50  # different ones in a column beside the series
_MAX_NAMED = 3  # series and columns in a note
_MIN_VALUES = 3  # of a series
_MIN_ROWS_WITH_STEP = 5  # of a series, to say that its steps are longer than those of the others
#: The columns beside series: their kind, name and values.
Beside = tuple[tuple[str, str, np.ndarray], ...]
_DECIMAL_OF_THOUSANDS = {",": ".", ".": ",", " ": None, "'": None}


@dataclass(frozen=True)
class SeriesTable:
    """Series at regular times.

    Attributes:
        frame: the numbers ``(rows, series)``, NaN where missing, indexed by time.
        notes: how the table was read.
        grid: the times, and what continues them.
        ids: of a long table, the ids of its series ``(series, columns of ids)``.
        target: of a long table, the column to forecast.
        beside: columns beside the series: their kind and name, and values ``(times, series)``, also after the series.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...]
    grid: Grid
    ids: pd.DataFrame | None = None
    target: str = ""
    beside: Beside = ()

    @property
    def ends(self) -> np.ndarray:
        """The number of rows up to the end of each series: in a long table, its last value."""
        rows = len(self.frame)
        if self.ids is None:
            return np.full(self.frame.shape[1], rows)
        return rows - self.frame.notna().to_numpy()[::-1].argmax(0)

    @property
    def values(self) -> np.ndarray:
        """The numbers ``(rows, series)``, moved so that all series end in the last row."""
        return _ending_together(self.frame.to_numpy(np.float64), self.ends, len(self.frame), len(self.frame))

    def next_times(self, count: int, end: int | None = None) -> pd.Index:
        """The times of the next rows, by default after all rows."""
        after = self.grid.following(count)
        return after if end is None else self.frame.index[end:].append(after)[:count]

    def columns(self, horizon: int) -> Columns | None:
        """Align the columns beside the series with `values`; future ones go on for the horizon. None without columns.

        ValueError names a column, a series and a time of the horizon without a value, and a series without any value.
        """
        if not self.beside:
            return None
        names, rows = list(self.frame.columns), len(self.frame)
        parts: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}
        for kind, name, x in self.beside:
            if (never := np.isnan(x).all(0)).any():
                raise ValueError(f"column {name!r} has no value for series {names[int(never.argmax())]!r}")
            if kind == "static":
                parts[kind].append(_constant(name, names, x))
                continue
            own = _ending_together(x, self.ends, rows + (horizon if kind == "future" else 0), rows)
            parts[kind].append(own)
            if (gone := np.isnan(own[rows:])).any():
                row, series = np.argwhere(gone)[0]
                when = plain_times([self.next_times(horizon, int(self.ends[series]))[row]])[0]
                there = int(gone.any(1).argmax())
                fewer = f", or forecast the {there} that it has, with `horizon` {there}" if there else ""
                raise ValueError(
                    f"column {name!r} of the future has no value at {when} for series {names[series]!r}; add the "
                    f"{horizon} rows of the horizon to the table, with its values and without values to forecast{fewer}"
                )
        return Columns(**{kind: np.stack(each, axis=-1) if each else None for kind, each in parts.items()})


def read_series(
    data: Any,
    time: str | None = None,
    columns: Sequence[str] | None = None,
    *,
    ids: Sequence[str] | None = None,
    target: str | None = None,
    beside: Mapping[str, Sequence[str]] | None = None,
    date_order: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    missing: Sequence[float] | None = None,
) -> SeriesTable:
    """Read a table with a column of times and columns of numbers, or a long table, with a row for each series and time.

    Rows are sorted by time, as `lagwise.forecasting.times.regular_times` reads it. Times that are missing from a
    regular grid become rows of missing values. Lines such as totals below the rows, and rows without any value after
    the last one, are left out. Notes say so.

    Args:
        data: The path of a table as `lagwise.data.open_rows` reads it, or of any other text file with a line for each
            time; or a DataFrame of pandas or polars, or a table of pyarrow.
        time: The name of the column of times, dates or evenly spaced numbers; by default the first column.
        columns: The series; by default all other columns.
        ids: The columns that tell the series of a long table apart; by default found where times repeat: a column with
            a usual name (id, unique_id, item_id, series_id, series) or of text.
        target: The column to forecast; by default, in a long table, the only one with numbers or one named y, target or
            value.
        beside: Columns that help, by kind: ``future`` ones, whose values are known in advance, in rows without a value
            to forecast below; ``past`` ones; and in a long table ``static`` ones, with one value for each series.
        date_order: What dates of three numbers begin with: ``day``, ``month`` or ``year``; by default what gives the
            shortest regular grid.
        decimal: The decimal separator of text, "." or ","; by default as the numbers show.
        thousands: The separator between thousands of text: ",", ".", a space or an apostrophe; as for ``decimal``.
        missing: Numbers that stand for a missing value; none if it is empty. By default numbers such as -999 that are
            far from all others.

    Raises:
        ValueError: For a table without rows or series, times that cannot be used, text or infinity in a column of
            numbers, and in a long table a row without an id, a time that occurs twice in a series, series with
            different steps, and an unclear target.

    >>> months = pd.DataFrame({"month": ["2024-01", "2024-02", "2024-03"], "sales": ["1.200,5", "1.310,0", "1.290,7"]})
    >>> table = read_series(months)
    >>> table.frame["sales"].tolist(), str(table.frame.index[0])[:10]
    ([1200.5, 1310.0, 1290.7], '2024-01-01')
    """
    name = shown(str(data)) if isinstance(data, str | Path) else "the table"
    decimal = _decimal_option(decimal, thousands)
    frame, usual, notes = _frame(data)
    if frame.empty or frame.shape[1] < (1 if time is None else 2):
        raise ValueError(f"{name} has no rows, or no column besides the times")
    frame.columns = [str(column) for column in frame.columns]
    given = [*(ids or ()), *(columns or ()), *([target] if target is not None else [])]
    frame, numbering = without_row_numbers(frame, time, given)
    names = list(frame.columns)
    time = find_time(frame, ids or ()) if time not in names and time in (None, "Unnamed: 0") else time
    time = known(time, names, "column of times")
    frame, joined, said = with_joined_times(frame, time)
    beside = {kind: list(some) for kind, some in (beside or {}).items() if some}
    used = _check_beside(beside, names, [time, *joined, *given])
    rest = [each for each in names if each not in (time, *joined, *used)]
    found = find_ids(frame, time, rest) if ids is None and columns is None else []
    ids = [known(each, rest, "column of ids") for each in ids or found]
    others = [each for each in rest if each not in ids]
    notes += [*numbering, *said]
    if ids:
        chosen = [find_target(frame, others) if target is None else known(target, others, "column to forecast")]
        said = [f"series are told apart by {' and '.join(map(repr, ids))}"] if found else []
        said += [f"the column to forecast is {chosen[0]!r}"] if target is None else []
        notes += ["; ".join(said)] if said else []
    elif beside.get("static"):
        raise ValueError("static columns need a table with a row for each series and time; name its series with `id`")
    else:
        wanted = [target] if target is not None else columns
        chosen = others if wanted is None else [known(each, names, "column") for each in wanted]
        chosen = [each for each in chosen if each not in (time, *joined)]
    if not chosen:
        more = f" and {', '.join(map(repr, used))}, which are known beside it" if used else ""
        raise ValueError(f"{name} has no column to forecast besides the times in {time!r}{more}")
    frame, below = without_lines_below(frame, time)

    def separator(names: Sequence[str]) -> str:
        texts = frame[names].select_dtypes(exclude=["number", "bool", "datetime", "datetimetz", "timedelta"])
        return decimal or decimal_separator([cells.dropna().astype(str).tolist() for _, cells in texts.items()], usual)

    values, codes = [], []
    try:
        for each in chosen:
            own, said = without_codes(each, to_numbers(frame[each], separator(chosen)), missing)
            values.append(own)
            codes += said
    except ValueError:
        regular_times(frame[time], date_order=date_order)  # a wrong column of times is what to name first
        raise
    some = ~np.isnan(np.stack(values)).all(0)
    places, read = _place_rows(frame, time, ids, some, date_order)
    notes += [*below, *read, *codes]
    size = int(places.rows[some].max()) + 1
    grid = Grid(places.grid.times[:size], places.grid.make)
    x = np.concatenate([places.spread(own) for own in values], axis=1)[:size]
    along = _columns_along(frame, beside, separator, places.spread)
    if not ids:
        along = tuple((kind, each, np.repeat(own, len(chosen), axis=1)) for kind, each, own in along)
        full = pd.DataFrame(x, grid.times, chosen)
        notes += [*_gap_notes(full, places), *_end_notes(full, places, bool(beside.get("future")))]
        return SeriesTable(full, tuple(notes), grid, beside=along)
    kept, said = _enough_values(places.names, x, grid.times)
    later = _later_notes(frame, some, places.rows >= size, ids, chosen[0], [] if beside.get("future") else others)
    notes += [*said, *later]
    full = pd.DataFrame(x[:, kept], grid.times, [places.names[i] for i in kept])
    _check_steps(full)
    along = tuple((kind, each, own[:, kept]) for kind, each, own in along)
    keys = places.ids.iloc[kept].reset_index(drop=True)
    table = SeriesTable(full, (), grid, keys, chosen[0], along)
    observed = full.notna().to_numpy()
    if inside := int((table.ends - observed.argmax(0) - observed.sum(0)).sum()):
        notes.append(
            f"{inside:,} values are missing within series; as inputs, the last value before each stands in for it"
        )
    return replace(table, notes=tuple(notes))


def table_columns(path: str | Path) -> list[str] | None:
    """The names of the columns of a table of series, or of a table of rows; None for other files."""
    path = Path(path)
    if path.is_file() and inner_suffix(path) in RECORDS:
        return list(read_columns(path))
    if path.is_file() and inner_suffix(path) in (*TEXT_TABLES, ".txt"):
        return read_head(path, titles=True).names
    return None


class _Places(NamedTuple):
    """Where the rows of a table belong: the ids ``(series, ids)`` and names of its series (one if it is no long table),
    the grid of times, and the index of each row's series and time, -1 for a time that is not on the grid."""

    ids: pd.DataFrame
    names: list[str]
    grid: Grid
    series: np.ndarray
    rows: np.ndarray

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Arrange one value per row as ``(times, series)``, NaN where the table has none."""
        made = np.full((len(self.grid.times), len(self.names)), np.nan)
        there = self.rows >= 0
        made[self.rows[there], self.series[there]] = values[there]
        return made


def _place_rows(
    frame: pd.DataFrame, time: str, ids: Sequence[str], some: np.ndarray, date_order: str | None
) -> tuple[_Places, tuple[str, ...]]:
    """Find the series and time of each row, and notes. All series share one grid, on which each row with ``some`` value
    is. ValueError for a row without an id, and a time that occurs twice in a series."""
    for name in ids:
        if (missing := frame[name].isna() | (frame[name].astype(str).str.strip() == "")).any():
            row = int(missing.to_numpy().argmax()) + 1
            raise ValueError(f"column {name!r} has no value in row {row}; every row needs the id of its series")
    series = frame.groupby(list(ids), sort=False).ngroup().to_numpy() if ids else np.zeros(len(frame), dtype=int)
    keys = frame[list(ids)].iloc[np.unique(series, return_index=True)[1]].reset_index(drop=True)
    names = [" / ".join(str(value).strip() for value in row) for row in keys.itertuples(index=False)] or [""]
    codes, unique = pd.factorize(frame[time], use_na_sentinel=False)
    used = np.zeros(len(unique), dtype=bool)
    used[codes[some]] = True
    try:
        found = regular_times(pd.Series(unique, name=time), used, date_order)
    except ValueError:
        regular_times(frame[time], some, date_order)  # names the row of the table
        raise
    times = found.times[codes]
    again = pd.DataFrame({"series": series, "time": times}).duplicated().to_numpy()
    if again.any():
        raise _repeated(frame, time, ids, times[int(again.argmax())], names[series[int(again.argmax())]])
    first, last = found.grid.times[0], times.max()
    longer = found.grid.make(first, max(last, found.grid.times[-1]), None).rename(time)
    grid = Grid(longer, found.grid.make)
    rows = grid.times.get_indexer(times, method=None if isinstance(times, pd.DatetimeIndex) else "nearest")
    return _Places(keys, names, grid, series, rows), found.notes


def _repeated(frame: pd.DataFrame, time: str, ids: Sequence[str], at: Any, series: str) -> ValueError:
    local = isinstance(at, pd.Timestamp) and at.tz is None and at != at.normalize()
    clock = ", write local times with their UTC offset if the clock was changed" if local else ""
    others = [str(name) for name in frame.columns if name not in (time, *ids)]
    apart = [name for name in others if not frame.duplicated([*ids, name, time]).any()]
    hint = f", as `id` {','.join([*ids, apart[0]])} does" if apart and ids else ""
    return ValueError(
        f"{f'series {series!r}: ' if ids else ''}column {time!r} has {at} more than once; keep one row for each "
        f"time{clock}, join date and time if they are in several columns, or name the column that tells series apart "
        f"with `id`{hint}"
    )


def _gap_notes(frame: pd.DataFrame, places: _Places) -> list[str]:
    """Note times and values that are missing, and constant series."""
    notes = []
    if added := len(frame) - len(np.unique(places.rows[(places.rows >= 0) & (places.rows < len(frame))])):
        notes.append(
            "1 time is missing from the grid; it counts as a row without values"
            if added == 1
            else f"{added:,} times are missing from the grid; they count as rows without values"
        )
    if missing := int(frame.isna().to_numpy().sum()):
        notes.append(
            f"{missing:,} of {frame.size:,} values {'is' if missing == 1 else 'are'} missing; as inputs, the last "
            "value before each stands in for it"
        )
    constant = frame.columns[(frame.max() == frame.min()).to_numpy()]
    return [*notes, *(f"series {name!r} is constant" for name in constant)]


def _end_notes(frame: pd.DataFrame, places: _Places, future: bool) -> list[str]:
    """Note rows without values at the end: after all series, or after some, which others may help to forecast."""
    empty = int((places.rows >= len(frame)).sum())
    if empty and not future:
        at = plain_times([frame.index[-1]])[0]
        return [f"{counted(empty, 'row')} after {at}, the last with a value, {'has' if empty == 1 else 'have'} none"]
    rows = frame.notna().to_numpy()[::-1].argmax(0)  # without values, at the end
    early, others = frame.columns[rows > 0], frame.columns[rows == 0]
    if not len(early) or rows.max() == 1:
        return []
    named, one = ", ".join(map(repr, others[:_MAX_NAMED])), len(others) == 1
    return [
        f"series {early[0]!r} has no value in the last {rows.max()} rows; if {named} {'is' if one else 'are'} known in "
        f"advance, name {'it' if one else 'them'} with `future`, to forecast these rows"
    ]


def _enough_values(names: Sequence[str], x: np.ndarray, times: pd.Index) -> tuple[np.ndarray, list[str]]:
    """Find the indices of the series ``(times, series)`` with enough values, and note the others and different ends.
    ValueError if none has enough."""
    counts = (~np.isnan(x)).sum(0)
    kept = counts >= _MIN_VALUES
    if not kept.any():
        raise ValueError(f"no series has {_MIN_VALUES} values; {shown(names[0])} has {counts[0]}")
    notes = []
    if not kept.all():
        few = _listed([names[i] for i in np.flatnonzero(~kept)])
        notes.append(f"{few} fewer than {_MIN_VALUES} values; no forecast is made")
    early = kept & np.isnan(x[-1])
    if early.any():
        at = plain_times([times[-1]])[0]
        early_names = _listed([names[i] for i in np.flatnonzero(early)])
        notes.append(f"{early_names} no values up to {at}; each series is forecast from its own end")
    return np.flatnonzero(kept), notes


def _check_steps(frame: pd.DataFrame) -> None:
    """ValueError for a series all of whose steps are multiples of several times of the grid that it shares."""
    gcds = [np.gcd.reduce(np.diff(np.flatnonzero(own))) for own in frame.notna().to_numpy().T]
    for name, gcd in zip(frame.columns, gcds, strict=True):
        if gcd > 1 and frame[name].count() >= _MIN_ROWS_WITH_STEP:
            raise ValueError(
                f"series {name!r} has other steps than the table, one row for every {gcd} of its times; put series "
                "with the same steps and times into a table of their own"
            )


def _later_notes(
    frame: pd.DataFrame, some: np.ndarray, later: np.ndarray, ids: Sequence[str], target: str, others: Sequence[str]
) -> list[str]:
    """Note columns that have values after the last value to forecast, and change within series before: they may be
    known in advance."""
    found = [name for name in others if name != target and frame[name][later].notna().any()]
    found = [name for name in found if frame[some].groupby(list(ids))[name].nunique().gt(1).any()]
    if not found:
        return []
    one = len(found) == 1
    return [
        f"{later.sum():,} rows after the last {target!r} have {', '.join(map(repr, found[:_MAX_NAMED]))}; if "
        f"{'it is' if one else 'these are'} known in advance, name {'it' if one else 'them'} with `future`"
    ]


def _listed(names: Sequence[str]) -> str:
    some = ", ".join(map(shown, names[:_MAX_NAMED])) + (", ..." if len(names) > _MAX_NAMED else "")
    return f"{len(names):,} series ({some}) have" if len(names) > 1 else f"series {some} has"


def _columns_along(
    frame: pd.DataFrame,
    beside: Mapping[str, Sequence[str]],
    separator: Callable[[Sequence[str]], str],
    spread: Callable[[np.ndarray], np.ndarray],
) -> Beside:
    """Read the columns of each kind. One of text becomes a column of 0 and 1 for each of its values, at most 50."""
    found = []
    decimal = separator([name for names in beside.values() for name in names])
    for kind, name in [(kind, name) for kind, names in beside.items() for name in names]:
        try:
            found.append((kind, name, spread(to_numbers(frame[name], decimal))))
            continue
        except ValueError:
            texts = frame[name].dropna().astype(str).str.strip()
            texts = texts[texts != ""]
            if not 0 < texts.nunique() <= _MAX_TEXTS or texts.str.fullmatch(r"[+-]?inf(inity)?", case=False).any():
                raise
        text = frame[name].astype(str).str.strip()
        found += [(kind, f"{name}={each}", spread((text == each).to_numpy(np.float64))) for each in sorted(set(texts))]
    return tuple(found)


def _constant(name: str, names: Sequence[str], x: np.ndarray) -> np.ndarray:
    """The one value of each series ``(times, series)``; ValueError if one has several."""
    low, high = np.nanmin(x, axis=0), np.nanmax(x, axis=0)
    if (low != high).any():
        index = int((low != high).argmax())
        raise ValueError(
            f"column {name!r} is not static: series {names[index]!r} has {low[index]:g} and {high[index]:g}; name it "
            "with `future` or `past`"
        )
    return low


def _ending_together(x: np.ndarray, ends: np.ndarray, rows: int, last: int) -> np.ndarray:
    """Move series ``(times, series)`` that end before the rows ``ends`` so that all end before the row ``last`` of so
    many ``rows``; NaN where there is nothing."""
    at = np.arange(rows)[:, None] + ends - last
    longer = np.pad(x, ((0, max(0, int(at.max()) + 1 - len(x))), (0, 0)), constant_values=np.nan)
    return np.where(at >= 0, np.take_along_axis(longer, at.clip(0), axis=0), np.nan)


def _check_beside(beside: Mapping[str, Sequence[str]], names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """List the columns beside the series; ValueError for one that is unknown, named twice, or taken already."""
    found: list[str] = []
    for kind, some in beside.items():
        known(kind, KINDS, "kind of column")
        for name in some:
            known(name, names, f"{kind} column")
            if name in taken or name in found:
                raise ValueError(f"column {shown(name)} has two uses; name it once")
            found.append(name)
    return found


def _decimal_option(decimal: str | None, thousands: str | None) -> str | None:
    """The decimal separator that the options say; None if they leave it open."""
    if decimal not in (None, ".", ","):
        raise ValueError(f"decimal must be '.' or ',', got {shown(decimal)}")
    if thousands not in (None, *_DECIMAL_OF_THOUSANDS):
        raise ValueError(f"thousands must be ',', '.', a space or an apostrophe, got {shown(thousands)}")
    if decimal is not None and decimal == thousands:
        raise ValueError(f"decimal and thousands must differ, got {decimal!r} for both")
    return decimal or _DECIMAL_OF_THOUSANDS.get(thousands or " ")


def _frame(data: Any) -> tuple[pd.DataFrame, str | None, list[str]]:
    """Read a table, of text files as text; the decimal separator that is usual in it, and notes on lines that are no
    rows."""
    if not isinstance(data, str | Path):
        return _without_index(data if isinstance(data, pd.DataFrame) else pa.table(data).to_pandas()), None, []
    path = Path(data)
    if path.is_dir() or not path.exists():
        raise FileNotFoundError(
            f"{str(path)!r} is a folder; give a file in it" if path.is_dir() else f"no file {str(path)!r}"
        )
    try:
        if path.is_fifo():  # which has no ending, and can be read once
            table = parse_text_table(path.read_bytes(), path, titles=True)
        else:
            check_spreadsheet(path)
            if inner_suffix(path) in RECORDS:
                return _without_index(read_table(path).to_pandas()), ".", []
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
    return frame, usual_decimal(table.separator), list(table.notes)


def _without_index(frame: pd.DataFrame) -> pd.DataFrame:
    """Times are often the index; integers without a name are the rows that a selection kept."""
    left_over = frame.index.name is None and pd.api.types.is_integer_dtype(frame.index)
    return frame.reset_index(drop=left_over)
