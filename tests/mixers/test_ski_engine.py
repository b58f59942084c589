"""SKI as an engine of the Toeplitz mixer, beyond the contract tests."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lagwise.kernels import RPEKernel
from lagwise.mixers import ToeplitzMixer, ski
from lagwise.ops import toeplitz_reference
from lagwise.ops.ski import causal_ski_matrix, split_kernel
from lagwise.testing import streamed


def mixer(**engine: Any) -> ToeplitzMixer:
    return ToeplitzMixer(4, kernel={"name": "rpe", "decay": 0.999}, engine={"name": "ski", **engine}).double()


@pytest.mark.parametrize("degree", [1, 2])
def test_a_spacing_bounds_the_distance_of_nodes(degree: int) -> None:
    """Also in padded batches, where each row has the nodes that it has alone."""
    ski = {"name": "ski", "rank": 6, "spacing": 8, "degree": degree}
    m = ToeplitzMixer(3, causal=False, kernel={"name": "warped"}, engine=ski).double()
    x = torch.randn(4, 200, 3, dtype=torch.float64)
    lengths = (200, 150, 41, 4)
    for i, n in enumerate(lengths):
        same = ToeplitzMixer(3, causal=False, kernel={"name": "warped"}, engine={**ski, "spacing": None})
        assert same.double().ski is not None
        same.load_state_dict(m.state_dict())
        same.ski.rank = max(6, math.ceil((n - 1) / 8) + 1)  # pyrefly: ignore
        torch.testing.assert_close(m(x[i : i + 1, :n]), same(x[i : i + 1, :n]), rtol=0, atol=1e-12)
    mask = torch.arange(200) < torch.tensor(lengths)[:, None]
    padded = m(x, mask=mask)
    for i, n in enumerate(lengths):
        torch.testing.assert_close(padded[i, :n], m(x[i : i + 1, :n])[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("decay", "causal"), [(0.01, True), (0.1, False), (0.5, True)])
def test_the_whole_filter_is_applied_for_any_warp(decay: float, causal: bool) -> None:
    kernel = {"name": "warped", "decay": decay}
    exact = ToeplitzMixer(4, causal=causal, kernel=kernel).double()
    ski = {"name": "ski", **({"spacing": 1} if causal else {"rank": 200})}  # a node on every token
    approximate = ToeplitzMixer(4, causal=causal, kernel=kernel, engine=ski).double()
    approximate.load_state_dict(exact.state_dict())
    x = torch.randn(2, 200, 4, dtype=torch.float64)
    torch.testing.assert_close(approximate(x), exact(x), rtol=0, atol=1e-9)


def test_causal_ski_equals_the_split_kernel() -> None:
    m = mixer()
    assert m.ski is not None
    plan = m.ski.plan(m.kernel)
    nodes = plan.grid(500).nodes
    split = split_kernel(m.kernel.at(torch.arange(64)), m.kernel.at(8 * torch.arange(nodes)), plan)
    x = torch.randn(2, 500, 4, dtype=torch.float64)
    expected = torch.einsum("cij,bjc->bic", causal_ski_matrix(*split, plan, 500), x)
    torch.testing.assert_close(m(x), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("kernel", "engine", "sizes"),
    [
        ({"name": "frequency", "grid": 128, "inputs": "omega"}, {"degree": 3, "spacing": 4}, (50,)),
        ({"name": "frequency", "grid": 128}, {"degree": 3, "spacing": 7, "width": 50}, (8,)),
        ({"name": "frequency", "grid": 128}, {"degree": 5, "spacing": 4}, (7, 1, 1, 33)),
        ({"name": "free", "max_length": 400, "decay": 1.0}, {"degree": 3, "spacing": 4}, (1,)),
        ({"name": "free", "max_length": 400, "decay": 1.0}, {}, (7, 1, 1, 33)),
    ],
)
def test_kernels_that_end_abruptly_stream(kernel: dict, engine: dict, sizes: tuple[int, ...]) -> None:
    """The state drops nodes exactly when they leave the kernel's reach."""
    m = ToeplitzMixer(4, kernel=kernel, engine={"name": "ski", **engine}).double()
    x = torch.randn(1, 400, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(streamed(m, x, [*sizes] * 400), m(x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("kernel", "degree"),
    [({"name": "warped"}, 1), ({"name": "warped", "filter_size": 0}, 3), ({"name": "rpe", "layers": 1}, 1)],
)
def test_rows_of_a_padded_batch_equal_each_alone(
    kernel: dict, degree: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that begin and end anywhere, with holes, shorter and longer than the rank, in one call."""
    engine = {"name": "ski", "degree": degree, **({"width": 40} if causal else {"rank": 16})}
    m = ToeplitzMixer(3, causal=causal, kernel=kernel, engine=engine).double()
    extents = [(0, 120), (3, 1), (5, 2), (50, 16), (60, 17), (7, 15), (119, 1), (20, 90)]
    place = torch.arange(120)
    mask = torch.stack([(place >= start) & (place < start + n) for start, n in extents])
    mask[0, 10:14] = mask[7, 40:80] = False
    x = torch.randn(len(extents), 120, 3, dtype=torch.float64, requires_grad=True)
    parts = [(slice(i, i + 1), slice(start, start + n)) for i, (start, n) in enumerate(extents)]
    alone = torch.zeros_like(x)
    for part in parts:
        alone[part] = m(x[part], mask=mask[part])
    calls: list[list[str]] = []
    for name in ("ski_product", "causal_ski_product"):
        real = getattr(ski, name)
        monkeypatch.setattr(ski, name, lambda *a, f=real, **k: calls.append([f.__name__, *k]) or f(*a, **k))
    y = m(x, mask=mask)
    assert calls == [["causal_ski_product"] if causal else ["ski_product", "degree", "local", "rows"]]
    weight = torch.randn_like(x) * mask[..., None]
    torch.testing.assert_close(y * weight, alone * weight, rtol=0, atol=1e-9)
    inputs = [x, *m.parameters()]
    for ours, wanted in zip(
        torch.autograd.grad(y, inputs, weight), torch.autograd.grad(alone, inputs, weight), strict=True
    ):
        torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9)


def test_an_unreachable_tolerance_warns_and_uses_the_best_plan() -> None:
    m = ToeplitzMixer(4, kernel={"name": "free", "decay": 1.0}, engine={"name": "ski", "tolerance": 1e-3})
    with pytest.warns(UserWarning, match=r"no SKI plan meets tolerance 0\.001 .* about"):
        assert m(torch.randn(1, 300, 4)).isfinite().all()
    assert m.ski is not None
    assert m.ski.choose(m.kernel)[1] > 1e-3


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3])
def test_a_tolerance_bounds_the_mixers_error_and_streams(tolerance: float) -> None:
    m = mixer(tolerance=tolerance)
    x = torch.rand(1, 600, 4, dtype=torch.float64)
    exact = toeplitz_reference(x, m.kernel.taps(600))
    whole = m(x)
    assert (whole - exact).abs().max() <= tolerance * m.kernel.taps(600).abs().sum(1).max()
    assert m.ski is not None
    assert m.ski.choose(m.kernel)[1] <= tolerance
    first, state = m.prefill(x[:, :123], m.init_state(1))
    rest, _ = m.prefill(x[:, 123:], state)
    torch.testing.assert_close(torch.cat([first, rest], 1), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("lengths", [(3, 1), (3, 0), (0, 0), (8, 2)])
def test_prompts_shorter_than_a_cell_after_longer_padding(lengths: tuple[int, int]) -> None:
    m = mixer()
    rows = [torch.randn(1, n + 20, 4, dtype=torch.float64) for n in lengths]
    prompt = torch.cat([F.pad(row[:, :n], (0, 0, 16 - n, 0)) for row, n in zip(rows, lengths, strict=True)])
    mask = torch.arange(16) >= torch.tensor([[16 - n] for n in lengths])
    y, state = m.prefill(prompt, m.init_state(2), mask=mask)
    rest, _ = m.prefill(torch.cat([row[:, n:] for row, n in zip(rows, lengths, strict=True)]), state)
    for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
        torch.testing.assert_close(torch.cat([y[i, 16 - n :], rest[i]]), m(row)[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": {"name": "ski", "ranks": 3}, "causal": False}, "did you mean 'rank'"),
        ({"engine": {"name": "ski", "rank": 1}, "causal": False}, "rank must be an integer of at least 2"),
        ({"engine": {"name": "ski", "rank": 7}}, "unknown option of causal engine 'ski': 'rank'"),
        (
            {"engine": {"name": "ski", "tolerance": 0.1}, "causal": False},
            "unknown option of two-sided engine 'ski': 'tolerance'",
        ),
        ({"engine": {"name": "ski", "tolerance": 0.1, "width": 64}}, "width has no effect .* beside a tolerance"),
        ({"engine": {"name": "ski", "tolerance": 0}}, "tolerance"),
        ({"engine": {"name": "ski", "width": 10}}, "width"),
        ({"engine": {"name": "fft", "rank": 3}}, "only engine 'ski' has options"),
        ({"engine": {"rank": 3}}, "engine"),
        ({"engine": "ski", "kernel": {"name": "free"}, "causal": False}, "no values between tokens"),
        (
            {"engine": "ski", "kernel": {"name": "hyena", "shift": 0.05}, "causal": False},
            "ends abruptly at its span",
        ),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToeplitzMixer(4, **options)


def test_texts_beyond_a_kernels_limit_are_an_error() -> None:
    m = ToeplitzMixer(4, kernel={"name": "free", "max_length": 40}, engine="ski")
    assert m(torch.randn(1, 40, 4)).isfinite().all()
    with pytest.raises(ValueError, match="40 tokens, got a sequence of 41"):
        m(torch.randn(1, 41, 4))
    padded, x, compiled = torch.ones(1, 50), torch.randn(1, 50, 4), torch.compile(m, backend="eager")
    padded[:, :10] = 0
    torch.testing.assert_close(compiled(x, mask=padded), m(x, mask=padded))
    padded[:, 9] = 1
    with pytest.raises(ValueError, match="40 tokens, got a sequence of 41"):
        m(x, mask=padded)
    with pytest.raises(RuntimeError, match="more than the 40 tokens"):
        compiled(x, mask=padded)
    _, state = m.prefill(torch.randn(1, 30, 4), m.init_state(1))
    with pytest.raises(ValueError, match="40 tokens, got a sequence of 41"):
        m.prefill(torch.randn(1, 11, 4), state)


def test_a_network_kernel_is_evaluated_at_few_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    """For linear time, the network must be evaluated only at the short lags and the nodes."""
    m = mixer()
    asked: list[int] = []
    original = RPEKernel.at
    monkeypatch.setattr(RPEKernel, "at", lambda self, lags: asked.append(len(lags)) or original(self, lags))
    m(torch.randn(1, 4096, 4, dtype=torch.float64))
    assert asked == [64 + 4096 // 8 + 1]
