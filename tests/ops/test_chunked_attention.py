"""Attention within chunks against attention over all pairs with a mask."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from attention_references import chunked_attention_reference
from torch import Tensor

from lagwise.ops import chunked_attention
from lagwise.ops.attention import (
    ATTENTION_FUNCTIONS,
    lag_matrix,
    pair_attention,
    rotary,
    rotary_factors,
    rotate,
)

every_function = pytest.mark.parametrize("function", ATTENTION_FUNCTIONS)


def inputs(batch: int, heads: int, length: int, d: int = 4, e: int = 3) -> list[Tensor]:
    sizes = (d, d, e)
    return [torch.randn(batch, heads, length, n, dtype=torch.float64, requires_grad=True) for n in sizes]


def projected(batch: int, heads: int, length: int, d: int = 4) -> list[Tensor]:
    """Queries, keys and values with the layout of one projection: heads within tokens."""
    joint = torch.randn(batch, length, 3, heads, d, dtype=torch.float64, requires_grad=True)
    return list(joint.permute(2, 0, 3, 1, 4))


def same(ours: Tensor, exact: Tensor, *tensors: Tensor, real: Tensor | None = None) -> None:
    """Compare values and gradients at the real tokens of (batch, heads, length, size)."""
    if real is not None:
        ours, exact = (y.transpose(1, 2)[real] for y in (ours, exact))
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-10)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), tensors) for y in (ours, exact)), strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.mark.covers("MEGA §3.4", "TCNCA §2 and fig. 1")
@every_function
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("make", [inputs, projected])
@pytest.mark.usefixtures("uninitialised_is_nan")
def test_chunks_equal_all_pairs_with_a_mask(
    function: str, causal: bool, biased: bool, heads: int, make: Callable[..., list[Tensor]]
) -> None:
    for length, chunk in ((1, 1), (1, 7), (63, 1), (63, 7), (63, 64), (100, 8), (100, 99), (100, 100)):
        q, k, v = make(2, heads, length)
        n = min(chunk, length) + 2 * (length == 63)  # a bias may be for wider chunks
        bias = torch.randn(heads, n, n, dtype=torch.float64, requires_grad=True) if biased else None
        ours, exact = (
            f(q, k, v, chunk=chunk, causal=causal, function=function, bias=bias)
            for f in (chunked_attention, chunked_attention_reference)
        )
        assert ours.shape == v.shape
        same(ours, exact, q, k, v, *(() if bias is None else (bias,)))


@every_function
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("padding", ["none", "left", "anywhere"])
def test_sliding_chunks_equal_all_pairs_with_a_mask(function: str, biased: bool, heads: int, padding: str) -> None:
    for length, chunk in ((1, 1), (1, 7), (63, 1), (63, 7), (63, 64), (100, 8), (100, 51)):
        q, k, v = inputs(2, heads, length)
        bias = torch.randn(heads, 4 * chunk - 1, dtype=torch.float64, requires_grad=True) if biased else None
        bias = bias if bias is None or length > chunk else bias[:, : 2 * length - 1]
        mask = None
        if padding != "none":
            mask = torch.arange(length) >= torch.tensor([[0], [length // 3]])
            mask = mask if padding == "left" else mask & (torch.rand(2, length) < 0.8)
            mask[:, -1] = True
        ours, exact = (
            f(q, k, v, chunk=chunk, function=function, bias=bias, mask=mask, sliding=True)
            for f in (chunked_attention, chunked_attention_reference)
        )
        assert ours.shape == v.shape
        same(ours, exact, q, k, v, *(() if bias is None else (bias,)), real=mask)


def test_sliding_chunks_wider_than_what_is_computed_at_a_time() -> None:
    q, k, v = inputs(1, 1, 1100)
    mask = torch.arange(1100)[None] >= 7
    for real in (None, mask):
        ours, exact = (
            f(q, k, v, chunk=530, mask=real, sliding=True) for f in (chunked_attention, chunked_attention_reference)
        )
        same(ours, exact, q, k, v, real=real)


def test_sliding_chunks_refuse_what_they_have_no_meaning_for() -> None:
    q, k, v = inputs(1, 1, 9)
    with pytest.raises(ValueError, match="sliding chunks need causal attention"):
        chunked_attention(q, k, v, chunk=4, causal=False, sliding=True)
    for bias in (torch.zeros(1, 9, 9), torch.zeros(1, 13)):
        with pytest.raises(ValueError, match="bias of sliding chunks must be by lag"):
            chunked_attention(q, k, v, chunk=4, bias=bias, sliding=True)


@every_function
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("chunk", [1, 5, 16, 100])
@pytest.mark.parametrize("left", [True, False])
def test_masks(function: str, causal: bool, heads: int, chunk: int, left: bool) -> None:
    """Rows begin and end anywhere, one has a hole, and one is all padding; with and without padding on the left."""
    length = 40
    q, k, v = inputs(5, heads, length)
    bias = torch.randn(1, length, length, dtype=torch.float64, requires_grad=True)
    place = torch.arange(length)
    mask = torch.stack([place >= 0, place >= 7, (place >= 3) & (place < 31), place < 23, place < 0])
    if not left:
        mask = torch.stack([place >= 0, place < 39, place < 31, place < 23, place < 1])
    mask[2, 12:14] = False
    ours, exact = (
        f(q, k, v, chunk=chunk, causal=causal, function=function, bias=bias, mask=mask)
        for f in (chunked_attention, chunked_attention_reference)
    )
    assert ours.isfinite().all()
    same(ours, exact, q, k, v, bias, real=mask)


@pytest.mark.covers("MEGA §2.1, §3.2, eq. 16 and app. C")
def test_elementwise_functions_equal_those_of_mega() -> None:
    """The Laplace function has the value and slope of the squared ReLU where that is 1/2."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    score = torch.tensor(math.sqrt(0.5), dtype=torch.float64, requires_grad=True)
    values = [pair_attention(score * one, one, one, function=f) for f in ("laplace", "relu2")]
    assert [round(y.item(), 12) for y in values] == [0.5, 0.5]
    for y in values:
        torch.testing.assert_close(torch.autograd.grad(y, score)[0].item(), math.sqrt(2))
    two = torch.ones(1, 1, 2, 1, dtype=torch.float64)  # scores are means over the keys that are seen
    assert pair_attention(one, two, two, function="relu2").item() == 2 * 0.5**2
    assert pair_attention(one, two, two, function="relu2", allowed=torch.tensor([[True, False]])).item() == 1


