"""The moving averages of MEGA and Megalodon, in chunks of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.fused import TritonEngine, contiguous_rows, kernel, launch
from lagwise.ops.operation import Values, operation

_CHUNK, _CHANNELS, _WARPS = 64, 32, 2  # the fastest of those tried on an H100 for real ones (docs/log.md)
MOST_COMPLEX = 16  # complex averages of a channel that leave registers for their gradients


@operation
def moving_average(x: Tensor, weight: Tensor, log_decay: Tensor, direct: Tensor, angle: Tensor | None) -> Tensor:
    """``silu(sum_n w_n s_n + direct x)`` with ``s_n <- exp(log_decay_n) s_n + x``, as `lagwise.ops.ema_scan`; or, with
    angles, ``Re sum_n w_n s_n + direct x`` with ``s_n <- exp(log_decay_n + j angle_n) s_n + x``, as taps by
    `lagwise.ops.recurrence.modal_taps_of`.

    Shapes: x ``(batch, length, channels)``; weight, log_decay and angle ``(channels, dimension)``; direct
    ``(channels,)``; result like x. With angles, weight is ``(channels, dimension, 2)``, real and imaginary parts, and
    log_decay and angle are in float64. Two passes over x: averages at the end of each chunk from zero, which are then
    carried from chunk to chunk, and the outputs. The decay's gradient comes from the averages' derivatives, which run
    forwards beside them.
    """
    from lagwise.ops.product import toeplitz_product  # not above: these import this package
    from lagwise.ops.recurrence.diagonal import ema_scan, modal_taps_of

    if angle is not None:
        return toeplitz_product(x, modal_taps_of(-log_decay, angle, weight, direct, x.shape[1]))
    return F.silu(ema_scan(x, weight, log_decay) + direct * x).to(x.dtype)


@moving_average.engine("triton")
class _Average(TritonEngine):
    @staticmethod
    def serves(x: Tensor, weight: Tensor, log_decay: Tensor, direct: Tensor, angle: Tensor | None) -> bool:
        return TritonEngine.serves(x, weight, direct) and (angle is None or angle.shape[1] <= MOST_COMPLEX)

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, log_decay: Tensor, direct: Tensor, angle: Tensor | None
    ) -> tuple[Tensor, Values]:
        poles = log_decay
        if angle is not None:
            size = log_decay.exp()
            poles = torch.stack([size * angle.cos(), size * angle.sin()], -1).float()
        starts, slopes = average_starts(*average_ends(x, poles), log_decay, angle)
        return average_outputs(x, weight, poles, direct, starts), (poles, starts, slopes)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        (x, weight, log_decay, direct, angle), (poles, starts, slopes) = args, saved
        inner, dparameters, ddirect, before = average_gradients(grads[0], x, weight, poles, direct, starts, slopes)
        after, _ = average_starts(before, None, log_decay, angle)
        dx = average_adjoint(grads[0] if inner.numel() == 0 else inner, weight, poles, direct, after)
        ddirect, sums = ddirect.sum((0, 1)).to(direct.dtype), dparameters.sum((0, 1))
        if angle is None:
            return dx, *sums.transpose(1, 2), ddirect
        dweight, dpoles = sums.unflatten(1, (2, -1)).transpose(2, 3)
        ddecay, dangle = dpoles.to(angle.dtype)
        return dx, dweight.movedim(0, 2), ddecay, ddirect, dangle


def _states(x: Tensor, poles: Tensor) -> Tensor:
    """Return states of every chunk, ``(batch, chunks, dimension, channels)``; imaginary parts behind real ones."""
    states = poles[0].numel()
    return x.new_empty((x.shape[0], -(-x.shape[1] // _CHUNK), states, len(poles)), dtype=torch.float32)


def _sizes(dimension: int, *, of_complex: bool) -> dict[str, int]:
    states = 1 << (dimension - 1).bit_length()
    channels = _CHANNELS // 2 if of_complex else _CHANNELS
    return {"CHUNK": _CHUNK, "STATES": states, "CHANNELS": channels, "COMPLEX": of_complex, "num_warps": _WARPS}


def _launch(name: str, poles: Tensor, chunks: int, x: Tensor, *arguments: Tensor, strides: Sequence[int]) -> None:
    """Launch a program for each chunk and some channels."""
    (batch, length, channels), dimension = x.shape, poles.shape[1]
    sizes = _sizes(dimension, of_complex=poles.dim() == 3)
    grid = chunks, -(-channels // sizes["CHANNELS"]), batch
    launch(f"average.{name}", grid, *arguments, length, channels, chunks, dimension, *strides, **sizes)


@kernel(lambda x, poles: (_states(x, poles), _states(x, poles)))
def average_ends(x: Tensor, poles: Tensor, *, ends: Tensor, slopes: Tensor) -> None:
    """Compute averages at the end of each chunk from zero, and their derivatives by the decay."""
    x = contiguous_rows(x)
    _launch("average_ends", poles, ends.shape[1], x, x, poles.contiguous(), ends, slopes, strides=x.stride()[:2])


def _starts_like(ends: Tensor, slopes: Tensor | None, *_: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(ends), ends.new_empty(0) if slopes is None else torch.empty_like(slopes)


@kernel(_starts_like)
def average_starts(
    ends: Tensor, slopes: Tensor | None, log_decay: Tensor, angle: Tensor | None,
    *, starts: Tensor, start_slopes: Tensor,
) -> None:  # fmt: skip
    """State at the start of each chunk and its derivative. Without `slopes`: the reverse scan."""
    batch, chunks, _, channels = ends.shape
    sizes = _sizes(log_decay.shape[1], of_complex=angle is not None)
    launch(
        "average.average_starts", (-(-channels // sizes["CHANNELS"]), batch), ends, ends if slopes is None else slopes,
        log_decay.contiguous(), ends if angle is None else angle.contiguous(), starts, start_slopes, channels, chunks,
        log_decay.shape[1], REVERSE=slopes is None, SLOPES=slopes is not None, **sizes,
    )  # fmt: skip


@kernel(lambda x, *_: x.new_empty(x.shape))
def average_outputs(x: Tensor, weight: Tensor, poles: Tensor, direct: Tensor, starts: Tensor, *, y: Tensor) -> None:
    x = contiguous_rows(x)
    arguments = (x, weight.contiguous(), poles.contiguous(), direct, starts, y)
    _launch("average_outputs", poles, starts.shape[1], x, *arguments, strides=x.stride()[:2])


def _gradients_like(grad, x, weight, poles, direct, starts, slopes):
    batch, chunks, states, channels = starts.shape
    parts = starts.new_empty(batch, chunks, 2, states, channels), starts.new_empty(batch, chunks, channels)
    return x.new_empty(x.shape if poles.dim() == 2 else 0), *parts, torch.empty_like(starts)


@kernel(_gradients_like)
def average_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, poles: Tensor, direct: Tensor, starts: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient before the activation, empty if there is none; those of the parameters, and of direct, by each
    chunk; and what tokens before each chunk receive."""
    grad, x = contiguous_rows(grad), contiguous_rows(x)
    results = _gradients_like(grad, x, weight, poles, direct, starts, slopes)
    arguments = (grad, x, weight.contiguous(), poles.contiguous(), direct, starts, slopes, *results)
    strides = (*grad.stride()[:2], *x.stride()[:2])
    _launch("average_gradients", poles, starts.shape[1], x, *arguments, strides=strides)
    return results


@kernel(lambda inner, *_: inner.new_empty(inner.shape))
def average_adjoint(inner: Tensor, weight: Tensor, poles: Tensor, direct: Tensor, after: Tensor, *, dx: Tensor) -> None:
    """The gradient of x from that before the activation."""
    inner = contiguous_rows(inner)
    arguments = (inner, weight.contiguous(), poles.contiguous(), direct, after, dx)
    _launch("average_adjoint", poles, after.shape[1], inner, *arguments, strides=inner.stride()[:2])
