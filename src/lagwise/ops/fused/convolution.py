"""Depthwise convolutions of a few taps, with what surrounds them, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.fused import contiguous_rows, kernel
from lagwise.ops.operation import differentiable, differentiable_gradients

_TOKENS, _CHANNELS = 64, 64


def residual_convolutions(
    x: Tensor, taps: Tensor, origin: int, dilations: Sequence[int], *, residual: bool, activate: bool
) -> Tensor:
    """``x <- x + silu(taps_d * x)`` for each of the taps, or without the residual or the activation.

    Shapes: x ``(batch, length, channels)``; taps ``(depth, channels, n_taps)``, lag 0 at index origin, lags
    ``dilations[d]`` tokens apart; result like x.
    """
    return _Residual.apply(x, taps, origin, tuple(dilations), residual, activate)


def gated_convolution(x: Tensor, taps: Tensor, origin: int) -> Tensor:
    """``after * (taps * (before * value))`` for x ``(batch, length, 3 channels)``: before, after and value, side by
    side. Otherwise as one of `residual_convolutions`."""
    return _Gated.apply(x, taps, origin)


def _lags(x: Tensor, taps: Tensor, origin: int, dilation: int) -> Tensor:
    """``taps * x`` in plain operations."""
    count, length = taps.shape[1], x.shape[1]
    padded = F.pad(x, (0, 0, (count - 1 - origin) * dilation, origin * dilation))
    starts = [(count - 1 - m) * dilation for m in range(count)]
    parts = [padded[:, s : s + length] * tap for s, tap in zip(starts, taps.t(), strict=True)]
    return torch.stack(parts).sum(0)


def _plain_residual(x, taps, origin: int, dilations: tuple[int, ...], residual: bool, activate: bool) -> Tensor:
    for own, dilation in zip(taps, dilations, strict=True):
        y = _lags(x, own, origin, dilation)
        y = F.silu(y) if activate else y
        x = (x + y if residual else y).to(x.dtype)
    return x


def _plain_gated(x: Tensor, taps: Tensor, origin: int) -> Tensor:
    before, after, value = x.chunk(3, dim=2)
    return (after * _lags(before * value, taps, origin, 1)).to(x.dtype)


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, taps: Tensor, origin: int, dilations: tuple[int, ...], residual: bool, activate: bool
    ):
        signals = [x]
        for own, dilation in zip(taps, dilations, strict=True):
            x = convolve(x, own, x if residual else None, origin, dilation, activate)
            signals.append(x)
        ctx.save_for_backward(taps, *signals[:-1])
        ctx.settings = (origin, dilations, residual, activate)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        taps, *signals = ctx.saved_tensors
        origin, dilations, residual, activate = ctx.settings
        if differentiable():
            inputs = (signals[0], taps, *ctx.settings)
            return tuple(differentiable_gradients(_plain_residual, inputs, ctx.needs_input_grad, [grad]))
        parts = tap_gradient_parts(grad, taps)
        for own, dilation, signal, into in reversed(list(zip(taps, dilations, signals, parts, strict=True))):
            inner = convolution_gradients(grad, signal, own, into, origin, dilation, activate)
            grad = convolve(inner if activate else grad, own, grad if residual else None, origin, -dilation, False)
        return grad, summed_parts(parts).to(taps.dtype), None, None, None, None


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
        return dx, summed_parts(parts).to(taps.dtype), None


def _grid(batch: int, length: int, channels: int) -> tuple[int, int, int]:
    return -(-length // _TOKENS), -(-channels // _CHANNELS), batch


def tap_gradient_parts(x: Tensor, taps: Tensor) -> Tensor:
    """Memory for gradients of taps ``(..., channels, n_taps)`` by the tokens of each tile of a signal like x."""
    tiles = x.shape[0] * -(-x.shape[1] // _TOKENS)
    return x.new_empty((*taps.shape[:-2], tiles, *taps.shape[:-3:-1]), dtype=torch.float32)


def summed_parts(parts: Tensor) -> Tensor:
    """Gradients of taps ``(..., channels, n_taps)`` from those of tiles."""
    return parts.sum(-3).transpose(-1, -2)


@kernel(lambda x, taps, added, origin, dilation, activate: x.new_empty(x.shape))
def convolve(x: Tensor, taps: Tensor, added: Tensor | None, origin: int, dilation: int, activate: bool) -> Tensor:
    """The adjoint has the opposite dilation."""
    from lagwise.ops.fused import convolution_kernels as kernels

    x, y = contiguous_rows(x), x.new_empty(x.shape)
    other = x if added is None else contiguous_rows(added)
    kernels.convolve[_grid(*x.shape)](
        x, taps.contiguous(), other, y, *x.shape[1:], taps.shape[1], origin, dilation, *x.stride()[:2],
        *other.stride()[:2], ADDED=added is not None, SILU=activate, TOKENS=_TOKENS, CHANNELS=_CHANNELS,
    )  # fmt: skip
    return y


@kernel(
    lambda grad, x, taps, dtaps, origin, dilation, activate: x.new_empty(x.shape if activate else 0), writes=["dtaps"]
)
def convolution_gradients(
    grad: Tensor, x: Tensor, taps: Tensor, dtaps: Tensor, origin: int, dilation: int, activate: bool
) -> Tensor:
    """The gradient before the activation, empty without one; stores parts of the gradient of the taps."""
    from lagwise.ops.fused import convolution_kernels as kernels

    grad, x = contiguous_rows(grad), contiguous_rows(x)
    inner = x.new_empty(x.shape if activate else 0)
    kernels.convolution_gradients[_grid(*x.shape)](
        grad, x, taps.contiguous(), inner, dtaps, *x.shape[1:], taps.shape[1], origin, dilation, *grad.stride()[:2],
        *x.stride()[:2], SILU=activate, TOKENS=_TOKENS, CHANNELS=_CHANNELS,
    )  # fmt: skip
    return inner


@kernel(lambda x, taps, origin: x.new_empty((*x.shape[:2], x.shape[2] // 3)))
def convolve_gated(x: Tensor, taps: Tensor, origin: int) -> Tensor:
    from lagwise.ops.fused import convolution_kernels as kernels

    x, y = contiguous_rows(x), x.new_empty((*x.shape[:2], x.shape[2] // 3))
    kernels.gated_convolution[_grid(*y.shape)](
        x, taps.contiguous(), y, *y.shape[1:], taps.shape[1], origin, *x.stride()[:2], TOKENS=_TOKENS,
        CHANNELS=_CHANNELS,
    )  # fmt: skip
    return y


@kernel(lambda grad, x, taps, origin: (x.new_empty(x.shape), tap_gradient_parts(x, taps)))
def gated_convolution_gradients(grad: Tensor, x: Tensor, taps: Tensor, origin: int) -> tuple[Tensor, Tensor]:
    from lagwise.ops.fused import convolution_kernels as kernels

    x, grad, dx, parts = contiguous_rows(x), grad.contiguous(), x.new_empty(x.shape), tap_gradient_parts(x, taps)
    kernels.gated_convolution_gradients[_grid(*grad.shape)](
        grad, x, taps.contiguous(), dx, parts, *grad.shape[1:], taps.shape[1], origin, *x.stride()[:2],
        TOKENS=_TOKENS, CHANNELS=_CHANNELS,
    )  # fmt: skip
    return dx, parts
