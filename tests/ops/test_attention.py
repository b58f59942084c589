from __future__ import annotations

import pytest
import torch
from attention_references import attention_reference

from lagwise.ops.attention import alibi_slopes, attention, full


@pytest.mark.covers("TNN eq. 1, 6 and 9")
@pytest.mark.parametrize("length", [1, 2, 63, 600])
@pytest.mark.parametrize("total", [0, 5, 600])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_equals_its_formula(length: int, total: int, biased: bool, causal: bool) -> None:
    """600 queries are more than one chunk, and ``total`` includes further keys before the queries."""
    q = torch.randn(2, 3, length, 4, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, 3, length + total, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    slopes = alibi_slopes(3).to(q.device) if biased else None
    ours, exact = (f(q, k, v, causal=causal, slopes=slopes) for f in (attention, attention_reference))
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-10)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (ours, exact)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.mark.covers("TNN eq. 6")
def test_slopes_equal_those_of_the_alibi_paper() -> None:
    assert alibi_slopes(8).tolist() == [2.0**-k for k in range(1, 9)]
    twelve = alibi_slopes(12)
    torch.testing.assert_close(twelve[:8], alibi_slopes(8))
    torch.testing.assert_close(twelve[8:], alibi_slopes(16)[0::2][:4])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [12, 16])
def test_slopes_are_exact_in_float64(heads: int, masked: bool) -> None:
    """With more than eight heads, slopes are no powers of two."""
    q, k, v = (torch.randn(1, heads, 30, 2, dtype=torch.float64) for _ in range(3))
    mask = torch.ones(1, 30, dtype=torch.bool)
    mask[:, -1] = not masked
    y = attention(q, k, v, slopes=alibi_slopes(heads).to(q.device), mask=mask)
    below = [2.0 ** (-k / 2) for k in range(1, 17)] if heads == 16 else [2.0**-k for k in range(1, 9)]
    slopes = [*below, *(2.0 ** (-k / 2) for k in (1, 3, 5, 7))][:heads]
    lag = torch.arange(30.0, dtype=torch.float64)[:, None] - torch.arange(30.0, dtype=torch.float64)
    for head, slope in enumerate(slopes):
        scores = q[0, head] @ k[0, head].T / 2**0.5 - slope * lag
        exact = scores.masked_fill(lag < 0, float("-inf")).softmax(1) @ v[0, head]
        torch.testing.assert_close(y[0, head, :29], exact[:29], rtol=0, atol=1e-14)


def test_more_queries_than_keys_is_an_error() -> None:
    q, k = torch.ones(1, 1, 3, 2), torch.ones(1, 1, 2, 2)
    with pytest.raises(ValueError, match="2 keys and 3 queries"):
        attention(q, k, k)
    with pytest.raises(ValueError, match="heads"):
        alibi_slopes(0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rows_with_padding_equal_rows_without_it(causal: bool, dtype: torch.dtype) -> None:
    """More than one chunk of queries; padding before and after, and keys there that would have most of the weight."""
    real = (slice(0, 560), slice(50, 530), slice(100, 101))
    mask = torch.zeros(3, 560, dtype=torch.bool)
    q, k, v = (torch.randn(3, 2, 560, 4).to(dtype) for _ in range(3))
    for row, own in enumerate(real):
        mask[row, own] = True
    k[~mask[:, None].expand(-1, 2, -1)] = 100.0
    for each in (q, k, v):
        each.requires_grad_()
    slopes = alibi_slopes(2).to(q.device)
    y = attention(q, k, v, causal=causal, slopes=slopes, mask=mask.to(q.device))
    assert y.isfinite().all()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4}.get(dtype, 0.05)
    for row, own in enumerate(real):
        alone = [each[row : row + 1, :, own].detach().to(torch.float64).requires_grad_() for each in (q, k, v)]
        exact = attention_reference(*alone, causal=causal, slopes=slopes)
        ours = y[row : row + 1, :, own]
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=tolerance)
        found = torch.autograd.grad(ours.double().square().sum(), (q, k, v), retain_graph=True)
        expected = torch.autograd.grad(exact.square().sum(), alone)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a[row : row + 1, :, own].double(), b, rtol=0, atol=10 * tolerance)
            assert not a[row, :, ~mask[row]].any()


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("width", [2, 4, 6])
def test_values_of_another_width_and_one_mask_for_all_rows(width: int, masked: bool) -> None:
    q, k = (torch.randn(2, 3, 9, 4, dtype=torch.float64) for _ in range(2))
    v = torch.randn(2, 3, 9, width, dtype=torch.float64)
    mask = (torch.arange(9, device=q.device) < (7 if masked else 9))[None]
    y = attention(q, k, v, causal=False, slopes=alibi_slopes(3).to(q.device), mask=mask)
    real = 7 if masked else 9
    q, k, v = (each[:, :, :real] for each in (q, k, v))
    expected = attention_reference(q, k, v, causal=False, slopes=alibi_slopes(3).to(q.device))
    torch.testing.assert_close(y[:, :, :real], expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-5), (torch.bfloat16, 5e-3)])
@pytest.mark.parametrize(("heads", "compiled"), [(1, False), (6, False), pytest.param(2, True, marks=pytest.mark.slow)])
def test_slopes_as_features_of_keys(dtype: torch.dtype, tolerance: float, heads: int, compiled: bool) -> None:
    """What fused kernels of GPUs compute; in bfloat16 no worse than with a bias, also where a compiler leaves out casts
    there and back."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, 900, 12, dtype=torch.float64).to(dtype) for _ in range(3))
    slopes = alibi_slopes(heads)
    exact = attention_reference(query.double(), key.double(), value.double(), slopes=slopes)
    attend = torch.compile(full._attention_by_features) if compiled else full._attention_by_features
    found = attend(query, key, value, slopes)
    assert (found - exact).abs().max() <= tolerance * exact.abs().max()
