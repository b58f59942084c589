"""Choosing a forecaster."""

from __future__ import annotations

import numpy as np
import pytest

from lagwise.forecasting import LagForecaster, choose_forecaster, reason
from lagwise.forecasting.choosing import BASELINE, Candidate


def test_the_lowest_error_is_chosen_with_a_reason() -> None:
    t, rng = np.arange(400), np.random.default_rng(0)
    x = np.sin(t * 2 * np.pi / 12) + 0.1 * rng.normal(size=400)
    ranked = choose_forecaster(x, 12)
    errors = [each.error for each in ranked]
    assert errors[1:] == sorted(errors[1:])
    assert ranked[0].name.startswith(("average", "ridge", "toeplitz"))
    assert ranked[0].errors[0] == pytest.approx(0.08, abs=0.01)  # the mean size of the noise
    assert ranked[0].error == pytest.approx(ranked[0].errors[0] / x.std())
    assert ranked[0].name in reason(ranked)
    assert "% below repeating the last value" in reason(ranked)


def test_a_random_walk_is_forecast_by_its_last_value() -> None:
    """Where nothing can be learned, the last value is the forecast, and the reason states it."""
    x = np.random.default_rng(3).normal(size=(300, 1)).cumsum(0)
    ranked = choose_forecaster(x, 1, model="ridge", look_back=50)
    assert ranked[0].name == "last value"
    assert ranked[0].forecaster.predict()[0, 0] == pytest.approx(x[-1, 0])
    assert ranked[0].forecaster.n_parameters_ == 0
    assert "No model beat repeating the last value" in reason(ranked)


@pytest.mark.parametrize(
    ("error", "words"),
    [(0.5, "50% below"), (0.999, "about that of"), (1.002, "about that of"), (1.25, "25% above")],
)
def test_a_reason_says_when_an_average_is_no_better_than_the_last_value(error: float, words: str) -> None:
    """An average of candidates that are alike may be worse than the last value, which was "-25% below" it."""
    pairs = {"average of the best 3": error, BASELINE: 1.0}
    average, last = (Candidate(name, LagForecaster(1), (each,), each) for name, each in pairs.items())
    assert reason([average, last]).endswith(f"error is {words} repeating the last value.")


def monthly(rows: int, seed: int = 0) -> np.ndarray:
    """A season that grows with the level."""
    rng, t = np.random.default_rng(seed), np.arange(rows)
    season = 1 + 0.2 * np.sin(t * 2 * np.pi / 12) + 0.1 * np.cos(t * 2 * np.pi / 6)
    return 100 * np.exp(0.01 * t) * season * np.exp(0.02 * rng.normal(size=rows))


def test_a_growing_season_is_smoothed_in_logarithms() -> None:
    x = monthly(144)
    ranked = choose_forecaster(x[:132], 12, period=12)
    assert ranked[0].name == "smoothing, period 12, logarithms"
    made = ranked[0].forecaster.predict()
    assert np.abs(made / x[132:] - 1).mean() < 0.03
    lower, upper = ranked[0].forecaster.predict_interval()
    assert upper / made == pytest.approx(made / lower)
    assert np.mean((lower < x[132:]) & (x[132:] < upper)) > 0.7


def test_a_season_that_repeats_exactly() -> None:
    x = np.tile([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0], 12)
    ranked = choose_forecaster(x, 7, period=7)
    assert ranked[0].error == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(ranked[0].forecaster.predict(), x[:7], atol=1e-6)


@pytest.mark.parametrize("rows", [60, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (96, 240))])
def test_intervals_of_noise_cover_it(rows: int) -> None:
    """Nothing can be forecast, so that every candidate's advantage on held-out rows is chance."""
    inside = []
    for seed in range(10):
        x = np.random.default_rng((rows, seed)).normal(size=rows + 12)
        lower, upper = choose_forecaster(x[:rows], 12, model="ridge")[0].forecaster.predict_interval()
        inside.append(np.mean((lower <= x[rows:]) & (x[rows:] <= upper)))
    assert 0.84 < np.mean(inside) < 0.98


def test_intervals_cover_series_that_were_calm_on_the_held_out_rows() -> None:
    """Sizes change slowly, as those of wind do over a year; the held-out rows end where they grow again."""
    inside = []
    for seed in range(4):
        sizes = 1.2 + np.cos(np.arange(400) * 2 * np.pi / 400)
        x = sizes * np.random.default_rng(seed).normal(size=400)
        ranked = choose_forecaster(x[:330], 14, model="ridge", look_back=28)
        lower, upper = ranked[0].forecaster.predict_interval()
        inside.append(np.mean((lower <= x[330:344]) & (x[330:344] <= upper)))
    assert np.mean(inside) > 0.87  # 0.79 by the sizes of the held-out errors alone


