"""Long convolutions by transforms of channels side by side, with the gates of a unit around them."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from lagwise.ops.native.library import call, filled_biases, loops, scratch
from lagwise.ops.operation import loop_operator


class _Sizes(ctypes.Structure):
    """`sizes` of convolution.c."""

    _names = "batch length channels taps origin n frames hop start parts bfloat16 threads"
    _fields_ = [(name, ctypes.c_long) for name in _names.split()]


class _Signal(ctypes.Structure):
    """`signal` of convolution.c."""

    _fields_ = [("data", ctypes.c_void_p), ("row", ctypes.c_long), ("token", ctypes.c_long)]


@loop_operator(lambda value, *_: value.new_empty(value.shape))
def convolve(value: Tensor, taps: Tensor, plan: list[int], gate: Tensor | None, biases: Tensor | None) -> Tensor:
    """The product of every channel with its taps; with a gate, ``silu(gate) * (taps * silu(value))``.

    Args:
        value: ``(batch, length, channels)``, float32 or bfloat16, on the CPU.
        taps: ``(channels, n_taps)`` of floating point.
        plan: The index of lag 0 in the taps, and how the signal is cut into frames: half of their points, their number,
            the outputs of each, the index of the first output and the parts of the taps.
        gate: Like value.
        biases: ``(2, channels)``, added to gate and value before.
    """
    value, gate = _rows(value), None if gate is None else _rows(gate)
    y, added = torch.empty(value.shape, dtype=value.dtype, device="cpu"), filled_biases(biases, value.shape[2])
    _call("convolve", plan, taps, (value, gate, y, None, None, None), added)
    return y


def _gradients_like(grad, value, taps, plan, gate, biases, of_value, of_taps) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (n_taps, channels), gated = taps.shape[::-1], gate is not None
    return (
        value.new_empty(value.shape if of_value else 0),
        taps.new_empty((n_taps, channels) if of_taps else (0, 0), dtype=torch.float32).t(),
        value.new_empty(value.shape if gated else 0),
        taps.new_empty((2, channels + -channels % loops().lanes if gated else 0), dtype=torch.float32)[:, :channels],
    )


@loop_operator(_gradients_like)
def convolve_gradients(
    grad: Tensor,
    value: Tensor,
    taps: Tensor,
    plan: list[int],
    gate: Tensor | None,
    biases: Tensor | None,
    of_value: bool,
    of_taps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute gradients of `convolve` with respect to value, taps, gate and biases, from its result's; empty tensors
    where they are not wanted, and without a gate. Those of a gate and its value are computed together."""
    grads = _gradients_like(grad, value, taps, plan, gate, biases, of_value, of_taps)
    value_grad, taps_grad, gate_grad, bias_grads = (t if t.numel() else None for t in grads)
    value, gate, grad = _rows(value), None if gate is None else _rows(gate), _rows(grad.to(value.dtype))
    signals = (value, gate, None, grad, value_grad, gate_grad)
    _call("convolve_gradients", plan, taps, signals, filled_biases(biases, value.shape[2]), taps_grad, bias_grads)
    return grads


def _call(
    name: str, plan: list[int], taps: Tensor, signals: tuple[Tensor | None, ...], *tensors: Tensor | None
) -> None:
    """Call a loop; signals: value, gate and result, and the gradients of the result, of value and of gate."""
    x, threads, (origin, n, *frames) = signals[0], torch.get_num_threads(), plan
    assert x is not None
    sizes = _Sizes(*x.shape, taps.shape[1], origin, n, *frames, x.dtype == torch.bfloat16, threads)
    memory = scratch(threads, call("convolution_scratch", sizes), loops().lanes)
    structs = (_Signal * len(signals))(
        *(_Signal() if t is None else _Signal(t.data_ptr(), t.stride(0), t.stride(1)) for t in signals)
    )
    call(name, sizes, structs, taps.t().to(torch.float32).contiguous(), *tensors, _roots(n), memory)


def _rows(x: Tensor) -> Tensor:
    """x ``(batch, length, channels)`` with the channels of a token next to each other."""
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


@functools.lru_cache(maxsize=32)
def _roots(n: int) -> Tensor:
    """The roots of transforms of 2 n points."""
    roots = scratch(n, 2)
    call("convolution_roots", roots, n)
    return roots
