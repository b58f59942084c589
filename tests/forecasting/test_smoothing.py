"""Exponential smoothing and seasons."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lagwise.forecasting import LagForecaster
from lagwise.forecasting.smoothing import _DAMPING, _LEVEL, _TREND_PER_LEVEL, Smoothing, _first_states, fit_smoothing
from lagwise.forecasting.times import season

VARIANTS = [
    Smoothing(0.3),
    Smoothing(0.3, 0.1),
    Smoothing(0.3, 0.2, 0.9),
    Smoothing(0.2, season=0.3, period=4),
    Smoothing(0.2, 0.1, 0.95, 0.3, 4),
]


def recursion(x: np.ndarray, v: Smoothing, first: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Errors one row ahead and forecasts, row by row, from the first level, trend and season."""
    level, trend, seasons, errors = first[0], first[1], list(first[2:]), []
    for i, value in enumerate(x):
        expected = level + v.damping * trend
        errors.append(value - expected - seasons[i % v.period])
        level, trend = expected + v.level * errors[-1], v.damping * trend + v.level * (v.trend or 0.0) * errors[-1]
        seasons[i % v.period] += v.season * (1 - v.level) * errors[-1]
    made = []
    for h in range(1, horizon + 1):
        ahead = sum(v.damping**k for k in range(1, h + 1)) * trend
        made.append(level + ahead + seasons[(len(x) + h - 1) % v.period])
    return np.array(errors), np.array(made)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_map_is_the_recursion_from_the_best_first_states(variant: Smoothing) -> None:
    x, horizon = np.random.default_rng(0).normal(size=30).cumsum(), 6
    free = [0, *([1] if variant.trend is not None else [])]
    free += range(2, 2 + variant.period) if variant.period > 1 else []
    basis = np.eye(2 + variant.period)[free]
    responses = np.stack([recursion(0 * x, variant, first, horizon)[0] for first in basis], axis=1)
    alone = recursion(x, variant, np.zeros(2 + variant.period), horizon)[0]
    best = np.linalg.lstsq(responses, -alone, rcond=None)[0] @ basis
    np.testing.assert_allclose(variant.map(30, horizon).T @ x, recursion(x, variant, best, horizon)[1], atol=1e-6)


def test_a_line_and_a_season_are_continued() -> None:
    t = np.arange(80.0)
    x = 3 + 0.5 * t + np.array([4.0, -1.0, 2.0, -5.0])[np.arange(80) % 4]
    found = fit_smoothing(x[:, None], np.zeros((80, 1), dtype=bool), 4)
    assert found.period == 4
    assert found.trend is not None
    model = {"name": "smoothing", "period": 4}
    made = LagForecaster(8, 24, model=model, validation=0).fit(x[:72]).predict()
    np.testing.assert_allclose(made, x[72:], atol=1e-6)


def test_a_season_without_any_error_is_found() -> None:
    assert fit_smoothing(np.tile([4.0, -4.0], 20)[:, None], np.zeros((40, 1), dtype=bool), 2).period == 2


