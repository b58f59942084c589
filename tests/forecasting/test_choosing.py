"""Choosing a forecaster."""

from __future__ import annotations

import numpy as np
import pytest

from lagwise.forecasting import choose_forecaster, reason


def test_the_lowest_error_is_chosen_with_a_reason() -> None:
    t, rng = np.arange(400), np.random.default_rng(0)
    x = np.sin(t * 2 * np.pi / 12) + 0.1 * rng.normal(size=400)
    ranked = choose_forecaster(x, 12)
    errors = [each.error for each in ranked]
    assert errors == sorted(errors)
    assert ranked[0].error == ranked[0].forecaster.validation_error_
    assert ranked[0].name.startswith(("ridge", "toeplitz"))
    assert f"Chosen: {ranked[0].name}." in reason(ranked)
    assert "% below repeating the last value" in reason(ranked)


def test_a_random_walk_is_forecast_by_its_last_value() -> None:
    """Where nothing can be learned, the last value is the forecast, and the reason states it."""
    x = np.random.default_rng(3).normal(size=(300, 1)).cumsum(0)
    ranked = choose_forecaster(x, 1, model="ridge", look_back=50)
    last = next(each for each in ranked if each.name == "last value")
    assert last.forecaster.predict()[0, 0] == pytest.approx(x[-1, 0])
    assert last.forecaster.n_parameters_ == 0
    assert "No model beat repeating the last value" in reason([last])


def test_given_model_and_look_back() -> None:
    ranked = choose_forecaster(np.random.default_rng(0).normal(size=(200, 2)), 5, model="toeplitz", look_back=30)
    assert {each.name for each in ranked} == {
        "last value",
        "toeplitz, look-back 30, mean removed",
        "toeplitz, look-back 30, last removed",
    }


@pytest.mark.parametrize("rows", [7, 8, 20])
def test_short_series_are_supported(rows: int) -> None:
    ranked = choose_forecaster(np.sin(np.arange(rows)), 3)
    assert ranked[0].forecaster.predict().shape == (3,)


def test_series_that_are_too_short() -> None:
    with pytest.raises(ValueError, match=r"horizon = 12 needs at least 25 rows.*the data has 24"):
        choose_forecaster(np.zeros(24), 12)
    with pytest.raises(ValueError, match=r"look_back = 80 is longer than the data allow.* leave 68"):
        choose_forecaster(np.zeros(100), 12, look_back=80)


def gapped(kind: str) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=420).cumsum()
    x[{"weekends": np.arange(420) % 7 >= 5, "every second row": np.arange(420) % 2 == 1}[kind]] = np.nan
    return x[:, None]


@pytest.mark.parametrize("kind", ["weekends", "every second row"])
def test_the_baseline_needs_no_rows_without_gaps(kind: str) -> None:
    ranked = choose_forecaster(gapped(kind), 7)
    assert "last value" in [each.name for each in ranked]
    assert "as good as any" not in reason(ranked)


@pytest.mark.parametrize("end", [2.0, 0.0, -1e6])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_constant_end_has_no_negative_errors(end: float, gaps: bool) -> None:
    """Differences of moments have rounding errors of both signs; the last value has no error there."""
    x = np.where(np.arange(200) < 120, np.sin(np.arange(200)), end)
    if gaps:
        x[150:200:5] = np.nan
    ranked = choose_forecaster(x, 14)
    assert ranked[0].name == "last value"
    assert ranked[0].error == 0
    assert all(each.error >= 0 for each in ranked)
    assert "No model beat" in reason(ranked)


@pytest.mark.parametrize("scale", [1e-300, 1e-14, 1e200, 1e307])
def test_forecasts_follow_the_scale(scale: float) -> None:
    """Squares of such values overflow or vanish."""
    x = np.sin(np.arange(200) * 2 * np.pi / 12) + 0.1 * np.random.default_rng(0).normal(size=200)
    expected, made = (choose_forecaster(values, 12)[0].forecaster for values in (x, x * scale))
    np.testing.assert_allclose(made.predict() / scale, expected.predict(), rtol=1e-6)
    np.testing.assert_allclose(made.predict_interval()[1] / scale, expected.predict_interval()[1], rtol=1e-6)
