"""Fit linear maps to series: choose windows and the penalty."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lagwise.forecasting.columns import column_path
from lagwise.forecasting.design import CLOSED_FORM, Design
from lagwise.forecasting.gaps import stretches
from lagwise.forecasting.learned import learned_map
from lagwise.forecasting.moments import (
    Moments,
    level_weights,
    normalized_moments,
    normalized_weights,
    total,
    window_moments,
)
from lagwise.forecasting.smoothing import fit_smoothing
from lagwise.forecasting.solving import Refill, ridge_path
from lagwise.forecasting.unobserved import Stretch, Unobserved, held_out_windows

_LONGEST_GAP = 0.1  # share of the look-back: windows with longer runs of missing rows are not used in training

#: A map from raw inputs, and the effects of columns if there are any.
_Made = tuple[np.ndarray, "np.ndarray | None"]


class Choice(NamedTuple):
    """Choices made on held-out windows: the penalty, and the training steps of a learned kernel."""

    penalty: float
    steps: int | None = None


@dataclass(frozen=True)
class Fit:
    """Maps ``(look_back, horizon)`` from raw inputs to forecasts; the sum of their squared errors on held-out windows
    and the number of observed targets there; the choices for each look-back; and the effects of columns ``(columns,
    look_back + 1, horizon)`` (`column_path`)."""

    maps: np.ndarray
    squares: float
    count: float
    choices: tuple[Choice, ...]
    effects: np.ndarray | None = None


def usable_rows(
    x: np.ndarray, missing: np.ndarray, width: int, look_back: int, columns: np.ndarray | None = None
) -> list[Stretch]:
    """The stretches of filled series ``(rows, series)`` that windows may cover: at least ``width`` rows, without a run
    of missing rows longer than a tenth of the look-back. ValueError if there are none."""
    longest = max(1, int(_LONGEST_GAP * look_back))
    found = [
        Stretch(x[a:b, series], missing[a:b, series], None if columns is None else columns[a:b, series])
        for (a, b), series in stretches(missing, longest).items()
        if b - a >= width
    ]
    if not found:
        raise ValueError(
            f"a window of look_back + horizon = {width} rows without a run of more than {longest} missing values is "
            f"needed, and {len(x)} rows have none; choose a shorter look_back or horizon, or fill in the values"
        )
    return found


def held_out_stretches(
    x: np.ndarray, missing: np.ndarray, begin: int, look_back: int, horizon: int, columns: np.ndarray | None = None
) -> list[Stretch]:
    """The stretches of filled series ``(rows, series)`` whose windows are held out: from the row ``begin`` or, of
    series that start later, the first row from which the last input of a window is observed."""
    first = np.where(missing.all(0), 0, (~missing).argmax(0))
    starts = np.maximum(begin, first + 1 - look_back)
    found = []
    for start in np.unique(starts):
        own = slice(start, None), starts == start
        if len(x) - start >= look_back + horizon:
            found.append(Stretch(x[own], missing[own], None if columns is None else columns[own]))
    return found


def fit_maps(
    design: Design,
    train: Sequence[Stretch],
    valid: Sequence[Stretch],
    choices: Sequence[Choice] | None = None,
    kinds: Sequence[str] = (),
) -> Fit:
    """Fit one map for all given series, from stretches of rows to train on.

    Args:
        design: The kind of map.
        train: Stretches to train on.
        valid: Held-out stretches, if any, whose windows choose one of ``design.penalties``.
        choices: Those of each look-back, if already made. Each of several look-backs has a map, and the maps are
            averaged.
        kinds: Of the columns of stretches.
    """
    held_out = held_out_windows(valid, design.look_back, design.horizon) if valid else None
    maps = np.zeros((design.look_back, design.horizon))
    effects = np.zeros((len(kinds), design.look_back + 1, design.horizon)) if kinds else None
    made = []
    for i, look_back in enumerate(design.look_backs):
        error = None if held_out is None else held_out.error
        found = _candidates(design, train, look_back, error, None if choices is None else choices[i], kinds)
        best, best_error, choice = None, np.inf, Choice(0.0)
        for candidate, chosen in found:
            own = -1.0 if error is None else error(*candidate)
            if best is None or own < best_error:
                best, best_error, choice = candidate, own, chosen
        assert best is not None
        made.append(choice)
        maps[-look_back:] += best[0] / len(design.look_backs)
        if effects is not None and best[1] is not None:
            effects[:, -look_back - 1 :] += best[1] / len(design.look_backs)
    return Fit(maps, *(held_out.squares(maps, effects) if held_out else (0.0, 0.0)), tuple(made), effects)


def _candidates(
    design: Design,
    train: Sequence[Stretch],
    look_back: int,
    error: Callable[..., float] | None,
    choice: Choice | None,
    kinds: Sequence[str],
) -> Iterator[tuple[_Made, Choice]]:
    """Maps from raw inputs, and effects of columns, for each penalty."""
    if design.spec["name"] == "smoothing":
        filled = np.concatenate([each.filled for each in train], axis=1)
        missing = np.concatenate([each.missing for each in train], axis=1)
        found = fit_smoothing(filled, missing, design.spec["period"])
        yield (found.map(look_back, design.horizon), None), Choice(0.0)
        return
    if design.spec["name"] == "seasonal":
        yield (seasonal_map(look_back, design.horizon, design.spec["period"]), None), Choice(0.0)
        return
    level = level_weights(design.level, look_back)
    if design.penalties == (math.inf,):  # the level alone, which needs no rows to train on
        yield (np.outer(level, np.ones(design.horizon)), None), Choice(math.inf)
        return
    penalties = design.penalties if choice is None else (choice.penalty,)
    if kinds:
        path = column_path(train, kinds, look_back, design.horizon, design.level, penalties)
        for penalty, made in zip(penalties, path, strict=True):
            yield made, Choice(penalty)
        return
    moments, unobserved = _training_sums(design, train, look_back)

    def raw(maps: np.ndarray) -> np.ndarray:
        """Maps of inputs without their level, with the level added back."""
        return maps + np.outer(level, 1 - maps.sum(0))

    def refilled(maps: np.ndarray) -> np.ndarray:
        more = unobserved.cross(raw(maps))
        return moments.cross + more - level @ more

    refill: Refill | None = refilled if unobserved else None
    if design.spec["name"] in CLOSED_FORM:
        path = ridge_path(moments, penalties, kernels=design.kernels, rank=design.rank, refill=refill)
        for penalty, maps in zip(penalties, path, strict=True):
            yield (raw(maps), None), Choice(penalty)
        return
    for penalty in penalties:
        maps, steps = learned_map(
            design.spec,
            moments,
            None if error is None else lambda maps: error(raw(maps)),
            kernels=design.kernels,
            penalty=penalty,
            steps=None if choice is None else choice.steps,
            refill=refill,
            seed=design.seed,
        )
        yield (raw(maps), None), Choice(penalty, steps)


def seasonal_map(look_back: int, horizon: int, period: int) -> np.ndarray:
    """The map that repeats the last ``period`` rows."""
    if period > look_back:
        raise ValueError(f"look_back must be at least the period of {period} rows, got {look_back}")
    maps = np.zeros((look_back, horizon))
    maps[look_back - period + np.arange(horizon) % period, np.arange(horizon)] = 1
    return maps


def _training_sums(design: Design, train: Sequence[Stretch], look_back: int) -> tuple[Moments, Unobserved]:
    """Moments of the training windows without their level, and their missing targets."""
    if not design.normalize:
        moments = window_moments([each.filled for each in train], look_back, design.horizon)
        return moments.without_level(design.level), Unobserved(train, look_back, design.horizon)
    moments = total(normalized_moments(each.filled, look_back, design.horizon, design.level) for each in train)
    weights = [normalized_weights(each.filled, look_back, design.horizon, design.level) for each in train]
    return moments, Unobserved(train, look_back, design.horizon, weights)
