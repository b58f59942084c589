"""Fit columns that help to forecast: their values beside those of series, and linear maps of both in closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lagwise.forecasting.gaps import fill
from lagwise.forecasting.moments import level_weights, window_products
from lagwise.forecasting.unobserved import Stretch, Unobserved

KINDS = ("future", "past", "static")
_MAX_ROUNDS, _RELATIVE_CHANGE = 30, 1e-6  # to fill in targets, as in `ridge_path`


@dataclass(frozen=True)
class Columns:
    """Values known beside series ``(rows, series)``, NaN where missing.

    Parameters:
        future: values that are known in advance, such as prices and holidays: ``(rows + horizon, series, columns)``, or
            without the rows of the horizon.
        past: values that are known up to the last row: ``(rows, series, columns)``.
        static: one value for each series: ``(series, columns)``.

    Future and past ones may also be the same for all series: ``(rows, columns)``.
    """

    future: Any = None
    past: Any = None
    static: Any = None

    def first(self, rows: int, horizon: int) -> Columns:
        """Take the first rows, and the horizon after them."""
        future = None if self.future is None else self.future[: rows + horizon]
        return replace(self, future=future, past=None if self.past is None else self.past[:rows])

    def of(self, series: Any) -> Columns:
        """Take some series."""
        future, past = (
            each if each is None or np.ndim(each) == 2 else np.asarray(each)[:, series]
            for each in (self.future, self.past)
        )
        return Columns(future, past, None if self.static is None else np.asarray(self.static)[series])

    def filled(self) -> Columns:
        """Replace each missing value by the last observed one."""
        future, past = (
            each if each is None else _filled(np.asarray(each, np.float64)) for each in (self.future, self.past)
        )
        return replace(self, future=future, past=past)

    def laid_out(self, rows: int, series: int, horizon: int) -> tuple[np.ndarray, tuple[str, ...]]:
        """Join the values of all columns as ``(rows, series, columns)``, with the rows of the horizon below if they are
        given, and return the kind of each column: future, past or static.

        ValueError for other shapes, infinity, values that are missing in the horizon, and a column without any value of
        a series.
        """
        made, kinds, end = [], [], rows
        for name in KINDS:
            if (each := getattr(self, name)) is None:
                continue
            x = np.asarray(each, dtype=np.float64)
            wanted = f"({series}, columns)" if name == "static" else f"({rows}, {series}, columns) or ({rows}, columns)"
            if name == "static" and x.ndim == 2:
                x = np.broadcast_to(x, (rows, *x.shape))
            elif x.ndim == 2:
                x = np.broadcast_to(x[:, None], (len(x), series, x.shape[1]))
            if x.ndim != 3 or x.shape[1] != series or len(x) not in (rows, rows + horizon * (name == "future")):
                more = f", or {rows + horizon} rows, with those of the horizon" if name == "future" else ""
                raise ValueError(f"{name} must have the shape {wanted}{more}, got {np.shape(each)}")
            if np.isinf(x).any() or (rows > 1 and np.isnan(x[:rows]).all(0).any()):
                raise ValueError(f"{name} must have finite values, and for each series and column at least one")
            if np.isnan(x[rows:]).any():
                row, one, column = np.argwhere(np.isnan(x[rows:]))[0]
                raise ValueError(
                    f"future has no value in row {row + 1} of the horizon, for series {one} and column {column}; give "
                    "a value for every row to forecast"
                )
            end = max(end, len(x))
            made.append(x)
            kinds += [name] * x.shape[2]
        if not made:
            raise ValueError("columns must have future, past or static values")
        padded = [np.concatenate([x, np.broadcast_to(x[-1:], (end - len(x), *x.shape[1:]))]) for x in made]
        return np.concatenate(padded, axis=2), tuple(kinds)


@dataclass(frozen=True)
class FittedColumns:
    """Fitted columns of a forecaster: their kinds, means and deviations ``(series, columns)``, and the standardised
    values of the window ``(look_back, series, columns)`` and of the known rows after it."""

    kinds: tuple[str, ...]
    mean: np.ndarray
    scale: np.ndarray
    window: np.ndarray
    ahead: np.ndarray

    @classmethod
    def fit(
        cls, columns: Columns, rows: int, constant: np.ndarray, look_back: int, horizon: int
    ) -> tuple[FittedColumns, np.ndarray]:
        """Fit means and deviations to the rows, and return the standardised values too: 0 for the series that are
        ``constant`` ``(series,)``, which effects that are shared with other series would move.

        The mean is that of a series, or of all series for static columns, and the deviation that of all series from it.
        """
        values, kinds = columns.laid_out(rows, len(constant), horizon)
        known = values[:rows]
        mean = np.where(_of(kinds, "static"), np.nanmean(known, axis=(0, 1)), np.nanmean(known, axis=0))
        size = np.sqrt(np.nanmean((known - mean) ** 2, axis=(0, 1)))
        scale = np.where(constant[:, None], np.inf, np.where(size > 1e-12, size, 1.0))
        standard = _filled((values - mean) / scale)
        return cls(
            kinds, mean, scale, standard[max(0, rows - look_back) : rows].copy(), standard[rows:].copy()
        ), standard[:rows]

    def given(self, columns: Columns | None, rows: int, horizon: int, ahead: int) -> np.ndarray:
        """Standardise the values of given rows, and of some rows ``ahead``."""
        if columns is None:
            raise ValueError("the forecaster was fitted with columns; pass `columns` for X too")
        values, kinds = columns.laid_out(rows, len(self.mean), horizon)
        if kinds != self.kinds:
            raise ValueError(f"columns must be those fitted, {self.kinds}, got {kinds}")
        if len(values) < rows + ahead and "future" in kinds:
            raise ValueError("columns of the future need values for the rows of the horizon after X")
        standard = _filled((values - self.mean) / self.scale)[: rows + ahead]
        return np.concatenate([standard, np.repeat(standard[-1:], rows + ahead - len(standard), axis=0)])

    def ahead_of(self, steps: int, columns: Columns | None) -> np.ndarray:
        """Join the values of the window and of the next rows, of which only the future columns count, by default as
        known from the fit."""
        after, future = np.repeat(self.window[-1:], steps, axis=0), _of(self.kinds, "future")
        if future.any():
            known = self.ahead[..., future]
            if columns is not None and columns.future is not None:
                known = self._standard(Columns(future=columns.future), future, 0, len(columns.future))
            if len(known) < steps or np.isnan(known[:steps]).any():
                raise ValueError(
                    f"columns of the future need values for the {steps} rows to forecast, got {len(known)}; give them "
                    "to `fit` or `predict`"
                )
            after[..., future] = known[:steps]
        return np.concatenate([self.window, after])

    def append(self, columns: Columns | None) -> FittedColumns:
        """Move the window by the next row."""
        last = self.window[-1:].copy()
        for kind in ("future", "past"):
            own, given = _of(self.kinds, kind), None if columns is None else getattr(columns, kind)
            if not own.any():
                continue
            if given is not None:
                values = self._standard(Columns(**{kind: given}), own, 1, 0)
                last[..., own] = np.where(np.isnan(values), last[..., own], values)
            elif kind == "future" and len(self.ahead):
                last[..., own] = self.ahead[:1][..., own]
            else:
                raise ValueError(f"update needs the values of {kind} columns in the row")
        return replace(self, window=np.concatenate([self.window[1:], last]), ahead=self.ahead[1:])

    def rescaled(self, unit: np.ndarray, look_back: int) -> FittedColumns:
        """Change to another scale ``(series,)`` of the series, and to a longer look-back, whose further rows have no
        effects."""
        unit = unit[:, None]
        window = np.pad(self.window / unit, ((look_back - len(self.window), 0), (0, 0), (0, 0)))
        return replace(self, scale=self.scale * unit, window=window, ahead=self.ahead / unit)

    def _standard(self, columns: Columns, own: np.ndarray, rows: int, ahead: int) -> np.ndarray:
        values, _ = columns.laid_out(rows, len(self.mean), ahead)
        return (values - self.mean[:, own]) / self.scale[:, own]


def _of(kinds: Sequence[str], kind: str) -> np.ndarray:
    return np.array([each == kind for each in kinds])


def _filled(values: np.ndarray) -> np.ndarray:
    """Fill columns ``(rows, ...)`` with the last observed value where one is missing."""
    return fill(values.reshape(len(values), -1)).reshape(values.shape)


def check_columns(design: Any) -> None:
    """Raise ValueError for a kind of map that cannot have columns."""
    if design.spec["name"] != "ridge" or design.rank is not None or design.windowless:
        raise ValueError(
            f"columns need the model 'ridge' with a finite penalty, without rank; got {design.spec['name']!r}"
        )


def column_parameters(kinds: Sequence[str], design: Any) -> int:
    """Count the parameters of the effects of columns."""
    inputs = [sum(1 if kind == "static" else n for kind in kinds) for n in design.look_backs]
    return sum(inputs) * design.horizon + len(inputs) * sum(kind == "future" for kind in kinds)


def column_path(
    train: Sequence[Stretch], kinds: Sequence[str], look_back: int, horizon: int, level: str, penalties: Sequence[float]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Compute the map ``(look_back, horizon)`` of raw inputs, and the effects of columns ``(columns, look_back + 1,
    horizon)``, for each penalty p, all from one eigendecomposition.

    Formula: the forecast of horizon h is ``B_h^T z + sum_f c_f v_f(t + h)``, with z the window without its level, the
    same rows of each past or future column and a static one once, and v_f the future columns in the row of the target,
    whose weights are the same for every horizon. They minimise the mean squared error over windows plus ``p (sum_h
    |B_h|^2 + horizon |c|^2)``. With N the moments of z, ``r_g`` those of z with the targets (g = 0) or with a future
    column there, and T the products of these, block elimination gives ``(T_fg - sum_h r_fh^T (N + p)^-1 r_gh + p
    horizon) c = T_f0 - sum_h r_fh^T (N + p)^-1 r_0h`` and then ``B = (N + p)^-1 (r_0 - sum_f c_f r_f)`` (Frisch, Waugh
    and Lovell).

    Missing targets are filled in as in `lagwise.forecasting.solving.ridge_path`. With n inputs, C columns and F future
    ones it costs O(n^3) once, and O(n^2 (1 + F) horizon) for each penalty; n = look_back (1 + C) for all but static
    columns.
    """
    channels = [np.concatenate([each.filled[:, :, None], each.columns], axis=2) for each in train]  # type: ignore
    products = window_products(channels, look_back, horizon)
    unobserved = Unobserved(train, look_back, horizon)
    weights = level_weights(level, look_back)
    a, targets = products.inputs, products.targets.sum(0)
    future = [i for i, kind in enumerate(kinds) if kind == "future"]
    places = [0, *(1 + i for i in future)]
    # The level of a window is that of the series (channel 0); it leaves the inputs and the targets.
    ahead = a[0][:, :, look_back:]  # (look_back, channels, horizon)
    inner = weights @ a[0, :, 0, :look_back] @ weights
    levels = np.einsum("i,icj->cj", weights, ahead).sum(1)
    targets[0] -= levels
    targets[:, 0] -= levels
    targets[0, 0] += horizon * inner
    a = a.copy()
    a[:, :, 0] -= (a[:, :, 0, :look_back] @ weights)[:, :, None]
    a[0] -= np.einsum("i,icj->cj", weights, a[0])
    used = np.ones((len(kinds) + 1, look_back), dtype=bool)
    used[1:] = [[kind != "static" or i == look_back - 1 for i in range(look_back)] for kind in kinds]
    used = used.ravel()
    size = len(used)
    moments = a[..., :look_back].reshape(size, size)[np.ix_(used, used)] / products.count
    values, vectors = np.linalg.eigh(moments)
    values = values.clip(min=0)

    def turned(cross: np.ndarray) -> np.ndarray:
        """Express products ``(channels, look_back, horizon)`` with the inputs in the basis of the eigenvectors."""
        return vectors.T @ cross.reshape(size, horizon)[used] / products.count

    crosses = [a[:, :, g, look_back:] for g in places]
    right = [turned(cross) for cross in crosses]
    between = targets[np.ix_(places, places)] / products.count

    def solved(penalty: float, own: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Solve for the map and the effects, given moments ``own`` of the inputs, and ``known`` of the future columns,
        with the targets."""
        inverse = 1 / (values + max(penalty, 1e-12))[:, None]
        left = np.array([[float((f * inverse * g).sum()) for g in right[1:]] for f in right[1:]])
        made = np.zeros(len(future))
        if future:
            matrix = between[1:, 1:] - left + max(penalty, 1e-12) * horizon * np.eye(len(future))
            made = np.linalg.solve(matrix, known - np.array([float((f * inverse * own).sum()) for f in right[1:]]))
        rest = own - sum((c * f for c, f in zip(made, right[1:], strict=True)), np.zeros_like(own))
        full = np.zeros((size, horizon))
        full[used] = vectors @ (inverse * rest)
        full = full.reshape(-1, look_back, horizon)
        effects = np.zeros((len(kinds), look_back + 1, horizon))
        effects[:, :-1] = full[1:]
        effects[future, -1] = made[:, None]
        return full[0] + np.outer(weights, 1 - full[0].sum(0)), effects

    for penalty in penalties:
        found = solved(penalty, right[0], between[1:, 0])
        for _ in range(_MAX_ROUNDS if unobserved else 0):
            before = found
            more, known = unobserved.crosses(*found)
            more[0] -= weights @ more[0]
            found = solved(penalty, turned(crosses[0] + more), between[1:, 0] + known[future] / products.count)
            change = sum(float(((x - y) ** 2).sum()) for x, y in zip(found, before, strict=True))
            if change <= _RELATIVE_CHANGE**2 * sum(float((x**2).sum()) for x in found):
                break
        yield found
