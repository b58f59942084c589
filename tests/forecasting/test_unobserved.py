"""Unobserved targets are ignored in fits, model selection and intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lagwise.forecasting import LagForecaster, choose_forecaster
from lagwise.forecasting.design import make_design
from lagwise.forecasting.errors import error_quantiles, window_errors
from lagwise.forecasting.fitting import Fold, HeldOut, Stretch, fit_maps, usable_rows
from lagwise.forecasting.gaps import carry_forward, stretches
from lagwise.forecasting.moments import LEVELS, level_weights

NAN = np.nan
LOOK_BACK, HORIZON, PENALTY = 12, 4, 0.05


def gappy(rows: int = 300, share: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Waves of which the highest quarter is mostly missing, so not at random, and the mask of missing values."""
    t, rng = np.arange(rows)[:, None], np.random.default_rng(0)
    x = np.sin(t * 2 * np.pi / 8 + np.arange(2)) + 0.1 * rng.normal(size=(rows, 2))
    missing = (x > 0.7) & (rng.random(x.shape) < 3 * share) | (rng.random(x.shape) < 0.03)
    return x, missing


def explicit(stretches: list[Stretch], look_back: int, level: str) -> tuple[np.ndarray, np.ndarray]:
    """Centred windows: inputs, and targets (NaN where missing)."""
    inputs, targets = [], []
    for filled, missing in stretches:
        for series in range(filled.shape[1]):
            for start in range(len(filled) - look_back - HORIZON + 1):
                window = filled[start : start + look_back + HORIZON, series]
                gaps = missing[start + look_back : start + look_back + HORIZON, series]
                u, y = window[:look_back], np.where(gaps, NAN, window[look_back:])
                at = level_weights(level, look_back) @ u
                inputs.append(u - at)
                targets.append(y - at)
    return np.stack(inputs), np.stack(targets)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("model", ["ridge", "toeplitz"])
def test_fits_are_least_squares_on_observed_targets(level: str, model: str) -> None:
    x, missing = gappy()
    filled = carry_forward(np.where(missing, NAN, x))
    options: dict[str, Any] = {"model": model, "level": level, "penalty": PENALTY}
    design = make_design(LagForecaster(HORIZON, LOOK_BACK, **options))
    train = usable_rows(filled, missing, design.width, 40)
    fitted = fit_maps(design, [Fold(train, [])])
    inputs, targets = explicit(train, LOOK_BACK, level)
    assert 0.1 < np.isnan(targets).mean() < 0.5
    if model == "ridge":
        maps = np.empty((LOOK_BACK, HORIZON))
        for h in range(HORIZON):
            u, y = (each[~np.isnan(targets[:, h])] for each in (inputs, targets[:, h]))
            maps[:, h] = np.linalg.solve(u.T @ u + PENALTY * len(inputs) * np.eye(LOOK_BACK), u.T @ y)
    else:
        n = LOOK_BACK + HORIZON - 1
        gram, right = PENALTY * len(inputs) * HORIZON * np.eye(n), np.zeros(n)
        for h in range(HORIZON):
            u, y = (each[~np.isnan(targets[:, h])] for each in (inputs, targets[:, h]))
            rows = np.zeros((len(u), n))
            rows[:, HORIZON - 1 - h :][:, :LOOK_BACK] = u
            gram, right = gram + rows.T @ rows, right + rows.T @ y
        k = np.linalg.solve(gram, right)
        maps = np.stack([k[HORIZON - 1 - h :][:LOOK_BACK] for h in range(HORIZON)], axis=1)
    maps += np.outer(level_weights(level, LOOK_BACK), 1 - maps.sum(0))
    np.testing.assert_allclose(fitted.maps, maps, atol=1e-4)


@pytest.mark.parametrize("look_back", [5, LOOK_BACK])
def test_held_out_errors_count_only_observed_targets(look_back: int) -> None:
    x, missing = gappy()
    missing[100:160] = True
    filled = carry_forward(np.where(missing, NAN, x))
    maps = np.random.default_rng(1).normal(size=(look_back, HORIZON))
    inputs, targets = explicit([Stretch(filled, missing)], LOOK_BACK, "none")
    errors = [inputs[:, -look_back:] @ each - targets for each in (maps, 2 * maps)]
    products, count = HeldOut([Stretch(filled, missing)], LOOK_BACK).products([maps, 2 * maps])
    for i, j in np.ndindex(2, 2):
        assert products[i, j] == pytest.approx(np.nansum(errors[i] * errors[j]))
    assert count == np.count_nonzero(~np.isnan(errors[0]))


def test_intervals_count_observed_errors_only() -> None:
    filled, targets = np.zeros((25, 1)), np.full((25, 1), NAN)
    targets[-4:, 0] = [4, 1, 3, -2]  # the errors of repeating the last value, 0, in 4 of 20 windows
    maps = [np.eye(5)[:, -1:]]
    assert error_quantiles(np.abs(window_errors(maps, filled, targets)), 0.5)[0, 0] == pytest.approx(
        3
    )  # rank ceil(5 / 2) of 4
    assert error_quantiles(np.abs(window_errors(maps, filled, targets)), 0.9)[0, 0] == pytest.approx(4)
    assert error_quantiles(np.abs(window_errors(maps, filled, np.full_like(targets, NAN))), 0.9)[0, 0] == np.inf


def test_series_that_are_missing_at_the_end() -> None:
    x, _ = gappy()
    x[240:, 1] = NAN
    forecaster = LagForecaster(HORIZON, LOOK_BACK, validation=60).fit(x)
    assert forecaster.shared_
    assert np.isinf(forecaster.predict_interval()[1][:, 1]).all()
    with pytest.raises(ValueError, match=r"the last 60 rows are held out, and series 1 has no observed value there"):
        LagForecaster(HORIZON, LOOK_BACK, validation=60, shared=False).fit(x)
    with pytest.raises(ValueError, match="series 0 has no observed value there"):
        LagForecaster(HORIZON, LOOK_BACK, validation=60).fit(x[:, 1])


def test_a_series_that_is_shorter_than_a_window_shares_the_map_of_the_others() -> None:
    x, _ = gappy()
    x[:290, 1] = NAN
    x[:, 1] += 1000
    forecaster = LagForecaster(HORIZON, LOOK_BACK, validation=60).fit(x)
    assert forecaster.shared_
    assert abs(forecaster.predict()[:, 1] - 1000).max() < 3
    assert choose_forecaster(x, HORIZON)[0].forecaster.shared_
    with pytest.raises(ValueError, match="16 rows without a run of more than 1 missing values is needed"):
        LagForecaster(HORIZON, LOOK_BACK, validation=60, shared=False).fit(x)


def test_long_gaps_split_a_series_and_short_ones_do_not() -> None:
    missing = np.zeros((20, 3), dtype=bool)
    missing[5:7, 0] = missing[5:8, 1] = missing[:4, 2] = True
    assert stretches(missing, 2) == {(0, 20): [0], (0, 5): [1], (8, 20): [1], (4, 20): [2]}
