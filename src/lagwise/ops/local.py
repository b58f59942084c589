"""Products with short kernels: a depthwise convolution, exactly causal."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.block import block_outer
from lagwise.ops.spectral import compute_dtype

_BLOCK = 32
_SHORT_BLOCK = 16  # for up to 32 lags: less of the blocks lies outside them


def direct_product(x: Tensor, taps: Tensor, origin: int) -> Tensor:
    """`toeplitz_product` for checked taps ``(channels, n_taps)`` with lag 0 at index ``origin``, lag by lag.

    Formula: ``y_i = sum_m taps_m x_{i - (m - origin)}``. No output ever meets a token that its taps do not reach.

    Source: SKI-TNN §3.2 (T_sparse). On a CPU in float32 the channels-last convolution of the framework runs near the
    machine's peak, but its gradient to the taps at a hundredth of it: that one is a product of blocks here.
    """
    return _DirectProduct.apply(x, taps, origin).to(x.dtype)


class _DirectProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, taps: Tensor, origin: int) -> Tensor:
        ctx.save_for_backward(x, taps)
        ctx.origin = origin
        return _convolve(x, taps, origin)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        x, taps = ctx.saved_tensors
        dx = dtaps = None
        if ctx.needs_input_grad[0]:
            dx = _convolve(grad, taps.flip(1), taps.shape[1] - 1 - ctx.origin).to(x.dtype)
        if ctx.needs_input_grad[1]:
            dtaps = lag_products(grad, x, -ctx.origin, taps.shape[1] - 1 - ctx.origin).to(taps.dtype)
        return dx, dtaps, None


def lag_products(y: Tensor, x: Tensor, first: int, last: int) -> Tensor:
    """Sums ``sum_i y_i x_{i - l}`` of every channel, over the batch too, for lags l = first..last.

    Shapes: x and y ``(batch, length, channels)``; result ``(channels, last - first + 1)``. ValueError if first > last.
    """
    if first > last:
        raise ValueError(f"the first lag must not be after the last, got {first} and {last}")
    size = min(x.shape[1], _SHORT_BLOCK if last - first < _BLOCK else _BLOCK)
    nearest, furthest = -((size - 1 - first) // size), (last + size - 1) // size
    products = block_outer(y, x, compute_dtype(x, y), size, nearest, furthest)
    # Lag d * size + i - j of entry (i, j): summed by a small matrix product, which beats skewing and adding tenfold.
    offset = torch.arange(size, device=x.device)
    lag = (offset[:, None] - offset[None, :] + size - 1).flatten()
    sums = products.flatten(2) @ F.one_hot(lag, 2 * size - 1).to(products.dtype)
    total = sums.new_zeros(x.shape[2], (furthest - nearest + 2) * size - 1)
    for n, part in enumerate(sums):
        total[:, n * size : n * size + 2 * size - 1] += part
    start = first - ((nearest - 1) * size + 1)
    return total[:, start : start + last - first + 1]


def _convolve(x: Tensor, taps: Tensor, origin: int) -> Tensor:
    dtype = compute_dtype(x, taps)
    before, after = taps.shape[1] - 1 - origin, origin
    padding = max(before, after)
    with torch.autocast(x.device.type, enabled=False):
        image = x.to(dtype).transpose(1, 2)[:, :, None]  # channels-last in memory
        weight = taps.to(dtype).flip(1)[:, None, None]
        y = F.conv2d(image, weight, padding=(0, padding), groups=x.shape[2])
    return y[:, :, 0, padding - before :][..., : x.shape[1]].transpose(1, 2)
