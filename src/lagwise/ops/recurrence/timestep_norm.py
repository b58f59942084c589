"""Normalisation by the moments of all tokens so far."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.operation import chunk_count, compute_dtype, in_graph, symbolic

_LARGEST_EXPONENT = 300.0  # the scales within a block stay below it: exp(300) times a mean is finite in float64
_GRAPH_BLOCK = 512  # tokens of a block in a graph for any length


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
    decay: tuple[float, float] | None = None,
) -> tuple[Tensor, Moments]:
    """Normalise each group of channels by its mean and variance over the tokens so far.

    Formula: ``y_t = (x_t - mean_t) / sqrt(variance_t + epsilon)``, where mean and (biased) variance are those of all
    channels of the group in all real tokens up to and with t. With decays ``a`` and ``b``, over the real tokens s up to
    t, ``mean_t = sum_s a**(t - s) mean(x_s) / sum_s a**(t - s)`` and ``variance_t = sum_s b**(t - s) var(x_s) / sum_s
    b**(t - s)``, where mean and var are those of the channels of one token.

    The moments are sums in float64 of the means and variances of single tokens, and of squares of differences from
    them. None is a difference of large sums, so that a mean far from zero and a long text cost no digits. As there is
    one number for each group, this is little beside the signal.

    Args:
        x: ``(batch, length, channels)``.
        before: The moments of earlier tokens; zeros for none. Their groups divide the channels.
        mask: ``(batch, length)``, true where a token is real. At padding x must be finite; the result has no meaning.
        epsilon: Added to the variance.
        whole: Normalise every token by the moments after the last one.
        decay: Factors per token of what earlier tokens weigh in mean and variance, at least 0.5 and less than 1; None:
            all tokens weigh the same.

    Returns:
        A tensor like x, and the moments with these tokens.

    Source: Megalodon (Ma et al. 2024), §3.2, as released; there with Welford's update and Kahan's sums. Decays: Gecko
    (Ma et al. 2026), timestep decay normalisation, as released. There the first token of a later document of a packed
    row has a weight 1 / (1 - decay) too large; here every document begins as the first one does.
    """
    inside, tokens = token_moments(x, before.mean.shape[1])
    moments, after = moments_so_far(tokens, before, mask=mask, whole=whole, decay=decay)
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
    tokens: Tensor,
    before: Moments,
    *,
    mask: Tensor | None = None,
    whole: bool = False,
    decay: tuple[float, float] | None = None,
) -> tuple[Tensor, Moments]:
    """The moments of all tokens up to and with each, from those of single ones, and the state after the last. Shapes as
    from `token_moments`; arguments as in `timestep_norm`."""
    with torch.autocast(tokens.device.type, enabled=False):
        centres, spread = tokens.unbind(-1)
        real = torch.ones_like(centres[..., 0], dtype=torch.long) if mask is None else mask.long()
        seen = before.seen[:, None] + real.cumsum(1)
        if decay is not None:
            values = zip((centres, spread), before[:2], decay, strict=True)
            mean, variance = (_decayed_mean(x, real, past.double().sum(2), before.seen, q) for x, past, q in values)
            return _with_state(mean, variance, seen, before, whole)
        count, earlier = (n.clamp(min=1).double()[..., None] for n in (seen, seen - real))
        total, squares = (part.double().sum(2) * before.seen[:, None] for part in before[:2])
        mean = (total[:, None] + (centres * real[..., None]).cumsum(1)) / count
        # (x - mean before)(x - mean with it) of Welford's update; zero for the first token.
        between = (centres - mean).square() * (count / earlier)
        variance = (squares[:, None] + ((spread + between) * real[..., None]).cumsum(1)) / count
        return _with_state(mean, variance, seen, before, whole)


def _with_state(mean: Tensor, variance: Tensor, seen: Tensor, before: Moments, whole: bool) -> tuple[Tensor, Moments]:
    """The results of `moments_so_far`."""
    dtype = before.mean.dtype
    after = Moments(_pair(mean[:, -1], dtype), _pair(variance[:, -1], dtype), seen[:, -1])
    moments = torch.stack([mean, variance], -1)
    return moments[:, -1:].expand_as(moments) if whole else moments, after


def _decayed_mean(x: Tensor, real: Tensor, past: Tensor, seen: Tensor, decay: float) -> Tensor:
    """The mean of the real tokens so far, of which earlier ones weigh less by a factor for each real token after them.

    Sums run within blocks, whose tokens are scaled up by the decay that the later ones have, and from block to block.

    Shapes: x and the result ``(batch, length, groups)``; real ``(batch, length)``; past, the mean of ``seen`` earlier
    tokens, ``(batch, groups)``.
    """
    rate, length = math.log(decay), x.shape[1]
    size = int(_LARGEST_EXPONENT / -rate)
    size = min(size, _GRAPH_BLOCK if symbolic(length) or in_graph() else length)
    blocks = chunk_count(length, size) if symbolic(length) else -(-length // size)
    rest = blocks * size - length
    values, counted = ((F.pad(t, (0, 0, 0, rest))).unflatten(1, (blocks, size)) for t in (x, real[..., None]))
    inside = counted.cumsum(2).double()  # (batch, blocks, size, 1)
    growth = (rate * inside).exp()
    sums = (values * counted / growth).cumsum(2) * growth
    before = F.pad(inside[:, :, -1, 0].cumsum(1), (1, -1))  # tokens before each block
    powers = (rate * (before[:, :, None] - before[:, None]).clamp(min=0)).exp().tril()
    ends = torch.cat([(past * _weight(seen, rate)[:, None])[:, None], sums[:, :-1, -1]], 1)
    total = (sums + (powers @ ends)[:, :, None] * growth).flatten(1, 2)[:, :length]
    count = (seen[:, None] + real.cumsum(1)).clamp(min=1)
    return total / _weight(count, rate)[..., None]


def _weight(count: Tensor, rate: float) -> Tensor:
    """The sum of ``exp(rate)**l`` over l < count."""
    return torch.expm1(rate * count.double()) / math.expm1(rate)


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
