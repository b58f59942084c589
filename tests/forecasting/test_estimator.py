"""The forecaster: options, scores, intervals, streaming, and scikit-learn's conventions."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.model_selection import TimeSeriesSplit, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from lagwise.forecasting import LagForecaster
from lagwise.forecasting.moments import level_weights

NAN = np.nan
PREDICT_TAKES_A_HORIZON = "predict takes a horizon, not X"
DEVIATIONS = dict.fromkeys(
    [
        *("check_estimators_dtypes", "check_dtype_object", "check_estimators_pickle", "check_dict_unchanged"),
        *("check_f_contiguous_array_estimator", "check_methods_sample_order_invariance", "check_fit_idempotent"),
        *("check_methods_subset_invariance", "check_fit2d_predict1d", "check_n_features_in_after_fitting"),
    ],
    PREDICT_TAKES_A_HORIZON,
) | {"check_fit1d": "a single series may be one-dimensional"}


def waves(rows: int = 400, count: int = 2, noise: float = 0.1) -> np.ndarray:
    t = np.arange(rows)[:, None]
    return np.sin(2 * np.pi * t / 12 + np.arange(count)) * (1 + np.arange(count)) + noise * np.random.default_rng(
        0
    ).normal(size=(rows, count))


def small(**options: Any) -> LagForecaster:
    return LagForecaster(6, 24, **{"validation": 60, **options})


def _error(forecaster: LagForecaster) -> float:
    assert forecaster.validation_error_ is not None
    return forecaster.validation_error_


def test_scikit_learns_conventions() -> None:
    results = check_estimator(LagForecaster(2, 3, validation=2), expected_failed_checks=DEVIATIONS, on_skip=None)
    assert len(results) > 30
    assert {each["check_name"] for each in results if each["status"] == "xfail"} == set(DEVIATIONS)


def test_cross_validation_and_cloning() -> None:
    x = waves()
    scores = cross_val_score(small(), x, cv=TimeSeriesSplit(3))
    assert scores.shape == (3,)
    assert (scores > -0.1).all()
    forecaster = small(level="last").fit(x)
    assert clone(forecaster).get_params() == forecaster.get_params()
    assert np.array_equal(pickle.loads(pickle.dumps(forecaster)).predict(), forecaster.predict())


@pytest.mark.parametrize("level", ["mean", "last", "none"])
def test_ridge_equals_scikit_learns_on_explicit_windows(level: str) -> None:
    x = waves()
    forecaster = small(level=level, shared=True, penalty=0.01, refit=False).fit(x)
    z = (x - x[:340].mean(0)) / x[:340].std(0)
    windows = np.concatenate([np.lib.stride_tricks.sliding_window_view(column, 30) for column in z[:340].T])
    shift = {"mean": windows[:, :24].mean(1), "last": windows[:, 23], "none": 0 * windows[:, 0]}[level][:, None]
    ridge = Ridge(alpha=0.01 * len(windows), fit_intercept=False).fit(windows[:, :24] - shift, windows[:, 24:] - shift)
    recent = z[-24:].T
    level_now = {"mean": recent.mean(1), "last": recent[:, -1], "none": 0 * recent[:, 0]}[level][:, None]
    expected = (ridge.predict(recent - level_now) + level_now).T * x[:340].std(0) + x[:340].mean(0)
    np.testing.assert_allclose(forecaster.predict(), expected, atol=1e-8)


@pytest.mark.parametrize("model", ["ridge", "toeplitz"])
@pytest.mark.parametrize(("level", "refit"), [("mean", False), ("mean", True), ("last", False), ("none", False)])
def test_maps_are_drawn_to_the_shared_one_by_a_penalty_on_the_difference(model: str, level: str, refit: bool) -> None:
    """Ridge regression of what the shared map leaves over."""
    x = waves()
    options: Any = {"model": model, "level": level, "refit": refit}
    shared, drawn = small(shared=True, **options).fit(x), small(**options).fit(x)
    assert _error(drawn) <= _error(shared)
    assert not drawn.shared_
    z = (x - drawn.mean_) / drawn.scale_
    for series, (penalty,) in enumerate(drawn.penalty_):
        if penalty == np.inf:
            np.testing.assert_allclose(drawn.maps_[series], shared.maps_[0], atol=1e-12)
        elif model == "ridge":
            windows = sliding_window_view(z[: 400 if refit else 340, series], 24 + 6)
            inputs, targets = windows[:, :24], windows[:, 24:]
            now = inputs @ level_weights(level, 24)[:, None]
            rest = targets - now - (inputs - now) @ shared.maps_[0]
            ridge = Ridge(alpha=penalty * len(windows), fit_intercept=False, solver="cholesky").fit(inputs - now, rest)
            expected_map = shared.maps_[0] + ridge.coef_.T - np.outer(level_weights(level, 24), ridge.coef_.sum(1))
            np.testing.assert_allclose(drawn.maps_[series], expected_map, atol=1e-7)


def test_weights_of_look_backs_are_those_of_the_lowest_error_on_held_out_rows() -> None:
    x = waves(noise=0.5)
    options: Any = {"validation": 60, "shared": True}
    both = LagForecaster(6, [3, 12, 24], refit=False, **options).fit(x)
    assert both.weights_.min() >= 0
    assert both.weights_.sum() == pytest.approx(1)
    each = [LagForecaster(6, n, refit=False, **options).fit(x) for n in (3, 12, 24)]
    padded = [np.pad(one.maps_, ((0, 0), (24 - one.maps_.shape[1], 0), (0, 0))) for one in each]
    np.testing.assert_allclose(both.maps_, np.tensordot(both.weights_, padded, 1))
    held = x[340 - 24 :]
    assert both.validation_error_ == pytest.approx(both.evaluate(held).mse)
    for other in np.random.default_rng(0).dirichlet(np.ones(3), size=20):
        both.maps_ = np.tensordot(other, padded, 1)
        assert both.evaluate(held).mse >= both.validation_error_ - 1e-9
    assert LagForecaster(6, [3, 12, 24], **options).fit(x).weights_.tolist() == both.weights_.tolist()  # and refitted


def test_toeplitz_has_few_parameters_and_forecasts_waves() -> None:
    x = waves(noise=0.01)
    one, ridge = (small(model=model, shared=True).fit(x) for model in ("toeplitz", "ridge"))
    assert (one.n_parameters_, ridge.n_parameters_) == (29, 144)
    assert one.validation_error_ < 0.01
    (maps,) = one.maps_ - 1 / 24 * (1 - 0)  # the level is folded in; without it diagonals are constant up to a column's
    spread = np.diff(maps, axis=0)
    np.testing.assert_allclose(spread[1:, 1:], spread[:-1, :-1], atol=1e-9)


def test_streaming_gives_exactly_the_forecasts_from_all_rows() -> None:
    x, rng = waves(), np.random.default_rng(1)
    x[100:102, 0] = NAN
    streamed, offline = (small().fit(x) for _ in range(2))
    rows = rng.normal(size=(60, 2))
    rows[rng.random(rows.shape) < 0.3] = NAN
    rows[20:50, 1] = NAN
    for i, row in enumerate(rows):
        streamed.update(row)
        seen = np.concatenate([x, rows[: i + 1]])
        assert np.array_equal(streamed.predict(), offline.predict(X=seen))
        assert np.array_equal(streamed.predict_interval()[1], offline.predict_interval(X=seen)[1])
    assert len(streamed._recent) == 24


def test_intervals_cover_held_out_noise() -> None:
    x = waves(2000, noise=0.5)
    forecaster = small(validation=600, coverage=0.8).fit(x[:1500])
    inside = []
    for start in range(1500, 1990, 3):
        lower, upper = forecaster.predict_interval(X=x[:start])
        assert (lower < upper).all()
        true = x[start : start + 6]
        inside.append(((lower[: len(true)] <= true) & (true <= upper[: len(true)])).mean())
    assert 0.75 < np.mean(inside) < 0.85


def test_one_series_and_frames() -> None:
    x = waves()
    one, column = small().fit(x[:, 0]), small().fit(x[:, :1])
    assert one.predict(3).shape == (3,)
    assert np.array_equal(one.predict(), column.predict()[:, 0])
    frame = small().fit(pd.DataFrame(x, columns=["load", "price"]))
    assert list(frame.feature_names_in_) == ["load", "price"]
    assert one.update(0.5).predict().shape == (6,)


def test_missing_values_are_filled_and_long_gaps_are_skipped() -> None:
    x = waves(noise=0.01)
    gaps = x.copy()
    gaps[np.random.default_rng(0).random(x.shape) < 0.02] = NAN
    assert np.isfinite(small().fit(gaps).predict()).all()
    long = x.copy()
    long[100:160, 0] = NAN  # filled and trained on, this would teach flat lines
    forecaster = small(shared=False).fit(long)
    assert forecaster.validation_error_ < 2 * small(shared=False).fit(x).validation_error_
    scored = x[-60:].copy()
    scored[40, 0] = NAN
    scored[50, 1] = 1e9
    assert forecaster.evaluate(scored).mse > 1e9
    scored[50, 1] = NAN  # not scored
    assert forecaster.evaluate(scored).mse < 1


@pytest.mark.parametrize("options", [{}, {"level": "last"}, {"logs": True}, {"model": "toeplitz", "shared": False}])
@pytest.mark.parametrize("value", [1.0, 0.1, 5e14 / 3])
def test_constant_series_stay_constant(value: float, options: dict[str, Any]) -> None:
    """Exactly, also where only the end is constant."""
    x = waves(count=3) + 10
    x[:, 1] = value
    x[20:, 2] = value
    forecaster = small(**options).fit(x)
    for forecast in (forecaster.predict(), *forecaster.predict_interval(), forecaster.update(x[-1]).predict()):
        assert (forecast[:, 1:3] == value).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "horizon must be an integer"),
        ({"model": {"name": "smoothing", "period": 0}}, "period must be an integer"),
        ({"model": {"name": "smoothing", "season": 3}}, "unknown option of model 'smoothing': 'season'"),
        ({"model": {"name": "ridge", "modes": 3}}, "unknown option of model 'ridge': 'modes'"),
        ({"model": {"name": "seasonal", "period": 25}}, "look_back must be at least the period of 25 rows, got 24"),
        ({"logs": True}, "logs=True needs values above 0; series 0 has others"),
        ({"horizon": 300}, "must fit into the data, which has"),
        ({"look_back": 500}, "look_back \\+ horizon = 500 \\+ 6 rows must fit into the data, which has 320 rows"),
        ({"look_back": []}, "look_back must be"),
        ({"look_back": [0]}, "look_back must be an integer"),
        ({"model": "toeplits"}, "did you mean 'toeplitz'"),
        ({"kernels": 2}, "kernels does not apply to the model 'ridge'"),
        ({"model": "toeplitz", "kernels": 4}, "kernels must divide the horizon of 6"),
        ({"level": "median"}, "unknown level"),
        ({"penalty": -1.0}, "penalty must be at least 0"),
        ({"penalty": NAN}, "penalty must be at least 0"),
        ({"coverage": 1.0}, "coverage must be in"),
        ({"validation": 3}, "validation must be at least the horizon"),
        ({"validation": 1.5}, "validation must be a share"),
        ({"validation": 0}, "give a penalty, or validation above 0"),
        ({"validation": 0, "penalty": 1.0}, "give shared, or validation above 0"),
    ],
)
def test_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LagForecaster(**{"horizon": 6, "look_back": 24, **options}).fit(waves())


def test_invalid_data() -> None:
    x = waves()
    with pytest.raises(ValueError, match="series 1 has no observed value"):
        small().fit(np.stack([x[:, 0], np.full(400, NAN)], axis=1))
    with pytest.raises(ValueError, match="contains infinity"):
        small().fit(np.where(x > 1.9, np.inf, x))
    every_third = x.copy()
    for start in range(0, 400, 20):
        every_third[start : start + 5] = NAN
    with pytest.raises(ValueError, match="30 rows without a run of more than 2 missing values is needed"):
        small().fit(every_third)
    forecaster = small(validation=0, penalty=1.0, shared=True).fit(x)
    with pytest.raises(ValueError, match="intervals need held-out rows"):
        forecaster.predict_interval()
    with pytest.raises(ValueError, match="X must have at least look_back = 24 rows to forecast from, got 20"):
        forecaster.predict(X=x[:20])
    with pytest.raises(ValueError, match="horizon must be at most the 6 rows fitted for, got 7"):
        forecaster.predict(7)
    with pytest.raises(ValueError, match="row must be 2 finite values or NaN"):
        forecaster.update([1.0])
    with pytest.raises(ValueError, match="expecting 2 features"):
        forecaster.evaluate(x[:, :1])
    with pytest.raises(ValueError, match="no observed value to score"):
        forecaster.evaluate(np.full((40, 2), NAN))


def test_missing_packages_are_named() -> None:
    code = "import sys; sys.modules['pandas'] = sys.modules['sklearn'] = None\nfrom lagwise import LagForecaster"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: scikit-learn is missing: install lagwise[forecast]" in done.stderr
