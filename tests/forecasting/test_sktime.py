"""sktime's own checks of the adapter; skipped if sktime is not installed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sktime")

from sktime.utils.estimator_checks import check_estimator  # pyrefly: ignore[missing-import]

from lagwise.forecasting import LagForecaster
from lagwise.forecasting.sktime import SktimeLagForecaster


@pytest.mark.filterwarnings("ignore")  # of sktime, some hundred
@pytest.mark.timeout(600)
def test_sktimes_own_checks() -> None:
    results = check_estimator(SktimeLagForecaster, raise_exceptions=False, verbose=False)
    assert len(results) > 500
    assert {name: each for name, each in results.items() if each != "PASSED"} == {}


def test_forecasts_equal_ours_and_updates_stream() -> None:
    x = np.sin(np.arange(100) / 3)
    y = pd.Series(x, index=pd.date_range("2024-01-01", periods=100, freq="D"))
    adapter = SktimeLagForecaster(look_back=20).fit(y[:80], fh=[1, 5])
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
        SktimeLagForecaster(look_back=20).fit(y, fh=[-1, 2])
