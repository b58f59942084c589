"""Find regular grids of times, which have a constant step or follow a calendar, and the season of series on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lagwise.forecasting.gaps import carry_forward, scales

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
