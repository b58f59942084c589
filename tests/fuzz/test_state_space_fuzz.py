"""Reductions of random kernels against their exact transfer functions, computed independently of the library.

``LAGWISE_FUZZ_CASES`` sets the number of cases. A failure shows its seed.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from lagwise.kernels import ModalKernel
from lagwise.ops import Modes, Reduction, reduce_taps

CASES = int(os.environ.get("LAGWISE_FUZZ_CASES", "8"))
_ZOOMS = 25


def random_kernel(rng: np.random.Generator) -> tuple[str, np.ndarray]:
    """Taps that are smooth, rough, truncated, or slow oscillations that need poles near the unit circle."""
    n = int(rng.choice([1, 2, 3, int(rng.integers(4, 60)), int(rng.integers(60, 1500))]))
    lags = np.arange(n)
    decay = 1 - 10 ** rng.uniform(-4.5, -0.3)
    kind = rng.choice(["noise", "box", "ramp", "oscillations", "power", "polynomial"])
    if kind == "noise":
        taps = rng.normal(size=n) * min(decay, 0.97) ** lags
    elif kind == "box":
        taps = np.ones(n) * decay**lags
    elif kind == "ramp":
        taps = (n - lags) / n * np.cos(rng.uniform(0, np.pi) * lags)
    elif kind == "oscillations":
        count = int(rng.integers(1, 5))
        radius, angle = 1 - 10 ** rng.uniform(-4.5, -0.3, count), rng.uniform(0, np.pi, count)
        taps = (rng.normal(size=count)[:, None] * radius[:, None] ** lags * np.cos(angle[:, None] * lags)).sum(0)
    elif kind == "power":
        taps = (lags + 1.0) ** -rng.uniform(0.3, 3)
    else:
        taps = np.polyval(rng.normal(size=4), lags / n) * decay**lags
    taps = taps * 10 ** rng.choice([0, 0, 0, rng.uniform(-12, 12)])
    if rng.random() < 0.3:
        taps[0] += 10 ** rng.uniform(-3, 3) * abs(taps).max()
    return str(kind), taps


def largest(taps: np.ndarray, modes: Modes | None) -> float:
    """Largest ``|K - K^|``, by dense samples, denser near poles, and a local search around the best of them."""
    lags = np.arange(len(taps))
    poles, weights, direct = (np.zeros(0), np.zeros(0), 0.0) if modes is None else (t[0].numpy() for t in modes)

    def error(omega: np.ndarray) -> np.ndarray:
        z = np.exp(-1j * omega)
        values = [np.exp(-1j * np.outer(part, lags)) @ taps for part in np.array_split(omega, 1 + len(omega) // 500)]
        found = direct + sum(
            ((w / (1 - p * z) + np.conj(w) / (1 - np.conj(p) * z)) / 2 for p, w in zip(poles, weights, strict=True)),
            np.zeros_like(z),
        )
        return abs(np.concatenate(values) - found)

    fft = np.linspace(0, np.pi, 4 * len(taps) + 64)
    spread = np.tan(np.linspace(-1.55, 1.55, 41))
    near = [np.angle(p) + (1 - abs(p)) * spread for p in poles]
    omega = np.unique(np.clip(np.concatenate([fft, *near]), 0, np.pi))
    values = error(omega)
    best, width = omega[values.argsort()[-4:]], np.pi / len(fft)
    top = values.max()
    for _ in range(_ZOOMS):
        tried = (best[:, None] + width * np.linspace(-1, 1, 9)).flatten()
        values = error(tried)
        top, best, width = max(top, values.max()), tried[values.argsort()[-4:]], width / 2
    return float(top)


def in_float32(modes: Modes) -> Modes:
    """The values with which a float32 kernel of these modes computes."""
    kernel = ModalKernel(1, modes=modes.poles.shape[1])
    kernel.load_modes(modes)
    with torch.no_grad():
        return kernel.recurrence().to(torch.float64)


def check(found: Reduction, taps: np.ndarray, tolerance: float, case: str) -> None:
    gain, error, bound = largest(taps, None), float(found.error), float(found.bound)
    slack = 1e-9 * gain + 1e-300  # float64's rounding
    assert error <= tolerance * gain + slack, case
    assert error <= bound * (1 + 1e-12), case
    worst = 0.0
    for modes in (found.modes, in_float32(found.modes)):
        true = largest(taps, modes)
        assert true <= error + slack, f"{case}: certified {error}, is {true}, gain {gain}"
        worst = max(worst, true)
    rounding = 2.0**-24 * (float(found.amplification) * gain + abs(float(found.modes.direct)))
    assert error <= 1.05 * worst + 1.1 * rounding + slack, f"{case}: certified {error}, is {worst}"
    if not len(found.modes.poles[0]) or float(found.modes.poles.abs().max()) < 0.999:
        kernel = ModalKernel(1, modes=found.modes.poles.shape[1])
        kernel.load_modes(found.modes)
        with torch.no_grad():
            difference = -kernel.taps(len(taps) + 20_000)[0].double().numpy()  # as float32 arithmetic makes them
        difference[: len(taps)] += taps
        assert abs(difference).sum() <= float(found.l1_error) + slack, case
        assert abs(np.fft.rfft(difference)).max() <= error + slack, case


@pytest.mark.timeout(0)  # as long as there are cases
def test_certified_bounds_hold() -> None:
    reduced = 0
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        kind, taps = random_kernel(rng)
        tolerance = 10 ** rng.uniform(-4, -0.7)
        case = f"seed {seed}: {kind}, {len(taps)} taps, tolerance {tolerance:.3g}"
        try:
            found = reduce_taps(torch.from_numpy(taps)[None], tolerance)
        except ValueError as error:
            if "for tolerance" not in str(error):
                raise ValueError(case) from error
            continue
        reduced += 1
        check(found, taps, tolerance, case)
    assert reduced > CASES // 3


@pytest.mark.parametrize(
    ("taps", "tolerance"), [pytest.param(np.ones(1000), 0.02, marks=pytest.mark.slow), (np.ones(300), 0.05)]
)
def test_poles_between_sampled_frequencies(taps: np.ndarray, tolerance: float) -> None:
    """A box kernel produces poles so near the unit circle that they peak between the frequencies of a transform of its
    length."""
    found = reduce_taps(torch.from_numpy(taps)[None], tolerance)
    assert found.modes.poles.abs().max() > 1 - 1 / len(taps)
    check(found, taps, tolerance, f"{len(taps)} ones")
