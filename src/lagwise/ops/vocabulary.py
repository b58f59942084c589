"""Cross-entropy over a large vocabulary in half precision, without the logits of all tokens at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


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
        rows: Of a chunk.

    Returns:
        A number in float32. Gradients are computed in the forward pass, so that logits are computed once; the weight's
        is added up in float32. A second derivative raises RuntimeError.

    `torch.nn.functional.linear_cross_entropy` does the same in float32, but rounds the sum itself in half precision.
    """
    return _ChunkedCrossEntropy.apply(x, weight, bias, labels, dtype, rows)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, dtype: torch.dtype, rows: int):
        wanted = ctx.needs_input_grad
        total = x.new_zeros((), dtype=torch.float32)
        w, b = weight.to(dtype), None if bias is None else bias.to(dtype)
        dx = torch.empty_like(x) if wanted[0] else None
        dw = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
        db = None if bias is None or not wanted[2] else torch.zeros_like(bias, dtype=torch.float32)
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
