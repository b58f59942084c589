"""Choose a forecaster for some series, by errors on a held-out end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lagwise.forecasting.design import make_design
from lagwise.forecasting.estimator import LagForecaster
from lagwise.progress import progress_bar

_LONGEST = 1440  # longest look-back to try, in rows
BASELINE = "last value"


@dataclass(frozen=True)
class Candidate:
    """A fitted forecaster, its name, and its mean squared error on the held-out end."""

    name: str
    forecaster: LagForecaster
    error: float


def choose_forecaster(
    x: Any,
    horizon: int,
    *,
    model: str | None = None,
    look_back: int | None = None,
    coverage: float = 0.9,
    progress: bool = False,
) -> list[Candidate]:
    """Fit candidates to series and rank them by their error on held-out rows at the end.

    The last fifth of the rows is held out, or one horizon if that is more. Repeating the last value is among the
    candidates. Candidates that cannot be fitted, because gaps are too long for them, are left out.

    Args:
        x: ``(rows, series)``.
        horizon: Rows to forecast.
        model: Try only this model. By default ``ridge`` with the window's mean or its last value removed, and
            ``toeplitz``.
        look_back: Try only this look-back. By default the horizon times 1, 2, 4 ... up to a third of the training rows.
        coverage: Of the intervals.
        progress: Whether to show a progress bar.

    Returns:
        The candidates, best first.

    Raises:
        ValueError: If the data have fewer than 2 horizons + 1 rows, or no candidate can be fitted.
    """
    rows = len(x)
    held = max(horizon, round(0.2 * rows))
    if rows < 2 * horizon + 1:
        raise ValueError(
            f"horizon = {horizon} needs at least {2 * horizon + 1} rows, a horizon to learn from and one to judge by; "
            f"the data has {rows}"
        )
    held = min(held, rows - horizon - 1)
    longest = rows - held - horizon
    if look_back is not None and look_back > longest:
        raise ValueError(
            f"look_back = {look_back} is longer than the data allow: {rows} rows less {held} held out and a horizon of "
            f"{horizon} leave {longest}"
        )
    options: dict[str, dict[str, Any]] = {BASELINE: {"look_back": 1, "level": "last", "penalty": math.inf}}
    for each in _look_backs(horizon, (rows - held) // 3, longest) if look_back is None else [look_back]:
        for name, level in _kinds(model):
            label = f"{name}, look-back {each}, {level} removed"
            options[label] = {"look_back": each, "model": name, "level": level}
    fitted, failed = [], []
    for name, chosen in progress_bar(options.items(), desc="trying", unit="model", show=progress):
        forecaster = LagForecaster(horizon, validation=held, coverage=coverage, **chosen)
        make_design(forecaster)  # errors in options apply to all candidates
        try:
            forecaster.fit(x)
        except ValueError as error:  # such as gaps that are too long for a short look-back
            failed.append(error)
            continue
        assert forecaster.validation_error_ is not None
        fitted.append(Candidate(name, forecaster, forecaster.validation_error_))
    if not fitted:
        raise failed[-1]
    return sorted(fitted, key=lambda each: each.error)


def reason(ranked: Sequence[Candidate]) -> str:
    """One sentence on why `choose_forecaster` ranked the first candidate first."""
    best = ranked[0]
    held = f"the last {best.forecaster.validation:,} rows, which no candidate was trained on"
    if best.name == BASELINE:
        return f"No model beat repeating the last value on {held}; forecasts repeat it."
    baseline = next((each.error for each in ranked if each.name == BASELINE), None)
    better = f"{1 - best.error / baseline:.0%} below repeating the last value" if baseline else "as good as any"
    shared = ", one map for all series" if best.forecaster.shared_ else ", a map for each series"
    shared = shared if len(best.forecaster.scale_) > 1 else ""
    return f"Chosen: {best.name}{shared}. Its squared error on {held}, is the lowest, {better}."


def _kinds(model: str | None) -> list[tuple[str, str]]:
    if model is not None:
        return [(model, "mean"), (model, "last")]
    return [("ridge", "mean"), ("ridge", "last"), ("toeplitz", "mean")]


def _look_backs(horizon: int, usual: int, longest: int) -> list[int]:
    """The horizon times powers of 2, within bounds; at least one."""
    most = min(_LONGEST, usual)
    found = [int(horizon * 2**i) for i in range(12) if horizon * 2**i <= most]
    return found or [max(1, min(horizon, most, longest))]
