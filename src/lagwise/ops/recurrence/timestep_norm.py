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
    dtype = compute_dtype(x, x)
    with torch.autocast(x.device.type, enabled=False):
        channels = x.to(dtype).unflatten(2, (before.mean.shape[1], -1))
        centre = channels.mean(3, keepdim=True)
        inside = channels - centre  # the group of a single token
        centres, spread = centre[..., 0].double(), inside.square().mean(3).double()
        real = torch.ones_like(x[..., 0], dtype=torch.long) if mask is None else mask.long()
        seen = before.seen[:, None] + real.cumsum(1)
        count, earlier = (n.clamp(min=1).double()[..., None] for n in (seen, seen - real))
        known, squares = (part.double().sum(2) * before.seen[:, None] for part in before[:2])
        mean = (known[:, None] + (centres * real[..., None]).cumsum(1)) / count
        # (x - mean before)(x - mean with it) of Welford's update; zero for the first token.
        between = (centres - mean).square() * (count / earlier)
        variance = (squares[:, None] + ((spread + between) * real[..., None]).cumsum(1)) / count
        held = before.mean.dtype
        after = Moments(_pair(mean[:, -1], held), _pair(variance[:, -1], held), seen[:, -1])
        if whole:
            mean, variance = mean[:, -1:], variance[:, -1:]
        shift, factor = (centres - mean).to(dtype), (variance + epsilon).rsqrt().to(dtype)
        y = (inside + shift[..., None]) * factor[..., None]
    return y.flatten(2).to(x.dtype), after


def _pair(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A number rounded to a type, and what that leaves."""
    rounded = value.to(dtype)
    return torch.stack([rounded, (value - rounded).to(dtype)], -1)
