"""sktime's own checks of the adapter; skipped if sktime is not installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lagwise.forecasting import Columns, LagForecaster

pytestmark = pytest.mark.skipif(importlib.util.find_spec("sktime") is None, reason="sktime is not installed")


def forecaster(**options: Any) -> Any:
    """The adapter, whose library takes a second to import, which only these tests need."""
    from lagwise.forecasting.sktime import SktimeLagForecaster

    return SktimeLagForecaster(**options)


@pytest.mark.filterwarnings("ignore")  # sktime gives some hundred
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sktimes_own_checks() -> None:
    from sktime.utils.estimator_checks import check_estimator  # pyrefly: ignore[missing-import]

    from lagwise.forecasting.sktime import SktimeLagForecaster

    results = check_estimator(SktimeLagForecaster, raise_exceptions=False, verbose=False)
    assert len(results) > 500
    assert {name: each for name, each in results.items() if each != "PASSED"} == {}


def test_forecasts_equal_ours_and_updates_stream() -> None:
    x = np.sin(np.arange(100) / 3)
    y = pd.Series(x, index=pd.date_range("2024-01-01", periods=100, freq="D"))
    adapter = forecaster(look_back=20).fit(y[:80], fh=[1, 5])
    ours = LagForecaster(5, 20).fit(x[:80])
    made = adapter.predict()
    np.testing.assert_allclose(made, ours.predict()[[0, 4]])
    assert list(made.index) == [pd.Timestamp("2024-03-21"), pd.Timestamp("2024-03-25")]
    adapter.update(y[80:], update_params=False)
    np.testing.assert_allclose(adapter.predict(), ours.predict(X=x)[[0, 4]])
    interval, quantiles = adapter.predict_interval(coverage=[0.5, 0.9]), adapter.predict_quantiles(alpha=[0.25, 0.5])
    for share in (0.5, 0.9):
        ends = np.stack(ours.predict_interval(X=x, coverage=share), axis=1)[[0, 4]]
        np.testing.assert_allclose(interval[0][share], ends)
        assert (ends[:, 0] < ends[:, 1]).all()
    np.testing.assert_allclose(quantiles[0][0.25], interval[0][0.5]["lower"])
    np.testing.assert_allclose(quantiles[0][0.5], adapter.predict())
    with pytest.raises(NotImplementedError, match="in-sample"):
        forecaster(look_back=20).fit(y, fh=[-1, 2])


KINDS = ["dates", "periods", "numbers", "even numbers"]


def wave(kind: str) -> pd.Series:
    dates = pd.date_range("2024-01-01", periods=110, freq="D")
    numbers = {"numbers": pd.RangeIndex(110), "even numbers": pd.RangeIndex(0, 220, 2)}
    return pd.Series(np.sin(np.arange(110) / 3), index={"dates": dates, "periods": dates.to_period(), **numbers}[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_updates_take_only_what_follows_the_window(kind: str) -> None:
    """sktime passes rows that overlap with those before; others are missing."""
    y = wave(kind)

    def after(*parts: pd.Series) -> np.ndarray:
        steps = [2, 4] if kind == "even numbers" else [1, 2]
        adapter = forecaster(look_back=20).fit(y[:80], fh=steps)
        for part in parts:
            adapter.update(part, update_params=False)
        return adapter.predict().to_numpy()

    expected = after(y[80:95])
    np.testing.assert_allclose(after(y[70:95]), expected)
    np.testing.assert_allclose(after(y[80:90], y[80:95]), expected)
    missing = y.copy()
    missing[90:93] = np.nan
    np.testing.assert_allclose(after(y[80:90], y[93:95]), after(missing[80:95]))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_missing_are_unobserved(kind: str) -> None:
    """In the data to fit and to refit, and the first difference of numbers may be a gap."""
    y = wave(kind)
    missing = y.copy()
    missing.iloc[[1, 2, 40, 90, 91]] = np.nan
    dropped = missing.dropna()
    step = 2 if kind == "even numbers" else 1

    def forecasts(y: pd.Series, parts: int) -> Any:
        options = {"look_back": 10, "penalty": 1e-6}
        adapter = forecaster(**options).fit(y[y.index <= missing.index[95 - 20 * parts]], fh=[step, 3 * step])
        if parts:
            adapter.update(y[y.index > missing.index[75]], update_params=True)
        return adapter.predict()

    for parts in (0, 1):
        made, expected = forecasts(dropped, parts), forecasts(missing, parts)
        np.testing.assert_allclose(made, expected)
        assert (
            list(made.index) == list(expected.index) == list(y.index[[96, 98]] if not parts else _after(y.index, step))
        )


def _after(index: Any, step: int) -> list[object]:
    if isinstance(index, pd.RangeIndex):
        return [index[-1] + step, index[-1] + 3 * step]
    return [index[-1] + 1 * index.freq, index[-1] + 3 * index.freq]


def test_steps_of_numbers_are_those_of_the_index() -> None:
    from sktime.forecasting.base import ForecastingHorizon  # pyrefly: ignore[missing-import]

    x = np.sin(np.arange(100) / 3)
    y = pd.Series(x, index=pd.RangeIndex(0, 200, 2))
    made = forecaster(look_back=20).fit(y, fh=[2, 6]).predict()
    np.testing.assert_allclose(made, LagForecaster(3, 20).fit(x).predict()[[0, 2]])
    assert list(made.index) == [200, 204]
    absolute = forecaster(look_back=20).fit(y, fh=ForecastingHorizon([200, 204], is_relative=False))
    np.testing.assert_allclose(absolute.predict(), made)
    with pytest.raises(ValueError, match=r"rows are 2 apart, so the steps of fh must be multiples of 2"):
        forecaster(look_back=20).fit(y, fh=[1, 2])
    adapter = forecaster(look_back=20).fit(y, fh=[2])
    with pytest.raises(ValueError, match="the index is irregular: 201 is not"):
        adapter.update(pd.Series([1.0], index=[201]), update_params=False)


def panel() -> pd.DataFrame:
    """Three instances of different lengths and ends."""
    parts = {}
    for i, (begin, rows) in enumerate([(0, 90), (30, 60), (10, 70)]):
        index = pd.date_range("2024-01-01", periods=rows, freq="D") + pd.Timedelta(days=begin)
        parts[f"s{i}"] = pd.DataFrame({"y": np.sin((np.arange(rows) + begin) / 3) + i}, index=index)
    return pd.concat(parts, names=["id", "time"])


def test_instances_of_a_panel_are_fitted_together() -> None:
    y = panel()
    adapter = forecaster(look_back=20, shared=True, penalty=0.01).fit(y, fh=[1, 4])
    rows = {key: part["y"].to_numpy() for key, part in y.groupby(level=0)}
    ours = LagForecaster(4, 20, shared=True, penalty=0.01).fit(rows)
    made = adapter.predict()
    np.testing.assert_allclose(made["y"], ours.predict()[[0, 3]].T.ravel())
    assert adapter.forecaster_.maps_.shape == (1, 20, 4)
    assert list(made.index) == [
        *[("s0", pd.Timestamp("2024-03-31")), ("s0", pd.Timestamp("2024-04-03"))],
        *[("s1", pd.Timestamp("2024-03-31")), ("s1", pd.Timestamp("2024-04-03"))],
        *[("s2", pd.Timestamp("2024-03-21")), ("s2", pd.Timestamp("2024-03-24"))],
    ]
    interval = adapter.predict_interval(coverage=0.8)
    np.testing.assert_allclose(interval[("y", 0.8, "upper")], ours.predict_interval(coverage=0.8)[1][[0, 3]].T.ravel())
    with pytest.raises(ValueError, match="instances that were not fitted"):
        adapter.update(y.loc[["s0"]].rename(index={"s0": "s9"}), update_params=False)


def test_the_instances_of_a_panel_stream() -> None:
    y = panel()
    times = y.index.get_level_values(1)
    before = y[times < "2024-03-10"]
    adapter = forecaster(look_back=20, shared=True, penalty=0.01).fit(before, fh=[1, 4])
    adapter.update(y[times >= "2024-03-10"], update_params=False)
    rows = {key: part["y"].to_numpy() for key, part in before.groupby(level=0)}
    ours = LagForecaster(4, 20, shared=True, penalty=0.01).fit(rows)
    seen = {key: part["y"].to_numpy() for key, part in y.groupby(level=0)}
    np.testing.assert_allclose(adapter.predict()["y"], ours.predict(X=seen)[[0, 3]].T.ravel())


def with_promotions() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two instances of different lengths that depend on X, which has the rows of the horizon."""
    rng, parts = np.random.default_rng(0), {}
    for i, rows in enumerate((90, 60)):
        index = pd.date_range(end="2024-04-05", periods=rows, freq="D")
        x = rng.normal(size=rows)
        parts[f"s{i}"] = pd.DataFrame({"y": 3 * x + np.sin(np.arange(rows) / 3), "x": x}, index=index)
    both = pd.concat(parts, names=["id", "time"])
    return both[["y"]], both[["x"]]


