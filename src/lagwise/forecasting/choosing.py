"""Choose a forecaster for some series, by forecasts of rows that it was not fitted to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lagwise.forecasting.design import make_design
from lagwise.forecasting.errors import independent_errors, max_windows, sorted_sizes, unrest
from lagwise.forecasting.estimator import LagForecaster, averaged
from lagwise.forecasting.gaps import first_observed, scales
from lagwise.progress import progress_bar
from lagwise.tables import check_integer

_MAX_LOOK_BACK_ROWS = 1440
_MAX_SEPARATE_SMOOTHINGS = 20  # one for each series
_MAX_SEPARATE_MAPS = 500  # one for each series
_SMOOTHING_LOOK_BACK_ROWS = 200  # or 3 seasons
_MAX_ORIGINS = 10  # rows from which candidates are fitted anew
_MAX_VALUES_TIMES_ORIGINS = 20_000
_AVERAGED_ERROR_RATIO = 1.15  # forecasters up to this times the lowest error are averaged
_DEFAULT_PENALTY = 0.1  # used if there are too few rows to choose one
_PENALTY_ROWS_SHARE = 0.2  # share of the rows before an origin on which penalties are chosen
BASELINE = "last value"


@dataclass(frozen=True)
class Candidate:
    """Candidate of `choose_forecaster`: its name, a forecaster (fitted if it is the best), the mean absolute error of
    its forecasts of held-out rows for each series in its own unit, and the mean over series of these errors in standard
    deviations."""

    name: str
    forecaster: LagForecaster
    errors: tuple[float, ...]
    error: float


@dataclass(frozen=True)
class _Backtest:
    """Backtest of candidates: their errors ``(windows, horizon, series)`` at some rows, in standard deviations of the
    series or, with ``logs``, of its logarithms; NaN where not observed."""

    errors: list[np.ndarray]
    logs: list[bool]
    targets: np.ndarray
    scale: np.ndarray
    max_error_ratio: float

    def sizes(self, picked: Sequence[int], windows: Any = slice(None)) -> np.ndarray:
        """Compute absolute errors of the average of candidates, in standard deviations of values."""
        errors = np.mean([self.errors[i][windows] for i in picked], axis=0)
        if self.logs[picked[0]]:
            errors = self.targets[windows] / self.scale * np.expm1(errors)
        return np.abs(errors)

    def ranks(self, windows: Any = slice(None)) -> tuple[list[int], np.ndarray]:
        """Rank the candidates, best first, and return their mean errors in this order."""
        errors = np.array([_mean(self.sizes([i], windows), (0, 1)).mean() for i in range(len(self.errors))])
        order = np.argsort(errors, kind="stable")
        return order.tolist(), errors[order]

    def picked(self, windows: Any = slice(None)) -> list[int]:
        """Pick the candidates to average: those whose errors are at most ``max_error_ratio`` times the lowest, and
        which also forecast logarithms if the best does. Repeating the last value, the first candidate, stays alone."""
        order, means = self.ranks(windows)
        if order[0] == 0:
            return [0]
        near = [i for i, mean in zip(order, means, strict=True) if mean <= self.max_error_ratio * means[0]]
        return [i for i in near if self.logs[i] == self.logs[order[0]]]


def choose_forecaster(
    x: Any,
    horizon: int,
    *,
    model: str | None = None,
    look_back: int | None = None,
    period: int = 1,
    coverage: float = 0.9,
    nonnegative: bool = False,
    progress: bool = False,
) -> list[Candidate]:
    """Compare forecasters on rows that they were not fitted to, and fit the best to all rows.

    At up to 10 rows of the second half (one, after four fifths, for large data), each candidate is fitted to the rows
    before and forecasts those after. The forecast is that with the lowest mean absolute error, and in small data its
    average with those whose errors are at most 15 percent larger, a difference that is often chance. Its intervals come
    from its errors there, times the ratio by which errors are larger when the candidates for each origin's rows are
    chosen without them, and wider where these rows are calmer than those before, or the last errors larger
    (`lagwise.forecasting.errors.unrest`).

    Args:
        x: ``(rows, series)``.
        horizon: Rows to forecast.
        model: Try only this model. By default ``smoothing``, also of logarithms where all values are above 0, ``ridge``
            with the window's mean or its last value removed, ``toeplitz``, and with a period ``seasonal``. Repeating
            the last value is always among the candidates.
        look_back: Try only this look-back. By default the horizon and the period times 1, 2, 4 ... up to a third of the
            training rows.
        period: Rows of a season, such as 12 months; 1 for none.
        coverage: Of the intervals.
        nonnegative: Whether forecasts below 0 are replaced by 0.
        progress: Whether to show a progress bar.

    Returns:
        The candidates, best first, after their average if several are averaged. Only the first one's forecaster is
        fitted.

    Raises:
        ValueError: If the data have fewer than 2 horizons + 1 rows, or no candidate can be fitted.

    >>> import numpy as np
    >>> series = np.sin(np.arange(300) * 2 * np.pi / 12)
    >>> best = choose_forecaster(series, 12, period=12)[0]
    >>> best.forecaster.predict().shape
    (12,)
    """
    x = np.asarray(x, dtype=np.float64)
    x = x[:, None] if (one := x.ndim == 1) else x
    rows = len(x)
    check_integer("period", period)
    if rows < 2 * horizon + 1:
        raise ValueError(
            f"horizon = {horizon} needs at least {2 * horizon + 1} rows, a horizon to learn from and one to judge by; "
            f"the data has {rows}"
        )
    first = first_observed(x)
    begin = int(np.median(first))  # the first row of most series
    origins = _origins(rows, x.shape[1], horizon, look_back, begin)
    options = _options(x, horizon, origins[0] - begin, model, look_back, period)
    options = {name: {**values, "nonnegative": nonnegative} for name, values in options.items()}
    starts, groups = _starts(origins, rows - horizon + 1, max_windows(horizon, x.shape[1]))
    names, errors, failures = [], [], []
    for name, candidate_options in progress_bar(options.items(), desc="trying", unit="model", show=progress):
        # Errors in options apply to all candidates.
        make_design(_forecaster(candidate_options, horizon, rows - begin, coverage))
        try:
            errors.append(_errors(candidate_options, x, horizon, origins, starts, groups, begin))
            names.append(name)
        except ValueError as error:  # such as gaps that are too long for a short look-back
            failures.append(error)
    if not names or names[0] != BASELINE:
        raise failures[0]
    logs, scale = [bool(options[name].get("logs")) for name in names], scales(x)[1]
    errors = [values if logs[i] else values / scale for i, values in enumerate(errors)]
    targets = sliding_window_view(x, horizon, axis=0)[starts].transpose(0, 2, 1)
    backtest = _Backtest(errors, logs, targets, scale, _AVERAGED_ERROR_RATIO if len(origins) > 1 else 1.0)
    picked, (order, _) = backtest.picked(), backtest.ranks()
    data = x[:, 0] if one else x
    fitted = [_forecaster(options[names[i]], horizon, rows - begin, coverage).fit(data) for i in picked]
    forecaster = averaged(fitted)
    best_errors = np.mean([errors[i] for i in picked], axis=0) * (1 if logs[picked[0]] else scale) / forecaster.scale_
    if len(origins) == 1:  # each half of its windows is judged by what the other half chooses
        groups = (np.arange(len(groups)) >= len(groups) / 2).astype(int)
    series = np.log(x) if logs[picked[0]] else x / scale
    widening = unrest(best_errors, starts, series) * _selection(backtest, groups, picked)
    forecaster.errors_ = sorted_sizes(best_errors, first > origins[0]) * widening
    forecaster.independent_ = independent_errors(best_errors, (rows - origins[0]) / horizon)

    def candidate(name: str, forecaster: LagForecaster, picked: Sequence[int]) -> Candidate:
        means = _mean(backtest.sizes(picked), (0, 1))
        return Candidate(name, forecaster, tuple(map(float, means * scale)), float(means.mean()))

    ranked = [candidate(names[i], _forecaster(options[names[i]], horizon, rows - begin, coverage), [i]) for i in order]
    if len(picked) > 1:
        return [candidate(f"average of the best {len(picked)}", forecaster, picked), *ranked]
    return [candidate(names[picked[0]], forecaster, picked), *ranked[1:]]


def reason(ranked: Sequence[Candidate]) -> str:
    """Say in one sentence why `choose_forecaster` ranked the first candidate first."""
    best = ranked[0]
    held_out = "held-out rows, which no candidate was fitted to"
    if best.name == BASELINE:
        return f"No model beat repeating the last value on {held_out}; forecasts repeat it."
    baseline = next(each.error for each in ranked if each.name == BASELINE)
    beside = f"{_beside(best.error, baseline)} repeating the last value"
    if best.name.startswith("average"):
        near = f"{_AVERAGED_ERROR_RATIO - 1:.0%}"
        return (
            f"Chosen: the {best.name}, whose errors on {held_out}, differ by less than {near}. Its mean absolute error "
            f"is {beside}."
        )
    shared = ", one map for all series" if best.forecaster.shared_ else ", a map for each series"
    shared = shared if len(best.forecaster.scale_) > 1 else ""
    return f"Chosen: {best.name}{shared}. Its mean absolute error on {held_out}, is the lowest, {beside}."


def _beside(error: float, other: float) -> str:
    """Say how much lower or higher an error is than another one."""
    change = error / other - 1 if error != other else 0.0
    if abs(change) < 0.005:
        return "about that of"
    return f"{abs(change):.0%} {'above' if change > 0 else 'below'}"


def _origins(rows: int, series: int, horizon: int, look_back: int | None, begin: int) -> list[int]:
    """Choose the rows before which candidates are fitted, in order. ValueError if the data are too short for a given
    look-back."""
    last = rows - horizon
    size = rows - begin
    count = min(_MAX_ORIGINS, _MAX_VALUES_TIMES_ORIGINS // (size * series))
    first = (
        max(begin + size // 2, horizon + 1) if count > 1 else last - max(0, round(_PENALTY_ROWS_SHARE * size) - horizon)
    )
    first = min(last, max(first, begin + horizon))
    if look_back is not None:
        if look_back > (max_look_back := last - horizon):
            raise ValueError(
                f"look_back = {look_back} is longer than the data allow: {rows} rows less those held out and a horizon "
                f"of {horizon} leave {max_look_back}"
            )
        first = max(first, look_back + horizon)
    if count <= 1:
        return [first]
    return sorted({round(each) for each in np.linspace(first, last, count)})


def _inner(rows: int, horizon: int) -> int:
    return max(horizon, round(_PENALTY_ROWS_SHARE * rows))


def _longest(rows: int, horizon: int) -> int:
    """Compute the longest look-back for which these rows have a window to learn from and rows to choose a penalty
    by."""
    return rows - _inner(rows, horizon) - horizon


def _options(
    x: np.ndarray, horizon: int, rows: int, model: str | None, look_back: int | None, period: int
) -> dict[str, dict[str, Any]]:
    """List the options of `LagForecaster` for each candidate, which is fitted to at least ``rows`` rows."""

    def repeating(period: int) -> dict[str, Any]:
        return {"look_back": period, "model": {"name": "seasonal", "period": period}, "shared": True, "validation": 0}

    candidates = {BASELINE: repeating(1)}
    if period > 1 and rows >= period and model in (None, "seasonal"):
        candidates[f"seasonal, period {period}"] = repeating(period)
    if model in (None, "smoothing"):
        label = f"smoothing, period {period}" if period > 1 else "smoothing"
        options = {
            "look_back": min(rows, max(_SMOOTHING_LOOK_BACK_ROWS, 3 * period) if look_back is None else look_back),
            "model": {"name": "smoothing", "period": period},
            "shared": not 1 < x.shape[1] <= _MAX_SEPARATE_SMOOTHINGS,
            "validation": 0,
        }
        candidates[label] = options
        if np.nanmin(x) > 0:
            candidates[f"{label}, logarithms"] = {**options, "logs": True}
    if model in ("smoothing", "seasonal"):
        return candidates
    looks = [look_back] if look_back is not None else _look_backs(horizon, period, rows)
    many = x.shape[1] > _MAX_SEPARATE_MAPS
    for each in looks:
        kinds = [("ridge", "mean"), ("ridge", "last"), ("toeplitz", "mean")]
        for name, level in kinds if model is None else [(model, "mean"), (model, "last")]:
            options = {"look_back": each, "model": name, "level": level}
            candidates[f"{name}, look-back {each}, {level} removed"] = {**options, **({"shared": True} if many else {})}
    return candidates


def _look_backs(horizon: int, period: int, rows: int) -> list[int]:
    """List the horizon and the period times powers of 2, within bounds; at least one where there are rows for one."""
    longest = _longest(rows, horizon)
    max_look_back = min(_MAX_LOOK_BACK_ROWS, rows // 3, longest)
    look_backs = {base * 2**i for base in {horizon, period} - {1} for i in range(12) if base * 2**i <= max_look_back}
    return sorted(look_backs) or ([max(1, min(horizon, max_look_back))] if longest > 0 else [])


def _forecaster(options: Mapping[str, Any], horizon: int, rows: int, coverage: float) -> LagForecaster:
    inner: dict[str, Any] = {"validation": _inner(rows, horizon)}
    if options["look_back"] > _longest(rows, horizon):
        inner = {"validation": 0, "penalty": _DEFAULT_PENALTY, "shared": True}
    return LagForecaster(horizon, coverage=coverage, **{**inner, **options})


def _starts(origins: Sequence[int], end: int, max_count: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose the rows from which forecasts are made, up to ``max_count`` between the first origin and the end, with
    each origin among them, and return with them the index of the last origin before each."""
    starts, origin_indices = [], []
    for i, (begin, until) in enumerate(zip(origins, [*origins[1:], end], strict=True)):
        count = min(until - begin, math.ceil(max_count / len(origins)))
        starts.append(np.unique(np.linspace(begin, until - 1, count).round().astype(int)))
        origin_indices.append(np.full(len(starts[-1]), i))
    return np.concatenate(starts), np.concatenate(origin_indices)


