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


def test_candidates_that_cannot_handle_gaps_are_skipped() -> None:
    """Business days on a daily grid: two of seven rows are empty."""
    x = np.sin(np.arange(420) / 5.0)
    x[np.arange(420) % 7 >= 5] = np.nan
    ranked = choose_forecaster(x[:, None], 7)
    assert ranked
    assert reason(ranked)
