"""Fit, score and stream a forecaster."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[missing-module-attribute]

from lagwise.forecasting.design import held_out_rows, make_design, plain
from lagwise.forecasting.errors import (
    error_quantiles,
    forecast_errors,
    independent_errors,
    sorted_sizes,
    window_errors,
)
from lagwise.forecasting.fitting import Rows, fit_groups
from lagwise.forecasting.gaps import aligned, carry_forward, fill, first_observed, scales
from lagwise.forecasting.moments import window_count
from lagwise.tables import check_integer, shown

_RELATIVE_ROUNDING = 1e-12  # forecasts this close to the last value are set to it
_MIN_VALUES_FOR_SCALE = 10  # before the held-out rows; otherwise all rows of a series give its scale


class Scores(NamedTuple):
    """The scores of forecasts: mean squared and mean absolute error on the standardised scale, the number of scored
    windows per series, and the share of values within the intervals (None without intervals)."""

    mse: float
    mae: float
    windows: int
    coverage: float | None = None


class LagForecaster(BaseEstimator):
    """Forecaster of series with weights that depend on lag: a linear map from the last ``look_back`` rows to the next
    ``horizon``, with scikit-learn's interface.

    Formula: a series is standardised by the mean and deviation of the training rows; the level ``r^T u`` of a window u
    is removed, the map B gives ``y = B^T (u - level) + level``, and the scale is restored. Models:

    - ``ridge``: B is any matrix; least squares with a penalty on its squares.
    - ``toeplitz``: ``B(i, h) = k(h - i)``, one kernel of look_back + horizon - 1 values for all horizons, or
      ``kernels`` of them, each for equally many consecutive horizons.
    - ``smoothing``: exponential smoothing, with or without a trend, a damped trend and a season, its parameters by an
      information criterion; ``seasonal``: the last period repeated. Both have the option ``period``, in rows:
      ``{"name": "smoothing", "period": 12}``.

    Parameters:
        horizon: rows to forecast.
        look_back: rows that a forecast uses. With several numbers, each has a map, and their forecasts are averaged,
            which is again one map: with the weights, none below 0, that are best on held-out rows, or equal ones if
            there are none.
        model: see above.
        kernels: for ``toeplitz``; must divide the horizon.
        level: removed from a window: its ``mean``, its ``last`` value, or ``none``.
        logs: forecast the logarithms of values, all above 0, and restore them. Scores are those of logarithms.
        nonnegative: replace forecasts, and ends of intervals, below 0 by 0. Scores are those of the map alone.
        shared: one map for all series (True), one for each (False), or one for each that is drawn to the shared map
            (None): the penalty is on their difference, and is chosen on the held-out rows of the series. With a given
            penalty, and of ``smoothing``, whichever of the two has the lower error on held-out rows.
        penalty: relative to the variance of a standardised series; None for the best on held-out rows. With infinity
            the map is 0, and the level is forecast: the last value with ``level="last"``.
        validation: rows held out at the end, a share or a number: they choose the penalty, and the sizes of their
            errors give the intervals. At least one horizon; 0 for none.
        folds: how many blocks of as many rows, one before the other, choose the penalty and the weights of look-backs
            together, or as many as there are: each is forecast by maps that are fitted to the rows before and after it.
            With more than one, choices rest on several seasons, at that many times the cost. Intervals come from the
            last block. For closed forms.
        refit: once the penalty is chosen, fit again with the held-out rows. Their errors remain those of the first fit.
        coverage: of the intervals.

    Attributes:
        maps_: fitted maps (1 or series, look_back, horizon).
        mean_, scale_: of each series (series,).
        penalty_: of each map and look-back; infinite for that of all series, where a map is drawn to it.
        weights_: of look-backs.
        validation_error_: mean squared error on the held-out rows.
        errors_: absolute errors of at most 500 held-out windows (windows, horizon, series), sorted; None without.
        independent_: how many of these errors count as independent.
        n_parameters_: number of parameters.
        n_features_in_: number of series.

    Missing values (NaN) among the inputs are filled with the last observed one, in training, forecasting and streaming.
    Missing targets are ignored in the fit, the choices on held-out rows, scores and intervals. Windows with a run of
    missing rows longer than a tenth of the look-back are not used in training.

    Cost: with S series of T rows, look-back L and horizon H, closed forms take O(S T log T + S L (L + H)) for the
    moments of all windows, then O(L^3) for one eigendecomposition for all penalties, and O(L^2 H) for each penalty (S
    times the latter two where each series has its own map). M missing targets add O(M (L + H) H) to each penalty,
    several times. Memory is O(L (L + H) + S T). Forecasts cost O(S L H).

    A ValueError names an option or a value that is out of range; also for data too short for one window of look_back +
    horizon rows.

    Source: Toner and Darlow 2024 (linear forecasters); the moments are those of the covariance method (Makhoul 1975).

    >>> series = np.sin(np.arange(400) * 2 * np.pi / 24)
    >>> forecaster = LagForecaster(horizon=24, look_back=48).fit(series)
    >>> bool(np.abs(forecaster.predict() - series[16:40]).max() < 1e-3)
    True
    """

    n_features_in_: int

    def __init__(
        self,
        horizon: int = 96,
        look_back: int | Sequence[int] = 336,
        *,
        model: str | Mapping[str, Any] = "ridge",
        kernels: int = 1,
        level: str = "mean",
        logs: bool = False,
        nonnegative: bool = False,
        shared: bool | None = None,
        penalty: float | None = None,
        validation: float | int = 0.2,
        folds: int = 1,
        refit: bool = True,
        coverage: float = 0.9,
    ):
        self.horizon = horizon
        self.look_back = look_back
        self.model = model
        self.kernels = kernels
        self.level = level
        self.logs = logs
        self.nonnegative = nonnegative
        self.shared = shared
        self.penalty = penalty
        self.validation = validation
        self.folds = folds
        self.refit = refit
        self.coverage = coverage

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[missing-attribute]
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: None = None) -> Self:
        """Fit to series ``(rows, series)`` in temporal order, or one series ``(rows,)``; NaN is missing.

        X may also be a mapping of names to series of different lengths, which end at the same time or are each forecast
        from their own end. Rows are then counted from the end, and held-out rows as a share of the median length.
        Forecasts have the columns of `predict` in the order of the mapping.
        """
        design = make_design(self)
        values = self._validated(X, reset=True)
        x = self._logarithms(values)
        first = first_observed(x)
        held_out = held_out_rows(design, self.validation, len(x) - int(np.median(first)))
        cut = len(x) - held_out
        window_count(cut + design.horizon * design.windowless, design.look_back, design.horizon)
        # Series that start in the held-out rows, or shortly before: too few values for a scale.
        later = first > (max(0, cut - _MIN_VALUES_FOR_SCALE) if x.shape[1] > 1 else cut - 1)
        self.mean_, self.scale_ = scales(np.where(later, x, np.where(np.arange(len(x))[:, None] < cut, x, np.nan)))
        z = self._standardized(values)
        filled, missing = fill(z), np.isnan(z)
        rows = Rows(filled, missing)
        groups = fit_groups(design, rows, cut, self.shared, self._name)
        self.shared_, fits = groups.shared, groups.fits
        self.validation_error_ = groups.error if held_out else None
        self.errors_, self.independent_ = None, None
        if held_out:
            begin = cut - design.look_back
            targets = np.where(missing, np.nan, filled)[begin:]
            errors = window_errors([fit.maps for fit in fits], filled[begin:], targets, first - begin)
            self.errors_ = sorted_sizes(errors, first > cut)
            self.independent_ = independent_errors(errors, held_out / design.horizon)
        self.weights_ = fits[0].weights
        self.penalty_ = [fit.penalties for fit in fits]
        if held_out and self.refit:
            fits = groups.refit(design, rows).fits
        self.maps_ = np.stack([fit.maps for fit in fits])
        self.n_parameters_ = len(fits) * design.parameters
        self._recent = deque(filled[-design.look_back :].copy(), maxlen=design.look_back)
        self._last = fill(values)[-1]
        return self

    def predict(self, horizon: int | None = None, *, X: Any = None) -> np.ndarray:
        """Forecast the rows after the data.

        Args:
            horizon: Number of rows; by default all that were fitted, at most these.
            X: Forecast the rows after X; by default those after the fitted data and every row given to `update` since.

        Returns:
            ``(horizon, series)``, or ``(horizon,)`` for one series ``(rows,)``.
        """
        check_is_fitted(self)
        steps = self._steps(horizon)
        forecast, end = self._forecast(steps, X)
        return self._shaped(self._raw(forecast, end))

    def _forecast(self, steps: int, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Forecast values or, with ``logs``, logarithms ``(steps, series)``, and return the last value too where the
        forecast is that but for rounding, else NaN."""
        look_back = self.maps_.shape[1]
        if X is None:
            recent, last = np.stack(self._recent), self._last
        else:
            x = self._validated(X, reset=False)
            if len(x) < look_back:
                raise ValueError(f"X must have at least look_back = {look_back} rows to forecast from, got {len(x)}")
            recent, last = fill(self._standardized(x))[-look_back:], fill(x)[-1]
        z = (recent.T[:, None] @ self.maps_[:, :, :steps])[:, 0].T
        same = np.abs(z - recent[-1]) <= _RELATIVE_ROUNDING * np.abs(recent).max(0)
        return z * self.scale_ + self.mean_, np.where(same, last, np.nan)

    def predict_interval(
        self, horizon: int | None = None, *, X: Any = None, coverage: float | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute lower and upper ends of intervals around `predict`, with its shape.

        Half the width is a quantile of absolute errors on at most 500 held-out windows at even distances
        (`lagwise.forecasting.errors.error_quantiles`), wider where few of them are independent. Errors of overlapping
        windows of a changing series are not exchangeable, so coverage is approximate.
        """
        check_is_fitted(self)
        centre, end = self._forecast(self._steps(horizon), X)
        if self.errors_ is None:
            raise ValueError("intervals need held-out rows; fit with validation above 0")
        coverage = self.coverage if coverage is None else coverage
        if not 0 <= coverage < 1:
            raise ValueError(f"coverage must be in [0, 1), got {coverage!r}")
        half = error_quantiles(self.errors_, coverage, self.independent_)[: len(centre)]
        half = np.where(half <= _RELATIVE_ROUNDING, 0.0, half) * self.scale_
        end = np.where(half == 0, end, np.nan)
        return self._shaped(self._raw(centre - half, end)), self._shaped(self._raw(centre + half, end))

    def update(self, row: Any) -> Self:
        """Append the next row ``(series,)`` of the data; NaN is missing. Takes constant time and memory: the maps stay,
        and the window moves. Forecasts are exactly those from all rows at once."""
        check_is_fitted(self)
        values = np.asarray(row, dtype=np.float64).reshape(-1)
        if values.shape != (self.n_features_in_,) or np.isinf(values).any():
            raise ValueError(f"row must be {self.n_features_in_} finite values or NaN, got {shown(row)}")
        standardized = self._standardized(values[None])
        self._last = carry_forward(values[None], self._last)[0]
        self._recent.append(carry_forward(standardized, self._recent[-1])[0])
        return self

    def evaluate(self, X: Any) -> Scores:
        """Score every window within X, with stride one: look_back rows and the horizon after them."""
        check_is_fitted(self)
        z = self._standardized(self._validated(X, reset=False))
        look_back, horizon = self.maps_.shape[1:]
        windows = window_count(len(z), look_back, horizon)
        filled = fill(z)
        half = None if self.errors_ is None else error_quantiles(self.errors_, self.coverage, self.independent_)
        squares = absolutes = inside = count = 0.0
        for series, errors in forecast_errors(self.maps_, filled, z, np.arange(windows), first_observed(z)):
            sizes = np.abs(errors)
            squares += np.nansum(sizes**2)
            absolutes += np.nansum(sizes)
            count += np.count_nonzero(~np.isnan(sizes))
            if half is not None:
                inside += np.count_nonzero(sizes <= half[:, series])
        if not count:
            raise ValueError("X has no observed value to score a forecast by")
        covered = None if half is None else float(inside / count)
        return Scores(float(squares / count), float(absolutes / count), windows, covered)

    def errors_at(self, X: Any, starts: np.ndarray) -> np.ndarray:
        """Compute errors ``(windows, horizon, series)`` of the forecasts of the rows from each of ``starts``, with
        ``logs`` of logarithms; NaN where not observed."""
        check_is_fitted(self)
        x = self._validated(np.asarray(X).reshape(len(X), -1), reset=False)
        look_back, horizon = self.maps_.shape[1:]
        filled = fill(self._standardized(x))
        targets = sliding_window_view(self._logarithms(x), horizon, axis=0)[starts].transpose(0, 2, 1)
        windows = sliding_window_view(filled, look_back, axis=0)[starts - look_back]  # (windows, series, look_back)
        forecasts = (windows.transpose(1, 0, 2) @ self.maps_).transpose(1, 2, 0)
        forecasts = forecasts * self.scale_ + self.mean_
        forecasts = np.maximum(forecasts, 0.0) if self.nonnegative and not self.logs else forecasts
        has_input = starts[:, None] > first_observed(x)  # otherwise no input is observed
        return np.where(has_input[:, None], forecasts - targets, np.nan)

    def score(self, X: Any, y: None = None) -> float:
        """Compute minus the mean squared error of `evaluate`: greater is better."""
        return -self.evaluate(X).mse

    def _steps(self, horizon: int | None) -> int:
        fitted = self.maps_.shape[2]
        if horizon is None:
            return fitted
        if check_integer("horizon", horizon := plain(horizon)) > fitted:
            raise ValueError(f"horizon must be at most the {fitted} rows fitted for, got {horizon}")
        return horizon

    def _validated(self, X: Any, *, reset: bool) -> np.ndarray:
        if isinstance(X, Mapping) and not hasattr(X, "shape"):
            import pandas as pd

            names, values = aligned(X)
            X = pd.DataFrame(values, columns=names)
        if np.ndim(X) == 1:
            if reset:
                self._one_series = True
            X = np.asarray(X).reshape(-1, 1)
        elif reset:
            self._one_series = False
        x = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=2)
        if reset and np.isnan(x).all(0).any():
            raise ValueError(f"{self._name(np.isnan(x).all(0))} has no observed value")
        return x

    def _logarithms(self, x: np.ndarray) -> np.ndarray:
        """Take logarithms with ``logs``, and otherwise return the values."""
        if not self.logs:
            return x
        low = np.atleast_1d((x <= 0).any(0))
        if low.any():
            raise ValueError(f"logs=True needs values above 0; {self._name(low)} has others")
        return np.log(x)

    def _raw(self, x: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Restore forecasts of values from those of the map, of values or their logarithms; the last value ``end``
        itself where it is not NaN."""
        x = np.where(np.isnan(end), np.exp(x) if self.logs else x, end)
        return np.maximum(x, 0.0) if self.nonnegative else x

    def _name(self, flags: np.ndarray) -> str:
        """Name the first series whose flag is set, for messages."""
        names = getattr(self, "feature_names_in_", range(len(flags)))
        return f"series {names[int(flags.argmax())]!r}"

    def _standardized(self, x: np.ndarray) -> np.ndarray:
        return (self._logarithms(x) - self.mean_) / self.scale_

    def _shaped(self, x: np.ndarray) -> np.ndarray:
        return x[:, 0] if self._one_series else x


def averaged(forecasters: Sequence[LagForecaster]) -> LagForecaster:
    """Average forecasters that were fitted to the same rows, all of values or all of logarithms.

    Zero-pad all maps to the longest look-back and average them; exact, because the columns of maps sum to 1: a map
    forecasts a constant by itself, and so is the same on any scale.
    """
    average = copy.deepcopy(max(forecasters, key=lambda each: each.maps_.shape[1]))
    look_back = average.maps_.shape[1]
    padded = [np.pad(each.maps_, ((0, 0), (look_back - each.maps_.shape[1], 0), (0, 0))) for each in forecasters]
    total: Any = sum(padded)  # one map is that of all series
    average.maps_ = total / len(padded)
    average.shared_ = all(each.shared_ for each in forecasters)
    average.n_parameters_ = sum(each.n_parameters_ for each in forecasters)
    average.penalty_ = [penalty for each in forecasters for penalty in each.penalty_]
    return average
