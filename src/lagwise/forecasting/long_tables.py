"""Long tables: a row for each series and time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd

from lagwise.forecasting.clock_changes import clock_zone, repeated_days, repeated_note
from lagwise.forecasting.times import Times, regular_times
from lagwise.tables import shown

_IDS = ("unique_id", "item_id", "series_id", "id", "series")  # usual names, lower case
_TIMES = ("date", "datetime", "timestamp", "time", "ds", "week", "month", "quarter", "day", "period", "year")
_TARGETS = ("y", "target", "value")
_THOUSANDS = r"(?<=\d)([,. '])(?=\d{3}(\1\d{3})*(?!\d))"  # separators
_LEAST = 3  # values of a series
_NAMED = 3  # series in a note
_REPEATED = 0.01  # of the rows may have a time that a series has already: an hour where clocks go back, or an error


class Places(NamedTuple):
    """Where the rows of a long table belong: the ids ``(series, ids)`` and names of the series, the grid of times, and
    for each row the number of its series and of its time. ``write`` writes times as the table has them."""

    ids: pd.DataFrame | None
    names: list[str]
    times: Times
    series: np.ndarray
    rows: np.ndarray

    def spread(self, values: np.ndarray) -> np.ndarray:
        """One value per row as ``(times, series)``: NaN where the table has none, and the mean of several."""
        made, counts = (np.zeros((len(self.times.grid.times), len(self.names))) for _ in range(2))
        observed = ~np.isnan(values) & (self.rows >= 0)
        at = self.rows[observed], self.series[observed]
        np.add.at(made, at, values[observed])
        np.add.at(counts, at, 1)
        return np.where(counts > 0, made / np.maximum(counts, 1), np.nan)


def find_time(frame: pd.DataFrame, ids: Sequence[str]) -> str:
    """The column of times: the first that is no id, or if its values repeat another with the most usual name. Columns
    named as ids, and of text without digits, that repeat are passed over."""
    others = [str(name) for name in frame.columns if name not in ids]
    while len(others) > 2 and frame[others[0]].duplicated().any() and _is_label(frame[others[0]]):
        others = others[1:]
    first = others[0] if others else str(frame.columns[0])
    usual = [name for wanted in _TIMES for name in others if name.lower() == wanted]
    return usual[0] if usual and first.lower() not in _TIMES and frame[first].duplicated().any() else first


def find_ids(frame: pd.DataFrame, time: str, others: Sequence[str]) -> list[str]:
    """The columns that tell series apart, where times repeat and it is clear which: the one with a usual name, or the
    first column of text, the first two, or all of them, with which hardly any time repeats. Otherwise none. Text that
    is the same in all rows of a time, such as a holiday, tells nothing apart."""
    if not frame[time].duplicated().any():
        return []
    candidates = [name for name in others if name != time]
    texts = [name for name in candidates if _is_text(frame[name]) and _differs_at_once(frame, time, name)]
    usual = [name for name in candidates if name.lower() in _IDS]
    several = [list(some) for number in (1, 2) for some in combinations(texts, number)]
    for found in ([usual[:1]] if usual else []) + several + [texts]:
        if not found or not frame.duplicated(found).any() or frame[found].isna().any(axis=None):
            continue  # an id has several rows
        if frame.duplicated([*found, time]).mean() <= _REPEATED:
            rest = [name for name in texts if name not in found]
            if rest and frame.groupby(found)[rest].nunique().gt(1).any(axis=None):
                continue  # another text differs within these series
            return found
    return []


def _differs_at_once(frame: pd.DataFrame, time: str, name: str) -> bool:
    """Whether a column has several values at a time."""
    return bool(frame.groupby(time)[name].nunique(dropna=False).gt(1).any())


def find_target(frame: pd.DataFrame, others: Sequence[str]) -> str:
    """The column to forecast: the only one with numbers, or the one with a usual name. ValueError if it is unclear."""
    numbers = [name for name in others if not _is_text(frame[name])]
    usual = [name for name in numbers if name.lower() in _TARGETS]
    if len(usual or numbers) == 1:
        return (usual or numbers)[0]
    listed = ", ".join(map(repr, numbers)) or "none has numbers"
    raise ValueError(f"name the column to forecast with `target`; the columns besides ids and times: {listed}")


def _is_label(column: pd.Series) -> bool:
    """Whether a column is named as ids, or its first value has no digit."""
    return str(column.name).lower() in _IDS or not any(c.isdigit() for c in str(column.iloc[0]))


def _is_text(column: pd.Series) -> bool:
    """Whether the first value is no number, with or without separators between thousands."""
    values = column.dropna()
    first = values.iloc[:1].astype(str).str.replace(_THOUSANDS, "", regex=True).str.replace(",", ".")
    return bool(pd.to_numeric(first, errors="coerce").isna().any())


def place_rows(frame: pd.DataFrame, time: str, ids: Sequence[str], some: np.ndarray) -> tuple[Places, list[str]]:
    """The series and time of each row of a long table, and notes. All series share one grid of times.

    some: whether each row has a value to forecast from.

    ValueError for a row without an id, a time that occurs twice in one series, and times as `regular_times`.
    """
    for name in ids:
        if (missing := frame[name].isna() | (frame[name].astype(str).str.strip() == "")).any():
            raise ValueError(
                f"column {name!r} has no value in row {int(missing.to_numpy().argmax()) + 1}; every row needs the id "
                "of its series"
            )
    series = frame.groupby(list(ids), sort=False).ngroup().to_numpy()
    firsts = pd.Series(series).drop_duplicates().index
    keys = frame.iloc[firsts][list(ids)].reset_index(drop=True)
    names = [" / ".join(str(value).strip() for value in row) for row in keys.itertuples(index=False)]
    codes, unique = pd.factorize(frame[time])
    if (codes < 0).any():
        regular_times(frame[time])  # names the row
    with_values = np.zeros(len(unique), dtype=bool)
    with_values[codes[some]] = True
    times = regular_times(pd.Series(unique, name=time), with_values)
    own = times.times[codes]
    again = pd.DataFrame({"series": series, "time": own}).duplicated().to_numpy()
    days: set[str] = set()
    for number in np.unique(series[again]):
        try:
            days |= set(repeated_days(own[series == number]))
        except ValueError as error:
            others = [str(name) for name in frame.columns if name not in (time, *ids)]
            apart = [name for name in others if not frame.duplicated([*ids, name, time]).any()]
            hint = f", as `id` {','.join([*ids, apart[0]])} does" if apart else ""
            raise ValueError(f"series {names[number]!r}: {error}{hint}") from None
    if days:
        times = times._replace(zone=clock_zone(times.times.append(own[again].unique()), times.grid.times))
    grid = times.grid.times
    rows = grid.get_indexer(own, method="nearest")
    far = ~own.isin(grid) if not pd.api.types.is_numeric_dtype(grid) else np.zeros(len(own), dtype=bool)
    rows = np.where(far, -1, rows)  # rows without a value, out of hours
    return Places(keys, names, times, series, rows), [*times.notes, *repeated_note(sorted(days))]


def long_notes(places: Places, values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Which series ``(times, series)`` have enough values to forecast, and notes on the others and on different ends.
    ValueError if none has."""
    counts = (~np.isnan(values)).sum(0)
    kept = counts >= _LEAST
    if not kept.any():
        raise ValueError(f"no series has {_LEAST} values; {shown(places.names[0])} has {counts[0]}")
    notes = []
    if (~kept).any():
        few = [name for name, enough in zip(places.names, kept, strict=True) if not enough]
        notes.append(f"{_listed(few)} fewer than {_LEAST} values; no forecast is made")
    ends = len(values) - (~np.isnan(values[::-1])).argmax(0)
    early = kept & (ends < ends[kept].max())
    if early.any():
        names = [places.names[i] for i in np.flatnonzero(early)]
        text = places.times.write(places.times.grid.times[[ends[kept].max() - 1]])[0]
        notes.append(f"{_listed(names)} no values up to {text}; each series is forecast from its own end")
    return kept, notes


def later_note(
    before: pd.DataFrame, later: pd.DataFrame, ids: Sequence[str], target: str, others: Sequence[str]
) -> list[str]:
    """A note if rows after the last value to forecast have values of other columns, which change within series before:
    they may be known in advance."""
    found = [name for name in others if name != target and later[name].notna().any()]
    found = [name for name in found if before.groupby(list(ids))[name].nunique().gt(1).any()]
    if not found:
        return []
    one = len(found) == 1
    return [
        f"{len(later):,} rows after the last {target!r} have {', '.join(map(repr, found[:_NAMED]))}; if "
        f"{'it is' if one else 'these are'} known in advance, name {'it' if one else 'them'} with `future`"
    ]


def _listed(names: Sequence[str]) -> str:
    some = ", ".join(map(shown, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
    return f"{len(names):,} series ({some}) have" if len(names) > 1 else f"series {some} has"
