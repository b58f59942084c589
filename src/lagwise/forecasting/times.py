"""Read the times of the rows of a table, and place them on a regular grid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lagwise.data.dates import DATE_ORDERS, read_dates
from lagwise.forecasting.grids import Grid, regular_grid
from lagwise.tables import known

_MIN_TIMES = 3


class Times(NamedTuple):
    """The time of each row, the regular grid that contains these times, and notes on how they were read."""

    times: Any
    grid: Grid
    notes: tuple[str, ...]


def regular_times(column: pd.Series, has_value: np.ndarray | None = None, date_order: str | None = None) -> Times:
    """Read the times of a column and find their regular grid (`lagwise.forecasting.grids.regular_grid`).

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
