"""What graphs are of, and what they call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
from torch.utils._pytree import tree_leaves

from lagwise.kernels import FrequencyKernel
from lagwise.kernels.frequency import _tables
from lagwise.mixers.attention import _slope_table
from lagwise.mixers.ski import _split_lags
from lagwise.ops.constants import cached_tables
from lagwise.ops.operation import exporting, in_graph
from lagwise.ops.ski import SKIPlan
from lagwise.ops.toeplitz.spectral import inverse_of_parts


class Kinds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 10 * in_graph() + 100 * exporting()


@pytest.mark.real_device
def test_compiled_graphs_are_told_from_exported_ones() -> None:
    zero = torch.zeros(1)
    assert float(Kinds()(zero)) == 0
    torch.compiler.reset()
    assert float(torch.compile(Kinds(), backend="eager", fullgraph=True)(zero)) == 10
    for strict in (True, False):
        assert float(torch.export.export(Kinds(), (zero,), strict=strict).module()(zero)) == 100


_IMPORTED = """
import torch
with {context}:
    from lagwise.ops import chunked_attention
x = torch.randn(1, 2, 20, 8, requires_grad=True)
(exact,) = torch.autograd.grad(chunked_attention(x, x, x, chunk=8).square().sum(), x)
operator = torch.ops.lagwise.chunked_attention(x, x, x, None, None, 8, True, "softmax", False)
(found,) = torch.autograd.grad(operator.square().sum(), x)
torch.testing.assert_close(found, exact)
"""


@pytest.mark.real_device
@pytest.mark.slow
@pytest.mark.parametrize("context", ["torch.inference_mode()", "torch.autocast('cpu', torch.bfloat16)"])
def test_gradients_in_operators_do_not_depend_on_where_they_were_imported(context: str) -> None:
    subprocess.run([sys.executable, "-c", _IMPORTED.format(context=context)], check=True)


def test_a_compiled_graph_is_not_taken_for_an_exported_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo before 2.13 has a graph see that it is exported, whether or not it is."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert in_graph()


@pytest.mark.parametrize("count", [1, 2])
def test_inverse_of_parts(count: int) -> None:
    """Against the sum that defines the transform."""
    rows, points = 3, 10
    parts = torch.randn(count, rows, points // 2 + 1, dtype=torch.float64)
    angle = 2 * torch.pi / points * torch.arange(points // 2 + 1, dtype=torch.float64)[:, None] * torch.arange(points)
    twice = torch.full((points // 2 + 1, 1), 2 / points, dtype=torch.float64)
    twice[0], twice[-1] = 1 / points, 1 / points
    waves = torch.stack([twice * angle.cos(), -twice * angle.sin()])[:count]
    expected, found = parts @ waves, inverse_of_parts(parts, points)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


@pytest.mark.real_device
@pytest.mark.parametrize("causal", [True, False])
def test_graphs_of_a_frequency_kernel_hold_no_complex_numbers(causal: bool) -> None:
    """Inductor fails to make GPU kernels of them."""
    dtypes: set[torch.dtype] = set()

    def compiler(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        values = tree_leaves([node.meta.get("val") for node in graph.graph.nodes])
        dtypes.update(value.dtype for value in values if isinstance(value, Tensor))
        return make_boxed_func(graph.forward)

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return aot_eager(graph, inputs, fw_compiler=compiler, bw_compiler=compiler)

    torch.compiler.reset()
    kernel = FrequencyKernel(3, causal=causal, hidden=8, layers=1, grid=16)
    graph = torch.compile(kernel.taps, backend=backend, fullgraph=True)
    found, weights = graph(20), list(kernel.parameters())
    torch.testing.assert_close(found, kernel.taps(20))
    gradients = torch.autograd.grad(found.square().sum(), weights)
    torch.testing.assert_close(gradients, torch.autograd.grad(kernel.taps(20).square().sum(), weights))
    assert torch.float32 in dtypes
    assert not any(dtype.is_complex for dtype in dtypes)


@pytest.mark.real_device
@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (_slope_table, (6,)),
        (_tables, (16, True, "omega", torch.float32)),
        (_split_lags, (SKIPlan(4, 12, 1), 5)),
    ],
)
def test_graphs_make_tables_on_the_device(make: Any, sizes: tuple[Any, ...]) -> None:
    """A CUDA graph can copy nothing from the host."""
    devices: set[str] = set()

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        values = tree_leaves([node.meta.get("example_value") for node in graph.graph.nodes])
        devices.update(value.device.type for value in values if isinstance(value, Tensor))
        return graph.forward

    torch.compiler.reset()
    like = torch.empty(0, device="meta")
    torch.compile(lambda x: cached_tables(make, *sizes, like=x), backend=backend, fullgraph=True)(like)
    assert devices == {"meta"}


def test_threads_share_cached_tables() -> None:
    """More sizes than are kept, so that threads remove tables while others look for theirs."""

    def make(size: int) -> tuple[Tensor]:
        return (torch.arange(float(size)),)

    def sizes_of(seed: int) -> list[int]:
        sizes = [(seed + 7 * k) % 20 for k in range(300)]
        return [cached_tables(make, size, like=torch.empty(0))[0].numel() - size for size in sizes]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as executor:
            assert not any(any(wrong) for wrong in executor.map(sizes_of, range(8)))
    finally:
        sys.setswitchinterval(interval)
