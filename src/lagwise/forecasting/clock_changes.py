"""Local times where clocks are changed: hours that occur twice, and hours that do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

_CLOCK_MONTHS = (3, 4, 10, 11)  # in which clocks go back, in the south or the north, on a Sunday
# One zone for each rule by which local clocks change, the most frequent first.
_ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Europe/London",
    "Europe/Helsinki",
    "Australia/Sydney",
    "Pacific/Auckland",
    "America/Santiago",
    "Asia/Jerusalem",
    "America/Sao_Paulo",
)
_NAMED = 3  # days in a note


def repeated_days(times: Any) -> list[str]:
    """The days on which an hour occurs twice because clocks went back; ValueError for other times that occur twice, and
    for fewer than 3."""
    again = times[times.duplicated()]
    if len(again):
        if not _clock_went_back(times, again):
            dated = isinstance(times, pd.DatetimeIndex)
            local = dated and times.tz is None and (times != times.normalize()).any()
            offset = ", write local times with their UTC offset if the clock was changed" if local else ""
            offset = offset if local else ", join year and month, or date and time, if they are in several columns"
            raise ValueError(
                f"column {times.name!r} has {again.sort_values()[0]} more than once; keep one row for each time"
                f"{offset}, or name the column that tells series apart with `id`"
            )
        return sorted({f"{at:%Y-%m-%d}" for at in again})
    if len(times) < 3:
        raise ValueError(f"at least 3 rows are needed, got {len(times)}")
    return []


def repeated_note(days: Sequence[str]) -> list[str]:
    """A note on the days of `repeated_days`, if there are any."""
    if not days:
        return []
    return [
        f"times occur twice on {_listed(days)}, where the clock goes back at the end of summer time; the mean of both "
        "rows stands for them"
    ]


def clock_zone(times: Any, grid: Any) -> str | None:
    """A zone whose clock changes local times without an offset show, by an hour that occurs twice or that alone is
    missing from their grid: no time is one that its clocks skip, and those twice are those that they repeat."""
    if not isinstance(times, pd.DatetimeIndex) or times.tz is not None:
        return None
    if len(grid) < 2 or np.diff(grid[:2])[0] > np.timedelta64(1, "h"):
        return None
    twice, gaps = times[times.duplicated()], ~grid.isin(times)
    if not len(twice) and not gaps.any():
        return None
    for zone in _ZONES:
        skipped = is_skipped(grid, zone)
        beside = ~skipped & (np.append(skipped[1:], False) | np.append(False, skipped[:-1]))
        repeats = grid.tz_localize(zone, ambiguous="NaT", nonexistent="shift_forward").isna()
        seen = len(twice) or (skipped.any() and not gaps[beside].any())
        if seen and gaps[skipped].all() and twice.isin(grid[repeats]).all():
            return zone
    return None


def is_skipped(times: Any, zone: str | None) -> np.ndarray:
    """Whether each local time does not exist, as clocks of the zone go forward."""
    if zone is None:
        return np.zeros(len(times), dtype=bool)
    once = np.ones(len(times), dtype=bool)
    return np.asarray(times.tz_localize(zone, ambiguous=once, nonexistent="NaT").isna())


def skipped_note(times: Any) -> list[str]:
    """A note on the times of a grid that do not exist, if there are any."""
    if not len(times):
        return []
    days = sorted({f"{at:%Y-%m-%d}" for at in times})
    return [f"{times[0]:%H:%M} does not exist on {_listed(days)}, where the clock goes forward"]


def _listed(days: Sequence[str]) -> str:
    return ", ".join(days[:_NAMED]) + (", ..." if len(days) > _NAMED else "")


def _clock_went_back(times: Any, again: Any) -> bool:
    """Whether the times that occur twice are one whole hour of a night, once a year."""
    if not isinstance(times, pd.DatetimeIndex) or times.tz is not None or again.duplicated().any():
        return False
    again = again.sort_values()
    nights = again.normalize().unique()
    if len(nights) > 1 and (nights[1:] - nights[:-1]).min() < pd.Timedelta(days=150):
        return False
    step = pd.Series(times.sort_values().unique()).diff().mode()[0]
    hour = again.floor("h")
    whole = pd.Series(1, index=again).groupby(hour).sum() * step == pd.Timedelta(hours=1)
    sunday = (again + pd.Timedelta(hours=1)).dayofweek == 6  # or the last hour of Saturday
    night = ((again.hour <= 4) | (again.hour == 23)) & sunday & again.month.isin(_CLOCK_MONTHS)
    return bool(whole.all() and night.all() and len(hour.unique()) == len(nights))
