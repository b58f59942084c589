"""Columns beside series: past, known future and static ones, against dense least squares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lagwise.forecasting import Columns, LagForecaster, choose_forecaster
from lagwise.forecasting.estimator import averaged
from lagwise.forecasting.moments import level_weights

LOOK_BACK, HORIZON, PENALTY = 8, 3, 0.02
ROWS = (90, 60, 40)
NAN = np.nan


def data(missing: float = 0.0) -> tuple[np.ndarray, Columns]:
    """Three series of different lengths that depend on a future column, a past and a static one."""
    rng = np.random.default_rng(0)
    rows, series = max(ROWS), len(ROWS)
    future = rng.normal(size=(rows + HORIZON, series, 2)) + np.arange(series)[:, None]
    past, static = rng.normal(size=(rows, series, 1)), np.arange(series, dtype=float)[:, None] ** 2
    x = np.zeros((rows, series))
    for t in range(1, rows):
        x[t] = 0.6 * x[t - 1] + 2 * future[t, :, 0] + past[t - 1, :, 0] + 0.1 * static[:, 0] + 0.2 * rng.normal(size=3)
    for i, length in enumerate(ROWS):
        x[: rows - length, i] = NAN
    gaps = rng.random(x.shape) < missing
    gaps[-1] = gaps[:2] = False
    return np.where(gaps & (np.cumsum(~np.isnan(x), 0) > 1), NAN, x), Columns(future, past, static)


def fitted(x: np.ndarray, columns: Columns, **options: Any) -> LagForecaster:
    chosen = {"validation": 0, "shared": True, "penalty": PENALTY, **options}
    return LagForecaster(HORIZON, LOOK_BACK, **chosen).fit(x, columns=columns)


def standard(x: np.ndarray, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    """The standardised series and columns (future 0 and 1, past 2, static 3), with the last rows of the future."""
    z = (x - np.nanmean(x, 0)) / np.nanstd(x, 0)
    static = np.broadcast_to(columns.static, (len(columns.future), *columns.static.shape))
    past = np.concatenate([columns.past, np.zeros((HORIZON, *columns.past.shape[1:]))])
    values = np.concatenate([columns.future, past, static], axis=2)
    mean = values[: len(x)].mean(0)
    mean[:, 3] = columns.static.mean()
    return z, (values - mean) / np.sqrt(((values[: len(x)] - mean) ** 2).mean((0, 1)))


def dense(
    x: np.ndarray, z: np.ndarray, v: np.ndarray, level: str, longest: int = 1
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Least squares with one row for each window and observed target: the coefficients, a function's rows for the
    windows at the end, and their levels."""
    inputs = LOOK_BACK * 4 + 1
    weights = level_weights(level, LOOK_BACK)

    def row(filled: np.ndarray, series: int, start: int, h: int) -> tuple[np.ndarray, Any]:
        window = filled[start : start + LOOK_BACK, series]
        at = weights @ window
        lags = v[start : start + LOOK_BACK, series]
        made = np.zeros((HORIZON, inputs))
        made[h] = np.concatenate([window - at, lags[:, :3].T.ravel(), lags[-1:, 3]])
        return np.concatenate([made.ravel(), v[start + LOOK_BACK + h, series, :2]]), at

    rows, targets, count, ends, levels = [], [], 0, [], []
    for i in range(x.shape[1]):
        own = z[:, i]
        begin = int((~np.isnan(own)).argmax())
        filled = z.copy()
        for t in range(begin + 1, len(z)):
            filled[t, i] = filled[t - 1, i] if np.isnan(z[t, i]) else z[t, i]
        runs = [begin]
        for t in range(begin, len(z)):  # stretches without long gaps
            if np.isnan(own[t : t + longest + 1]).all() and t + longest < len(z):
                runs.append(t)
        assert len(runs) == 1
        for start in range(begin, len(z) - LOOK_BACK - HORIZON + 1):
            count += 1
            for h in range(HORIZON):
                if not np.isnan(own[start + LOOK_BACK + h]):
                    made, at = row(filled, i, start, h)
                    rows.append(made)
                    targets.append(own[start + LOOK_BACK + h] - at)
        for h in range(HORIZON):
            made, at = row(filled, i, len(z) - LOOK_BACK, h)
            ends.append(made)
            levels.append(at)
    a, b = np.stack(rows), np.array(targets)
    penalty = np.full(a.shape[1], PENALTY * count)
    penalty[-2:] *= HORIZON
    return np.linalg.solve(a.T @ a + np.diag(penalty), a.T @ b), ends, np.array(levels)


