"""Cross-entropy over a large vocabulary in half precision, without the logits of all tokens at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from lagwise.ops.operation import graph_operator, in_graph


def chunked_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, dtype: torch.dtype, rows: int
) -> Tensor:
    """The sum of cross-entropies of ``W x + b``, whose logits are computed a chunk of rows at a time.

    Formula: ``sum_i logsumexp(s_i) - s_{i, label_i}`` with ``s_i = W x_i + b``, over rows with a label.

    Args:
        x: ``(n, d)``.
        weight: W ``(classes, d)``.
        bias: b ``(classes,)``, or None.
        labels: ``(n,)``; -100 for a row without one.
        dtype: In which matrices are multiplied, as under autocast. Sums over classes and rows are in float32.
        rows: Rows of a chunk.

    Returns:
        A number in float32. Gradients are computed in the forward pass, so that logits are computed once; the weight's
        is added up in float32. A second derivative raises RuntimeError.

    `torch.nn.functional.linear_cross_entropy` does the same in float32, but rounds the sum itself in half precision.
    """
    if in_graph():
        bias_or_empty = weight.new_empty(0) if bias is None else bias
        return _operator(x, weight, bias_or_empty, labels, rows, dtype)[0]
    return _ChunkedCrossEntropy.apply(x, weight, bias, labels, dtype, rows)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, dtype: torch.dtype, rows: int):
        total, dx, dw, db = _with_gradients(x, weight, bias, labels, rows, dtype, ctx.needs_input_grad)
        ctx.save_for_backward(dx, dw, db)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        dx, dw, db = ctx.saved_tensors
        return (
            None if dx is None else dx * grad.to(dx.dtype),
            None if dw is None else (dw * grad).to(ctx.dtypes[0]),
            None if db is None else (db * grad).to(ctx.dtypes[1]),
            None,
            None,
            None,
        )


def _with_gradients(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    rows: int,
    dtype: torch.dtype,
    needs_grad: Sequence[bool],
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The sum, and its gradients with respect to x, weight and bias, where they need them."""
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
    return total, dx, dw, db


def _of_graph(x: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, rows: int, dtype: torch.dtype) -> Any:
    bias_or_none = bias if len(bias) else None
    total, dx, dw, db = _with_gradients(x, weight, bias_or_none, labels, rows, dtype, (True, True, True))
    return total, dx, dw, bias.new_empty(0, dtype=torch.float32) if db is None else db


# The number of chunks would be compiled anew for every number of rows. A head without a bias has one without numbers.
_operator = graph_operator(
    "chunked_cross_entropy",
    _of_graph,
    lambda grad, x, weight, bias, labels, dx, dw, db, *_: [
        dx * grad.to(dx.dtype),
        (dw * grad).to(weight.dtype),
        (db * grad).to(bias.dtype),
    ],
    lambda x, weight, bias, *_: (
        x.new_empty((), dtype=torch.float32),
        x.new_empty(x.shape),
        *(each.new_empty(each.shape, dtype=torch.float32) for each in (weight, bias)),
    ),
    tensors="x weight bias",
    constants="labels",
    numbers="SymInt rows, ScalarType dtype",
    kept="dx dw db",
)
