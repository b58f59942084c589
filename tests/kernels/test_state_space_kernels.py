"""Kernels of other long-range models against the formulas of their papers, in float64 and with dense matrices."""

from __future__ import annotations

import copy
import itertools
import sys
from pathlib import Path
from typing import Any

import mpmath  # with torch, through sympy
import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "fuzz"))
from kernel_references import kernel_at

from lagwise.kernels import KERNELS
from lagwise.kernels.s4d import hippo_legs
from lagwise.kernels.spectral import hankel_filters
from lagwise.mixers import ToeplitzMixer
from lagwise.mixers.derived import frozen
from lagwise.mixers.state import fixed_start, fixed_state
from lagwise.tables import build

VARIANTS: list[dict[str, Any]] = [
    *(
        {"name": "s4d", "modes": 4, "start": start, "rule": rule}
        for start in ("lin", "inv", "legs")
        for rule in ("zoh", "bilinear")
    ),
    *({"name": "cema", "dimension": n} for n in (1, 5)),
    *({"name": "dss", "modes": 4, "normalization": how, "span": 30} for how in ("exp", "softmax")),
    {"name": "s4", "modes": 4, "span": 64},
    {"name": "s4", "modes": 32, "span": 1024},
    {"name": "sgconv", "size": 8, "scales": 5},
    {"name": "sgconv", "size": 1, "scales": 3},
    {"name": "hyena", "span": 40, "hidden": 6, "bands": 3, "frequency": 14.0},
    {"name": "hyena", "span": 40, "hidden": 6, "shift": 0.05},
    {"name": "spectral", "filters": 5, "span": 50},
    {"name": "spectral", "filters": 5, "span": 50, "alternating": False},
]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("spec", VARIANTS, ids=str)
def test_kernels_equal_their_papers_formulas(spec: dict[str, Any], causal: bool) -> None:
    kernel = build(KERNELS, spec, 3, what="kernel", causal=causal).double()
    taps = kernel.taps(100)
    lags = kernel.lags(100, taps.device)
    with torch.no_grad():
        expected = kernel_at(kernel, lags)
    torch.testing.assert_close(taps, expected, rtol=0, atol=1e-10 * float(expected.abs().max()))


@pytest.mark.parametrize("spec", [v for v in VARIANTS if v["name"] in ("s4d", "dss")], ids=str)
def test_slow_poles_keep_their_digits_in_float32(spec: dict[str, Any]) -> None:
    """Modes that last ten thousand tokens, whose poles are within 1e-4 of 1: in taps, in blocks, and token by token."""
    torch.manual_seed(0)
    mixer = ToeplitzMixer(2, causal=True, kernel={**spec, "modes": 1})
    kernel: Any = mixer.kernel
    with torch.no_grad():
        kernel.log_step.copy_(torch.tensor([-9.3, -8.7]))
        kernel.angle.fill_(0.4)
        kernel.rate.fill_(0.03)
        kernel.direct.zero_()
    exact = copy.deepcopy(kernel).double().taps(12_000).detach()
    scale = float(exact.abs().max())
    torch.testing.assert_close(kernel.taps(12_000).double(), exact, rtol=0, atol=5e-7 * scale)
    impulse = torch.zeros(1, 12_000, 2)
    impulse[:, 0] = 1
    with torch.no_grad():
        _, state = mixer.prefill(impulse[:, :11_000], mixer.init_state(1))
        form = frozen(mixer)
        held, _ = fixed_state(state, fixed_start(mixer.init_state(1)))
        stepped, fixed = [], []
        for _ in range(1000):
            y, state = mixer.step(impulse[:, -1], state)
            again, held = form.step(impulse[:, -1], held)
            stepped.append(y)
            fixed.append(again)
    for outputs in (stepped, fixed):
        torch.testing.assert_close(torch.cat(outputs).t().double(), exact[:, 11_000:], rtol=0, atol=1e-5 * scale)


def test_hippo_is_normal_plus_rank_one() -> None:
    frequencies, p, b = hippo_legs(4)
    n = np.arange(8)
    odd = np.sqrt(2 * n + 1)
    matrix = -np.tril(np.outer(odd, odd), -1) - np.diag(n + 1.0)
    found = np.linalg.eigvals(matrix)  # the matrix is triangular: its diagonal
    assert np.allclose(np.sort(found.real), -np.arange(8, 0, -1.0))
    both = np.concatenate([p, p.conj()])
    states = np.diag(np.concatenate([-0.5 + 1j * frequencies, -0.5 - 1j * frequencies])) - np.outer(both, both.conj())
    # the same input and output at the same times: C exp(A t) B with C = B* in either basis
    input = np.concatenate([b, b.conj()])
    for time in (0.1, 0.7):
        dense = odd @ torch.linalg.matrix_exp(torch.from_numpy(time * matrix)).numpy() @ odd
        own = input.conj() @ torch.linalg.matrix_exp(torch.from_numpy(time * states)).numpy() @ input
        assert own.real == pytest.approx(dense, rel=1e-9)
    assert (np.diff(frequencies) < 0).all()
    assert frequencies[-1] > 0