@pytest.mark.real_device
@pytest.mark.covers("TCNCA app. F")
def test_rotary_embedding_rotates_pairs_by_its_angles() -> None:
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    positions = torch.tensor([[0, 1, 2, 3, 4], [-2, -1, 0, 1, 70]])
    pairs = torch.complex(x[..., 0::2], x[..., 1::2])
    angles = positions[:, None, :, None] * 10000.0 ** (-torch.arange(3, dtype=torch.float64) / 3)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    turned = torch.stack([turned.real, turned.imag], -1).flatten(3)
    torch.testing.assert_close(rotary(x, positions), turned)
    torch.testing.assert_close(torch.compile(rotary, backend="aot_eager", fullgraph=True)(x, positions), turned)
    odd = torch.randn(2, 3, 5, 7, dtype=torch.float64)[..., 1:].copy_(x)  # a view that begins at odd places
    torch.testing.assert_close(rotary(odd, positions), turned)
    torch.testing.assert_close(rotary(x.mT.contiguous().mT, positions), turned)
    torch.testing.assert_close(rotary(x, positions)[:1], rotary(x[:1], positions[0]))
    assert rotary(x.half(), positions).dtype == torch.float16
    places = torch.arange(5) % 3
    tables = rotary_factors(places, 6, dtype=x.dtype, limit=3)
    assert torch.equal(rotate(x, *tables), rotary(x, places))
    with pytest.raises(ValueError, match="even number of channels, got 5"):
        rotary(torch.ones(1, 5), torch.arange(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"function": "relu"}, "unknown function: 'relu'; did you mean 'relu2'"),
        ({"chunk": 0}, "chunk must be at least 1, got 0"),
        ({"key": torch.ones(2, 1, 5, 4)}, r"alike.*\(2, 1, 6, 4\) and \(2, 1, 5, 4\)"),
        ({"value": torch.ones(2, 3, 6, 4)}, r"value must be \(2, 1, 6\).*got \(2, 3, 6, 4\)"),
        ({"mask": torch.ones(2, 5)}, r"mask must be .* \(2, 6\), got \(2, 5\)"),
        ({"bias": torch.ones(1, 3, 4)}, r"bias must be .*at least 4.*got \(1, 3, 4\)"),
        ({"bias": torch.ones(4, 4)}, r"bias must be .*got \(4, 4\)"),
    ],
)
def test_wrong_arguments_are_named(change: dict, message: str) -> None:
    x = torch.ones(2, 1, 6, 4)
    with pytest.raises(ValueError, match=message):
        chunked_attention(**{"query": x, "key": x, "value": x, "chunk": 4, **change})


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("function", ["softmax", "laplace"])
def test_wide_windows_take_queries_in_parts(causal: bool, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Biases by lag, as a matrix, and in parts are the same, with padding, values and gradients."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 23, n, dtype=torch.float64, requires_grad=True) for n in (4, 4, 6))
    bias = torch.randn(2, 2 * 30 - 1, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 23, dtype=torch.bool)
    mask[0, :3], mask[1, 20:] = False, False
    options: dict = {"chunk": 17, "causal": causal, "function": function, "mask": mask}
    found = []
    for rows, given in ((512, lag_matrix(bias)), (512, bias), (5, lag_matrix(bias)), (5, bias)):
        monkeypatch.setattr("lagwise.ops.attention.chunked._QUERIES_AT_ONCE", rows)
        y = chunked_attention(q, k, v, bias=given, **options)[mask[:, None].expand(-1, 2, -1)]
        found.append((y, *torch.autograd.grad(y.square().sum(), (q, k, v, bias))))
    expected = chunked_attention_reference(q, k, v, bias=lag_matrix(bias), **options)[mask[:, None].expand(-1, 2, -1)]
    torch.testing.assert_close(found[0][0], expected)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
    with pytest.raises(ValueError, match="by lag"):
        chunked_attention(q, k, v, bias=bias[:, :10], **options)
