"""Choose a forecaster for some series, by forecasts of rows that it was not fitted to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lagwise.forecasting.design import make_design
from lagwise.forecasting.errors import independent_errors
from lagwise.forecasting.estimator import LagForecaster
from lagwise.forecasting.gaps import scales
from lagwise.progress import progress_bar
from lagwise.tables import whole_number

_LONGEST = 1440  # longest look-back to try, in rows
_SEPARATE = 20  # series, of which each has a smoothing of its own
_MEMORY = 200  # look-back of exponential smoothing, or 3 seasons
_MOST_ORIGINS = 10  # rows from which candidates are fitted anew
_VALUES = 20_000  # values over the number of origins
_MOST = 500  # windows that errors come from
_INNER = 0.2  # of the rows before an origin: they choose penalties
BASELINE = "last value"


@dataclass(frozen=True)
class Candidate:
    """A forecaster, fitted if it is the best, its name, the mean absolute error of its forecasts of held-out rows for
    each series in its own units, and the mean over series of these errors in standard deviations."""

    name: str
    forecaster: LagForecaster
    errors: tuple[float, ...]
    error: float


@dataclass(frozen=True)
class _Backtest:
    """Errors ``(windows, horizon, series)`` of the forecasts that a candidate made at some rows: of values, and of what
    it forecasts, which may be logarithms; with the number of the origin it was fitted at for each window."""

    raw: np.ndarray
    own: np.ndarray
    origin: np.ndarray


def choose_forecaster(
    x: Any,
    horizon: int,
    *,
    model: str | None = None,
    look_back: int | None = None,
    period: int = 1,
    coverage: float = 0.9,
    progress: bool = False,
) -> list[Candidate]:
    """Compare forecasters on rows that they were not fitted to, and fit the best to all rows.

    At up to 10 rows of the second half (one, after four fifths, for large data), each candidate is fitted to the rows
    before and forecasts those after. The one with the lowest mean absolute error is the best. Its intervals come from
    its errors there, times the ratio by which errors are larger when each row's candidate is chosen without that row.

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
        progress: Whether to show a progress bar.

    Returns:
        The candidates, best first. Only the first one's forecaster is fitted.

    Raises:
        ValueError: If the data have fewer than 2 horizons + 1 rows, or no candidate can be fitted.
    """
    x = np.asarray(x, dtype=np.float64)
    x = x[:, None] if (one := x.ndim == 1) else x
    rows = len(x)
    whole_number("period", period)
    if rows < 2 * horizon + 1:
        raise ValueError(
            f"horizon = {horizon} needs at least {2 * horizon + 1} rows, a horizon to learn from and one to judge by; "
            f"the data has {rows}"
        )
    origins = _origins(rows, x.shape[1], horizon, look_back)
    options = _options(x, horizon, origins[0], model, look_back, period)
    found: dict[str, _Backtest] = {}
    failed = []
    for name, chosen in progress_bar(options.items(), desc="trying", unit="model", show=progress):
        make_design(_forecaster(chosen, horizon, rows, coverage))  # errors in options apply to all candidates
        try:
            found[name] = _backtest(chosen, x, horizon, origins)
        except ValueError as error:  # such as gaps that are too long for a short look-back
            failed.append(error)
    if not found:
        raise failed[-1]
    names, scale = list(found), scales(x)[1]
    sizes = np.stack([np.abs(each.raw / scale) for each in found.values()])  # (candidates, windows, horizon, series)
    groups = next(iter(found.values())).origin
    if len(origins) == 1:  # each half of its windows is judged by what the other half chooses
        groups = (np.arange(len(groups)) >= len(groups) / 2).astype(int)
    means = _mean(sizes, (1, 2))
    ranks = np.argsort(means.mean(1), kind="stable")
    best = found[names[ranks[0]]]
    forecaster = _forecaster(options[names[ranks[0]]], horizon, rows, coverage).fit(x[:, 0] if one else x)
    wider = _selection(sizes, groups, int(ranks[0]))
    errors = best.own / forecaster.scale_
    forecaster.errors_ = np.sort(np.abs(errors), axis=0) * wider
    forecaster.independent_ = independent_errors(errors, (rows - origins[0]) / horizon)
    return [
        Candidate(
            names[i],
            forecaster if i == ranks[0] else _forecaster(options[names[i]], horizon, rows, coverage),
            tuple(map(float, means[i] * scale)),
            float(means[i].mean()),
        )
        for i in ranks
    ]


def reason(ranked: Sequence[Candidate]) -> str:
    """One sentence on why `choose_forecaster` ranked the first candidate first."""
    best = ranked[0]
    held = "held-out rows, which no candidate was fitted to"
    if best.name == BASELINE:
        return f"No model beat repeating the last value on {held}; forecasts repeat it."
    baseline = next(each.error for each in ranked if each.name == BASELINE)
    shared = ", one map for all series" if best.forecaster.shared_ else ", a map for each series"
    shared = shared if len(best.forecaster.scale_) > 1 else ""
    return (
        f"Chosen: {best.name}{shared}. Its mean absolute error on {held}, is the lowest, "
        f"{1 - best.error / baseline:.0%} below repeating the last value."
    )


def _origins(rows: int, series: int, horizon: int, look_back: int | None) -> list[int]:
    """The rows before which candidates are fitted, in order. Data too short for a given look-back are an error."""
    last = rows - horizon
    count = min(_MOST_ORIGINS, _VALUES // (rows * series))
    first = max(rows // 2, horizon + 1) if count > 1 else last - max(0, round(_INNER * rows) - horizon)
    if look_back is not None:
        if look_back > (most := _longest(last, horizon)):
            raise ValueError(
                f"look_back = {look_back} is longer than the data allow: {rows} rows less those held out and a horizon "
                f"of {horizon} leave {most}"
            )
        while look_back > _longest(first, horizon):
            first += 1
    if count <= 1:
        return [first]
    return sorted({round(each) for each in np.linspace(first, last, count)})


def _inner(rows: int, horizon: int) -> int:
    return max(horizon, round(_INNER * rows))


def _longest(rows: int, horizon: int) -> int:
    """The longest look-back for which these rows have a window to learn from and rows to choose a penalty by."""
    return rows - _inner(rows, horizon) - horizon


def _options(
    x: np.ndarray, horizon: int, rows: int, model: str | None, look_back: int | None, period: int
) -> dict[str, dict[str, Any]]:
    """The options of `LagForecaster` for each candidate, which at least ``rows`` rows are fitted to."""

    def repeating(period: int) -> dict[str, Any]:
        return {"look_back": period, "model": {"name": "seasonal", "period": period}, "shared": True, "validation": 0}

    found = {BASELINE: repeating(1)}
    if period > 1 and rows >= period and model in (None, "seasonal"):
        found[f"seasonal, period {period}"] = repeating(period)
    if model in (None, "smoothing"):
        label = f"smoothing, period {period}" if period > 1 else "smoothing"
        chosen = {
            "look_back": min(rows, max(_MEMORY, 3 * period) if look_back is None else look_back),
            "model": {"name": "smoothing", "period": period},
            "shared": not 1 < x.shape[1] <= _SEPARATE,
            "validation": 0,
        }
        found[label] = chosen
        if np.nanmin(x) > 0:
            found[f"{label}, logarithms"] = {**chosen, "logs": True}
    if model in ("smoothing", "seasonal"):
        return found
    looks = [look_back] if look_back is not None else _look_backs(horizon, period, rows)
    for each in looks:
        kinds = [("ridge", "mean"), ("ridge", "last"), ("toeplitz", "mean")]
        for name, level in kinds if model is None else [(model, "mean"), (model, "last")]:
            found[f"{name}, look-back {each}, {level} removed"] = {"look_back": each, "model": name, "level": level}
    return found


def _look_backs(horizon: int, period: int, rows: int) -> list[int]:
    """The horizon and the period times powers of 2, within bounds; at least one where there are rows for one."""
    longest = _longest(rows, horizon)
    most = min(_LONGEST, rows // 3, longest)
    found = {base * 2**i for base in {horizon, period} - {1} for i in range(12) if base * 2**i <= most}
    return sorted(found) or ([max(1, min(horizon, most))] if longest > 0 else [])


def _forecaster(options: Mapping[str, Any], horizon: int, rows: int, coverage: float) -> LagForecaster:
    options = {"validation": _inner(rows, horizon), **options}
    return LagForecaster(horizon, coverage=coverage, **options)


def _backtest(options: Mapping[str, Any], x: np.ndarray, horizon: int, origins: Sequence[int]) -> _Backtest:
    parts = []
    for i, (begin, end) in enumerate(zip(origins, [*origins[1:], len(x) - horizon + 1], strict=True)):
        known = ~np.isnan(x[:begin]).all(0)  # others begin later
        fitted = _forecaster(options, horizon, begin, 0.9).fit(x[:begin, known])
        count = min(end - begin, math.ceil(_MOST / len(origins)))
        starts = np.unique(np.linspace(begin, end - 1, count).round().astype(int))
        made = np.full((2, len(starts), horizon, x.shape[1]), np.nan)
        made[..., known] = fitted.errors_at(x[:, known], starts)
        parts.append((*made, np.full(len(starts), i)))
    return _Backtest(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _mean(sizes: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    """The mean of what was observed; 0 where nothing was."""
    count = np.count_nonzero(~np.isnan(sizes), axis=axis)
    return np.nansum(sizes, axis=axis) / np.maximum(1, count)


def _selection(sizes: np.ndarray, groups: np.ndarray, best: int) -> float:
    """By how much errors are larger where each group of windows is forecast by the candidate that the others choose: at
    least 1."""
    if len(set(groups)) < 2:
        return 1.0
    nested = []
    for group in sorted(set(groups)):
        chosen = _mean(sizes[:, groups != group], (1, 2)).mean(1).argmin()
        nested.append(sizes[chosen, groups == group])
    own = _mean(sizes[best], (0, 1)).mean()
    return max(1.0, float(_mean(np.concatenate(nested), (0, 1)).mean() / own)) if own > 0 else 1.0
