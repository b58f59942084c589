"""Normalisation by the moments of all tokens so far."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lagwise.ops.precision import compute_dtype


class Moments(NamedTuple):
    """Mean and variance of the tokens so far, ``(batch, groups, 2)``, and their number, ``(batch,)``. A number is the
    sum of two, so that float32 holds 48 bits of it: updates of a long text's mean are smaller than the last digit of
    one."""

    mean: Tensor
    variance: Tensor
    seen: Tensor


def timestep_norm(
    x: Tensor, before: Moments, *, mask: Tensor | None = None, epsilon: float = 1e-5, whole: bool = False
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
    """Groups of channels less their mean in each token, ``(batch, length, groups, channels / groups)``, and mean and
    variance of each, ``(batch, length, groups, 2)`` in float64."""
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
        known, squares = (part.double().sum(2) * before.seen[:, None] for part in before[:2])
        mean = (known[:, None] + (centres * real[..., None]).cumsum(1)) / count
        # (x - mean before)(x - mean with it) of Welford's update; zero for the first token.
        between = (centres - mean).square() * (count / earlier)
        variance = (squares[:, None] + ((spread + between) * real[..., None]).cumsum(1)) / count
        held = before.mean.dtype
        after = Moments(_pair(mean[:, -1], held), _pair(variance[:, -1], held), seen[:, -1])
        moments = torch.stack([mean, variance], -1)
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
