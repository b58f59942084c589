"""Columns beside the series of a table: read, and aligned with the series."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lagwise.forecasting.columns import KINDS, Columns
from lagwise.forecasting.gaps import fill
from lagwise.forecasting.numbers import to_numbers
from lagwise.forecasting.year_parts import plain_times
from lagwise.tables import known, shown

_MOST = 50  # different texts in a column


@dataclass(frozen=True)
class TableColumns:
    """Columns on the grid of times of a table: their kind and name, and values ``(times, series)`` each."""

    found: tuple[tuple[str, str, np.ndarray], ...]

    def of(self, series: np.ndarray) -> TableColumns:
        """Those of some series."""
        return TableColumns(tuple((kind, name, x[:, series]) for kind, name, x in self.found))

    def aligned(
        self,
        names: Sequence[str],
        ends: np.ndarray,
        rows: int,
        horizon: int,
        times: Callable[..., Any],
        exist: Callable[[Any], np.ndarray],
    ) -> Columns:
        """The columns of series that end in these rows, so that all end in the last of ``rows``.

        ValueError names a column, a series and a time of the horizon (``times(horizon, end)``) without a value, and a
        series without any. Times that do not ``exist`` need no value.
        """
        at = np.arange(rows + horizon)[:, None] + ends - rows
        parts: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}
        for kind, name, x in self.found:
            if (never := np.isnan(x).all(0)).any():
                raise ValueError(f"column {name!r} has no value for series {names[int(never.argmax())]!r}")
            longer = np.pad(x, ((0, max(0, int(at.max()) + 1 - len(x))), (0, 0)), constant_values=np.nan)
            made = np.where(at >= 0, np.take_along_axis(longer, at.clip(0), axis=0), np.nan)
            if kind == "static":
                parts[kind].append(_constant(name, names, x))
                continue
            if kind == "future":
                there = np.stack([exist(times(horizon, int(end))) for end in ends], axis=1)
                made[rows:] = np.where(there, made[rows:], fill(made)[rows:])
            if kind == "future" and (gone := np.isnan(made[rows:])).any():
                row, series = np.argwhere(gone)[0]
                when = plain_times([times(horizon, int(ends[series]))[row]])[0]
                there = int(gone.any(1).argmax())
                fewer = f", or forecast the {there} that it has, with `horizon` {there}" if there else ""
                raise ValueError(
                    f"column {name!r} of the future has no value at {when} for series {names[series]!r}; add the "
                    f"{horizon} rows of the horizon to the table, with its values and without values to forecast{fewer}"
                )
            parts[kind].append(made if kind == "future" else made[:rows])
        arrays = {kind: np.stack(each, axis=-1) if each else None for kind, each in parts.items()}
        return Columns(**arrays)


def _constant(name: str, names: Sequence[str], x: np.ndarray) -> np.ndarray:
    """The one value of each series; ValueError if there are more."""
    low, high = np.nanmin(x, axis=0), np.nanmax(x, axis=0)
    if (low != high).any():
        place = int((low != high).argmax())
        raise ValueError(
            f"column {name!r} is not static: series {names[place]!r} has {low[place]:g} and {high[place]:g}; name it "
            "with `future` or `past`"
        )
    return low


def beside_columns(
    frame: pd.DataFrame,
    beside: Mapping[str, Sequence[str]],
    decimal: str,
    spread: Callable[[np.ndarray], np.ndarray],
) -> TableColumns:
    """The columns of each kind. One of text becomes a column of 0 and 1 for each of its values, at most 50.

    spread: places one number for each row of the table on the grid of times, NaN where there is none.
    """
    found = []
    for kind, names in beside.items():
        for name in names:
            try:
                found.append((kind, name, spread(to_numbers(frame[name], decimal))))
                continue
            except ValueError:
                texts = frame[name].dropna().astype(str).str.strip()
                texts = texts[texts != ""]
                if not 0 < texts.nunique() <= _MOST or texts.str.fullmatch(r"[+-]?(inf|infinity)", case=False).any():
                    raise
            text = frame[name].astype(str).str.strip()
            for value in sorted(texts.unique()):
                found.append((kind, f"{name}={value}", spread((text == value).to_numpy(np.float64))))
    return TableColumns(tuple(found))


def check_beside(beside: Mapping[str, Sequence[str]], names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """All names of columns beside the series; ValueError for one that is unknown, named twice, or taken already."""
    found = []
    for kind, some in beside.items():
        known(kind, KINDS, "kind of column")
        for name in some:
            known(name, names, f"{kind} column")
            if name in taken or name in found:
                raise ValueError(f"column {shown(name)} has two uses; name it once")
            found.append(name)
    return found
