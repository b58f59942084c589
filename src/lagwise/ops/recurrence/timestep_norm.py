"""Normalisation by the moments of all tokens so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lagwise.ops.fused import TritonEngine, kernel, launch
from lagwise.ops.native import row_programs
from lagwise.ops.operation import Values, compute_dtype, operation


class Moments(NamedTuple):
    """Mean and variance of the tokens so far, ``(batch, groups, 2)``, and their number, ``(batch,)``. A number is the
    sum of two, so that float32 holds 48 bits of it: updates of a long text's mean are smaller than the last digit of
    one."""

    mean: Tensor
    variance: Tensor
    seen: Tensor


def timestep_norm(
    x: Tensor,
    before: Moments,
    *,
    mask: Tensor | None = None,
    epsilon: float = 1e-5,
    whole: bool = False,
) -> tuple[Tensor, Moments]:
    """Normalise each group of channels by its mean and variance over the tokens so far.

    Formula: ``y_t = (x_t - mean_t) / sqrt(variance_t + epsilon)``, where mean and (biased) variance are those of all
    channels of the group in all real tokens up to and with t.

    The moments are sums in float64 of the means and variances of single tokens, and of squares of differences from
    them. None is a difference of large sums, so that a mean far from zero and a long text cost no digits. As there is
    one number for each group, this is little beside the signal.

    Args:
        x: ``(batch, length, channels)``.
        before: The moments of earlier tokens; zeros for none. Their groups divide the channels.
        mask: ``(batch, length)``, true where a token is real. At padding x must be finite; the result has no meaning.
        epsilon: Added to the variance.
        whole: Normalise every token by the moments after the last one.

    Returns:
        A tensor like x, and the moments with these tokens.

    Source: Megalodon (Ma et al. 2024), §3.2, as released; there with Welford's update and Kahan's sums.
    """
    inside, tokens = token_moments(x, before.mean.shape[1])
    moments, after = moments_so_far(tokens, before, mask=mask, whole=whole)
    return normalised(inside, tokens, moments, epsilon=epsilon).to(x.dtype), after


def token_moments(x: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Return groups of channels less their mean in each token, ``(batch, length, groups, channels / groups)``, and mean
    and variance of each, ``(batch, length, groups, 2)`` in float64."""
    with torch.autocast(x.device.type, enabled=False):
        channels = x.to(compute_dtype(x, x)).unflatten(2, (groups, -1))
        centre = channels.mean(3, keepdim=True)
        inside = channels - centre
        return inside, torch.stack([centre[..., 0].double(), inside.square().mean(3).double()], -1)


def moments_so_far(
    tokens: Tensor, before: Moments, *, mask: Tensor | None = None, whole: bool = False
) -> tuple[Tensor, Moments]:
    """The moments of all tokens up to and with each, from those of single ones, and the state after the last. Shapes as
    from `token_moments`; arguments as in `timestep_norm`."""
    with torch.autocast(tokens.device.type, enabled=False):
        centres, spread = tokens.unbind(-1)
        real = torch.ones_like(centres[..., 0], dtype=torch.long) if mask is None else mask.long()
        seen = before.seen[:, None] + real.cumsum(1)
        count, earlier = (n.clamp(min=1).double()[..., None] for n in (seen, seen - real))
        total, squares = (part.double().sum(2) * before.seen[:, None] for part in before[:2])
        mean = (total[:, None] + (centres * real[..., None]).cumsum(1)) / count
        # (x - mean before)(x - mean with it) of Welford's update; zero for the first token.
        between = (centres - mean).square() * (count / earlier)
        variance = (squares[:, None] + ((spread + between) * real[..., None]).cumsum(1)) / count
        dtype, moments = before.mean.dtype, torch.stack([mean, variance], -1)
        after = Moments(_pair(mean[:, -1], dtype), _pair(variance[:, -1], dtype), seen[:, -1])
        return moments[:, -1:].expand_as(moments) if whole else moments, after


def normalised(inside: Tensor, tokens: Tensor, moments: Tensor, *, epsilon: float) -> Tensor:
    """The result of `timestep_norm`, ``(batch, length, channels)``, from `token_moments` and `moments_so_far`."""
    with torch.autocast(inside.device.type, enabled=False):
        shift = (tokens[..., 0] - moments[..., 0]).to(inside.dtype)
        factor = (moments[..., 1] + epsilon).rsqrt().to(inside.dtype)
        return ((inside + shift[..., None]) * factor[..., None]).flatten(2)


