"""Depthwise convolutions of a few taps, with what surrounds them, in one pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.bilinear import differentiable, differentiable_gradients
from lagwise.ops.fused import contiguous_rows, kernel

_TOKENS, _CHANNELS = 64, 64


def residual_convolution(
    x: Tensor, taps: Tensor, origin: int, dilation: int, *, residual: bool, activate: bool
) -> Tensor:
    """``x + silu(taps * x)``, or without the residual or the activation.

    Shapes: x ``(batch, length, channels)``; taps ``(channels, n_taps)``, lag 0 at index origin, lags ``dilation``
    tokens apart; result like x.
    """
    return _Residual.apply(x, taps, origin, dilation, residual, activate)


def gated_convolution(x: Tensor, taps: Tensor, origin: int) -> Tensor:
    """``after * (taps * (before * value))`` for x ``(batch, length, 3 channels)``: before, after and value, side by
    side. Otherwise as `residual_convolution`."""
    return _Gated.apply(x, taps, origin)


def _lags(x: Tensor, taps: Tensor, origin: int, dilation: int) -> Tensor:
    """``taps * x`` in plain operations."""
    count, length = taps.shape[1], x.shape[1]
    padded = F.pad(x, (0, 0, (count - 1 - origin) * dilation, origin * dilation))
    starts = [(count - 1 - m) * dilation for m in range(count)]
    parts = [padded[:, s : s + length] * tap for s, tap in zip(starts, taps.t(), strict=True)]
    return torch.stack(parts).sum(0)


def _plain_residual(x, taps, origin: int, dilation: int, residual: bool, activate: bool) -> Tensor:
    y = _lags(x, taps, origin, dilation)
    y = F.silu(y) if activate else y
    return (x + y if residual else y).to(x.dtype)


def _plain_gated(x: Tensor, taps: Tensor, origin: int) -> Tensor:
    before, after, value = x.chunk(3, dim=2)
    return (after * _lags(before * value, taps, origin, 1)).to(x.dtype)


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, origin: int, dilation: int, residual: bool, activate: bool):
        ctx.save_for_backward(x, taps)
        ctx.settings = (origin, dilation, residual, activate)
        return convolve(x, taps, x if residual else None, origin, dilation, activate)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        x, taps = ctx.saved_tensors
        origin, dilation, residual, activate = ctx.settings
        if differentiable():
            inputs = (x, taps, *ctx.settings)
            return tuple(differentiable_gradients(_plain_residual, inputs, ctx.needs_input_grad, [grad]))
        inner, parts = convolution_gradients(grad, x, taps, origin, dilation, activate)
        inner = inner if activate else grad
        last = taps.shape[1] - 1 - origin
        dx = convolve(inner, taps.flip(1), grad if residual else None, last, dilation, False)
        return dx, parts.sum(0).t().to(taps.dtype), None, None, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, origin: int) -> Tensor:
        ctx.save_for_backward(x, taps)
        ctx.origin = origin
        return convolve_gated(x, taps, origin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        x, taps = ctx.saved_tensors
        if differentiable():
            inputs = (x, taps, ctx.origin)
            return tuple(differentiable_gradients(_plain_gated, inputs, ctx.needs_input_grad, [grad]))
        dx, parts = gated_convolution_gradients(grad, x, taps, ctx.origin)
        return dx, parts.sum(0).t().to(taps.dtype), None


def _grid(batch: int, length: int, channels: int) -> tuple[int, int, int]:
    return -(-length // _TOKENS), -(-channels // _CHANNELS), batch


def _parts(x: Tensor, taps: Tensor) -> Tensor:
    """Gradients of the taps by the tokens of each tile."""
    return x.new_empty((len(x) * -(-x.shape[1] // _TOKENS), *taps.t().shape), dtype=torch.float32)


@kernel(lambda x, taps, added, origin, dilation, activate: x.new_empty(x.shape))
def convolve(x: Tensor, taps: Tensor, added: Tensor | None, origin: int, dilation: int, activate: bool) -> Tensor:
    from lagwise.ops.fused import convolution_kernels as kernels

    x, y = contiguous_rows(x), x.new_empty(x.shape)
    other = x if added is None else contiguous_rows(added)
    kernels.convolve[_grid(*x.shape)](
        x, taps.contiguous(), other, y, *x.shape[1:], taps.shape[1], origin, dilation, *x.stride()[:2],
        *other.stride()[:2], ADDED=added is not None, SILU=activate, TOKENS=_TOKENS, CHANNELS=_CHANNELS,
    )  # fmt: skip
    return y


@kernel(lambda grad, x, taps, origin, dilation, activate: (x.new_empty(x.shape if activate else 0), _parts(x, taps)))
def convolution_gradients(
    grad: Tensor, x: Tensor, taps: Tensor, origin: int, dilation: int, activate: bool
) -> tuple[Tensor, Tensor]:
    """The gradient before the activation, empty without one, and parts of the gradient of the taps."""
    from lagwise.ops.fused import convolution_kernels as kernels

    grad, x = contiguous_rows(grad), contiguous_rows(x)
    inner, parts = x.new_empty(x.shape if activate else 0), _parts(x, taps)
    kernels.convolution_gradients[_grid(*x.shape)](
        grad, x, taps.contiguous(), inner, parts, *x.shape[1:], taps.shape[1], origin, dilation, *grad.stride()[:2],
        *x.stride()[:2], SILU=activate, TOKENS=_TOKENS, CHANNELS=_CHANNELS,
    )  # fmt: skip
    return inner, parts


@kernel(lambda x, taps, origin: x.new_empty((*x.shape[:2], x.shape[2] // 3)))
def convolve_gated(x: Tensor, taps: Tensor, origin: int) -> Tensor:
    from lagwise.ops.fused import convolution_kernels as kernels

    x, y = contiguous_rows(x), x.new_empty((*x.shape[:2], x.shape[2] // 3))
    kernels.gated_convolution[_grid(*y.shape)](
        x, taps.contiguous(), y, *y.shape[1:], taps.shape[1], origin, *x.stride()[:2], TOKENS=_TOKENS,
        CHANNELS=_CHANNELS,
    )  # fmt: skip
    return y


@kernel(lambda grad, x, taps, origin: (x.new_empty(x.shape), _parts(x, taps)))
def gated_convolution_gradients(grad: Tensor, x: Tensor, taps: Tensor, origin: int) -> tuple[Tensor, Tensor]:
    from lagwise.ops.fused import convolution_kernels as kernels

    x, grad, dx, parts = contiguous_rows(x), grad.contiguous(), x.new_empty(x.shape), _parts(x, taps)
    kernels.gated_convolution_gradients[_grid(*grad.shape)](
        grad, x, taps.contiguous(), dx, parts, *grad.shape[1:], taps.shape[1], origin, *x.stride()[:2],
        TOKENS=_TOKENS, CHANNELS=_CHANNELS,
    )  # fmt: skip
    return dx, parts