def test_s4d_equals_the_continuous_system_with_zero_order_hold() -> None:
    """The state after a token is that of the differential equation with a constant input."""
    kernel = build(KERNELS, {"name": "s4d", "modes": 3}, 2, what="kernel", causal=True).double()
    a = torch.complex(-kernel.rate.exp(), kernel.angle)
    step, c = kernel.log_step.exp(), torch.view_as_complex(kernel.amplitude[0].detach())
    times = torch.linspace(0, 1, 20001, dtype=torch.float64)[:-1] + 0.5 / 20000  # the midpoint rule
    held = (a[..., None] * step[:, None, None] * times).exp().mean(-1) * step[:, None]
    expected = [2 * (c * (a * step[:, None] * lag).exp() * held).sum(1).real for lag in range(5)]
    expected[0] = expected[0] + kernel.direct
    torch.testing.assert_close(kernel.taps(5), torch.stack(expected, 1), rtol=1e-6, atol=1e-9)


def test_cema_draws_omega_from_a_truncated_normal_distribution() -> None:
    omega = KERNELS["cema"](100_000, dimension=1).omega.detach()
    assert omega.abs().max() <= 1
    shares = [float((omega < bound).double().mean()) for bound in (-0.25, 0, 0.5)]
    assert shares == pytest.approx([0.1587, 0.5, 0.9772], abs=0.01)


@pytest.mark.covers("Megalodon §3.1 and eq. 2")
def test_cema_equals_its_recurrence() -> None:
    """``h_t = q h_{t-1} + p x_t``, ``y_t = Re gamma h_t / sqrt(N) + omega x_t``."""
    mixer = ToeplitzMixer(3, causal=True, kernel={"name": "cema", "dimension": 4}).double()
    kernel: Any = mixer.kernel
    with torch.no_grad():
        kernel.gamma.normal_()
    x = torch.randn(2, 30, 3, dtype=torch.float64)
    p, turn = kernel.alpha[0].sigmoid(), kernel.theta[0, :, 0].sigmoid() * 2 * torch.pi / 4
    q = torch.polar(1 - p * kernel.delta[0].sigmoid(), torch.arange(1, 5) * turn[:, None])
    h, outputs = torch.zeros(2, 3, 4, dtype=torch.complex128), []
    for token in x.unbind(1):
        h = q * h + p * token[..., None]
        outputs.append((torch.view_as_complex(kernel.gamma[0]) * h).real.sum(2) / 2 + kernel.omega * token)
    torch.testing.assert_close(mixer(x), torch.stack(outputs, 1), rtol=0, atol=1e-12)


def test_hankel_filters_are_orthogonal_and_decay() -> None:
    filters = hankel_filters(64, 10)
    norms = np.linalg.norm(filters, axis=1)
    assert np.allclose((filters / norms[:, None]) @ (filters / norms[:, None]).T, np.eye(10), atol=1e-8)
    assert norms[0] > 5 * norms[-1]


@pytest.mark.parametrize("spec", [{"name": "s4d", "modes": 8}, {"name": "dss", "modes": 8}], ids=str)
def test_state_spaces_stream_without_conversion(spec: dict[str, Any]) -> None:
    mixer = ToeplitzMixer(4, kernel=spec).double()
    x = torch.randn(2, 300, 4, dtype=torch.float64)
    state = mixer.init_state(2)
    steps = []
    for t in range(300):
        y, state = mixer.step(x[:, t], state)
        steps.append(y)
    torch.testing.assert_close(torch.stack(steps, 1), mixer(x), rtol=0, atol=1e-10)
    assert state.real.shape == state.imaginary.shape == (2, 8, 4)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "s4d", "start": "lag"}, "unknown start: 'lag'"),
        ({"name": "s4d", "rule": "foh"}, "unknown rule: 'foh'"),
        ({"name": "dss", "normalization": "max"}, "unknown normalization: 'max'"),
        ({"name": "s4", "span": 7}, "span must be even, got 7"),
        ({"name": "sgconv", "scales": 0}, "scales must be"),
        ({"name": "hyena", "span": 1}, "span must be at least 2, got 1"),
        ({"name": "hyena", "frequency": 0.0}, "frequency must be above 0, got 0.0"),
        ({"name": "hyena", "shift": -0.1}, "shift must be a number of at least 0, got -0.1"),
        ({"name": "spectral", "filters": 9, "span": 8}, "filters must be at most span"),
    ],
)
def test_options_out_of_range_are_named(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(KERNELS, spec, 3, what="kernel", causal=True)


def test_spectral_filters_are_eigenvectors_beyond_rounding() -> None:
    """Of the matrix in exact arithmetic: its small eigenvalues are below the rounding of float64."""
    span, filters = 20, 15
    with mpmath.workdps(60):
        matrix = mpmath.matrix(span, span)
        for i, j in itertools.product(range(span), repeat=2):
            matrix[i, j] = mpmath.mpf(2) / ((i + j + 2) ** 3 - (i + j + 2))
        values, vectors = mpmath.eigsy(matrix)  # smallest first
        expected = [
            [values[span - 1 - f] ** 0.25 * vectors[i, span - 1 - f] for i in range(span)] for f in range(filters)
        ]
    rows = np.array(expected, dtype=np.float64)
    assert float(values[span - filters] / values[span - 1]) < 1e-16
    found = hankel_filters(span, filters)
    scale = np.abs(rows).max(1, keepdims=True)
    assert np.abs((found - rows * np.sign(rows[:, :1])) / scale).max() < 1e-5


def test_spectral_filters_below_rounding_are_refused() -> None:
    with pytest.raises(ValueError, match="a span of 64 has at most 25 filters"):
        build(KERNELS, {"name": "spectral", "span": 64, "filters": 40}, 2, what="kernel", causal=True)
