"""Cross-entropy over a large vocabulary in half precision, without the logits of all tokens at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.operation import Engine, Values, operation


@operation
def chunked_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, rows: int, dtype: torch.dtype
) -> Tensor:
    """The sum of cross-entropies of ``W x + b``, whose logits are computed a chunk of rows at a time.

    Formula: ``sum_i logsumexp(s_i) - s_{i, label_i}`` with ``s_i = W x_i + b``, over rows with a label.

    Shapes: x ``(n, d)``; W ``(classes, d)``; b ``(classes,)``, if any; labels ``(n,)``, -100 for a row without one.
    ``rows`` is that of a chunk. Matrices are multiplied in dtype, as under autocast; sums over classes and rows are in
    float32.

    Returns a number in float32. Gradients are computed in the forward pass, so that logits are computed once; the
    weight's is added up in float32. Second derivatives and transforms take the logits of all rows at once.

    `torch.nn.functional.linear_cross_entropy` does the same in float32, but rounds the sum itself in half precision.
    """
    with torch.autocast(x.device.type, enabled=False):
        logits = F.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
        return F.cross_entropy(logits.float(), labels, reduction="sum")


def _with_gradients(args: Values, needs_grad: Sequence[bool]) -> tuple[Tensor, tuple[Tensor | None, ...]]:
    """The sum, and its gradients with respect to x, weight and bias, where they need them."""
    x, weight, bias, labels, rows, dtype = args
    total = x.new_zeros((), dtype=torch.float32)
    w, b = weight.to(dtype), None if bias is None else bias.to(dtype)
    dx = torch.empty_like(x) if needs_grad[0] else None
    dw = torch.zeros_like(weight, dtype=torch.float32) if needs_grad[1] else None
    db = None if bias is None or not needs_grad[2] else torch.zeros_like(bias, dtype=torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        for start in range(0, len(x), rows):
            part, label = x[start : start + rows].to(dtype), labels[start : start + rows]
            logits = F.linear(part, w, b).float()
            total += F.cross_entropy(logits, label, reduction="sum")
            if dx is None and dw is None and db is None:
                continue
            real = label != -100
            share = logits.softmax(1)
            share[torch.arange(len(label), device=x.device), label.where(real, 0)] -= 1
            share = (share * real[:, None]).to(dtype)
            if dx is not None:
                dx[start : start + rows] = share @ w
            if dw is not None:
                dw += share.t() @ part
            if db is not None:
                db += share.sum(0, dtype=torch.float32)
    return total, (dx, dw, db)


@chunked_cross_entropy.engine("chunks")
class _Chunks(Engine):
    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Values]:
        return _with_gradients(args, [t is not None and t.requires_grad for t in args[:3]])

    @classmethod
    def evaluate(cls, *args: Any) -> Tensor:
        return _with_gradients(args, [False] * 3)[0]

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        pairs = zip(saved, args, strict=False)
        return [None if d is None or x is None else (d * grads[0]).to(x.dtype) for d, x in pairs]


class _AllGradients(_Chunks):
    """A graph does not tell which gradients are needed. A head without a bias has one without numbers."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Values]:
        total, (dx, dw, db) = _with_gradients(args, [True] * 3)
        return total, (dx, dw, args[1].new_empty(0, dtype=torch.float32) if db is None else db)


# The number of chunks would be compiled anew for every number of rows.
chunked_cross_entropy.in_graphs(
    "chunked_cross_entropy",
    lambda x, weight, bias, *_: (
        x.new_empty((), dtype=torch.float32),
        x.new_empty(x.shape),
        weight.new_empty(weight.shape, dtype=torch.float32),
        weight.new_empty(0 if bias is None else bias.shape, dtype=torch.float32),
    ),
    engine=_AllGradients,
    constants="labels",
    saved="dx dw db",
)