def _errors(
    options: Mapping[str, Any],
    x: np.ndarray,
    horizon: int,
    origins: Sequence[int],
    starts: np.ndarray,
    origin_indices: np.ndarray,
    first: int,
) -> np.ndarray:
    """Compute errors ``(windows, horizon, series)`` of a candidate that is fitted anew at each origin; most series
    begin in the row ``first``."""
    errors = np.full((len(starts), horizon, x.shape[1]), np.nan)
    for i, begin in enumerate(origins):
        has_begun = ~np.isnan(x[:begin]).all(0)  # others begin later
        fitted = _forecaster(options, horizon, begin - first, 0.9).fit(x[:begin, has_begun])
        rows = np.flatnonzero(origin_indices == i)
        block = np.ix_(rows, np.arange(horizon), np.flatnonzero(has_begun))
        errors[block] = fitted.errors_at(x[:, has_begun], starts[rows])
    return errors


def _mean(sizes: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    """Average the observed values; 0 where nothing was observed."""
    count = np.count_nonzero(~np.isnan(sizes), axis=axis)
    return np.nansum(sizes, axis=axis) / np.maximum(1, count)


def _selection(backtest: _Backtest, groups: np.ndarray, picked: Sequence[int]) -> float:
    """Compute the factor (at least 1) by which errors are larger where each group of windows is forecast by the
    candidates that the other groups choose."""
    if len(set(groups)) < 2:
        return 1.0
    nested = [backtest.sizes(backtest.picked(groups != group), groups == group) for group in sorted(set(groups))]
    error = _mean(backtest.sizes(picked), (0, 1)).mean()
    return max(1.0, float(_mean(np.concatenate(nested), (0, 1)).mean() / error)) if error > 0 else 1.0