def _pair(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A number rounded to a type, and what that leaves."""
    rounded = value.to(dtype)
    return torch.stack([rounded, (value - rounded).to(dtype)], -1)


@operation
def affine_timestep_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float) -> Tensor:
    """`timestep_norm` of whole rows without padding, times weight plus bias, both ``(channels,)``."""
    zeros = x.new_zeros(x.shape[0], groups, 2, dtype=compute_dtype(x, x))
    before = Moments(zeros, zeros, zeros.new_zeros(x.shape[0], dtype=torch.long))
    return (timestep_norm(x, before, epsilon=epsilon)[0] * weight + bias).to(x.dtype)


@affine_timestep_norm.engine("triton")
class _Kernels(TritonEngine):
    """Passes over x by kernels: its means and variances are one number for each group, and PyTorch adds them up."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float) -> tuple[Tensor, Values]:
        spread, centres = torch.var_mean(x.float().unflatten(2, (groups, -1)), 3, correction=0)
        count = torch.arange(1, x.shape[1] + 1, dtype=torch.float64, device=x.device)[:, None]
        ratio = count / (count - 1).clamp(min=1)
        gap = centres - centres.cumsum(1, dtype=torch.float64) / count
        variance = torch.addcmul(spread.double(), gap * ratio, gap).cumsum(1) / count
        factor = (variance + epsilon).rsqrt()
        table = torch.stack([centres.double(), factor, gap * factor, gap], -1).float()
        return scaled_groups(x, table, weight, bias, None), (table, count, ratio)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        (x, weight, bias, groups, _), (table, count, ratio) = args, saved
        sums, parts = summed_groups(x, table, weight, grads[0])
        centre, factor, _, gap = table.double().unbind(-1)
        # Gradients of a token's variance and mean: of those of all tokens from it on.
        twice_of_spread = _from_each(factor * factor * sums[..., 1] / -count)
        between = gap * ratio * twice_of_spread
        of_centre = between - _from_each((factor * sums[..., 0] + between) / count)
        width = x.shape[2] // groups
        rows = [centre, twice_of_spread / width, of_centre / width, factor]
        dx = scaled_groups(x, torch.stack(rows, -1).float(), weight, bias, grads[0])
        dweight, dbias = parts.sum(0).to(weight.dtype)
        return dx, dweight, dbias


def _from_each(x: Tensor) -> Tensor:
    """Sums from each token on."""
    return x.flip(1).cumsum(1).flip(1)


def _launch(name: str, programs: int, x: Tensor, table: Tensor, *tensors: Tensor, **constants: int) -> None:
    groups, rows = table.shape[2], x.shape[0] * x.shape[1]
    width = x.shape[2] // groups
    constants |= {"GROUPS": 1 << (groups - 1).bit_length(), "WIDTH": 1 << (width - 1).bit_length()}
    tensors = tuple(t.contiguous() for t in (x, table, *tensors))
    launch(f"layers.{name}", (programs,), *tensors, rows, groups, width, **constants)


@kernel(lambda x, *_: x.new_empty(x.shape))
def scaled_groups(x: Tensor, table: Tensor, weight: Tensor, bias: Tensor, grad: Tensor | None) -> Tensor:
    """The norm from the numbers of each group; with ``grad``, its gradient."""
    y, others = x.new_empty(x.shape), (weight, bias, x if grad is None else grad)
    _launch("scale_groups", x.shape[0] * x.shape[1], x, table, *others, y, BACKWARD=grad is not None)
    return y


def _sums_like(x: Tensor, table: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return table.new_empty((*table.shape[:3], 2)), table.new_empty((row_programs(x), 2, x.shape[2]))


@kernel(_sums_like)
def summed_groups(x: Tensor, table: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of a group's gradients, and gradients of weight and bias in parts."""
    sums, parts = _sums_like(x, table, weight, grad)
    _launch("sum_groups", len(parts), x, table, weight, grad, sums, parts)
    return sums, parts
