"""The network of kernels in compiled graphs, where it is one operator."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch.testing import assert_close

from lagwise.kernels.network import KernelNetwork


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("hidden", "layers"), [(20, 0), (80, 2)])
def test_graphs_have_one_operator(hidden: int, layers: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    network = KernelNetwork(2, 5, hidden=hidden, layers=layers, activation="relu").to(dtype)
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph.code)
        return aot_eager(graph, inputs)

    compiled = torch.compile(copy.deepcopy(network), backend=backend, fullgraph=True)
    for rows in (9, 30, 17):
        found = []
        for run in (network, compiled):
            x = torch.linspace(-3, 4, 2 * rows, dtype=dtype).view(rows, 2).requires_grad_()
            run.zero_grad()
            y = run(x)
            y.square().sum().backward()
            found.append([y, x.grad, *(each.grad for each in run.parameters())])
        assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert len(graphs) <= 2
    assert all("lagwise.normed_relu_layers" in graph for graph in graphs)


@pytest.mark.parametrize("options", [{"activation": "tanh"}, {"activation": "relu", "normalize": False}])
def test_other_networks_are_compiled_as_they_are(options: dict[str, Any]) -> None:
    network = KernelNetwork(1, 3, hidden=8, layers=1, **options)
    x: Tensor = torch.linspace(-3, 4, 20)[:, None]
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x), network(x))
