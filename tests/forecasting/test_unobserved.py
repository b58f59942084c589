"""Unobserved targets are ignored in fits, model selection and intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lagwise.forecasting import LagForecaster, choose_forecaster
from lagwise.forecasting.design import make_design
from lagwise.forecasting.errors import error_quantiles, window_errors
from lagwise.forecasting.fitting import Fold, fit_maps, usable_rows
from lagwise.forecasting.gaps import carry_forward
from lagwise.forecasting.groups import Rows, fit_groups
from lagwise.forecasting.moments import LEVELS, level_weights
from lagwise.forecasting.unobserved import Stretch, held_out_windows

NAN = np.nan
LOOK_BACK, HORIZON, PENALTY = 12, 4, 0.05


def gappy(rows: int = 300, share: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Waves of which the highest quarter is mostly missing, so not at random, and the mask of missing values."""
    t, rng = np.arange(rows)[:, None], np.random.default_rng(0)
    x = np.sin(t * 2 * np.pi / 8 + np.arange(2)) + 0.1 * rng.normal(size=(rows, 2))
    missing = (x > 0.7) & (rng.random(x.shape) < 3 * share) | (rng.random(x.shape) < 0.03)
    return x, missing


def explicit(
    stretches: list[Stretch], look_back: int, level: str, normalize: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centred windows: inputs, targets (NaN where missing), and the level of each window."""
    inputs, targets, levels = [], [], []
    for filled, missing, _ in stretches:
        for series in range(filled.shape[1]):
            for start in range(len(filled) - look_back - HORIZON + 1):
                window = filled[start : start + look_back + HORIZON, series]
                gaps = missing[start + look_back : start + look_back + HORIZON, series]
                u, y = window[:look_back], np.where(gaps, NAN, window[look_back:])
                at = level_weights(level, look_back) @ u
                scale = np.sqrt(np.mean((u - at) ** 2) + 1e-5) if normalize else 1.0
                inputs.append((u - at) / scale)
                targets.append((y - at) / scale)
                levels.append(at)
    return np.stack(inputs), np.stack(targets), np.array(levels)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("model", "normalize"), [("ridge", False), ("ridge", True), ("toeplitz", False)])
def test_fits_are_least_squares_on_observed_targets(level: str, model: str, normalize: bool) -> None:
    x, missing = gappy()
    filled = carry_forward(np.where(missing, NAN, x))
    options: dict[str, Any] = {"model": model, "level": level, "normalize": normalize, "penalty": PENALTY}
    design = make_design(LagForecaster(HORIZON, LOOK_BACK, **options))
    train = usable_rows(filled, missing, design.width, 40)
    fitted = fit_maps(design, [Fold(train, [])])
    inputs, targets, _ = explicit(train, LOOK_BACK, level, normalize)
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
    inputs, targets, _ = explicit([Stretch(filled, missing)], LOOK_BACK, "none", False)
    errors = inputs[:, -look_back:] @ maps - targets
    squares, count = held_out_windows([Stretch(filled, missing)], LOOK_BACK, HORIZON).squares(maps)
    assert squares == pytest.approx(np.nansum(errors**2))
    assert count == np.count_nonzero(~np.isnan(errors))


def test_the_validation_error_equals_that_of_evaluate() -> None:
    x, missing = gappy(400)
    x = np.where(missing, NAN, x)
    for shared in (True, False):
        forecaster = LagForecaster(HORIZON, LOOK_BACK, validation=100, refit=False, shared=shared).fit(x)
        assert forecaster.validation_error_ == pytest.approx(forecaster.evaluate(forecaster_rows(x)).mse)


def forecaster_rows(x: np.ndarray) -> np.ndarray:
    """The held-out rows and the look-back before them, as after filling all rows."""
    rows = x[300 - LOOK_BACK :].copy()
    rows[0] = carry_forward(x)[300 - LOOK_BACK]
    return rows


@pytest.mark.slow
def test_candidates_are_compared_on_the_same_targets() -> None:
    """A gap excludes training windows of the short look-back but not of the long one."""
    x, _ = gappy(600)
    x[80:84] = x[520:524] = NAN
    forecasters = [
        LagForecaster(HORIZON, look_back, validation=120, penalty=0.1, shared=True).fit(x) for look_back in (12, 48)
    ]
    counts = set()
    for forecaster in forecasters:
        design = make_design(forecaster)
        z = np.where(np.isnan(x), NAN, (x - forecaster.mean_) / forecaster.scale_)
        filled, missing = carry_forward(z), np.isnan(z)
        (fit,) = fit_groups(design, Rows(filled, missing), 480, True, str).fits
        counts.add(fit.count)
    assert len(counts) == 1
    ranked = choose_forecaster(x, HORIZON)
    assert len(ranked) > 3


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


def learned(**options: Any) -> LagForecaster:
    spec = {"name": "modal", "modes": 4}
    return LagForecaster(HORIZON, LOOK_BACK, model=spec, **{"validation": 60, "shared": True, **options})


def test_learned_kernels_honour_the_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lagwise.forecasting.learned._STEPS", 60)
    x, missing = gappy()
    x = np.where(missing & (np.arange(300) % 7 == 0)[:, None], NAN, x)
    options = {"level": "none", "validation": 0}
    sizes = [np.linalg.norm(learned(penalty=p, **options).fit(x).maps_) for p in (0.0, 3.0, 30.0, np.inf)]
    assert sizes[0] > 1.2 * sizes[1] > 1.4 * sizes[2] > 0
    assert sizes[3] == 0


def test_every_fit_trains_learned_kernels_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lagwise.forecasting.learned._STEPS", 60)
    x, _ = gappy()
    first, again = learned().fit(x), learned().fit(x[::-1]).fit(x)
    assert np.array_equal(first.maps_, again.maps_)
    other = learned(random_state=1).fit(x)
    assert not np.array_equal(first.maps_, other.maps_)


def test_a_refit_trains_a_learned_kernel_for_the_chosen_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refit on all rows takes as many steps as were best, of 60, on held-out rows."""
    monkeypatch.setattr("lagwise.forecasting.learned._STEPS", 60)
    x, _ = gappy()
    x[:240] += 3 * np.sin(np.arange(240) / 2.3)[:, None]  # what is learned soon stops serving
    forecaster = learned()
    forecaster.fit(x)
    design = make_design(forecaster)
    z = (x - forecaster.mean_) / forecaster.scale_
    none = np.zeros(z.shape, dtype=bool)
    rows = Rows(z, none)
    (chosen,) = fit_groups(design, rows, 240, True, str).fits
    (choice,) = chosen.choices
    assert 0 <= choice.steps < 60
    refitted = rows.fit(design, [0, 1], [(300, 300)], like=chosen)
    assert np.array_equal(refitted.maps, forecaster.maps_[0])
    all_steps = learned(validation=0).fit(x)
    assert not np.allclose(all_steps.maps_, forecaster.maps_)
