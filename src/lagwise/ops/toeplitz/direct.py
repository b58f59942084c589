"""Products with few taps, dilated or not: depthwise convolutions, exactly causal."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops import native
from lagwise.ops.fused import fused
from lagwise.ops.fused.convolution import residual_convolutions
from lagwise.ops.operation import bilinear_product, graph_operator, in_graph
from lagwise.ops.precision import compute_dtype
from lagwise.ops.symbolic import symbolic, symbolic_product
from lagwise.ops.toeplitz.block import block_lag_products

# Number of passes over the signal that a gradient by blocks is worth, and the limit for few rows (docs/log.md).
_PASSES, _PASSES_OF_FEW_ROWS, _FEW_ROWS = 6, 12, 64
# Largest numbers of lags for which this engine is faster, forward and backward, on the CPU in float32, with and without
# the loops of `native`, for at least as many channels as fill a vector (docs/log.md, "few lags").
_FEW_LAGS, _FEW_LAGS_WITHOUT_NATIVE, _VECTOR_CHANNELS = 128, 64, 16
_FEW_LAGS_ON_GPU = 24  # docs/concepts.md, "Engines on a GPU"


def few_lags(x: Tensor, taps: Tensor) -> bool:
    """Whether `direct_product` is the fastest engine for this signal and these taps ``(channels, n_taps)``."""
    count = taps.shape[1]
    if fused(x, taps):
        return count <= _FEW_LAGS_ON_GPU
    if x.device.type != "cpu" or compute_dtype(x, taps) != torch.float32 or x.shape[2] < _VECTOR_CHANNELS:
        return False
    # In this order, so that the C loops are compiled only for a number between the two.
    return count <= _FEW_LAGS_WITHOUT_NATIVE or (count <= _FEW_LAGS and native.available())


def direct_product(x: Tensor, taps: Tensor, origin: int, dilation: int = 1) -> Tensor:
    """`toeplitz_product` for checked taps ``(channels, n_taps)`` with lag 0 at index ``origin``, lag by lag.

    Formula: ``y_i = sum_m taps_m x_{i - (m - origin) dilation}``. An output never meets a token outside its taps'
    reach.

    Source: SKI-TNN §3.2 (T_sparse); TCNCA §2 (dilated). On a CPU in float32, PyTorch's channels-last convolution runs
    near the machine's peak, but its gradient with respect to the taps at a hundredth of it, so we compute that gradient
    ourselves.
    """
    if symbolic(x.shape[1]):
        return symbolic_product(x, taps, origin, dilation)
    if fused(x, taps):
        return residual_convolutions(x, taps[None], origin, (dilation,), False, False)
    if in_graph():
        return _operator(x, taps, origin, dilation)
    return bilinear_product(x, taps, _form(x, taps, origin, dilation)).to(x.dtype)


class _DirectForm(NamedTuple):
    """`direct_product` as a `Form`."""

    n_taps: int
    origin: int
    dilation: int

    @property
    def channel_axis(self) -> int:
        return 0

    def contract(self, index: int, a: Tensor, b: Tensor) -> Tensor:
        last = self.n_taps - 1 - self.origin
        if index == 0:
            return owned(convolve(a, b, self.origin, self.dilation))
        if index == 1:
            return owned(convolve(a, b.flip(1), last, self.dilation))
        return tap_gradient(a, b, -self.origin, last, self.dilation)

    def gradients(
        self, grad: Tensor, x: Tensor, kernel: Tensor, needs_grad: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        dx = self.contract(1, grad, kernel).to(x.dtype) if needs_grad[0] else None
        return dx, self.contract(2, grad, x).to(kernel.dtype) if needs_grad[1] else None


def _form(x: Tensor, taps: Tensor, origin: int, dilation: int) -> _DirectForm:
    """A dilation beyond the signal leaves only lag 0, as does one of the signal's length, which needs less padding."""
    return _DirectForm(taps.shape[1], origin, min(dilation, x.shape[1]))


def direct_values(x: Tensor, taps: Tensor, origin: int, dilation: int = 1) -> Tensor:
    """Forward of `direct_product`, without autograd."""
    return convolve(x, taps, origin, min(dilation, x.shape[1])).to(x.dtype).contiguous()


