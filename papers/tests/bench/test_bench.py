"""Benchmarks time the intended work, and refuse layers with wrong results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lagwise.mixers import ToeplitzMixer
from lagwise.ops import dilated_convolution, toeplitz_matrix
from lagwise.ops.toeplitz import receptive_field
from lagwise_papers.bench import ema_tcn, ops
from lagwise_papers.bench.harness import Comparison, check_layer, check_matrix
from lagwise_papers.bench.peers import LiteralEMA, LiteralTNO, load_peer
from lagwise_papers.bench.tcn_shapes import choose_tcn, covering_shapes
from lagwise_papers.bench.timing import interleaved


@pytest.mark.covers("TNN eq. 21 to 26")
@pytest.mark.parametrize("causal", [True, False])
def test_the_literal_peer_equals_our_layer(causal: bool) -> None:
    """With equal parameters both compute the same function."""
    ours, literal = ToeplitzMixer(5, causal=causal), LiteralTNO(5, causal=causal)
    literal.load_state_dict(ours.kernel.network.state_dict())
    x = torch.randn(2, 200, 5)
    torch.testing.assert_close(ours(x), literal(x), rtol=1e-3, atol=1e-4)


class Leaky(nn.Module):
    """A layer that depends on the next token."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x.roll(-1, dims=1)


class WrongGradient(ToeplitzMixer):
    def forward(self, x: Tensor, **kwargs: Tensor) -> Tensor:
        return super().forward(x.detach() + 0.5 * x - 0.5 * x.detach())


def test_wrong_layers_are_not_timed() -> None:
    assert check_layer(ToeplitzMixer(6), 6, 100) < 1e-5
    assert check_layer(LiteralTNO(6), 6, 100) < 1e-5
    for wrong in (Leaky(6), WrongGradient(6)):
        with pytest.raises(ValueError, match="not timed"):
            check_layer(wrong, 6, 100)

    two_sided = ToeplitzMixer(6, causal=False)
    assert check_layer(two_sided, 6, 100, causal=False) < 1e-5
    with pytest.raises(ValueError, match="not timed"):
        check_layer(two_sided, 6, 100, causal=True)
    layer = ToeplitzMixer(6)
    matrices = toeplitz_matrix(layer.kernel.taps(50).detach().double(), 50)[[0, 5]]
    assert check_matrix(layer, matrices, torch.tensor([0, 5]), 6) < 1e-5
    with pytest.raises(ValueError, match="dense matrix"):
        check_matrix(layer, matrices, torch.tensor([1, 5]), 6)
    stack = ema_tcn.BareTCN(4, 300, causal=True)
    assert ema_tcn.check(stack, 4, 300, causal=True) < 1e-5
    with pytest.raises(ValueError, match="not a stack of dilated convolutions"):
        ema_tcn.check(stack, 4, 300, causal=False)


@pytest.mark.covers("SKI-TNN fig. 1")
def test_every_operator_is_checked_and_timed(tmp_path: Path) -> None:
    peers = {"another": load_peer("lagwise_papers.bench.toeplitz:literal")}
    comparison = Comparison(8, tokens=400, repeats=2, memory=False, progress=False)
    rows = ops.time_ops([30, 200], comparison, peers=peers)
    assert [(row.causal, row.length, row.batch) for row in rows] == [
        (True, 30, 13),
        (True, 200, 2),
        (False, 30, 13),
        (False, 200, 2),
    ]
    assert set(rows[0].step) == {*ops.METHODS[True], ops.LITERAL, "another"}
    assert set(rows[2].step) == {*ops.METHODS[False], ops.LITERAL}
    assert all(error < 1e-4 for row in rows for error in row.error.values())
    assert all(row.speed(ops.BASE) == 1 for row in rows)
    assert 0 < rows[1].approximation["tnn λ=1 ski 1e-3"] <= 1.1e-3
    assert len(ops.table_rows(rows)) == sum(len(row.step) for row in rows)
    ops.figure(rows).savefig(tmp_path / "ops.png")


