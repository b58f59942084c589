"""Read the times of the rows of a table, and find the regular grid that they are on, and its season."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lagwise.data.dates import DATE_ORDERS, read_dates
from lagwise.forecasting.gaps import carry_forward, scales
from lagwise.tables import known

_MIN_TIMES = 3


class Times(NamedTuple):
    """The time of each row, the regular grid that contains these times, and notes on how they were read."""

    times: Any
    grid: Grid
    notes: tuple[str, ...]


def regular_times(column: pd.Series, has_value: np.ndarray | None = None, date_order: str | None = None) -> Times:
    """Read the times of a column and find their regular grid (`lagwise.forecasting.times.regular_grid`).

    Text is read by one rule for the whole column: ISO 8601; three numbers in the order ``date_order``; months by name,
    in twelve languages; quarters, months and ISO weeks (2015-Q1, Q1 2015, 2015M01, 2015-W07). Integers such as 202401
    and 20240131, and seconds or milliseconds since 1970, are dates; other numbers are steps, or years with a fraction.

    A date such as 01/02/2024 is read in the order that gives the shortest regular grid. Times with one UTC offset keep
    it, and times with several become UTC, but those at one local time of day are dates without an offset.

    Args:
        column: The times, in any order. A time may occur several times.
        has_value: Whether each row has any value, by default all. Only these rows determine the grid.
        date_order: ``day``, ``month`` or ``year``: what a date of three numbers begins with.

    ValueError names the place of a time that cannot be read or is on no regular grid, and dates that may be read in
    several orders.
    """
    if date_order is not None:
        known(date_order, DATE_ORDERS, "date_order")
    readings, note = read_dates(column, date_order)
    has_value = np.ones(len(column), dtype=bool) if has_value is None or not has_value.any() else has_value
    readable, failures = [], []
    for order, times in readings.items():
        try:
            readable.append((order, times, _grid(times.rename(column.name), has_value)))
        except ValueError as error:
            failures.append(error)
    if not readable:
        raise failures[0]
    shortest = min(len(grid.times) for *_, grid in readable)
    best = [each for each in readable if len(each[2].times) == shortest]
    if len(best) > 1:
        raise ValueError(
            f"column {column.name!r} has dates such as {column.iloc[0]!r}, which may have the "
            f"{' or the '.join(each[0] for each in best)} first; say which with `date_order`"
        )
    order, times, grid = best[0]
    notes = (note, f"dates are read {order} first" if len(readings) > 1 else "")
    return Times(times, grid, tuple(filter(None, notes)))


def plain_times(times: Iterable[Any]) -> list[Any]:
    """Write dates as year-month-day, with a time of day unless all are at midnight. Numbers stay numbers."""
    times = list(times)
    if not all(isinstance(at, pd.Timestamp) for at in times):
        return [float(f"{at:.10g}") if isinstance(at, float) else int(at) for at in times]
    midnight, texts = " 00:00:00", [str(at) for at in times]
    return [text.removesuffix(midnight) for text in texts] if all(t.endswith(midnight) for t in texts) else texts


def _grid(times: pd.Index, has_value: np.ndarray) -> Grid:
    """Find the grid of the times of the rows with a value, or if they are on none, of all rows."""
    distinct = times[has_value].unique()
    if len(distinct) < _MIN_TIMES:
        raise ValueError(f"column {times.name!r} has {len(distinct)} different times; at least {_MIN_TIMES} are needed")
    try:
        return regular_grid(distinct)
    except ValueError:
        if has_value.all():
            raise
        return regular_grid(times.unique())


# Regular grids, which have a constant step or follow a calendar, and the season of series on them.

_MIN_OCCUPIED_SHARE = 0.57  # of the times of a grid that have a row; with fewer, the step is wrong
_MONTHS_BETWEEN_ROWS = (1, 2, 3, 4, 6, 12)
_BUSINESS_DAYS = ("B", "BMS", "BME", "BQS", "BQE")
_MIN_SEASON_DEVIATIONS = 4  # autocorrelation of changes, in standard deviations of that of noise
_DAYS_PER_YEAR = 365.2425

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
    last day of shorter months), or on the first or last business day of a month or quarter.

    ValueError names the place where the times leave all of these grids.
    """
    index = times.sort_values()
    if not isinstance(index, pd.DatetimeIndex):
        values = index.to_numpy()
        rows = rows_a_year(values)
        first = round(values[0] * rows) / rows if rows and _nearly_whole(values[:1] * rows).all() else values[0]
        make = partial(_evenly, step=1 / rows if rows else _step(index))
        return Grid(make(first, values[-1], None).rename(index.name), make)
    calendars = [(make(index[0], index[-1], None), make) for make in _calendars(index)]
    grids = [Grid(each.rename(index.name), make) for each, make in calendars if index.isin(each).all()]
    grids = [grid for grid in grids if len(index) >= _MIN_OCCUPIED_SHARE * len(grid.times)]
    try:
        make = partial(steps, freq=pd.Timedelta(_step(index)))
        grids.insert(0, Grid(make(index[0], index[-1], None).rename(index.name), make))
    except ValueError:
        if not grids:
            raise
    return min(grids, key=lambda grid: len(grid.times))


