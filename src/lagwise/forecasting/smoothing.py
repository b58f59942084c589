"""Exponential smoothing as a linear map, its parameters found on a grid."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_LEVEL = (0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)
_TREND_PER_LEVEL = (0.0, 0.02, 0.1, 0.3)  # weights of the trend, as shares of the level's weight
_DAMPING = (0.98, 0.9, 0.8)
_SEASON = (0.0, 0.05, 0.15, 0.3, 0.6)
_MAX_FITTED_ROWS = 2000  # the last rows, on which parameters are searched
_MAX_FITTED_SERIES = 50  # the series with the most values
_START_ROWS = 10  # that estimate the first level and trend, without a season
_START_SEASONS = 2  # that estimate them with a season


class Smoothing(NamedTuple):
    """Exponential smoothing with a trend and a season of ``period`` rows (1 for none).

    Formula: with e the error of the forecast of a row, ``e = x - (a + damping b + s)``, the level a becomes ``a +
    damping b + level e``, the trend b ``damping b + level trend e``, and the season s ``s + season (1 - level) e``. The
    forecast of h rows ahead is ``a + (damping + ... + damping^h) b + s``. A trend of None is no trend.

    Source: Holt 1957, Winters 1960; damped: Gardner and McKenzie 1985; as state spaces: Hyndman et al. 2002.
    """

    level: float
    trend: float | None = None
    damping: float = 1.0
    season: float = 0.0
    period: int = 1

    @property
    def parameters(self) -> int:
        """The number of parameters and first states."""
        trend = 0 if self.trend is None else 2 + (self.damping < 1)
        return 2 + trend + (self.period if self.period > 1 else 0)

    def map(self, look_back: int, horizon: int) -> np.ndarray:
        """Compute the forecasts from the last ``look_back`` rows as a map ``(look_back, horizon)``.

        The first states are those with the least squared errors one row ahead in the window. States, errors and
        forecasts are linear in the rows and the first states, so all of them follow from one pass over the basis.
        """
        count = 1 + (self.trend is not None) + (self.period if self.period > 1 else 0)
        rows = np.eye(look_back, look_back + count)[:, :, None]
        first = np.zeros((2 + self.period, look_back + count, 1))
        trend_row = [1] if self.trend is not None else []
        season_rows = range(2, 2 + self.period) if self.period > 1 else []
        first[[0, *trend_row, *season_rows], look_back + np.arange(count), 0] = 1
        errors: list[np.ndarray] = []
        states = _smooth(rows, [self], (first[0], first[1], first[2:]), errors=errors)
        ahead = np.arange(horizon)
        trend = np.cumsum(self.damping ** (ahead + 1.0))
        season = states.season[(look_back + ahead) % len(states.season)]
        forecasts = (states.level[None] + trend[:, None, None] * states.trend + season)[:, :, 0]
        ahead_errors = np.stack(errors)[:, :, 0]
        best = np.linalg.pinv(ahead_errors[:, look_back:], rcond=1e-8) @ ahead_errors[:, :look_back]
        return (forecasts[:, :look_back] - forecasts[:, look_back:] @ best).T


class _States(NamedTuple):
    """The states of a smoothing: sums of squared errors ``(series, variants)``, the states after the last row of the
    same shape, and the season ``(period, series, variants)``."""

    squares: np.ndarray
    level: np.ndarray
    trend: np.ndarray
    season: np.ndarray


def fit_smoothing(x: np.ndarray, missing: np.ndarray, period: int) -> Smoothing:
    """Find the variant with the lowest corrected information criterion (AICc) of its errors one row ahead, over all
    series.

    Shapes: x ``(rows, series)`` with missing rows filled, missing alike; the last 2000 rows are used, of at most 50
    series that have the most rows. Variants have no trend, a trend or a damped one, and a season or none if there are
    two. The cost is O(rows series variants), with some hundred variants.

    Source: Hyndman et al. 2002 for the choice by information criteria.
    """
    fullest = np.argsort(missing.sum(0), kind="stable")[:_MAX_FITTED_SERIES]
    x, missing = x[-_MAX_FITTED_ROWS:, fullest], missing[-_MAX_FITTED_ROWS:, fullest]
    rows = int((~missing).sum())
    best, lowest = Smoothing(1.0), np.inf
    for kind, seasonal in itertools.product(("none", "linear", "damped"), (False, True)):
        if seasonal and (period < 2 or len(x) < _START_SEASONS * period):
            continue
        variants = [
            Smoothing(level, None if kind == "none" else trend, damping, season, period if seasonal else 1)
            for level, trend, damping, season in itertools.product(
                _LEVEL,
                (0.0,) if kind == "none" else _TREND_PER_LEVEL,
                _DAMPING if kind == "damped" else (1.0,),
                _SEASON if seasonal else (0.0,),
            )
        ]
        first = _first_states(x[:, :, None], variants[0].period, kind != "none")
        squares = _smooth(x[:, :, None], variants, first, missing).squares.sum(0)
        index = int(squares.argmin())
        count = variants[index].parameters * x.shape[1]
        criterion = rows * np.log(squares[index] / rows + 1e-300) + 2 * count * rows / max(1, rows - count - 1)
        if criterion < lowest:
            best, lowest = variants[index], criterion
    return best


def _smooth(
    x: np.ndarray,
    variants: Sequence[Smoothing],
    first: tuple[np.ndarray, np.ndarray, np.ndarray],
    missing: np.ndarray | None = None,
    errors: list[np.ndarray] | None = None,
) -> _States:
    """Smooth series ``(rows, series, 1)`` by variants that all have the same period and kind of trend, from the first
    level, trend and season; the errors one row ahead are appended to ``errors``."""
    level, damping, season = (np.array([getattr(v, name) for v in variants]) for name in ("level", "damping", "season"))
    period = variants[0].period
    trend = np.array([v.trend or 0.0 for v in variants])
    b_gain, s_gain = level * trend, season * (1 - level)
    shape = (x.shape[1], len(variants))
    a, b = (np.broadcast_to(state, shape) for state in first[:2])
    s = np.broadcast_to(first[2], (period, *shape)).copy()
    squares = np.zeros(shape)
    for t in range(len(x)):
        phase = t % period
        damped = damping * b
        e = x[t] - (a + damped + s[phase])
        if missing is not None and missing[t].any():
            e = np.where(missing[t, :, None], 0.0, e)
        squares += e**2
        if errors is not None:
            errors.append(e)
        a, b = a + damped + level * e, damped + b_gain * e
        s[phase] += s_gain * e
    return _States(squares, a, b, s)


def _first_states(x: np.ndarray, period: int, trending: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Estimate level and trend ``(series, 1)`` before the first row, and season ``(period, series, 1)``: linear in the
    rows."""
    none = np.zeros_like(x[:1])
    if period == 1 and not trending:
        return x[0], none[0], none
    size = min(len(x), _START_ROWS if period == 1 else _START_SEASONS * period)
    rows, times = x[:size], np.arange(size) - (size - 1) / 2
    middle = rows.mean(0)
    slope = none[0]
    if trending and period == 1:
        slope = np.tensordot(times, rows, 1) / max(times @ times, 1.0)
    elif trending:
        slope = (rows[period : 2 * period].mean(0) - rows[:period].mean(0)) / period
    if period == 1:
        season = none
    else:
        season = (rows - middle - times[:, None, None] * slope).reshape(_START_SEASONS, period, *middle.shape).mean(0)
    return middle + slope * (times[0] - 1), slope, season
