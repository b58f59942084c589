"""Long convolutions by transforms of channels side by side, with the gates of a unit around them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from lagwise.ops.native.library import filled_biases, loops, pointers


class _Sizes(ctypes.Structure):
    """`sizes` of convolution.c."""

    _names = "batch length channels taps origin n frames hop start parts bfloat16 threads"
    _fields_ = [(name, ctypes.c_long) for name in _names.split()]


class _Signal(ctypes.Structure):
    """`signal` of convolution.c."""

    _fields_ = [("data", ctypes.c_void_p), ("row", ctypes.c_long), ("token", ctypes.c_long)]


def convolve(
    value: Tensor, taps: Tensor, plan: Sequence[int], gate: Tensor | None = None, biases: Tensor | None = None
) -> Tensor:
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
    y = torch.empty(value.shape, dtype=value.dtype, device="cpu")
    tensors = (_by_lag(taps), filled_biases(biases, value.shape[2]))
    _call("convolve", value, plan, tensors, taps.shape[1], value=value, gate=gate, y=y)
    return y


def convolve_gradients(
    grad: Tensor,
    value: Tensor,
    taps: Tensor,
    plan: Sequence[int],
    gate: Tensor | None = None,
    biases: Tensor | None = None,
    wanted: tuple[bool, bool] = (True, True),
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of `convolve` with respect to value, taps, gate and biases, from its result's. Those of value and taps
    only where wanted, which they must be with a gate. The last two are neighbours in memory."""
    (_, _, channels), like = value.shape, {"dtype": value.dtype, "device": "cpu"}
    value_grad = gate_grad = taps_grad = bias_grads = None
    if gate is not None:
        gate, both = _rows(gate), torch.empty((*value.shape[:2], 2 * channels), **like)
        gate_grad, value_grad = both.split(channels, 2)
        bias_grads = torch.empty(2, channels + -channels % loops().lanes, dtype=torch.float32, device="cpu")
    elif wanted[0]:
        value_grad = torch.empty(value.shape, **like)
    if wanted[1]:
        taps_grad = torch.empty(taps.shape[::-1], dtype=torch.float32, device="cpu")
    signals = {"value": _rows(value), "gate": gate, "grad": _rows(grad.to(value.dtype))}
    tensors = (_by_lag(taps), filled_biases(biases, channels), taps_grad, bias_grads)
    signals |= {"value_grad": value_grad, "gate_grad": gate_grad}
    _call("convolve_gradients", value, plan, tensors, taps.shape[1], **signals)
    return (
        value_grad,
        None if taps_grad is None else taps_grad.t(),
        gate_grad,
        None if bias_grads is None else bias_grads[:, :channels],
    )


def _call(
    name: str, x: Tensor, plan: Sequence[int], tensors: Sequence[Tensor | None], taps: int, **signals: Tensor | None
) -> None:
    compiled, threads = loops(), torch.get_num_threads()
    origin, n, *frames = plan
    sizes = _Sizes(*x.shape, taps, origin, n, *frames, x.dtype == torch.bfloat16, threads)
    vectors = compiled.library.convolution_scratch(ctypes.byref(sizes))
    scratch = torch.empty(threads, vectors, compiled.lanes, dtype=torch.float32, device="cpu")
    names = ("value", "gate", "y", "grad", "value_grad", "gate_grad")
    given = (_Signal * len(names))(*(_signal(signals.get(each)) for each in names))
    getattr(compiled.library, name)(ctypes.byref(sizes), given, *pointers(*tensors, _roots(n), scratch))


def _signal(x: Tensor | None) -> _Signal:
    return _Signal() if x is None else _Signal(x.data_ptr(), x.stride(0), x.stride(1))


def _rows(x: Tensor) -> Tensor:
    """x ``(batch, length, channels)`` with the channels of a token next to each other."""
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


def _by_lag(taps: Tensor) -> Tensor:
    return taps.t().to(torch.float32).contiguous()


@functools.lru_cache(maxsize=32)
def _roots(n: int) -> Tensor:
    """The roots of transforms of 2 n points."""
    roots = torch.empty(n, 2, dtype=torch.float32, device="cpu")
    loops().library.convolution_roots(*pointers(roots), ctypes.c_long(n))
    return roots