def direct_gradients(
    grad: Tensor, x: Tensor, taps: Tensor, origin: int, dilation: int = 1
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of `direct_product` with respect to the signal and the taps."""
    return _form(x, taps, origin, dilation).gradients(grad, x, taps, (True, True))


# The shapes of images and padding would be compiled anew for every length of the signal.
_operator = graph_operator(
    "direct_product",
    direct_values,
    direct_gradients,
    lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format),
    tensors="x taps",
    numbers="SymInt origin, SymInt dilation",
)


def owned(y: Tensor) -> Tensor:
    """Return the memory of a view as a fresh tensor: outputs of an `autograd.Function` that are views cannot be
    modified in place."""
    if torch.compiler.is_compiling():
        return y
    return y.new_empty(0).set_(y.untyped_storage(), y.storage_offset(), y.shape, y.stride())


def _phases(x: Tensor, dilation: int) -> Tensor:
    """A signal ``(batch, length, channels)`` as rows of every dilation-th token, ``(batch * dilation, n, channels)``. A
    dilated product is an undilated one on each of these rows."""
    return x if dilation == 1 else _image(x, dilation).transpose(1, 2).flatten(0, 1)


def _image(x: Tensor, dilation: int) -> Tensor:
    """A signal as an image ``(batch, rows, dilation, channels)`` whose columns are its phases, zero beyond its end."""
    rows = -(-x.shape[1] // dilation)
    if in_graph() or rows * dilation != x.shape[1]:  # a graph would be compiled anew where nothing is missing
        x = F.pad(x, (0, 0, 0, rows * dilation - x.shape[1]))
    return x.unflatten(1, (rows, dilation))


@torch.library.custom_op("lagwise::tap_gradient", mutates_args=())  # opaque to compilers
def tap_gradient(grad: Tensor, x: Tensor, first: int, last: int, dilation: int = 1) -> Tensor:
    """Gradient of `direct_product` with respect to its taps: ``sum_i grad_i x_{i - m dilation}`` for m = first..last.

    Shapes: grad and x ``(batch, length, channels)``; result ``(channels, last - first + 1)``. Computed in C if
    available, otherwise lag by lag, or by blocks for many lags.
    """
    rows = -(-x.shape[1] // dilation)
    low, high = max(first, 1 - rows), min(last, rows - 1)  # the others do not fit into the signal
    if low > high:
        return x.new_zeros((x.shape[2], last - first + 1), dtype=compute_dtype(x, grad))
    return F.pad(_tap_gradient(grad, x, low, high, dilation), (low - first, last - high)).contiguous()


def _tap_gradient(grad: Tensor, x: Tensor, first: int, last: int, dilation: int) -> Tensor:
    length, dtype = x.shape[1], compute_dtype(x, grad)
    if dtype == torch.float32 and x.device.type == "cpu" and native.available():
        return native.lag_products(grad.to(dtype), x.to(dtype), first, last, dilation)
    passes = sum(max(0, length - abs(m) * dilation) for m in range(first, last + 1)) / length
    if passes > (_PASSES if length > _FEW_ROWS * dilation else _PASSES_OF_FEW_ROWS):
        return block_lag_products(_phases(grad, dilation), _phases(x, dilation), first, last)
    sums = []
    for lag in range(first * dilation, (last + 1) * dilation, dilation):
        after, before = (grad[:, max(0, lag) :], x[:, max(0, -lag) :])
        shared = max(0, length - abs(lag))
        sums.append((after[:, :shared].to(dtype) * before[:, :shared]).sum((0, 1)))
    return torch.stack(sums, dim=1)


@tap_gradient.register_fake
def _(grad: Tensor, x: Tensor, first: int, last: int, dilation: int = 1) -> Tensor:
    return x.new_empty((x.shape[2], last - first + 1), dtype=compute_dtype(x, grad))


def convolve(x: Tensor, taps: Tensor, origin: int, dilation: int = 1) -> Tensor:
    """`direct_product` without a gradient.

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
