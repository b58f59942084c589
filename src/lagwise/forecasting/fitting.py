"""From series to linear maps: which windows count, and which penalty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lagwise.forecasting.design import CLOSED_FORM, Design
from lagwise.forecasting.gaps import stretches
from lagwise.forecasting.learned import learned_map
from lagwise.forecasting.moments import Moments, level_weights, normalized_moments, total, window_moments
from lagwise.forecasting.solving import ridge_path

_LONGEST_GAP = 0.1  # of the look-back: windows with longer runs of missing rows are not trained on


@dataclass(frozen=True)
class Fit:
    """Maps ``(look_back, horizon)`` from raw inputs to forecasts, their mean squared error on held-out windows (NaN
    without), and the penalty chosen for each look-back."""

    maps: np.ndarray
    error: float
    penalties: tuple[float, ...]


def usable_rows(x: np.ndarray, missing: np.ndarray, width: int, look_back: int) -> list[np.ndarray]:
    """The stretches of filled series ``(rows, series)`` that windows may cover: at least ``width`` rows, without a run
    of missing ones of more than a tenth of the look-back. ValueError if there are none."""
    longest = max(1, int(_LONGEST_GAP * look_back))
    found = [x[a:b, series] for (a, b), series in stretches(missing, longest).items() if b - a >= width]
    if not found:
        raise ValueError(
            f"a window of look_back + horizon = {width} rows without a run of more than {longest} missing values is "
            f"needed, and {len(x)} rows have none; choose a shorter look_back or horizon, or fill in the values"
        )
    return found


def fit_maps(
    design: Design, train: list[np.ndarray], valid: list[np.ndarray], penalties: Sequence[float] | None = None
) -> Fit:
    """Fit one map for all the series given, from stretches of rows to train on.

    valid: held-out stretches, if any, by which one of ``design.penalties`` is chosen. penalties: those of each
    look-back, if they have been chosen before. Of several look-backs each has a map, and the maps are averaged.
    """
    held_out = total(window_moments(x, design.look_back, design.horizon) for x in valid) if valid else None
    maps = np.zeros((design.look_back, design.horizon))
    chosen = []
    for i, look_back in enumerate(design.look_backs):
        inner = None if held_out is None else held_out.latest(look_back).without_level(design.level)
        if design.normalize:
            moments = total(normalized_moments(x, look_back, design.horizon, design.level) for x in train)
        else:
            moments = total(window_moments(x, look_back, design.horizon) for x in train).without_level(design.level)
        tried = design.penalties if penalties is None else (penalties[i],)
        best, best_error, best_penalty = None, np.inf, tried[0]
        for penalty, candidate in zip(tried, _candidates(design, moments, inner, tried), strict=False):
            error = -1.0 if inner is None else inner.error(candidate).mean()
            if best is None or error < best_error:
                best, best_error, best_penalty = candidate, error, penalty
        assert best is not None
        chosen.append(best_penalty)
        level = level_weights(design.level, look_back)
        maps[-look_back:] += best + np.outer(level, 1 - best.sum(0))
    maps /= len(design.look_backs)
    return Fit(maps, np.nan if held_out is None else float(held_out.error(maps).mean()), tuple(chosen))


def _candidates(
    design: Design, moments: Moments, held_out: Moments | None, penalties: Sequence[float]
) -> Iterator[np.ndarray]:
    if design.spec["name"] in CLOSED_FORM:
        yield from ridge_path(moments, penalties, kernels=design.kernels, rank=design.rank)
    else:
        yield learned_map(design.spec, moments, held_out, kernels=design.kernels, seed=design.seed)