@pytest.mark.parametrize("period", [1, 4])
def test_the_first_states_are_those_of_a_line_and_a_season(period: int) -> None:
    pattern = np.array([4.0, -1.0, 2.0, -5.0])[:period] if period > 1 else np.zeros(1)
    t = np.arange(16)
    x = 3 + 0.5 * t + pattern[t % period]
    level, slope, seasons = _first_states(x[:, None, None], period, True)
    assert (float(level.squeeze()), float(slope.squeeze())) == pytest.approx((2.5, 0.5))
    np.testing.assert_allclose(seasons.reshape(period), pattern, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_variant_has_the_lowest_corrected_criterion(seed: int) -> None:
    """Of short series, where the correction decides."""
    count = 6 + seed
    x = np.random.default_rng(seed).normal(size=count).cumsum()
    best, lowest = Smoothing(1.0), np.inf
    for level, damping, trend in itertools.product(_LEVEL, (1.0, *_DAMPING), (None, *_TREND_PER_LEVEL)):
        variant = Smoothing(level, trend, damping)
        if trend is None and damping < 1:
            continue
        slope, value = np.polyfit(np.arange(1, min(count, 10) + 1), x[:10], 1)  # the line's value before the first row
        first = np.array([x[0], 0, 0]) if trend is None else np.array([value, slope, 0])
        squares = float((recursion(x, variant, first, 1)[0] ** 2).sum())
        k = variant.parameters
        criterion = count * np.log(squares / count) + 2 * k + 2 * k * (k + 1) / max(1, count - k - 1)
        if criterion < lowest:
            best, lowest = variant, criterion
    assert fit_smoothing(x[:, None], np.zeros((count, 1), dtype=bool), 1) == best


def test_noise_gets_no_trend_and_no_season() -> None:
    x = np.random.default_rng(0).normal(size=(120, 1))
    found = fit_smoothing(x, np.zeros(x.shape, dtype=bool), 12)
    assert (found.trend, found.period) == (None, 1)
    assert found.level <= 0.05


def test_missing_rows_do_not_change_the_states() -> None:
    x = np.random.default_rng(0).normal(size=(200, 1)).cumsum(0)
    missing = np.zeros(x.shape, dtype=bool)
    missing[50:90] = True
    found = fit_smoothing(np.where(missing, x[49], x), missing, 1)
    assert found.level >= 0.8
    assert fit_smoothing(np.where(missing, 1e3, x), missing, 1) == found


def test_the_criterion_counts_parameters_and_first_states() -> None:
    """A level and its first state, the same of a trend, a damping; a season of m rows and its parameter, less one."""
    assert [variant.parameters for variant in VARIANTS] == [2, 4, 5, 6, 9]


@pytest.mark.parametrize("logs", [False, True])
def test_updates_equal_the_whole(logs: bool) -> None:
    x = np.exp(np.random.default_rng(0).normal(size=60).cumsum() / 10)
    for model in ({"name": "smoothing", "period": 6}, {"name": "seasonal", "period": 6}, "ridge"):
        forecaster = LagForecaster(5, 12, model=model, logs=logs, penalty=0.1).fit(x[:50])
        expected = forecaster.predict(X=x)
        for row in x[50:]:
            forecaster.update(row)
        np.testing.assert_allclose(forecaster.predict(), expected)
        lower, upper = forecaster.predict_interval()
        assert (lower < expected).all()
        assert (upper > expected).all()
        assert not logs or (lower > 0).all()


TIMES: list[tuple[Any, int]] = [
    (pd.date_range("2020-01-01", periods=60, freq="MS"), 12),
    (pd.date_range("2020-01-01", periods=30, freq="QE"), 4),
    (pd.date_range("2020-01-01", periods=200, freq="W-THU"), 52),
    (pd.date_range("2020-01-01", periods=60, freq="D"), 7),
    (pd.date_range("2020-01-01", periods=60, freq="B"), 5),
    (pd.date_range("2020-01-01", periods=100, freq="h"), 24),
    (pd.date_range("2020-01-01", periods=500, freq="15min", tz="UTC"), 96),
    (pd.DatetimeIndex([t for t in pd.date_range("2024-01-01", periods=960, freq="h") if 9 <= t.hour < 17]), 8),
    (pd.date_range("1900-01-01", periods=60, freq="YS"), 1),
    (np.arange(60), 1),
]


@pytest.mark.parametrize(("times", "rows"), TIMES)
def test_seasons_by_the_calendar(times: Any, rows: int) -> None:
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=len(times))}, index=times)
    assert season(frame) == rows


def test_seasons_of_numbers_are_found() -> None:
    x = np.sin(np.arange(100) * 2 * np.pi / 9) + np.random.default_rng(0).normal(size=100) / 5
    assert season(pd.DataFrame({"x": x})) == 9
