"""Long convolutions by transforms of channels side by side, with the gates of a unit around them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from lagwise.ops.native.library import filled_biases, loops, pointers
from lagwise.ops.operation import loop_operator


class _Sizes(ctypes.Structure):
    """`sizes` of convolution.c."""

    _names = "batch length channels taps origin n frames hop start parts bfloat16 threads"
    _fields_ = [(name, ctypes.c_long) for name in _names.split()]


class _Signal(ctypes.Structure):
    """`signal` of convolution.c."""

    _fields_ = [("data", ctypes.c_void_p), ("row", ctypes.c_long), ("token", ctypes.c_long)]


def _result_like(value: Tensor, taps: Tensor, plan: list[int], gate: Tensor | None, biases: Tensor | None) -> Tensor:
    return value.new_empty(value.shape)


@loop_operator(_result_like)
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
    y = torch.empty(value.shape, dtype=value.dtype, device="cpu")
    tensors = (_by_lag(taps), filled_biases(biases, value.shape[2]))
    _call("convolve", value, plan, tensors, taps.shape[1], value=value, gate=gate, y=y)
    return y


def _gradients_like(
    grad: Tensor,
    value: Tensor,
    taps: Tensor,
    plan: list[int],
    gate: Tensor | None,
    biases: Tensor | None,
    of_value: bool,
    of_taps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    """Gradients of `convolve` with respect to value, taps, gate and biases, from its result's; empty tensors where they
    are not wanted, and without a gate. Those of a gate and its value are computed together."""
    grads = _gradients_like(grad, value, taps, plan, gate, biases, of_value, of_taps)
    value_grad, taps_grad, gate_grad, bias_grads = (t if t.numel() else None for t in grads)
    signals = {
        "value": _rows(value),
        "gate": None if gate is None else _rows(gate),
        "grad": _rows(grad.to(value.dtype)),
    }
    tensors = (_by_lag(taps), filled_biases(biases, value.shape[2]), taps_grad, bias_grads)
    signals |= {"value_grad": value_grad, "gate_grad": gate_grad}
    _call("convolve_gradients", value, plan, tensors, taps.shape[1], **signals)
    return grads


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
