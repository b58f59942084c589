"""The code of compiled graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func


def recording(code: list[str]) -> Any:
    """A backend of `torch.compile` that runs graphs as they are, and appends the code of each, forwards and
    backwards."""

    def record(graph: torch.fx.GraphModule, _: Any) -> Any:
        code.append(graph.code)
        return make_boxed_func(graph)

    return aot_autograd(fw_compiler=record, bw_compiler=record)
