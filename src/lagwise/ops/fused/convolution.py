"""Depthwise convolutions of a few taps, with what surrounds them, in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.fused import TritonEngine, contiguous_rows, kernel, launch
from lagwise.ops.operation import Values, operation

_TILE = {"TOKENS": 64, "CHANNELS": 64}


@operation
def residual_convolutions(
    x: Tensor, taps: Tensor, origin: int, dilations: tuple[int, ...], residual: bool, activate: bool
) -> Tensor:
    """``x <- x + silu(taps_d * x)`` for each of the taps, or without the residual or the activation.

    Shapes: x ``(batch, length, channels)``; taps ``(depth, channels, n_taps)``, lag 0 at index origin, lags
    ``dilations[d]`` tokens apart; result like x.
    """
    for own, dilation in zip(taps, dilations, strict=True):
        y = _lags(x, own, origin, dilation)
        y = F.silu(y) if activate else y
        x = x + y if residual else y
    return x


@operation
def gated_convolution(x: Tensor, taps: Tensor, origin: int) -> Tensor:
    """``after * (taps * (before * value))`` for x ``(batch, length, 3 channels)``: before, after and value, side by
    side. Otherwise as one of `residual_convolutions`."""
    before, after, value = x.chunk(3, dim=2)
    return after * _lags(before * value, taps, origin, 1)


def _lags(x: Tensor, taps: Tensor, origin: int, dilation: int) -> Tensor:
    from lagwise.ops.toeplitz.convolution import convolution  # not above: it imports this package

    return convolution(x, taps, origin, "direct", dilation)


@residual_convolutions.engine("triton")
class _Residual(TritonEngine):
    @staticmethod
    def forward(
        x: Tensor, taps: Tensor, origin: int, dilations: tuple[int, ...], residual: bool, activate: bool
    ) -> tuple[Tensor, Values]:
        signals = []
        for own, dilation in zip(taps, dilations, strict=True):
            x = convolve(x, own, x if residual else None, origin, dilation, activate)
            signals.append(x)
        return x, signals[:-1]

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        (x, taps, origin, dilations, residual, activate), grad = args, grads[0]
        parts = tap_gradient_parts(grad, taps)
        for own, dilation, signal, into in reversed(list(zip(taps, dilations, (x, *saved), parts, strict=True))):
            inner = convolution_gradients(grad, signal, own, into, origin, dilation, activate)
            grad = convolve(inner if activate else grad, own, grad if residual else None, origin, -dilation, False)
        return grad, summed_parts(parts).to(taps.dtype)


@gated_convolution.engine("triton")
class _Gated(TritonEngine):
    evaluate = staticmethod(lambda *args: convolve_gated(*args))

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        dx, parts = gated_convolution_gradients(grads[0], *args)
        return dx, summed_parts(parts).to(args[1].dtype)


def tap_gradient_parts(x: Tensor, taps: Tensor) -> Tensor:
    """Memory for gradients of taps ``(..., channels, n_taps)`` by the tokens of each tile of a signal like x."""
    tiles = x.shape[0] * -(-x.shape[1] // _TILE["TOKENS"])
    return x.new_empty((*taps.shape[:-2], tiles, *taps.shape[:-3:-1]), dtype=torch.float32)


def summed_parts(parts: Tensor) -> Tensor:
    """Compute gradients of taps ``(..., channels, n_taps)`` from those of tiles."""
    return parts.sum(-3).transpose(-1, -2)


def _launch(name: str, like: Tensor, *arguments: Tensor | int, **constants: bool) -> None:
    """Launch a program for each tile of a signal."""
    batch, length, channels = like.shape
    grid = (-(-length // _TILE["TOKENS"]), -(-channels // _TILE["CHANNELS"]), batch)
    launch(f"convolution.{name}", grid, *arguments, **constants, **_TILE)


@kernel(lambda x, *_: x.new_empty(x.shape))
def convolve(
    x: Tensor, taps: Tensor, added: Tensor | None, origin: int, dilation: int, activate: bool, *, y: Tensor
) -> None:
    """The adjoint has the opposite dilation."""
    x = contiguous_rows(x)
    other = x if added is None else contiguous_rows(added)
    _launch(
        "convolve", x, x, taps.contiguous(), other, y, *x.shape[1:], taps.shape[1], origin, dilation, *x.stride()[:2],
        *other.stride()[:2], ADDED=added is not None, SILU=activate, GATED=False,
    )  # fmt: skip


@kernel(lambda _, x, *rest: x.new_empty(x.shape if rest[-1] else 0), writes=["dtaps"])
def convolution_gradients(
    grad: Tensor, x: Tensor, taps: Tensor, dtaps: Tensor, origin: int, dilation: int, activate: bool, *, inner: Tensor
) -> None:
    """The gradient before the activation, empty without one; stores parts of the gradient of the taps."""
    grad, x = contiguous_rows(grad), contiguous_rows(x)
    _launch(
        "convolution_gradients", x, grad, x, taps.contiguous(), inner, dtaps, *x.shape[1:], taps.shape[1], origin,
        dilation, *grad.stride()[:2], *x.stride()[:2], SILU=activate,
    )  # fmt: skip


@kernel(lambda x, *_: x.new_empty((*x.shape[:2], x.shape[2] // 3)))
def convolve_gated(x: Tensor, taps: Tensor, origin: int, *, y: Tensor) -> None:
    x = contiguous_rows(x)
    sizes = (*y.shape[1:], taps.shape[1], origin, 1, *x.stride()[:2], *x.stride()[:2])
    _launch("convolve", y, x, taps.contiguous(), x, y, *sizes, ADDED=False, SILU=False, GATED=True)


@kernel(lambda grad, x, taps, origin: (x.new_empty(x.shape), tap_gradient_parts(x, taps)))
def gated_convolution_gradients(
    grad: Tensor, x: Tensor, taps: Tensor, origin: int, *, dx: Tensor, parts: Tensor
) -> None:
    x, grad = contiguous_rows(x), grad.contiguous()
    _launch(
        "gated_convolution_gradients", grad, grad, x, taps.contiguous(), dx, parts, *grad.shape[1:], taps.shape[1],
        origin, *x.stride()[:2],
    )  # fmt: skip
