"""`LagForecaster` as a forecaster of sktime. Needs the extra ``sktime``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lagwise.extras import explained

try:
    import pandas as pd
    from sktime.forecasting.base import BaseForecaster  # type: ignore[missing-import]

    from lagwise.forecasting.columns import Columns
    from lagwise.forecasting.estimator import LagForecaster
    from lagwise.forecasting.grids import Grid, regular_grid, steps
except ModuleNotFoundError as error:
    raise explained(error, "sktime") from error


# sktime gives the horizon to `fit`, and the coverage to `predict_interval`.
_PARAMETERS = {
    name: parameter.replace(kind=Parameter.KEYWORD_ONLY)
    for name, parameter in signature(LagForecaster).parameters.items()
    if name not in ("horizon", "coverage")
}


class SktimeLagForecaster(BaseForecaster):
    """Forecaster of sktime, by `LagForecaster`, with ``fit(y, fh=...)``, ``predict`` and ``update``.

    The horizon is the largest step of ``fh``, which `fit` needs; only steps after the data can be forecast. ``update(y,
    update_params=False)`` moves the window over new rows in constant time and keeps the maps; with
    ``update_params=True`` the forecaster is fitted again. Parameters and errors are those of `LagForecaster`.

    Rows that the window has already are passed over, and rows that are missing between, in `fit` and `update`, count as
    unobserved. sktime counts steps of an index of numbers in its units: where its rows are 2 apart, ``fh=[2, 4]`` are
    the next rows.

    The instances of a panel or hierarchy may have different lengths, and are fitted together: one map for all, or one
    for each, by ``shared``. Each is forecast from its own end.

    X has columns that are known in advance, in `fit` and `predict`; at the times of fh alone is enough. They count for
    the model ``ridge`` without ``rank``, and others ignore them.

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
        "y_inner_mtype": ["pd.DataFrame", "pd-multiindex", "pd_multiindex_hier"],
        "X_inner_mtype": ["pd.DataFrame", "pd-multiindex", "pd_multiindex_hier"],
        "capability:multivariate": True,
        "capability:exogenous": True,
        "capability:missing_values": True,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "capability:update": True,
        "requires-fh-in-fit": True,
    }

    def __init__(self, **parameters: Any):
        for name, parameter in _PARAMETERS.items():
            setattr(self, name, parameters.pop(name, parameter.default))
        if parameters:
            raise TypeError(f"unknown parameter: {next(iter(parameters))!r} (known: {', '.join(_PARAMETERS)})")
        super().__init__()
        model, rank = self.model, self.rank  # type: ignore[missing-attribute]
        if (model.get("name") if isinstance(model, Mapping) else model) != "ridge" or rank is not None:
            self.set_tags(**{"capability:exogenous": False})

    # sktime reads the names and defaults of parameters from the signature.
    __init__.__signature__ = Signature(  # type: ignore[missing-attribute]
        [Parameter("self", Parameter.POSITIONAL_ONLY), *_PARAMETERS.values()]
    )

    def _fit(self, y: Any, X: Any, fh: Any) -> SktimeLagForecaster:
        self.columns_, self.names_ = y.columns, y.index.names
        self.parts_ = _parts(y)
        horizon = max(int(self._steps(fh, part).max()) for part in self.parts_)
        self.known_ = X
        self.forecaster_ = LagForecaster(horizon, **self.get_params(deep=False))
        columns = None if X is None else Columns(future=self._beside(lambda part: self._at(X, part, part.grid.times)))
        self.forecaster_.fit(self._rows(y), columns=columns)
        self.seen_: Any = None  # the rows of several series after the fit, where the window moved over them
        return self

    def _at(self, X: Any, part: _Part, times: pd.Index) -> np.ndarray:
        """Take the columns of an instance at some times ``(times, columns)``, NaN where X has none."""
        own = X if X.index.nlevels == 1 else X.loc[part.key]
        return own.reindex(times).to_numpy(np.float64, copy=True)

    def _beside(self, rows: Callable[[_Part], np.ndarray]) -> np.ndarray:
        """Join the columns of all series ``(rows, series, columns)``, from those of each instance, which end
        together."""
        parts = [rows(part) for part in self.parts_]
        longest = max(map(len, parts))
        padded = [np.pad(each, ((longest - len(each), 0), (0, 0)), constant_values=np.nan) for each in parts]
        return np.repeat(np.stack(padded, axis=1), len(self.columns_), axis=1)

    def _given(self, fh: Any, X: Any) -> dict[str, Any]:
        """Collect what forecasts are made from: rows that the window moved over, and columns of the horizon, of which
        only those at the times of fh count."""
        if self.known_ is None:
            return {"X": self.seen_}
        horizon = self.forecaster_.horizon

        def ahead(part: _Part) -> np.ndarray:
            times, steps = part.grid.following(horizon), self._steps(fh, part)
            values = self._at(self.known_ if X is None else X, part, times)
            values[np.setdiff1d(np.arange(horizon), steps - 1)] = 0.0
            return values

        if self.seen_ is None:
            return {"columns": Columns(future=self._beside(ahead))}
        rows = self._beside(lambda part: np.concatenate([self._at(self.known_, part, part.grid.times), ahead(part)]))
        return {"X": self.seen_, "columns": Columns(future=rows)}

    def _rows(self, y: pd.DataFrame) -> Any:
        """Place the series of all instances on their grids, by name where there are several instances."""
        if y.index.nlevels == 1:
            return y.reindex(self.parts_[0].grid.times).to_numpy()
        found = {}
        for part in self.parts_:
            rows = y.loc[part.key].reindex(part.grid.times)
            found |= {f"{part.key} {name}": rows[name].to_numpy() for name in y.columns}
        return found

    def _predict(self, fh: Any, X: Any) -> pd.DataFrame:
        return self._framed(self.forecaster_.predict(**self._given(fh, X))[..., None], fh, self.columns_)

    def _predict_interval(self, fh: Any, X: Any, coverage: Sequence[float]) -> pd.DataFrame:
        names = pd.MultiIndex.from_product([self._get_varnames(), list(coverage), ["lower", "upper"]])
        given = self._given(fh, X)
        ends = [self.forecaster_.predict_interval(coverage=share, **given) for share in coverage]
        return self._framed(np.stack([end for pair in ends for end in pair], axis=-1), fh, names)

    def _framed(self, made: np.ndarray, fh: Any, columns: pd.Index) -> pd.DataFrame:
        """Frame forecasts ``(horizon, series of all instances, kinds)`` at the times of fh after each instance."""
        made = made.reshape(len(made), len(self.parts_), -1)
        frames = [
            pd.DataFrame(made[self._steps(fh, part) - 1, i], index=self._index(fh, part), columns=columns)
            for i, part in enumerate(self.parts_)
        ]
        if self.parts_[0].key is None:
            return frames[0]
        return pd.concat(frames, keys=[part.key for part in self.parts_], names=self.names_)

    def _update(self, y: pd.DataFrame, X: Any = None, update_params: bool = True) -> SktimeLagForecaster:
        if self.known_ is not None:
            self.known_ = self._X
        if update_params:
            return self._fit(self._y, self.known_, self.fh)
        if y.index.nlevels > 1:
            keys = [part.key for part in self.parts_]
            every: Any = self._y
            self.parts_ = _parts(every)
            if keys != [part.key for part in self.parts_]:
                raise ValueError("update has instances that were not fitted; fit again, or give update_params=True")
            self.seen_ = self._rows(every)
            return self
        (part,) = self.parts_
        new = y[y.index > part.last]
        if len(new):
            grid = _following(part.grid, new.index[-1])
            _check_on_grid(new.index, grid.times)
            beside = None if self.known_ is None else self._at(self.known_, part, grid.times[1:])
            for i, row in enumerate(new.reindex(grid.times[1:]).to_numpy()):
                columns = None if beside is None else Columns(future=beside[i : i + 1])
                self.forecaster_.update(row, columns=columns)
            self.parts_ = [_Part(None, grid, new.index[-1])]
        return self

    def _end(self, part: _Part) -> pd.Index:
        """Find the last time of an instance, as sktime has it."""
        cutoff: Any = self.cutoff
        if part.key is None or part.last == cutoff[0]:
            return cutoff
        own: Any = pd.Index([part.last])
        if isinstance(cutoff, pd.DatetimeIndex):
            own.freq = cutoff.freq
        return own

    def _steps(self, fh: Any, part: _Part) -> np.ndarray:
        """Count the rows of a horizon after the data, from 1; sktime refuses earlier ones.

        sktime counts a relative horizon of numbers in units of the index, whatever the distance of its rows.
        """
        times = part.grid.times
        if isinstance(times, pd.DatetimeIndex | pd.PeriodIndex):
            if fh.is_relative:
                return fh.to_numpy().astype(int)
            wanted = fh.to_absolute_index(self._end(part))
            following = _following(part.grid, wanted.max()).times
            _check_on_grid(wanted, following)
            return following.get_indexer(wanted)
        step = int(times[1] - times[0]) if len(times) > 1 else 1
        relative = fh.to_relative(self._end(part)).to_numpy().astype(int)
        if (relative % step).any():
            raise ValueError(
                f"rows are {step} apart, so the steps of fh must be multiples of {step}, such as fh=[{step}, {2 * step}"
                f"], got {relative.tolist()}"
            )
        return relative // step

    def _index(self, fh: Any, part: _Part) -> pd.Index:
        if fh.is_relative and isinstance(part.grid.times, pd.DatetimeIndex):
            steps = self._steps(fh, part)
            return part.grid.following(int(steps.max()))[steps - 1]
        return fh.to_absolute_index(self._end(part))

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """List parameters for the short series of sktime's tests."""
        options = {"look_back": 3, "shared": True, "penalty": 0.1}
        return [options, {**options, "model": "toeplitz", "level": "last"}]


class _Part(NamedTuple):
    """Part of a panel, or a single instance without a key: its grid of times and its last time."""

    key: Any
    grid: Grid
    last: Any


def _parts(y: pd.DataFrame) -> list[_Part]:
    """List the instances of data."""
    if y.index.nlevels == 1:
        return [_Part(None, _grid(y.index), y.index[-1])]
    indices = {key: y.loc[key].index for key in y.index.droplevel(-1).unique()}
    return [_Part(key, _grid(index), index[-1]) for key, index in indices.items()]


def _grid(index: pd.Index) -> Grid:
    """Find the regular grid of an index: of periods and of dates with a frequency by it, of other dates as of a table,
    and of numbers by their largest common step."""
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
    """Continue the grid from its last time to a later one, which it need not contain."""
    return Grid(grid.make(grid.times[-1], last, None), grid.make)


def _check_on_grid(index: pd.Index, times: pd.Index) -> None:
    """Raise ValueError for a time that is not on the grid."""
    if not index.isin(times).all():
        raise ValueError(f"the index is irregular: {index[~index.isin(times)][0]} is not one of the times of its grid")
