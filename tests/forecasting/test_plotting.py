"""Plots of forecasts."""

from __future__ import annotations

import warnings

import pytest


@pytest.mark.parametrize("columns", [1, 2])
def test_every_span_of_time_has_dates_that_fit_its_axis(columns: int) -> None:
    """Four days had no unit with 5 to 9 ticks, and matplotlib warned."""
    dates = pytest.importorskip("matplotlib.dates")
    import numpy as np

    from lagwise.forecasting.writing import date_locator

    start = np.datetime64("2024-02-27T03:00:00")
    locator = date_locator(columns)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seconds in np.geomspace(30, 40 * 365 * 86400, 300).astype(int):
            ticks = locator.tick_values(*dates.num2date(dates.date2num([start, start + np.timedelta64(seconds, "s")])))
            assert 2 <= len(ticks) <= 12, seconds
