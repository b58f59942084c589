"""MiniRocket features of series: shares of samples at which fixed dilated convolutions exceed thresholds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.models.embeddings import standardised
from lagwise.ops.operation import traced
from lagwise.tables import check_integer

_TAPS = 9
_TRIPLES = tuple(itertools.combinations(range(_TAPS), 3))
KERNELS = len(_TRIPLES)  # 84
_MAX_CHANNELS = 9  # channels that a kernel sums
THRESHOLDS = 119  # thresholds per kernel, over all dilations: 9,996 features
_MAX_DILATIONS = 32
LEVELS = 30  # thresholds of each sum of channels, where the levels of a series help
_SAMPLED = 4096  # samples whose quantiles are thresholds of levels
_FEW = 1 << 10  # samples of which all kernels' values are small
_COMPARISONS = 1 << 17  # upper bound per chunk
_GOLDEN = (5**0.5 + 1) / 2


class ConvolutionState(NamedTuple):
    """State of a stream: its last standardised samples ``(batch, reach, channels)``, their number so far ``(batch,)``,
    and how often each threshold was exceeded ``(batch, size)``."""

    past: Tensor
    seen: Tensor
    counts: Tensor


class Convolutions(nn.Module):
    """MiniRocket features: shares of the samples at which fixed dilated convolutions exceed thresholds.

    Formula: ``mean_t [y_{k,d,t} > b_{k,d,j}]`` with ``y_{k,d,t} = sum_m w_{k,m} z_{t - m d}``, where w_k is one of the
    84 kernels of 9 taps that have three taps of 2 and six of -1, d a dilation, b a threshold, and z a standardised
    channel or a sum of up to 9 random ones. Every other pair of kernel and dilation counts only the samples at which
    all taps lie inside the series; the others see zeros before it. With ``levels``, also shares of the samples at which
    random signed sums of channels exceed thresholds, because a kernel whose taps sum to 0 does not see their level.

    The convolutions are causal, so a stream has at every sample exactly the features of the series up to it.
    They are computed by additions alone, in one order, so that a sample's value does not depend on how a series is cut
    into chunks.

    Shapes: x ``(batch, length, channels)``; mask ``(batch, length)``, true at samples, or None; result
    ``(batch, size)``. Padding on either side has no effect.

    Args:
        channels: Channels of a series.
        dilations: Dilations in samples.
        thresholds: Thresholds of each kernel with each dilation.
        levels: Thresholds of each sum of channels; 0 for none.
        mean: Mean of each channel, by which samples are standardised.
        std: Standard deviation of each channel, by which samples are standardised.

    Source: Dempster, Schmidt and Webb 2021 (MiniRocket), with their kernels, dilations and shares; there convolutions
    are centred. Levels are ours.
    """

    def __init__(
        self,
        channels: int,
        *,
        dilations: list[int],
        thresholds: list[int],
        levels: int = 0,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ):
        super().__init__()
        self.channels = check_integer("channels", channels)
        if not dilations or len(dilations) != len(thresholds) or min(*dilations, *thresholds) < 1:
            raise ValueError(f"dilations and thresholds must be as many, and positive, got {dilations}, {thresholds}")
        self.dilations, self.thresholds, self.levels = dilations, thresholds, check_integer("levels", levels, min=0)
        self.mean, self.std = mean, std  # plain lists: buffers would be lost when a model is loaded via the meta device
        self.reach = (_TAPS - 1) * max(dilations)
        self.plain = KERNELS * sum(thresholds)
        self.size = self.plain + KERNELS * levels
        summed = min(channels, _MAX_CHANNELS)
        # Indices of the channels that a kernel sums; index ``channels`` is a channel of zeros.
        self.register_buffer("chosen", torch.zeros(len(dilations), KERNELS, summed, dtype=torch.long))
        self.register_buffer("biases", torch.zeros(KERNELS, sum(thresholds)))
        self.register_buffer("signs", torch.zeros(channels, KERNELS if levels else 0))
        self.register_buffer("level_biases", torch.zeros(KERNELS, levels))

    @staticmethod
    def plan(lengths: Sequence[int], *, total: int = THRESHOLDS) -> dict[str, Any]:
        """Choose dilations up to an eighth of the median length, and divide ``total`` thresholds per kernel among
        them."""
        largest = max(1, (int(np.median(lengths)) - 1) // (_TAPS - 1))
        count = min(total, _MAX_DILATIONS)
        dilations, times = np.unique(np.geomspace(1, largest, count).astype(int), return_counts=True)
        thresholds = times * total // count
        thresholds[: total - thresholds.sum()] += 1
        return {"dilations": dilations.tolist(), "thresholds": thresholds.tolist()}

    @torch.no_grad()
    def prepare(self, series: Sequence[Tensor], seed: int) -> None:
        """Draw the channels of kernels, and thresholds from series ``(length, channels)``: quantiles of the
        convolutions of a random one for each kernel, and of the levels of random samples."""
        random = np.random.default_rng(seed)
        self.chosen.copy_(torch.from_numpy(self._drawn_channels(random)))
        shares = self._shares_of_values(self.biases.numel())
        shares = shares.unflatten(0, (sum(self.thresholds), KERNELS)).t()
        start = 0
        for index, count in enumerate(self.thresholds):
            own = slice(start, start := start + count)
            picked = random.integers(0, len(series), KERNELS)
            for number in np.unique(picked):
                by_kernel = _by_kernel(self._lagged(self._scaled(series[number][None]), index))
                for kernel in np.flatnonzero(picked == number).tolist():
                    values = _convolution(by_kernel[kernel], kernel)[0, : 1 << 24]
                    self.biases[kernel, own] = torch.quantile(values, shares[kernel, own])
        if self.levels:
            summed, signs = self._drawn_channels(random)[0], np.zeros((self.channels + 1, KERNELS), dtype=np.float32)
            np.put_along_axis(signs, summed.T, random.choice([-1.0, 1.0], summed.T.shape), axis=0)
            self.signs.copy_(torch.from_numpy(signs[:-1]))
            lengths = np.array([len(each) for each in series])
            rows = random.choice(len(series), _SAMPLED, p=lengths / lengths.sum())
            samples = torch.stack([series[i][j] for i, j in zip(rows, random.integers(0, lengths[rows]), strict=True)])
            values = self._scaled(samples[None])[0] @ self.signs
            shares = self._shares_of_values(KERNELS * self.levels)
            for kernel, own in enumerate(shares.unflatten(0, (self.levels, KERNELS)).t()):
                self.level_biases[kernel] = torch.quantile(values[:, kernel], own)

    def drop_levels(self) -> None:
        """Remove the levels."""
        self.levels, self.size = 0, self.plain
        self.signs, self.level_biases = self.signs[:, :0].clone(), self.level_biases[:, :0].clone()

    def _scaled(self, x: Tensor) -> Tensor:
        """Standardise samples; missing ones (NaN) count as the mean."""
        z = standardised(x, self.mean, self.std)
        return z.masked_fill(z.isnan(), 0).to(self.biases.dtype)

    def _shares_of_values(self, count: int) -> Tensor:
        """Return the quantiles at which thresholds are, evenly spread however many are taken."""
        return torch.from_numpy(np.arange(1, count + 1) * _GOLDEN % 1).float().to(self.biases.device)

    def _drawn_channels(self, random: np.random.Generator) -> np.ndarray:
        """Draw 1 to 9 channels for each dilation and kernel, fewer more often, as in MiniRocket."""
        shape = tuple(self.chosen.shape)
        numbers = np.full(shape, self.channels)
        for pair in np.ndindex(shape[:2]):
            count = int(2 ** random.uniform(0, np.log2(shape[2] + 1)))
            numbers[pair][:count] = random.choice(self.channels, count, replace=False)
        return numbers

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        z = self._scaled(x)
        if mask is None:
            position = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        else:
            position = torch.where(mask, mask.long().cumsum(1) - 1, -1)
            z = z * mask[..., None]
        counts = self._counts(z, position, padded=mask is not None)
        return self._shares(counts, (position >= 0).sum(1))

    def start(self, batch: int) -> ConvolutionState:
        """Return the state before a stream's first sample."""
        past = self.biases.new_zeros(batch, self.reach, self.channels)
        seen = torch.zeros(batch, dtype=torch.long, device=past.device)
        return ConvolutionState(past, seen, past.new_zeros(batch, self.size, dtype=torch.float64))

    def step(self, x: Tensor, state: ConvolutionState) -> tuple[Tensor, ConvolutionState]:
        """Process the next samples ``(batch, n, channels)``. Returns the features after each of them, ``(batch, n,
        size)``, and the next state."""
        z = torch.cat([state.past, self._scaled(x)], 1)
        position = state.seen[:, None] + torch.arange(x.shape[1], device=x.device)
        totals = state.counts[:, None] + self._counts(z, position, each=True).cumsum(1)
        later = ConvolutionState(z[:, z.shape[1] - self.reach :].clone(), state.seen + x.shape[1], totals[:, -1])
        features = self._shares(totals.flatten(0, 1), (position + 1).flatten())
        return features.unflatten(0, position.shape), later

    def _lagged(self, z: Tensor, index: int, past: int = 0) -> list[Tensor]:
        """Return the inputs of each tap of kernels with a dilation, and their sum, each ``(batch, kernels or 1,
        length)``, at samples after the first ``past``. Before the first sample there are zeros."""
        dilation, length = self.dilations[index], z.shape[1] - past
        summed = self._sums_of_channels(z, index)
        missing = (_TAPS - 1) * dilation - past
        padded = F.pad(summed, (max(0, missing), 0))[..., max(0, -missing) :]
        lagged = [padded[..., dilation * (_TAPS - 1 - m) :][..., :length] for m in range(_TAPS)]
        return [*lagged, reduce(torch.add, lagged)]

    def _convolved(self, z: Tensor, index: int, past: int = 0) -> Tensor:
        """Apply `_convolution` with all kernels at once: ``(batch, kernels, length)``."""
        lagged = torch.stack(self._lagged(z, index, past)).expand(-1, -1, KERNELS, -1)
        taps, own = torch.tensor(_TRIPLES, device=z.device).t(), torch.arange(KERNELS, device=z.device)
        first, second, third = (lagged[indices, :, own] for indices in taps)  # (kernels, batch, length)
        return 3 * (first + second + third).transpose(0, 1) - lagged[-1]

    def _sums_of_channels(self, z: Tensor, index: int) -> Tensor:
        """Return the channel or the sum of channels that each kernel sees, ``(batch, kernels or 1, length)``."""
        by_channel = z.transpose(1, 2)
        if self.channels == 1:
            return by_channel
        by_channel = F.pad(by_channel, (0, 0, 0, 1))
        return reduce(torch.add, [by_channel[:, numbers] for numbers in self.chosen[index].t()])

    def _counts(self, z: Tensor, position: Tensor, *, padded: bool = False, each: bool = False) -> Tensor:
        """Count the samples at which features' thresholds are exceeded, ``(batch, size)``, or by ``each`` whether they
        are at each sample, ``(batch, length, size)``. z: standardised samples ``(batch, past + length, channels)``;
        position: ``(batch, length)`` of the last ones in their series, -1 at padding."""
        past, parts, start = z.shape[1] - position.shape[1], [], 0
        at_once = each or traced() or position.numel() <= _FEW  # few operations, with all values in memory
        padding = position < 0 if padded else None
        for index, (dilation, count) in enumerate(zip(self.dilations, self.thresholds, strict=True)):
            first, biases = (_TAPS - 1) * dilation, self.biases[:, start : start + count]
            if at_once:
                hidden = position[:, None] < self._missed(index)[:, None]
                y = self._convolved(z, index, past).masked_fill(hidden, -torch.inf)
                parts.append(_exceeded(y, biases, each))
            else:
                left_out = padding, position < first
                convolved = (
                    _hide(_convolution(inputs, number), left_out[(number + index) % 2])
                    for number, inputs in enumerate(_by_kernel(self._lagged(z, index, past)))
                )
                parts.append(_counted(convolved, biases))
            start += count
        if self.levels:
            y = (z[:, past:] @ self.signs).transpose(1, 2).masked_fill(position[:, None] < 0, -torch.inf)
            parts.append(_exceeded(y, self.level_biases, each) if at_once else _counted(y.unbind(1), self.level_biases))
        return torch.cat(parts, -1)

    def _shares(self, counts: Tensor, seen: Tensor) -> Tensor:
        """Divide counts ``(batch, size)`` by the numbers of samples that were compared, of ``seen (batch,)``
        samples."""
        missed = [self._missed(index).repeat_interleave(count) for index, count in enumerate(self.thresholds)]
        missed.append(missed[0].new_zeros(KERNELS * self.levels))
        return (counts / (seen[:, None] - torch.cat(missed)).clamp(min=1)).to(self.biases.dtype)

    def _missed(self, index: int) -> Tensor:
        """The first samples that each kernel with a dilation does not count."""
        kernel = torch.arange(KERNELS, device=self.biases.device)
        return torch.where((kernel + index) % 2 == 1, (_TAPS - 1) * self.dilations[index], 0)


