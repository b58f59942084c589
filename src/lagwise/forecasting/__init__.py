"""Forecasting with lag-dependent weights: linear maps in closed form. Needs scikit-learn.

Lazy: the task that learns to forecast needs only some of it.
"""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy_package

if TYPE_CHECKING:
    from lagwise.forecasting.choosing import Candidate, choose_forecaster, reason
    from lagwise.forecasting.estimator import LagForecaster, Scores
    from lagwise.forecasting.tables import SeriesTable, read_series
    from lagwise.forecasting.writing import write_forecast

__all__, __getattr__, __dir__ = lazy_package(__name__, extra="forecast")