def test_errors_to_come_may_be_larger_than_those_held_out() -> None:
    from lagwise.forecasting.errors import unrest

    random, starts = np.random.default_rng(0), np.arange(1000, 1990)
    x, errors = random.normal(size=(2000, 3)), random.normal(size=(990, 10, 3))
    np.testing.assert_allclose(unrest(errors, starts, x), 1, atol=0.1)
    x[:1000, 1] *= 3  # calm since row 1,000
    errors[-21:, :, 2] *= 3  # the last two horizons
    ratio, recent = np.sqrt((9 + 1) / 2), np.sqrt((1 + 9 / (1 + 8 * 21 / 990)) / 2)
    np.testing.assert_allclose(unrest(errors, starts, x), [1, ratio, recent], rtol=0.1)
    assert (unrest(np.full((3, 2, 1), np.nan), np.arange(3), np.zeros((5, 1))) == 1).all()


@pytest.mark.parametrize("rows", [7, 8, 20])
def test_short_series_are_supported(rows: int) -> None:
    ranked = choose_forecaster(np.sin(np.arange(rows)), 3)
    assert ranked[0].forecaster.predict().shape == (3,)


def test_series_that_are_too_short() -> None:
    with pytest.raises(ValueError, match=r"horizon = 12 needs at least 25 rows.*the data has 24"):
        choose_forecaster(np.zeros(24), 12)
    with pytest.raises(ValueError, match=r"look_back = 80 is longer than the data allow.* leave 76"):
        choose_forecaster(np.zeros(100), 12, look_back=80)


@pytest.mark.parametrize("model", ["ridge", "toeplitz"])
def test_a_given_look_back_needs_one_window_before_the_held_out_rows(model: str) -> None:
    """Rows to choose a penalty by are not needed: 7 rows have two windows of 2 + 4 rows, and no held-out ones."""
    ranked = choose_forecaster(np.arange(11) % 5.0, 4, model=model, look_back=2)
    assert f"{model}, look-back 2, mean removed" in [each.name for each in ranked]
    assert np.isfinite(ranked[0].forecaster.predict()).all()


@pytest.mark.parametrize("end", [2.0, 0.0, -1e6])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_constant_end_has_no_negative_errors(end: float, gaps: bool) -> None:
    """Differences of moments have rounding errors of both signs; the last value has no error there."""
    x = np.where(np.arange(200) < 120, np.sin(np.arange(200)), end)
    if gaps:
        x[150:200:5] = np.nan
    ranked = choose_forecaster(x, 14)
    np.testing.assert_allclose(ranked[0].forecaster.predict(), end, rtol=1e-6, atol=1e-9)
    assert all(each.error >= 0 for each in ranked)
    held_out = LagForecaster(14, 28, validation=40).fit(x)
    assert held_out.validation_error_ is not None
    assert 0 <= held_out.validation_error_ < 1e-12


@pytest.mark.sampled(3)
@pytest.mark.parametrize("scale", [1e-300, 1e-14, 1e200, 1e307])
def test_forecasts_follow_the_scale(scale: float) -> None:
    """Squares of such values overflow or vanish."""
    x = np.sin(np.arange(200) * 2 * np.pi / 12) + 0.1 * np.random.default_rng(0).normal(size=200)
    expected, made = (choose_forecaster(values, 12, look_back=24)[0].forecaster for values in (x, x * scale))
    np.testing.assert_allclose(made.predict() / scale, expected.predict(), rtol=1e-6)
    np.testing.assert_allclose(made.predict_interval()[1] / scale, expected.predict_interval()[1], rtol=1e-6)


def test_forecasters_that_are_alike_are_averaged() -> None:
    x = np.random.default_rng(1).normal(size=200)
    for i in range(1, 200):
        x[i] += 0.8 * x[i - 1]
    first, *others = choose_forecaster(x, 6)
    count = int(first.name.rpartition(" ")[2])
    assert first.name == f"average of the best {count}"
    assert all(each.error <= 1.15 * others[0].error for each in others[:count])
    fitted = [each.forecaster.fit(x) for each in others[:count]]
    np.testing.assert_allclose(first.forecaster.predict(), np.mean([each.predict() for each in fitted], axis=0))