def _by_kernel(lagged: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Return for each kernel the inputs of its taps, and their sum, each ``(batch, length)``."""
    rows = list(zip(*(each.unbind(1) for each in lagged), strict=True))
    return rows * (KERNELS // len(rows))


def _convolution(inputs: Sequence[Tensor], kernel: int) -> Tensor:
    """Convolve with one kernel, given the inputs of its taps and their sum: ``(batch, length)``. The taps are -1, but 2
    at three positions a, b and c: ``3 (z_a + z_b + z_c) - sum z``."""
    a, b, c = _TRIPLES[kernel]
    return (inputs[a] + inputs[b]).add_(inputs[c]).mul_(3).sub_(inputs[-1])


def _hide(y: Tensor, hidden: Tensor | None) -> Tensor:
    return y if hidden is None else y.masked_fill_(hidden, -torch.inf)


def _counted(convolved: Iterable[Tensor], biases: Tensor) -> Tensor:
    """Count how often the ``(batch, length)`` of each kernel exceed its thresholds, ``(kernels, n)``: ``(batch, kernels
    * n)``. Few comparisons at once stay in a processor's cache, and those into floats are ten times as fast as booleans
    that are converted."""
    counts, above = [], biases.new_empty(0)
    for y, own in zip(convolved, biases, strict=True):
        chunk = max(1, min(len(own), _COMPARISONS // max(1, y.numel())))
        if not counts:
            above = y.new_empty(chunk, *y.shape)
        counts += [torch.gt(y, b[:, None, None], out=above[: len(b)]).sum(2) for b in own.split(chunk)]
    return torch.cat(counts).t()


def _exceeded(y: Tensor, biases: Tensor, each: bool) -> Tensor:
    """Count how often y ``(batch, kernels, length)`` exceeds thresholds ``(kernels, n)``: ``(batch, kernels * n)``.
    With ``each``, return whether it does at each sample: ``(batch, length, kernels * n)``."""
    above = y[..., None] > biases[:, None]
    return above.transpose(1, 2).flatten(2).to(torch.float64) if each else above.to(y.dtype).sum(2).flatten(1)
