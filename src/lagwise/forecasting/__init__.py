"""Forecasting with lag-dependent weights: linear maps in closed form and learned lag kernels. Needs scikit-learn.

Lazy: the task that learns to forecast needs only some of it.
"""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy

if TYPE_CHECKING:
    from lagwise.forecasting.choosing import Candidate, choose_forecaster, reason
    from lagwise.forecasting.columns import Columns
    from lagwise.forecasting.estimator import LagForecaster, Scores
    from lagwise.forecasting.tables import SeriesTable, read_series
    from lagwise.forecasting.writing import write_forecast

__all__ = [
    "Candidate",
    "Columns",
    "LagForecaster",
    "Scores",
    "SeriesTable",
    "choose_forecaster",
    "read_series",
    "reason",
    "write_forecast",
]

__getattr__, __dir__ = lazy(
    __name__,
    __all__,
    {
        "Candidate": "lagwise.forecasting.choosing",
        "Columns": "lagwise.forecasting.columns",
        "LagForecaster": "lagwise.forecasting.estimator",
        "Scores": "lagwise.forecasting.estimator",
        "SeriesTable": "lagwise.forecasting.tables",
        "choose_forecaster": "lagwise.forecasting.choosing",
        "read_series": "lagwise.forecasting.tables",
        "reason": "lagwise.forecasting.choosing",
        "write_forecast": "lagwise.forecasting.writing",
    },
    extra="forecast",
)
