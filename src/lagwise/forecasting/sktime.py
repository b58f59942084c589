"""`LagForecaster` as a forecaster of sktime. Needs the extra ``sktime``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from lagwise.extras import explained

try:
    import pandas as pd
    from sktime.forecasting.base import BaseForecaster  # type: ignore[missing-import]

    from lagwise.forecasting.estimator import LagForecaster
    from lagwise.forecasting.grids import Grid, regular_grid, steps
except ModuleNotFoundError as error:
    raise explained(error, "sktime") from error


class SktimeLagForecaster(BaseForecaster):
    """Forecasts by `LagForecaster`, with sktime's ``fit(y, fh=...)``, ``predict`` and ``update``.

    The horizon is the largest step of ``fh``, which `fit` needs; only steps after the data can be forecast. ``update(y,
    update_params=False)`` moves the window over new rows in constant time and keeps the maps; with
    ``update_params=True`` the forecaster is fitted again. Parameters and errors are those of `LagForecaster`.

    Rows that the window has already are passed over, and rows that are missing between, in `fit` and `update`, count as
    unobserved. sktime counts steps of an index of numbers in its units: where its rows are 2 apart, ``fh=[2, 4]`` are
    the next rows.

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
        logs: bool = False,
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
        self.logs = logs
        self.normalize = normalize
        self.shared = shared
        self.penalty = penalty
        self.validation = validation
        self.refit = refit
        self.random_state = random_state
        super().__init__()

    def _fit(self, y: Any, X: Any, fh: Any) -> SktimeLagForecaster:
        self.grid_ = _grid(y.index)
        horizon = int(self._steps(fh).max())
        rows = y.reindex(self.grid_.times).to_numpy()
        self.forecaster_ = LagForecaster(horizon, **self.get_params(deep=False)).fit(rows)
        self.columns_ = y.columns
        self.last_ = y.index[-1]
        return self

    def _predict(self, fh: Any, X: Any) -> pd.DataFrame:
        made = self.forecaster_.predict()[self._steps(fh) - 1]
        return pd.DataFrame(made, index=self._index(fh), columns=self.columns_)

    def _predict_interval(self, fh: Any, X: Any, coverage: Sequence[float]) -> pd.DataFrame:
        names = [self._get_varnames(), list(coverage), ["lower", "upper"]]
        ends = np.array([self.forecaster_.predict_interval(coverage=share) for share in coverage])
        chosen = ends[:, :, self._steps(fh) - 1]  # (coverage, end, steps, series)
        return pd.DataFrame(
            chosen.transpose(2, 3, 0, 1).reshape(len(fh), -1),
            index=self._index(fh),
            columns=pd.MultiIndex.from_product(names),
        )

    def _update(self, y: pd.DataFrame, X: Any = None, update_params: bool = True) -> SktimeLagForecaster:
        if update_params:
            return self._fit(self._y, X, self.fh)
        new = y[y.index > self.last_]
        if len(new):
            grid = _following(self.grid_, new.index[-1])
            _check_on_grid(new.index, grid.times)
            for row in new.reindex(grid.times[1:]).to_numpy():
                self.forecaster_.update(row)
            self.grid_, self.last_ = grid, new.index[-1]
        return self

    def _steps(self, fh: Any) -> np.ndarray:
        """The rows of a horizon after the data, from 1; sktime refuses earlier ones.

        sktime counts a relative horizon of numbers in units of the index, whatever the distance of its rows.
        """
        times = self.grid_.times
        if isinstance(times, pd.DatetimeIndex | pd.PeriodIndex):
            if fh.is_relative:
                return fh.to_numpy().astype(int)
            wanted = fh.to_absolute_index(self.cutoff)
            following = _following(self.grid_, wanted.max()).times
            _check_on_grid(wanted, following)
            return following.get_indexer(wanted)
        step = int(times[1] - times[0]) if len(times) > 1 else 1
        relative = fh.to_relative(self.cutoff).to_numpy().astype(int)
        if (relative % step).any():
            raise ValueError(
                f"rows are {step} apart, so the steps of fh must be multiples of {step}, such as fh=[{step}, {2 * step}"
                f"], got {relative.tolist()}"
            )
        return relative // step

    def _index(self, fh: Any) -> pd.Index:
        if fh.is_relative and isinstance(self.grid_.times, pd.DatetimeIndex):
            steps = self._steps(fh)
            return self.grid_.following(int(steps.max()))[steps - 1]
        return fh.to_absolute_index(self.cutoff)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Parameters for the short series of sktime's tests."""
        options = {"look_back": 3, "shared": True, "penalty": 0.1}
        return [options, {**options, "model": "toeplitz", "level": "last"}]


def _grid(index: pd.Index) -> Grid:
    """The regular grid of an index: of periods and of dates with a frequency by it, of other dates as of a table, and
    of numbers by their largest common step."""
    if isinstance(index, pd.PeriodIndex):
        return Grid(pd.period_range(index[0], index[-1]), pd.period_range)
    if isinstance(index, pd.DatetimeIndex):
        freq: Any = index.freq
        if freq is None and len(index) < 3:
            freq = index[-1] - index[0] or pd.Timedelta(days=1)
        if freq is None:
            return regular_grid(index)
        make = partial(steps, freq=freq)
        return Grid(make(index[0], index[-1], None), make)
    step = int(np.gcd.reduce(np.diff(index))) if len(index) > 1 else 1
    make = partial(_numbers, step=step)
    return Grid(make(index[0], index[-1], None), make)


def _numbers(first: Any, last: Any, count: Any, *, step: int) -> pd.RangeIndex:
    return pd.RangeIndex(first, first + count * step if last is None else last + 1, step)


def _following(grid: Grid, last: Any) -> Grid:
    """The grid from its last time to a later one, which it need not contain."""
    return Grid(grid.make(grid.times[-1], last, None), grid.make)


def _check_on_grid(index: pd.Index, times: pd.Index) -> None:
    """ValueError for a time that is not on the grid."""
    if not index.isin(times).all():
        raise ValueError(f"the index is irregular: {index[~index.isin(times)][0]} is not one of the times of its grid")
