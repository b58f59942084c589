"""Kernels of other long-range models against the formulas of their papers, in float64 and with dense matrices."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import mpmath  # with torch, through sympy
import numpy as np
import pytest
import torch

from lagwise.kernels import KERNELS
from lagwise.kernels.s4d import hippo_legs
from lagwise.kernels.spectral import hankel_filters
from lagwise.mixers import ToeplitzMixer
from lagwise.mixers.derived import frozen
from lagwise.mixers.state import fixed_start, fixed_state
from lagwise.tables import build


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "s4d"},
        {"name": "s4d", "rule": "bilinear"},
        {"name": "dss", "span": 30},
        {"name": "dss", "normalization": "softmax", "span": 30},
    ],
    ids=str,
)
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


def test_hankel_filters_are_orthogonal_and_decay() -> None:
    filters = hankel_filters(64, 10)
    norms = np.linalg.norm(filters, axis=1)
    assert np.allclose((filters / norms[:, None]) @ (filters / norms[:, None]).T, np.eye(10), atol=1e-8)
    assert norms[0] > 5 * norms[-1]


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
