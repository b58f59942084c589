"""The moving average: taps, recurrence, scan and definition agree, with gradients, in both directions, truncated or
not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lagwise.ops import block_scan, ema_scan, toeplitz_product
from lagwise.ops.operation import in_graph
from lagwise.ops.recurrence import diagonal, ema_parameters, ema_taps

CHANNELS, DIMENSION = 3, 4


def parameters() -> tuple[Tensor, Tensor]:
    """Fast and slow decays: q between about 0.1 and 0.9999."""
    delta, alpha, beta, gamma = torch.randn(4, CHANNELS, DIMENSION, dtype=torch.float64)
    delta[0] -= 8
    return ema_parameters(delta, alpha, beta, gamma)


def signal(length: int) -> Tensor:
    return torch.randn(2, length, CHANNELS, dtype=torch.float64)


def recurrence(x: Tensor, weight: Tensor, log_decay: Tensor, truncation: int | None) -> Tensor:
    """Token by token: ``h_i = q h_{i-1} + x_i - q**truncation x_{i - truncation}``."""
    decay, state, outputs = log_decay.exp(), x.new_zeros(x.shape[0], *weight.shape), []
    for i in range(x.shape[1]):
        state = decay * state + x[:, i, :, None]
        if truncation is not None and i >= truncation:
            state = state - (log_decay * truncation).exp() * x[:, i - truncation, :, None]
        outputs.append((state * weight).sum(2))
    return torch.stack(outputs, dim=1)


@pytest.mark.covers("MEGA §3.1")
def test_parameters_equal_megas() -> None:
    delta, alpha, beta, gamma = torch.randn(4, CHANNELS, DIMENSION, dtype=torch.float64)
    weight, log_decay = ema_parameters(delta, alpha, beta, gamma)
    p = 1 / (1 + (-delta).exp())
    torch.testing.assert_close(weight, p * beta * gamma / 2)
    torch.testing.assert_close(log_decay.exp(), 1 - p / (1 + (-alpha).exp()))


@pytest.mark.covers("MEGA app. A and eq. 25", "TCNCA app. I")
def test_taps_equal_their_definition() -> None:
    weight, log_decay = parameters()
    for length in (1, 2, 3, 5, 64, 1000):
        taps = ema_taps(weight, log_decay, length)
        written_out = torch.stack([(weight * log_decay.exp() ** lag).sum(1) for lag in range(length)], 1)
        torch.testing.assert_close(taps, written_out, rtol=1e-10, atol=1e-12)
    whole, cut = (ema_taps(weight, log_decay, 1000, truncation=truncation) for truncation in (None, 40))
    torch.testing.assert_close(cut, whole[:, :40], rtol=0, atol=1e-12)


def test_long_taps_keep_float32_precision() -> None:
    weight, log_decay = parameters()
    exact = ema_taps(weight, log_decay, 100_000)
    error = (ema_taps(weight.float(), log_decay.float(), 100_000) - exact).abs().max() / exact.abs().max()
    assert error < 1e-6


@pytest.mark.covers("MEGA eq. 3 to 5", "TCNCA eq. 1 and app. B")
@pytest.mark.parametrize(
    ("length", "truncation"),
    [(1, None), (2, 1), (31, 7), (32, None), (33, 40), (63, 1), (100, 2000), (1000, 40), (1021, None)],
)
def test_scan_recurrence_and_taps_agree(length: int, truncation: int | None) -> None:
    weight, log_decay = parameters()
    x = signal(length)
    scanned = ema_scan(x, weight, log_decay, truncation=truncation)
    taps = ema_taps(weight, log_decay, length, truncation=truncation)
    recurred = recurrence(x, weight, log_decay, truncation)
    torch.testing.assert_close(scanned, recurred, rtol=0, atol=1e-9)
    torch.testing.assert_close(scanned, toeplitz_product(x, taps, engine="dense"), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("length", "truncation", "two_sided"), [(2, None, True), (31, 20, False), (70, 20, True), (500, None, False)]
)
@pytest.mark.usefixtures("uninitialised_is_nan")
def test_values_and_gradients_equal_those_of_the_dense_product(
    length: int, truncation: int | None, two_sided: bool
) -> None:
    leaves = [t.detach().requires_grad_() for t in (signal(length), *parameters(), *parameters())]
    x, w, q, wb, qb = leaves
    grad = torch.randn_like(x)
    scanned = ema_scan(x, w, q, backward=(wb, qb) if two_sided else None, truncation=truncation)
    dense = toeplitz_product(x, ema_taps(w, q, length, truncation=truncation), engine="dense")
    if two_sided:
        flipped = toeplitz_product(x.flip(1), ema_taps(wb, qb, length, truncation=truncation), engine="dense")
        dense = dense + flipped.flip(1)
    torch.testing.assert_close(scanned, dense, rtol=1e-9, atol=1e-9)
    used = leaves if two_sided else leaves[:3]
    for ours, exact in zip(
        torch.autograd.grad(scanned, used, grad), torch.autograd.grad(dense, used, grad), strict=True
    ):
        torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-9)


@pytest.mark.real_device
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("two_sided", [False, True])
def test_graphs_with_an_operator_or_operations(apart: bool, two_sided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a graph have a fixed size; their tables are an operator's where compilers gain nothing from them."""
    monkeypatch.setattr(diagonal, "cpu_graph", lambda x: apart and in_graph())
    leaves = [t.detach().requires_grad_() for t in (signal(70), *parameters(), *parameters())]

    def average(x: Tensor, w: Tensor, q: Tensor, wb: Tensor, qb: Tensor) -> Tensor:
        return ema_scan(x, w, q, backward=(wb, qb) if two_sided else None)

    torch.compiler.reset()
    found, exact = torch.compile(average, backend="aot_eager", fullgraph=True)(*leaves), average(*leaves)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-9)
    used, grad = leaves if two_sided else leaves[:3], torch.randn_like(exact)
    for a, b in zip(*(torch.autograd.grad(y, used, grad) for y in (found, exact)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_the_operator_of_graphs_is_a_proper_one() -> None:
    given = [t.detach().requires_grad_() for t in parameters()]
    torch.library.opcheck(torch.ops.lagwise.ema_block_tables, (*given, 32))


def test_the_fastest_decay_is_not_nan() -> None:
    hundred = torch.full((1, 1), 100.0)
    weight, log_decay = ema_parameters(hundred, hundred, torch.ones(1, 1), torch.ones(1, 1))
    taps = ema_taps(weight, log_decay, 100)
    assert torch.equal(taps[0], torch.tensor([1.0] + [0.0] * 99))
    assert ema_scan(torch.ones(1, 100, 1), weight, log_decay).isfinite().all()
    hundred.requires_grad_()
    weight, log_decay = ema_parameters(hundred, hundred, torch.ones(1, 1), torch.ones(1, 1))
    ema_scan(torch.ones(1, 100, 1), weight, log_decay).sum().backward()
    assert hundred.grad is not None
    assert hundred.grad.isfinite().all()


def test_a_truncated_average_keeps_its_precision_in_bfloat16() -> None:
    """Two averages nearly cancel, so neither may be rounded before the subtraction."""
    weight, log_decay = torch.ones(1, 1), torch.full((1, 1), -1e-3)
    x = (torch.randn(1, 2000, 1) + 1).bfloat16()
    exact = toeplitz_product(x.double(), ema_taps(weight, log_decay, 2000, truncation=16).double())
    error = (ema_scan(x, weight, log_decay, truncation=16).double() - exact).abs().max() / exact.abs().max()
    assert error < 1e-2


def test_wrong_arguments_are_named() -> None:
    weight, log_decay = parameters()
    zeros = torch.zeros(3, 4, 4)
    with pytest.raises(ValueError, match="truncation must be at least 1, got 0"):
        ema_taps(weight, log_decay, 5, truncation=0)
    with pytest.raises(ValueError, match=r"length >= 1, channels"):
        block_scan(torch.zeros(1, 0, 3), zeros, zeros, zeros, torch.zeros(3, 4))
