"""The code of compiled graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.utils import _pytree as pytree


def recording(code: list[str]) -> Any:
    """A backend of `torch.compile` that runs graphs as they are, and appends the code of each, forwards and
    backwards. AssertionError for results that are not what generated code would take them for."""

    def record(graph: torch.fx.GraphModule, _: Any) -> Any:
        code.append(graph.code)
        return make_boxed_func(_Checked(graph).run)

    return aot_autograd(fw_compiler=record, bw_compiler=record)


class _Checked(torch.fx.Interpreter):
    """Runs a graph and compares the results of lagwise's operators with the fake ones of the recording."""

    def run_node(self, n: torch.fx.Node) -> Any:
        results = super().run_node(n)
        if str(n.target).startswith("lagwise"):
            for found, fake in zip(pytree.tree_leaves(results), pytree.tree_leaves(n.meta["val"]), strict=True):
                if isinstance(found, Tensor):
                    assert found.dtype == fake.dtype, n.target
                    assert all(not isinstance(b, int) or a == b for a, b in zip(found.shape, fake.shape, strict=True))
                    assert found.is_contiguous() == fake.is_contiguous(), n.target
        return results
