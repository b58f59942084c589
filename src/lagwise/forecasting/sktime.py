"""`LagForecaster` as a forecaster of sktime. Needs the extra ``sktime``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from lagwise.extras import explained

try:
    import pandas as pd
    from sktime.forecasting.base import BaseForecaster  # type: ignore[missing-import]

    from lagwise.forecasting.estimator import LagForecaster
except ModuleNotFoundError as error:
    raise explained(error, "sktime") from error


class SktimeLagForecaster(BaseForecaster):
    """Forecasts by `LagForecaster`, with sktime's ``fit(y, fh=...)``, ``predict`` and ``update``.

    The horizon is the largest step of ``fh``, which `fit` needs; only steps after the data can be forecast. ``update(y,
    update_params=False)`` moves the window over new rows in constant time and keeps the maps; with
    ``update_params=True`` the forecaster is fitted again. Parameters and errors are those of `LagForecaster`.

    Rows that the window has already are passed over, and rows that are missing between count as unobserved.

    ``predict_interval`` (and ``predict_quantiles``, ``predict_var``) needs rows held out by ``validation``.

    Examples
    --------
    >>> from sktime.datasets import load_airline
    >>> from lagwise.forecasting.sktime import SktimeLagForecaster
    >>> y = load_airline()
    >>> forecaster = SktimeLagForecaster(look_back=24).fit(y, fh=[1, 2, 3])
    >>> y_pred = forecaster.predict()
    """

    _tags: ClassVar[dict[str, Any]] = {
        "authors": ["lagwise"],
        "y_inner_mtype": "pd.DataFrame",
        "capability:multivariate": True,
        "capability:exogenous": False,
        "capability:missing_values": True,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "capability:update": True,
        "capability:random_state": True,
        "property:randomness": "derandomized",
        "requires-fh-in-fit": True,
    }

    def __init__(
        self,
        look_back: int | Sequence[int] = 336,
        model: str | Mapping[str, Any] = "ridge",
        kernels: int = 1,
        rank: int | None = None,
        level: str = "mean",
        normalize: bool = False,
        shared: bool | None = None,
        penalty: float | None = None,
        validation: float | int = 0.2,
        refit: bool = True,
        random_state: int = 0,
    ):
        self.look_back = look_back
        self.model = model
        self.kernels = kernels
        self.rank = rank
        self.level = level
        self.normalize = normalize
        self.shared = shared
        self.penalty = penalty
        self.validation = validation
        self.refit = refit
        self.random_state = random_state
        super().__init__()

    def _fit(self, y: Any, X: Any, fh: Any) -> SktimeLagForecaster:
        horizon = int(self._steps(fh).max())
        self.forecaster_ = LagForecaster(horizon, **self.get_params(deep=False)).fit(y.to_numpy())
        self.columns_ = y.columns
        self.last_ = y.index[-1]
        self.frequency_ = _frequency(y.index)
        return self

    def _predict(self, fh: Any, X: Any) -> pd.DataFrame:
        made = self.forecaster_.predict()[self._steps(fh) - 1]
        return pd.DataFrame(made, index=fh.to_absolute_index(self.cutoff), columns=self.columns_)

    def _predict_interval(self, fh: Any, X: Any, coverage: Sequence[float]) -> pd.DataFrame:
        names = [self._get_varnames(), list(coverage), ["lower", "upper"]]
        ends = np.array([self.forecaster_.predict_interval(coverage=share) for share in coverage])
        chosen = ends[:, :, self._steps(fh) - 1]  # (coverage, end, steps, series)
        return pd.DataFrame(
            chosen.transpose(2, 3, 0, 1).reshape(len(fh), -1),
            index=fh.to_absolute_index(self.cutoff),
            columns=pd.MultiIndex.from_product(names),
        )

    def _update(self, y: pd.DataFrame, X: Any = None, update_params: bool = True) -> SktimeLagForecaster:
        if update_params:
            return self._fit(self._y, X, self.fh)
        new = y[y.index > self.last_]
        following = self._following(y.index)
        for row in (new.reindex(following) if new.index.isin(following).all() else new).to_numpy():
            self.forecaster_.update(row)
        self.last_ = max(self.last_, y.index[-1])
        return self

    def _following(self, index: pd.Index) -> pd.Index:
        """The times from the window's last row to the end of ``index``, also those that it lacks."""
        if isinstance(index, pd.PeriodIndex):
            return pd.period_range(self.last_, index[-1])[1:]
        if not isinstance(index, pd.DatetimeIndex):
            return pd.RangeIndex(self.last_ + self.frequency_, index[-1] + 1, self.frequency_)
        if self.frequency_ is None:
            return index[index > self.last_]
        return pd.date_range(self.last_, index[-1], freq=self.frequency_)[1:]

    def _steps(self, fh: Any) -> np.ndarray:
        """The steps of a horizon after the data, from 1; sktime refuses others."""
        return fh.to_relative(self.cutoff).to_numpy().astype(int)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Parameters for the short series of sktime's tests."""
        options = {"look_back": 3, "shared": True, "penalty": 0.1}
        return [options, {**options, "model": "toeplitz", "level": "last"}]


def _frequency(index: pd.Index) -> Any:
    """The distance of rows: of dates as pandas has it, None if there is none; of numbers the first difference."""
    if isinstance(index, pd.DatetimeIndex):
        return index.freq or (pd.infer_freq(index) if len(index) > 2 else None)
    if isinstance(index, pd.PeriodIndex):
        return index.freq
    return index[1] - index[0] if len(index) > 1 else 1