def test_methods_are_interleaved() -> None:
    calls: list[str] = []
    timings = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3, warmup=1)
    assert calls == ["a", "b"] * 4
    assert all(t.lower <= t.median <= t.upper for t in timings.values())
    with pytest.raises(ValueError, match="at least 2"):
        interleaved({}, repeats=1)


@pytest.mark.parametrize("name", ["nocolon", "no.such:thing", "lagwise_papers.bench.toeplitz:nothing"])
def test_unknown_peers(name: str) -> None:
    with pytest.raises(ValueError, match="peer"):
        load_peer(name)


@pytest.mark.covers("TCNCA app. I and fig. 6")
@pytest.mark.parametrize("causal", [True, False])
def test_megas_literal_average_equals_ours(causal: bool) -> None:
    """With equal parameters both compute the same function (TCNCA fig. 2 and 7)."""
    ours, literal = (
        ema_tcn.BareEMA(5, causal=causal, engine="scan"),
        LiteralEMA(5, causal=causal, dimension=16 if causal else 8),
    )
    with torch.no_grad():
        for name in ("delta", "alpha", "beta", "gamma"):
            getattr(literal, name).copy_(getattr(ours.kernel, name).flatten(0, 1)[:, :, None])
        signs = 1 - 2 * (torch.arange(literal.beta.shape[1]) % 2)
        literal.beta.add_(signs[:, None])
    x = torch.randn(2, 200, 5)
    torch.testing.assert_close(ours(x), literal(x), rtol=1e-4, atol=1e-5)
    literal.fix(200)
    torch.testing.assert_close(ours(x), literal(x), rtol=1e-4, atol=1e-5)


@pytest.mark.covers("TCNCA app. H, fig. 2 and 7")
def test_averages_and_convolutions_are_timed() -> None:
    comparison = Comparison(4, tokens=1, repeats=2, memory=False, progress=False)
    (row,) = ema_tcn.time_ema_tcn([300], comparison)
    assert row.forward.keys() == row.step.keys() == row.error.keys()
    assert ema_tcn.PEER in row.forward
    assert row.error[ema_tcn.TCN] < 1e-5
    assert receptive_field(17, row.dilation, 4) >= 300 > receptive_field(17, row.dilation - 1, 4)
    (both,) = ema_tcn.time_ema_tcn([300], comparison, causal=False)
    assert len(ema_tcn.table_rows([row, both])) == 11
    assert len(ema_tcn.figure({"causal": [row], "two-sided": [both]}).axes) == 4


@pytest.mark.covers("TCNCA app. D")
def test_the_cheapest_stack_is_found() -> None:
    choices = choose_tcn(60, channels=4, tokens=60, repeats=2, progress=False)
    assert [c.seconds.median for c in choices] == sorted(c.seconds.median for c in choices)
    assert all(receptive_field(*c.shape) >= 60 and c.shape.dilation <= c.shape.kernel_size for c in choices)
    with pytest.raises(ValueError, match="length must be an integer of at least 2, got 1"):
        choose_tcn(1)


@pytest.mark.covers("TCNCA app. D")
@pytest.mark.parametrize("length", [2, 100, 1000])
@pytest.mark.parametrize("causal", [True, False])
def test_covering_stacks_reach_every_token(length: int, causal: bool) -> None:
    """The last token of a text (or the middle token of a text of twice the length) depends on all others."""
    for kernel_size, dilation, depth in covering_shapes(length, causal=causal):
        signal = torch.zeros(1, 2 * length - 1, 1)
        signal[:, 0 if causal else length - 1] = 1
        for i in range(depth):
            signal = dilated_convolution(signal, torch.ones(1, kernel_size), dilation**i, causal=causal)
        assert (signal[0, :, 0][: length if causal else None] > 0).all()
