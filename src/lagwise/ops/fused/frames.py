"""Signals into the frames of FFTs and back, and products of spectra: each one pass over memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lagwise.ops.fused import contiguous_rows, kernel, launch

_TILE, _PAIRS = {"TOKENS": 64, "CHANNELS": 32}, 256


class Frames(NamedTuple):
    """Positions of a signal's tokens in ``count`` frames of ``points`` points: point p of frame f has token ``f * hop +
    p - shift`` if ``low <= p < high``, and is zero elsewhere."""

    count: int
    points: int
    hop: int
    shift: int
    low: int
    high: int


def load(x: Tensor, frames: Frames, *, activate: bool = False) -> Tensor:
    """x ``(batch, length, channels)``, or silu of it, as frames ``(batch, channels, count, points)`` in float32."""
    return load_frames(x, list(frames), activate)


def store(frames: Tensor, positions: Frames, length: int, dtype: torch.dtype) -> Tensor:
    """The adjoint of `load`: a signal ``(batch, length, channels)``, to which overlapping frames are added."""
    return store_signal(*used(frames, positions, length), length, dtype)


def used(frames: Tensor, positions: Frames, length: int) -> tuple[Tensor, list[int]]:
    """The part of frames that has tokens, and where: count, points and hop of the part, and shift."""
    count, _, hop, shift, low, high = positions
    if count == 1:
        low, high = max(low, shift), min(high, shift + length)
    return frames[..., low:high], [count, high - low, hop, shift - low]


def _empty_frames(x: Tensor, frames: list[int]) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[2], frames[0], frames[1]), dtype=torch.float32)


def _load(x: Tensor, frames: list[int], result: Tensor, silu: bool, *gated: Tensor) -> None:
    x = contiguous_rows(x)
    y, gate, dgate = gated or (x, x, x)
    (batch, length, channels), (count, points, *_) = x.shape, frames
    launch(
        "frame.load_frames", _grid(points, channels, batch * count), x, y, gate, result, dgate, length, channels,
        *frames, *x.stride()[:2], *gate.stride()[:2], *dgate.stride()[:2], SILU=silu, GATED=bool(gated), **_TILE,
    )  # fmt: skip


def _store(frames: Tensor, positions: list[int], y: Tensor, gate: Tensor | None, out: Tensor | None) -> None:
    batch, length, channels = y.shape
    _, points, hop, _ = positions
    gates = y if gate is None else contiguous_rows(gate)
    launch(
        "frame.store_frames", _grid(length, channels, batch), frames, gates, y, y if out is None else out, length,
        channels, *positions, *frames.stride()[:3], *gates.stride()[:2], *y.stride()[:2],
        SLOPE=gate is not None and out is None, GATED=out is not None, REACH=-(-points // hop), **_TILE,
    )  # fmt: skip


def _grid(tokens: int, channels: int, rows: int) -> tuple[int, int, int]:
    return -(-tokens // _TILE["TOKENS"]), -(-channels // _TILE["CHANNELS"]), rows


@kernel(lambda x, frames, activate: _empty_frames(x, frames))
def load_frames(x: Tensor, frames: list[int], activate: bool, *, result: Tensor) -> None:
    _load(x, frames, result, activate)


@kernel(lambda grad, y, gate, dgate, frames: _empty_frames(grad, frames), writes=["dgate"])
def load_gated_gradient(
    grad: Tensor, y: Tensor, gate: Tensor, dgate: Tensor, frames: list[int], *, result: Tensor
) -> None:
    """Return frames of ``grad * silu(gate)``, the gradient of y in ``silu(gate) * y``; stores that of the gate."""
    _load(grad, frames, result, False, y, contiguous_rows(gate), dgate)


@kernel(lambda frames, _, length, dtype: frames.new_empty((frames.shape[0], length, frames.shape[1]), dtype=dtype))
def store_signal(frames: Tensor, positions: list[int], length: int, dtype: torch.dtype, *, y: Tensor) -> None:
    _store(frames, positions, y, None, None)


@kernel(lambda frames, positions, gate: (gate.new_empty(gate.shape), gate.new_empty(gate.shape)))
def store_gated(frames: Tensor, positions: list[int], gate: Tensor, *, y: Tensor, out: Tensor) -> None:
    """A signal y like the gate, and ``silu(gate) * y``."""
    _store(frames, positions, y, gate, out)


@kernel(lambda *_: None, writes=["into"])
def store_activation_gradient(frames: Tensor, positions: list[int], value: Tensor, into: Tensor) -> None:
    """Store a signal times the slope of silu at value."""
    _store(frames, positions, into, value, None)


def transform(frames: Tensor) -> Tensor:
    """The packed spectrum of frames of an even number of points n, complex64 ``(batch, channels, count, n / 2)``.

    It is the FFT of ``frames[2 m] + i frames[2 m + 1]``, from which `multiply_packed` and `spectrum_gradients` find the
    frames' own: real FFTs take further passes, as PyTorch copies what their inverse reads and scales its result.
    """
    return torch.fft.fft(torch.view_as_complex(frames.unflatten(-1, (-1, 2))))


def inverse(spectrum: Tensor) -> Tensor:
    """Return frames of a packed spectrum that `multiply_packed` or `spectrum_gradients` has made."""
    return torch.view_as_real(torch.fft.ifft(spectrum, norm="forward")).flatten(-2)


def _launch(name: str, spectra: tuple[Tensor, ...], kernel: Tensor, *results: Tensor, **constants: bool) -> None:
    """Launch a program for frequencies k and n / 2 - k of a channel together."""
    numbers = [torch.view_as_real(t) for t in (*spectra, kernel.contiguous().resolve_conj(), *results)]
    grid = (-(-(spectra[0].shape[3] // 2 + 1) // _PAIRS), len(kernel))
    launch(f"frame.{name}", grid, *numbers, *spectra[0].shape, **constants, BLOCK=_PAIRS)


@kernel(lambda x, *_: torch.empty_like(x))
def multiply_packed(x: Tensor, kernel: Tensor, adjoint: bool, *, product: Tensor) -> None:
    """The product of a packed spectrum x with the spectrum of real taps, or its conjugate, for `inverse`.

    Shapes: x and result ``(batch, channels, frames, n / 2)``, kernel ``(channels, 1, n / 2 + 1)``, complex64.
    """
    _launch("multiply", (x,), kernel, product, ADJOINT=adjoint)


@kernel(lambda x, grad, kernel: (torch.empty_like(grad[0, :, :1]), torch.empty_like(grad)))
def spectrum_gradients(x: Tensor, grad: Tensor, kernel: Tensor, *, dkernel: Tensor, dx: Tensor) -> None:
    """``sum conj(x) grad`` over batch and frames, and ``grad conj(kernel)``, both packed for `inverse`.

    Shapes: packed spectra x and grad ``(batch, channels, frames, n / 2)``, kernel ``(channels, 1, n / 2 + 1)``,
    complex64.
    """
    _launch("gradients", (x, grad), kernel, dkernel, dx)
