"""Regular grids of times: constant steps, calendars, and the hours and days of a week on which something happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

_MAX_TIMES_PER_ROW = 10  # of a grid; with more, the step is wrong
_MAX_STEPS_PER_ROW = 200  # of a grid before the times at which nothing ever happens are left out
_MONTHS_BETWEEN_ROWS = (1, 2, 3, 4, 6, 12)
_ROWS_A_YEAR = (4, 12, 52, 365)
_MAX_MISSING_SHARE = 0.2  # of the open times; with more, the rest of the week is not closed
_MIN_DAYS, _MIN_WEEKS = 3, 2  # before a time of day, or of the week, without any row counts as closed


#: Makes the times of a calendar from a first one to a last one, or a number of them: ``make(first, last, count)``.
Make = Callable[[Any, Any, "int | None"], "pd.Index"]


@dataclass(frozen=True)
class Grid:
    """A regular grid: its times, and the calendar that continues them."""

    times: pd.Index
    make: Make

    def following(self, count: int) -> pd.Index:
        """Continue the grid by ``count`` times."""
        return self.make(self.times[-1], None, count + 1)[1:]


def regular_grid(times: pd.Index) -> Grid:
    """Find the shortest regular grid that contains all of at least 3 different times.

    A grid has a constant step, or follows a calendar: business days; every 1, 2, 3, 4, 6 or 12 months on a day (the
    last day of shorter months) or on the first or last business day; two days a month; a weekday of the month's nth
    week; or a constant step without the times of the day or of the week at which there is never a row (opening hours, a
    week from Sunday to Thursday).

    ValueError names the place where the times leave all of these grids.
    """
    index = times.sort_values()
    if not isinstance(index, pd.DatetimeIndex):
        return _numbers(index)
    found = [
        _spanned(index, make)
        for make in (*_calendars(index), _open_times(index))
        if make is not None and index.isin(make(index[0], index[-1], None)).all()
    ]
    found = [grid for grid in found if len(grid.times) <= _MAX_TIMES_PER_ROW * len(index)]
    try:
        step = _step(index)
        found.insert(0, _spanned(index, partial(steps, freq=pd.Timedelta(step))))
    except ValueError:
        if not found:
            raise
    return min(found, key=lambda grid: len(grid.times))


def _spanned(index: pd.DatetimeIndex, make: Make) -> Grid:
    return Grid(make(index[0], index[-1], None).rename(index.name), make)


def steps(first: Any, last: Any, count: int | None, *, freq: Any) -> pd.DatetimeIndex:
    """Make times at an offset of pandas."""
    return pd.date_range(first, last, periods=count, freq=freq)  # type: ignore[no-matching-overload]


def _months(first: Any, last: Any, count: int | None, *, months: int, day: int, clock: Any) -> pd.DatetimeIndex:
    """Make times every so many months on one day, or on the last day of shorter months."""
    start = first.tz_localize(None).to_period("M")
    size = count or (last.tz_localize(None).to_period("M") - start).n // months + 1
    found = pd.period_range(start, periods=(size - 1) * months + 1, freq="M")[::months]
    days = pd.to_timedelta(np.minimum(day, found.days_in_month) - 1, unit="D")
    return (found.to_timestamp() + days + clock).tz_localize(first.tz)


def _used(first: Any, last: Any, count: int | None, *, step: Any, origin: Any, used: np.ndarray) -> pd.DatetimeIndex:
    """Make the used times of a cycle of steps that began at the origin."""
    periods = None if count is None else (count // int(used.sum()) + 2) * len(used)
    every = steps(first, last, periods, freq=step)
    begin = int((first - origin) / step)
    return every[used[(begin + np.arange(len(every))) % len(used)]][:count]


def _evenly(first: Any, last: Any, count: int | None, *, step: Any) -> pd.Index:
    """Make numbers a step apart."""
    return pd.Index(first + step * np.arange(count or round((last - first) / step) + 1))


def _fractions(first: Any, last: Any, count: int | None, *, rows: int, offset: float) -> pd.Index:
    """Make years with a fraction, of ``rows`` rows a year, ``offset`` rows after its start."""
    start = round(first * rows - offset)
    size = count or round(last * rows - offset) - start + 1
    return pd.Index((start + np.arange(size) + offset) / rows)


def _calendars(index: pd.DatetimeIndex) -> list[Make]:
    """List the calendars that may contain these times."""
    if (index[-1] - index[0]) < pd.Timedelta(days=1) * len(index):  # more than a row a day
        return []
    names: list[Any] = ["B", *(f"{n}{unit}" for unit in ("BME", "BMS") for n in _MONTHS_BETWEEN_ROWS)]
    if len(set(index.dayofweek)) == 1:
        day: Any = int(index[0].dayofweek)
        names += [pd.offsets.WeekOfMonth(week=min(3, int(index[0].day - 1) // 7), weekday=day)]
        names += [pd.offsets.LastWeekOfMonth(weekday=day)]
    if len(days := sorted(set(index.day))) > 1:
        names += [pd.offsets.SemiMonthBegin(day_of_month=day) for day in days[1:2] if day <= 27]
        names += [pd.offsets.SemiMonthEnd(day_of_month=days[0])] if days[0] <= 27 else []
    day = 31 if index.is_month_end.all() else int(index.day.max())
    clock = index[0] - index[0].normalize()
    found: list[Make] = [partial(_months, months=n, day=day, clock=clock) for n in _MONTHS_BETWEEN_ROWS]
    return found + [partial(steps, freq=freq) for freq in names]


def _open_times(index: pd.DatetimeIndex) -> Make | None:
    """Find the times of the week, or of the day, at which there is ever a row; None if too many of these have none."""
    day, week = np.timedelta64(1, "D"), np.timedelta64(7, "D")
    zoned = index.tz_convert("UTC") if index.tz is not None else index
    ticks = np.diff(zoned.as_unit("ns").astype("int64"))
    step = pd.Timedelta(int(np.gcd.reduce(ticks)), unit="ns")
    span = index[-1] - index[0]
    if day % step.to_timedelta64() or span / step > _MAX_STEPS_PER_ROW * len(index):
        return None
    full = pd.date_range(index[0], index[-1], freq=step)
    present = full.isin(index)
    for cycle, least in ((week, _MIN_WEEKS), (day, _MIN_DAYS)):
        if span < least * cycle - step:
            continue
        size = int(cycle / step.to_timedelta64())
        place = np.arange(len(full)) % size
        used = np.bincount(place, present, minlength=size) > 0
        kept = used[place]
        if used.all() or (~present[kept]).mean() > _MAX_MISSING_SHARE:
            continue

        return partial(_used, step=step, origin=index[0], used=used)
    return None


def _numbers(index: pd.Index) -> Grid:
    """Find the grid of numbers with a constant step, or of years with a fraction."""
    values = index.to_numpy()
    try:
        step = _step(index)
        rows = rows_a_year(values[0], step)
    except ValueError:
        step, rows = None, _rounded_rows_a_year(values)
        if rows is None:
            raise
    if rows is None:
        make: Make = partial(_evenly, step=step)
    else:
        places = (values - values[0]) * rows
        offset = float(np.mean(values - np.round(places) / rows)) * rows % 1
        make = partial(_fractions, rows=rows, offset=0.0 if min(offset, 1 - offset) < 0.1 else offset)
    return Grid(make(values[0], values[-1], None).rename(index.name), make)


def rows_a_year(first: Any, step: Any) -> int | None:
    """Count the rows a year (4, 12, 52 or 365) of years with a fraction, such as 1958.25; None of other numbers."""
    if not 1000 < first < 3000:
        return None
    return next((rows for rows in _ROWS_A_YEAR if abs(step * rows - 1) < 1e-3), None)


def _rounded_rows_a_year(values: np.ndarray) -> int | None:
    """Count the rows a year of years with a rounded fraction, such as 1958.21 and 1958.29; None of other numbers."""
    if values.dtype.kind != "f" or not 1000 < values[0] <= values[-1] < 3000:
        return None
    for rows in _ROWS_A_YEAR:
        places = (values - values[0]) * rows
        near = np.round(places)
        if (np.abs(places - near) < 0.2).all() and (np.diff(near) > 0).all():
            return rows if near[-1] < _MAX_TIMES_PER_ROW * len(values) else None
    return None


def _step(index: pd.Index) -> Any:
    """Find the most frequent step of sorted times, of which all steps must be multiples."""
    zoned = isinstance(index, pd.DatetimeIndex) and index.tz is not None
    values = (index.tz_convert("UTC") if zoned else index).to_numpy()  # type: ignore[missing-attribute]
    steps = np.diff(values)
    found, counts = np.unique(steps, return_counts=True)
    step = found[counts.argmax()]
    multiples = steps / step
    off = np.abs(multiples - np.round(multiples)) > 1e-6
    if off.any():
        _irregular(index, int(off.argmax()) + 1, step)
    if np.round(multiples).sum() + 1 > _MAX_TIMES_PER_ROW * len(index):
        _irregular(index, int(np.argmax(multiples)) + 1, step)
    return step


def _irregular(index: pd.Index, row: int, step: Any) -> None:
    step = pd.Timedelta(step) if isinstance(step, np.timedelta64) else step
    raise ValueError(
        f"the times in column {index.name!r} are irregular: {index[row]} follows {index[row - 1]} (most rows are "
        f"{step} apart); resample the data to regular times, or name another column of times with `time`"
    )