def steps(first: Any, last: Any, count: int | None, *, freq: Any) -> pd.DatetimeIndex:
    """Make times at an offset of pandas."""
    return pd.date_range(first, last, periods=count, freq=freq)  # type: ignore[no-matching-overload]


def rows_a_year(values: np.ndarray) -> int | None:
    """Count the rows a year, 4 or 12, of sorted years with a fraction, such as 1958.25; None of other numbers."""
    if values.dtype.kind != "f" or not 1000 < values[0] <= values[-1] < 3000:
        return None
    for rows in (4, 12):
        positions = (values - values[0]) * rows
        if _nearly_whole(positions).all() and np.median(np.diff(np.round(positions))) == 1:
            return rows
    return None


def _nearly_whole(numbers: np.ndarray) -> np.ndarray:
    """Whether numbers are whole, but for the rounding of years to two decimals."""
    return np.abs(numbers - np.round(numbers)) < 0.2


def _calendars(index: pd.DatetimeIndex) -> list[Make]:
    """List the calendars that may contain these times."""
    if (index[-1] - index[0]) < pd.Timedelta(days=1) * len(index):  # more than a row a day
        return []
    day = 31 if index.is_month_end.all() else int(index.day.max())
    clock = index[0] - index[0].normalize()
    months: list[Make] = [partial(_months, months=n, day=day, clock=clock) for n in _MONTHS_BETWEEN_ROWS]
    return months + [partial(steps, freq=freq) for freq in _BUSINESS_DAYS]


def _months(first: Any, last: Any, count: int | None, *, months: int, day: int, clock: Any) -> pd.DatetimeIndex:
    """Make times every so many months on one day, or on the last day of shorter months."""
    start = first.tz_localize(None).to_period("M")
    size = count or (last.tz_localize(None).to_period("M") - start).n // months + 1
    periods = pd.period_range(start, periods=(size - 1) * months + 1, freq="M")[::months]
    days = pd.to_timedelta(np.minimum(day, periods.days_in_month) - 1, unit="D")
    return (periods.to_timestamp() + days + clock).tz_localize(first.tz)


def _evenly(first: Any, last: Any, count: int | None, *, step: Any) -> pd.Index:
    """Make numbers a step apart."""
    return pd.Index(first + step * np.arange(count or round((last - first) / step) + 1))


def _step(index: pd.Index) -> Any:
    """Find the most frequent step of sorted times, of which all steps must be multiples."""
    zoned = isinstance(index, pd.DatetimeIndex) and index.tz is not None
    differences = np.diff((index.tz_convert("UTC") if zoned else index).to_numpy())  # type: ignore[missing-attribute]
    unique, counts = np.unique(differences, return_counts=True)
    step = unique[counts.argmax()]
    multiples = differences / step
    off = np.abs(multiples - np.round(multiples)) > 1e-6
    if not off.any() and len(index) >= _MIN_OCCUPIED_SHARE * (np.round(multiples).sum() + 1):
        return step
    row = int(off.argmax() if off.any() else multiples.argmax()) + 1
    step = pd.Timedelta(step) if isinstance(step, np.timedelta64) else step
    raise ValueError(
        f"the times in column {index.name!r} are irregular: {index[row]} follows {index[row - 1]} (most rows are "
        f"{step} apart); resample the data to regular times, or name the times with `time` and the column that tells "
        "series apart with `id`"
    )


def season(frame: pd.DataFrame) -> int:
    """Count the rows of the shortest of a day, a week and a year that has several, such as 24 hours, 5 business days or
    12 months; for series without dates, the lag at which their changes repeat most; 1 for none.

    Args:
        frame: Series on a regular grid of times.
    """
    times: Any = frame.index
    if not isinstance(times, pd.DatetimeIndex):
        return rows_a_year(times.to_numpy()) or _repeating(frame.to_numpy(np.float64))
    days = times.tz_localize(None).normalize()
    for cycle in (days, days.to_period("W")):
        counts = pd.Series(1, index=cycle).groupby(level=0).sum()
        inner = counts.iloc[1:-1] if len(counts) > 2 else counts  # the first and last may be cut
        if (median_rows := int(inner.median())) > 1:
            return median_rows
    rows = round(_DAYS_PER_YEAR * (len(times) - 1) / max(1, (times[-1] - times[0]).days))
    return max(1, rows)


def _repeating(x: np.ndarray) -> int:
    """Find the lag at which changes repeat most, by the largest peak of their autocorrelation; 1 for none."""
    changes: Any = np.diff(carry_forward(x), axis=0)
    changes = (changes - changes.mean(0)) / scales(changes)[1]
    size = len(changes)
    power = np.abs(np.fft.rfft(changes, 2 * size, axis=0)) ** 2
    correlation = np.fft.irfft(power, axis=0)[: size // 2 + 1].mean(1) / size
    peaks = [
        lag
        for lag in range(2, min(size // 3, len(correlation) - 1))
        if correlation[lag] == correlation[lag - 1 : lag + 2].max()
    ]
    best = max(peaks, key=lambda lag: correlation[lag], default=1)
    return best if best > 1 and correlation[best] > _MIN_SEASON_DEVIATIONS / size**0.5 else 1
