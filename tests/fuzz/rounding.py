"""The condition of a computation: how far rounding moves its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_SUMS = {"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "sum", "mean", "cumsum", "prod", "var", "logsumexp"}
_SUMS |= {"_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"}


class Rounded(TorchDispatchMode):
    """A computation in float64 whose numbers are rounded at random to another dtype, one by one: results of arithmetic
    move by up to half its ``eps``, relatively (Monte Carlo arithmetic; Parker 1997). Gradients are among them."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = all(each.alias_info is None for each in func._schema.returns)
        if made and (torch.Tag.pointwise in func.tags or func.overloadpacket.__name__ in _SUMS):
            return tree_map_only(Tensor, lambda t: rounded(t, self.dtype), result)
        return result


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers in float64, each moved at random as rounding to another dtype would."""
    if not (x.is_floating_point() or x.is_complex()):
        return x
    wide = x.to(torch.promote_types(x.dtype, torch.float64))
    return wide * (1 + torch.finfo(dtype).eps * (torch.rand(x.shape, dtype=torch.float64) - 0.5))


def largest_moves(
    compute: Callable[[], dict[str, Tensor]], exact: dict[str, Tensor], dtype: torch.dtype, draws: int
) -> dict[str, float]:
    """The largest effect of rounding on each result, over some draws. ``compute`` may round its own inputs too."""
    moves = dict.fromkeys(exact, 0.0)
    for _ in range(draws):
        with Rounded(dtype):
            found = compute()
        for name, right in exact.items():
            if right.numel():
                moves[name] = max(moves[name], float((found[name] - right).detach().abs().max()))
    return moves
