"""The season of series: how many rows a day, a week or a year has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lagwise.forecasting.gaps import carry_forward, scales
from lagwise.forecasting.grids import rows_a_year

_DEVIATIONS = 4  # in units of noise's autocorrelation: a larger one, of changes, is a season
_YEAR = 365.2425  # days


def season(frame: pd.DataFrame) -> int:
    """The rows of the shortest of a day, a week and a year that has several, such as 24 hours, 5 business days or 12
    months; for series without dates, the lag at which their changes repeat most; 1 for none.

    Args:
        frame: Series on a regular grid of times.
    """
    times: Any = frame.index
    if not isinstance(times, pd.DatetimeIndex):
        step = times[1] - times[0] if len(times) > 1 else 0
        return rows_a_year(times[0], step) or _repeating(frame.to_numpy(np.float64))
    days = times.tz_localize(None).normalize()
    for cycle in (days, days.to_period("W")):
        counts = pd.Series(1, index=cycle).groupby(level=0).sum()
        inner = counts.iloc[1:-1] if len(counts) > 2 else counts  # the first and last may be cut
        if (most := int(inner.median())) > 1:
            return most
    rows = round(_YEAR * (len(times) - 1) / max(1, (times[-1] - times[0]).days))
    return max(1, rows)


def _repeating(x: np.ndarray) -> int:
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
    return best if best > 1 and correlation[best] > _DEVIATIONS / size**0.5 else 1
