"""Products with few taps, dilated or not: depthwise convolutions, exactly causal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops import native
from lagwise.ops.fused import TritonEngine, fused
from lagwise.ops.fused import convolution as fused_convolution
from lagwise.ops.operation import Engine, Values, compute_dtype, loop_operator, recorded, transformed
from lagwise.ops.toeplitz.block import block_lag_products

# Largest numbers of lags for which this engine is faster, forward and backward, on the CPU in float32, with and without
# the loops of `native`, for at least as many channels as fill a vector (docs/log.md, "few lags").
_FEW_LAGS, _FEW_LAGS_WITHOUT_NATIVE, _VECTOR_CHANNELS = 128, 64, 16
_FEW_LAGS_ON_GPU = 24  # docs/concepts.md, "Engines on a GPU"

# Number of passes over the signal that a gradient by blocks is worth, and the limit for few rows (docs/log.md).
_PASSES, _PASSES_OF_FEW_ROWS, _FEW_ROWS = 6, 12, 64


def is_direct(x: Tensor, kernel: Tensor, engine: str, dilation: int = 1) -> bool:
    """Whether the product is computed lag by lag: on request, or where it is fastest, because there are few lags."""
    if engine != "auto" or dilation > 1:
        return engine == "direct" or dilation > 1
    count = kernel.shape[1]
    if fused(x, kernel):
        return count <= _FEW_LAGS_ON_GPU
    if x.device.type != "cpu" or compute_dtype(x, kernel) != torch.float32 or x.shape[2] < _VECTOR_CHANNELS:
        return False
    # In this order, so that the C loops are compiled only for a number between the two.
    return count <= _FEW_LAGS_WITHOUT_NATIVE or (count <= _FEW_LAGS and native.available())


class Direct(Engine):
    """`lagwise.ops.toeplitz.convolution` lag by lag.

    On a CPU in float32, PyTorch's channels-last convolution runs near the machine's peak, but its gradient with respect
    to the taps at a hundredth of it, so `tap_gradient` computes that.
    """

    serves = staticmethod(lambda x, kernel, _, engine, dilation: is_direct(x, kernel, engine, dilation))

    @staticmethod
    def evaluate(x: Tensor, taps: Tensor, origin: int, engine: str, dilation: int) -> Tensor:
        return owned(convolve(x, taps, origin, min(dilation, x.shape[1])).to(x.dtype))

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        x, taps, origin, _, dilation = args
        dx = dtaps = None
        last = taps.shape[1] - 1 - origin
        # A dilation beyond the signal leaves only lag 0, as does one of the signal's length, which needs less padding.
        dilation = min(dilation, x.shape[1])
        if needs_grad[0]:
            dx = owned(convolve(grads[0], taps.flip(1), last, dilation).to(x.dtype))
        if needs_grad[1]:
            dtaps = tap_gradient(grads[0], x, -origin, last, dilation).to(taps.dtype)
        return dx, dtaps


class DirectKernel(Direct):
    """`Direct` by kernels on a GPU."""

    @staticmethod
    def serves(x: Tensor, kernel: Tensor, origin: int, engine: str, dilation: int) -> bool:
        return is_direct(x, kernel, engine, dilation) and TritonEngine.serves(x, kernel)

    @staticmethod
    def evaluate(x: Tensor, kernel: Tensor, origin: int, engine: str, dilation: int) -> Tensor:
        return fused_convolution.convolve(x, kernel, None, origin, dilation, False)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        x, kernel, origin, _, dilation = args
        dx = fused_convolution.convolve(grads[0], kernel, None, origin, -dilation, False) if needs_grad[0] else None
        if not needs_grad[1]:
            return (dx,)
        parts = fused_convolution.tap_gradient_parts(x, kernel)
        fused_convolution.convolution_gradients(grads[0], x, kernel, parts, origin, dilation, False)
        return dx, fused_convolution.summed_parts(parts).to(kernel.dtype)


def owned(y: Tensor) -> Tensor:
    """Return the memory of a view as a fresh tensor: outputs of an `autograd.Function` that are views cannot be
    modified in place."""
    if recorded() and not transformed():
        return y
    return y.new_empty(0).set_(y)  # type: ignore[arg-type]


def _phases(x: Tensor, dilation: int) -> Tensor:
    """A signal ``(batch, length, channels)`` as rows of every dilation-th token, ``(batch * dilation, n, channels)``. A
    dilated product is an undilated one on each of these rows."""
    return x if dilation == 1 else _image(x, dilation).transpose(1, 2).flatten(0, 1)


def _image(x: Tensor, dilation: int) -> Tensor:
    """A signal as an image ``(batch, rows, dilation, channels)`` whose columns are its phases, zero beyond its end."""
    missing = -x.shape[1] % dilation
    return (F.pad(x, (0, 0, 0, missing)) if missing else x).unflatten(1, (-1, dilation))


@loop_operator(
    lambda grad, x, first, last, _: x.new_empty((x.shape[2], last - first + 1), dtype=compute_dtype(x, grad))
)
def tap_gradient(grad: Tensor, x: Tensor, first: int, last: int, dilation: int) -> Tensor:
    """Gradient of `convolve` with respect to its taps: ``sum_i grad_i x_{i - m dilation}`` for m = first..last.

    Shapes: grad and x ``(batch, length, channels)``; result ``(channels, last - first + 1)``. Computed in C if
    available, otherwise lag by lag, or by blocks for many lags.
    """
    length, dtype = x.shape[1], compute_dtype(x, grad)
    rows = -(-length // dilation)
    low, high = max(first, 1 - rows), min(last, rows - 1)  # the others do not fit into the signal
    if low > high:
        return x.new_zeros((x.shape[2], last - first + 1), dtype=dtype)
    lags = range(low * dilation, (high + 1) * dilation, dilation)
    passes = _PASSES if length > _FEW_ROWS * dilation else _PASSES_OF_FEW_ROWS
    if dtype == torch.float32 and x.device.type == "cpu" and native.available():
        sums = native.lag_products(grad.to(dtype), x.to(dtype), low, high, dilation)
    elif sum(length - abs(lag) for lag in lags) > length * passes:
        sums = block_lag_products(_phases(grad, dilation), _phases(x, dilation), low, high)
    else:
        later = (grad[:, max(0, lag) : length + min(0, lag)].to(dtype) for lag in lags)
        earlier = (x[:, max(0, -lag) : length - max(0, lag)] for lag in lags)
        sums = torch.stack([(a * b).sum((0, 1)) for a, b in zip(later, earlier, strict=True)], 1)
    return F.pad(sums, (low - first, last - high)).contiguous()


def convolve(x: Tensor, taps: Tensor, origin: int, dilation: int = 1) -> Tensor:
    """The product lag by lag in PyTorch, in at least float32.

    Undilated, it convolves an image of one row. Dilated, it convolves an image as wide as the dilation along its
    columns: PyTorch's own dilation is as fast without padding, but a hundred times slower with it.
    """
    dtype, channels = compute_dtype(x, taps), x.shape[2]
    rows = -(-x.shape[1] // dilation)
    # Leave out taps that reach beyond the signal: they would only widen the padding.
    low, high = max(0, origin - rows + 1), min(taps.shape[1], origin + rows)
    taps, origin = taps[:, low:high], origin - low
    before, after = taps.shape[1] - 1 - origin, origin
    padding = max(before, after)
    with torch.autocast(x.device.type, enabled=False):
        weight = taps.to(dtype).flip(1)
        if dilation == 1:
            # Channels-last in memory: any other layout, such as the expanded gradient of a sum, takes ten times as
            # long.
            image = x.to(dtype).contiguous().transpose(1, 2)[:, :, None]
            y = F.conv2d(image, weight[:, None, None], padding=(0, padding), groups=channels)
            return y[:, :, 0, padding - before :][..., : x.shape[1]].transpose(1, 2)
        image = _image(x.to(dtype), dilation).permute(0, 3, 1, 2)
        y = F.conv2d(image, weight[:, None, :, None], padding=(padding, 0), groups=channels)
        y = y[:, :, padding - before :][:, :, :rows].permute(0, 2, 3, 1)
        return y.flatten(1, 2)[:, : x.shape[1]]


def symbolic_product(x: Tensor, taps: Tensor, origin: int, dilation: int = 1) -> Tensor:
    """`direct_product` at a symbolic length, for any number of taps.

    A depthwise convolution: O(length * taps), exactly causal.
    """
    dtype, count = compute_dtype(x, taps), taps.shape[1]
    with torch.autocast(x.device.type, enabled=False):
        padded = F.pad(x.to(dtype).transpose(1, 2), ((count - 1 - origin) * dilation, origin * dilation))
        y = F.conv1d(padded, taps.to(dtype).flip(1)[:, None], groups=x.shape[2], dilation=dilation)
    return y.transpose(1, 2).to(x.dtype)
