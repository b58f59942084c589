"""Handle missing values of series: short runs are filled, long runs are left out of the fit, and missing targets do not
count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def carry_forward(x: np.ndarray, before: np.ndarray | None = None) -> np.ndarray:
    """Replace each missing value by the last observed one before it.

    Shapes: x ``(rows, series)``, NaN where missing; before ``(series,)``, the values before the first row, by default
    0. A value does not depend on later rows, so filling row by row, as in a stream, gives the same result.
    """
    start = np.zeros(x.shape[1]) if before is None else before
    padded = np.concatenate([np.nan_to_num(start)[None], x])
    observed = np.where(np.isnan(padded), 0, np.arange(len(padded))[:, None])
    return np.take_along_axis(padded, np.maximum.accumulate(observed, axis=0), axis=0)[1:]


def first_observed(x: np.ndarray) -> np.ndarray:
    """Find the first row of each series ``(rows, series)`` with a value; the number of rows if there is none."""
    observed = ~np.isnan(x)
    return np.where(observed.any(0), observed.argmax(0), len(x))


def fill(x: np.ndarray) -> np.ndarray:
    """Carry values forward as `carry_forward`, and the first observed value of a series back to the rows before it."""
    first = np.minimum(first_observed(x), len(x) - 1)
    return carry_forward(x, np.take_along_axis(x, first[None], axis=0)[0])


def aligned(series: Mapping[str, Any]) -> tuple[list[str], np.ndarray]:
    """Align series of different lengths so that all end in the last row, NaN before a shorter one, and return their
    names and values ``(rows, series)``. ValueError names a series that is not a sequence of numbers."""
    columns = {}
    for name, values in series.items():
        try:
            columns[str(name)] = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"series {name!r} must be numbers: {error}") from error
        if columns[str(name)].ndim != 1:
            raise ValueError(f"series {name!r} must have one dimension, got shape {columns[str(name)].shape}")
    if len(columns) < len(series) or not columns:
        raise ValueError("series need at least one, and a name each, different as text")
    rows = max(map(len, columns.values()))
    x = np.full((rows, len(columns)), np.nan)
    for i, values in enumerate(columns.values()):
        x[rows - len(values) :, i] = values
    return list(columns), x


def stretches(missing: np.ndarray, longest: int) -> dict[tuple[int, int], list[int]]:
    """Find the stretches of rows between runs of more than ``longest`` missing rows, and the series of each.

    Shapes: missing ``(rows, series)``. Series without long runs have one stretch, all rows, and so stay together. Rows
    before the first observed one belong to no stretch.
    """
    series_by_rows: dict[tuple[int, int], list[int]] = {}
    for series, gaps in enumerate(missing.T):
        begin = 0
        for start, stop in _runs(gaps):
            if stop - start > longest or start == 0:
                series_by_rows.setdefault((begin, start), []).append(series)
                begin = stop
        series_by_rows.setdefault((begin, len(gaps)), []).append(series)
    return {rows: series for rows, series in series_by_rows.items() if rows[0] < rows[1]}


def scales(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and deviation of the observed values of each series ``(rows, series)``, of any finite size. The
    deviation is 1 for a constant series. Mean and deviation are 0 and 1 for a series without observed values."""
    observed = ~np.isnan(x)
    count = np.maximum(1, observed.sum(0))
    largest = np.where(observed, np.abs(x), 0).max(0, initial=0)
    unit = np.where(largest > 0, largest, 1.0)  # sums of squares of values divided by it neither overflow nor vanish
    scaled = np.where(observed, x, 0) / unit
    mean = scaled.sum(0) / count
    deviation = np.sqrt((np.where(observed, scaled - mean, 0) ** 2).sum(0) / count)
    return mean * unit, np.where(deviation > 1e-12, deviation * unit, 1.0)


def _runs(flags: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    for start, stop in edges.reshape(-1, 2):
        yield int(start), int(stop)