@pytest.mark.parametrize("missing", [0.0, 0.05])
@pytest.mark.parametrize("level", ["mean", "last", "none"])
def test_maps_and_effects_are_dense_least_squares(level: str, missing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lagwise.forecasting.fitting._MAX_GAP_SHARE", 1.0)
    x, columns = data(missing)
    z, v = standard(x, columns)
    found, ends, levels = dense(x, z, v, level, LOOK_BACK)
    forecaster = fitted(x, columns, level=level)
    np.testing.assert_allclose(forecaster.effects_[0, :2, -1, 0], found[-2:], atol=1e-8 if not missing else 1e-4)
    made = ((np.stack(ends) @ found + levels).reshape(3, HORIZON) * np.nanstd(x, 0)[:, None]).T + np.nanmean(x, 0)
    np.testing.assert_allclose(forecaster.predict(), made, atol=1e-8 if not missing else 2e-3)
    assert forecaster.n_parameters_ == LOOK_BACK * HORIZON + (3 * LOOK_BACK + 1) * HORIZON + 2


def test_columns_lower_the_error_and_are_chosen() -> None:
    x, columns = data()
    with_columns, without = (
        LagForecaster(HORIZON, LOOK_BACK, validation=20, shared=True).fit(x, columns=each) for each in (columns, None)
    )
    assert with_columns.validation_error_ < 0.3 * without.validation_error_
    ranked = choose_forecaster(x, HORIZON, columns=columns, look_back=LOOK_BACK)
    assert "ridge with columns" in ranked[0].name or ranked[0].name.startswith("average")
    assert ranked[0].forecaster.effects_ is not None
    plain = min(each.error for each in ranked if "columns" not in each.name and "average" not in each.name)
    assert ranked[0].error < 0.6 * plain


def test_separate_maps_and_several_look_backs() -> None:
    x, columns = data()
    both = LagForecaster(HORIZON, [4, 8], validation=0, shared=True, penalty=PENALTY).fit(x, columns=columns)
    each = [
        LagForecaster(HORIZON, n, validation=0, shared=True, penalty=PENALTY).fit(x, columns=columns) for n in (4, 8)
    ]
    np.testing.assert_allclose(both.predict(), np.mean([one.predict() for one in each], axis=0))
    np.testing.assert_allclose(averaged(each).predict(), both.predict())
    mixed = [each[0], LagForecaster(HORIZON, 16, validation=20, shared=True, penalty=PENALTY).fit(x)]
    np.testing.assert_allclose(averaged(mixed).predict(), np.mean([one.predict() for one in mixed], axis=0))
    separate = fitted(x, columns, shared=False)
    assert separate.effects_.shape == (3, 4, LOOK_BACK + 1, HORIZON)
    alone = fitted(x[:, :1], columns.of(np.array([True, False, False])), shared=True)
    assert not np.allclose(separate.predict()[:, 0], fitted(x, columns).predict()[:, 0])
    assert alone.predict().shape == (HORIZON, 1)


def test_errors_scores_and_forecasts_of_given_rows_agree() -> None:
    x, columns = data()
    forecaster = LagForecaster(HORIZON, LOOK_BACK, validation=20, refit=False, shared=True).fit(x, columns=columns)
    begin = 70 - LOOK_BACK
    later = Columns(columns.future[begin:-HORIZON], columns.past[begin:], columns.static)
    # Values of columns are standardised as they were fitted.
    scores = forecaster.evaluate(x[begin:], columns=later)
    assert scores.mse == pytest.approx(forecaster.validation_error_)
    errors = forecaster.errors_at(x, np.array([70, 80]), columns=columns) / forecaster.scale_
    for i, start in enumerate((70, 80)):
        made = forecaster.predict(X=x[:start], columns=columns.first(start, HORIZON))
        np.testing.assert_allclose((made - x[start : start + HORIZON]) / forecaster.scale_, errors[i])


def test_streaming_gives_the_forecasts_from_all_rows() -> None:
    x, columns = data()
    forecaster = fitted(x[:70], columns.first(70, HORIZON))
    for t in range(70, 80):
        known = None if t < 70 + HORIZON else columns.future[t : t + 1]
        forecaster.update(x[t], columns=Columns(future=known, past=columns.past[t : t + 1]))
        ahead = Columns(future=columns.future[t + 1 : t + 1 + HORIZON])
        expected = forecaster.predict(X=x[: t + 1], columns=columns.first(t + 1, HORIZON))
        np.testing.assert_allclose(forecaster.predict(columns=ahead), expected)
    with pytest.raises(ValueError, match="columns of the future need values for the 3 rows to forecast, got 0"):
        forecaster.predict()
    with pytest.raises(ValueError, match="update needs the values of future columns"):
        forecaster.update(x[80], columns=Columns(past=columns.past[80:81]))


def test_columns_of_all_series_have_two_dimensions() -> None:
    x, _ = data()
    shared = np.random.default_rng(1).normal(size=(len(x) + HORIZON, 1))
    repeated = np.repeat(shared[:, None], 3, axis=1)
    np.testing.assert_allclose(
        fitted(x, Columns(future=shared)).predict(), fitted(x, Columns(future=repeated)).predict()
    )


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda c: Columns(c.future[:-1]), {}, r"the shape \(90, 3, columns\) or \(90, columns\), or 93"),
        (lambda c: Columns(static=c.static[:2]), {}, r"static must have the shape \(3, columns\), got \(2, 1\)"),
        (lambda c: Columns(past=np.where(c.past > 2, np.inf, c.past)), {}, "past must have finite values"),
        (lambda c: Columns(np.where(np.arange(93)[:, None, None] == 91, NAN, c.future)), {}, "row 2 of the horizon"),
        (lambda c: Columns(), {}, "columns must have future, past or static values"),
        (lambda c: c, {"model": "toeplitz"}, "columns need the model 'ridge'"),
        (lambda c: c, {"rank": 2}, "columns need the model 'ridge'"),
    ],
)
def test_invalid_columns(change: Any, options: dict[str, Any], message: str) -> None:
    x, columns = data()
    with pytest.raises(ValueError, match=message):
        fitted(x, change(columns), **options)


def test_rows_need_their_columns() -> None:
    x, columns = data()
    forecaster = fitted(x, columns)
    with pytest.raises(ValueError, match="fitted with columns; pass `columns` for X"):
        forecaster.predict(X=x)
    with pytest.raises(ValueError, match="need values for the rows of the horizon after X"):
        forecaster.predict(X=x, columns=Columns(columns.future[:-HORIZON], columns.past, columns.static))
    with pytest.raises(ValueError, match="columns must be those fitted"):
        forecaster.evaluate(x, columns=Columns(columns.future))


def test_columns_that_no_candidate_can_use_are_an_error() -> None:
    x, columns = data()
    with pytest.raises(ValueError, match="columns are only supported by the model 'ridge'; give it as `model`"):
        choose_forecaster(x, HORIZON, columns=columns, model="smoothing")