def test_exogenous_data_are_known_columns() -> None:
    every, X = with_promotions()
    early = every.index.get_level_values(1) <= "2024-04-01"
    y = every[early]
    adapter = forecaster(look_back=14, shared=True, penalty=0.01).fit(y, X=X[early], fh=[1, 4])
    made = adapter.predict(X=X[~early])
    future = np.full((90, 2, 1), np.nan)
    future[:, 0], future[30:, 1] = X.loc["s0"], X.loc["s1"]
    rows = {key: part["y"].to_numpy() for key, part in y.groupby(level=0)}
    ours = LagForecaster(4, 14, shared=True, penalty=0.01).fit(rows, columns=Columns(future=future))
    np.testing.assert_allclose(made["y"], ours.predict()[[0, 3]].T.ravel())
    assert np.abs(made["y"] - every.loc[made.index, "y"]).max() < 0.5
    steps = X[~early].loc[made.index]  # only at the times of fh
    np.testing.assert_allclose(adapter.predict(X=steps), made)
    with pytest.raises(ValueError, match="future has no value in row 1 of the horizon, for series 0"):
        adapter.predict(X=steps * np.nan)


@pytest.mark.parametrize("instances", [["s0"], ["s0", "s1"]])
def test_updates_with_exogenous_data_equal_given_rows(instances: list[str]) -> None:
    every, X = with_promotions()
    every, X = (each.loc["s0"] if len(instances) == 1 else each for each in (every, X))
    times = every.index.get_level_values(-1)
    before, after = times <= "2024-03-20", (times > "2024-03-20") & (times <= "2024-04-01")
    options = {"look_back": 14, "shared": True, "penalty": 0.01}
    adapter = forecaster(**options).fit(every[before], X=X[before], fh=[1, 4])
    adapter.update(every[after], X=X[after], update_params=False)
    made = adapter.predict(X=X[times > "2024-04-01"])
    assert np.abs(made["y"] - every.loc[made.index, "y"]).max() < 0.5
    fresh = forecaster(**options).fit(every[before | after], X=X[before | after], fh=[1, 4])
    refitted = adapter.update(every[after], X=X[after], update_params=True).predict(X=X[times > "2024-04-01"])
    np.testing.assert_allclose(refitted, fresh.predict(X=X[times > "2024-04-01"]))
