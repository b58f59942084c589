"""Forecasting with lag-dependent weights: linear maps in closed form and learned lag kernels. Needs scikit-learn."""

from importlib.util import find_spec

if missing := [name for name in ("pandas", "sklearn") if find_spec(name) is None]:
    raise ImportError(f"forecasting needs {' and '.join(missing)}: pip install 'lagwise[forecast]'")

from lagwise.forecasting.choosing import Candidate, choose_forecaster, reason
from lagwise.forecasting.estimator import LagForecaster, Scores
from lagwise.forecasting.tables import SeriesTable, read_series
from lagwise.forecasting.writing import write_forecast

__all__ = [
    "Candidate",
    "LagForecaster",
    "Scores",
    "SeriesTable",
    "choose_forecaster",
    "read_series",
    "reason",
    "write_forecast",
]
