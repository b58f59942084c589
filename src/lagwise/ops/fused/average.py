"""MEGA's damped moving average, in chunks of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.fused import TritonEngine, contiguous_rows, kernel, launch
from lagwise.ops.operation import Values, operation

_CHUNK, _CHANNELS, _WARPS = 64, 32, 2  # the fastest of those tried on an H100 (docs/log.md)


@operation
def moving_average(x: Tensor, weight: Tensor, log_decay: Tensor, direct: Tensor) -> Tensor:
    """``silu(sum_n w_n s_n + direct x)`` with ``s_n <- exp(log_decay_n) s_n + x``, as `lagwise.ops.ema_scan`.

    Shapes: x ``(batch, length, channels)``; weight and log_decay ``(channels, dimension)``; direct ``(channels,)``;
    result like x. Two passes over x: averages at the end of each chunk from zero, which are then carried from chunk to
    chunk, and the outputs. The decay's gradient comes from the averages' derivatives, which run forwards beside them.
    """
    from lagwise.ops.recurrence.diagonal import ema_scan  # not above: it imports this package

    return F.silu(ema_scan(x, weight, log_decay) + direct * x).to(x.dtype)


@moving_average.engine("triton")
class _Average(TritonEngine):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, log_decay: Tensor, direct: Tensor) -> tuple[Tensor, Values]:
        starts, slopes = average_starts(*average_ends(x, log_decay), log_decay)
        return average_outputs(x, weight, log_decay, direct, starts), (starts, slopes)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        _, weight, log_decay, direct = args
        inner, dparameters, ddirect, before = average_gradients(grads[0], *args, *saved)
        after, _ = average_starts(before, None, log_decay)
        dx = average_adjoint(inner, weight, log_decay, direct, after)
        dweight, ddecay = dparameters.sum((0, 1)).transpose(1, 2)
        return dx, dweight, ddecay, ddirect.sum((0, 1)).to(direct.dtype)


def _states(x: Tensor, log_decay: Tensor) -> Tensor:
    """Return states of every chunk, ``(batch, chunks, dimension, channels)``."""
    return x.new_empty((x.shape[0], -(-x.shape[1] // _CHUNK), *log_decay.t().shape), dtype=torch.float32)


def _sizes(log_decay: Tensor) -> dict[str, int]:
    states = 1 << (log_decay.shape[1] - 1).bit_length()
    return {"CHUNK": _CHUNK, "STATES": states, "CHANNELS": _CHANNELS, "num_warps": _WARPS}


def _grid(x: Tensor) -> tuple[int, int, int]:
    batch, length, channels = x.shape
    return -(-length // _CHUNK), -(-channels // _CHANNELS), batch


@kernel(lambda x, log_decay: (_states(x, log_decay), _states(x, log_decay)))
def average_ends(x: Tensor, log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """Compute averages at the end of each chunk from zero, and their derivatives by the decay."""
    x, ends, slopes = contiguous_rows(x), _states(x, log_decay), _states(x, log_decay)
    launch(
        "average.average_ends", _grid(x), x, log_decay.contiguous(), ends, slopes, *x.shape[1:], ends.shape[1],
        log_decay.shape[1], *x.stride()[:2], **_sizes(log_decay),
    )  # fmt: skip
    return ends, slopes


def _starts_like(ends: Tensor, slopes: Tensor | None, log_decay: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(ends), ends.new_empty(0) if slopes is None else torch.empty_like(slopes)


@kernel(_starts_like)
def average_starts(ends: Tensor, slopes: Tensor | None, log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """State at the start of each chunk and its derivative. Without `slopes`: the reverse scan."""
    starts, start_slopes = _starts_like(ends, slopes, log_decay)
    batch, chunks, dimension, channels = ends.shape
    launch(
        "average.average_starts", (-(-channels // _CHANNELS), batch), ends, ends if slopes is None else slopes,
        log_decay.contiguous(), starts, start_slopes, channels, chunks, dimension,
        REVERSE=slopes is None, SLOPES=slopes is not None, **_sizes(log_decay),
    )  # fmt: skip
    return starts, start_slopes


@kernel(lambda x, *_: x.new_empty(x.shape))
def average_outputs(x: Tensor, weight: Tensor, log_decay: Tensor, direct: Tensor, starts: Tensor) -> Tensor:
    x, y = contiguous_rows(x), x.new_empty(x.shape)
    launch(
        "average.average_outputs", _grid(x), x, weight.contiguous(), log_decay.contiguous(), direct, starts, y,
        *x.shape[1:], *starts.shape[1:3], *x.stride()[:2], **_sizes(log_decay),
    )  # fmt: skip
    return y


def _gradients_like(grad, x, weight, log_decay, direct, starts, slopes):
    batch, chunks, dimension, channels = starts.shape
    parts = starts.new_empty(batch, chunks, 2, dimension, channels), starts.new_empty(batch, chunks, channels)
    return x.new_empty(x.shape), *parts, torch.empty_like(starts)


@kernel(_gradients_like)
def average_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, log_decay: Tensor, direct: Tensor, starts: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient before the activation; those of weight and log_decay, and of direct, by each chunk; and what tokens
    before each chunk receive."""
    grad, x = contiguous_rows(grad), contiguous_rows(x)
    results = _gradients_like(grad, x, weight, log_decay, direct, starts, slopes)
    launch(
        "average.average_gradients", _grid(x), grad, x, weight.contiguous(), log_decay.contiguous(), direct, starts,
        slopes, *results, *x.shape[1:], *starts.shape[1:3], *grad.stride()[:2], *x.stride()[:2], **_sizes(log_decay),
    )  # fmt: skip
    return results


@kernel(lambda inner, *_: torch.empty_like(inner))
def average_adjoint(inner: Tensor, weight: Tensor, log_decay: Tensor, direct: Tensor, after: Tensor) -> Tensor:
    """The gradient of x from that before the activation."""
    dx = torch.empty_like(inner)
    launch(
        "average.average_adjoint", _grid(inner), inner, weight.contiguous(), log_decay.contiguous(), direct, after, dx,
        *inner.shape[1:], *after.shape[1:3], **_sizes(log_decay),
    )  # fmt: skip
    return dx
