"""The adaptive Fourier neural operator."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, check_heads
from lagwise.ops import Layout
from lagwise.ops.activations import ACTIVATIONS
from lagwise.ops.packing import move_rows, row_extents
from lagwise.tables import known
from lagwise_papers.family.ragged_dft import ragged_dft, ragged_irdft

_DEVIATION = 0.02 * math.sqrt(96)  # the published 0.02 for heads of 96 channels, scaled by the inputs of a layer


class AFNOMixer(Mixer):
    """A network applied to every frequency of a sequence, the same for all: ``x + irfft(shrink(N(rfft(x))))``.

    N has two layers of complex weights, ``N(z) = W_2 act(W_1 z + b_1) + b_2``, block-diagonal with a block for each
    head, and act applied to real and imaginary parts. ``shrink(u) = sign(u) max(|u| - threshold, 0)``, in both parts.
    Transforms are orthonormal (``1 / sqrt(n)``).

    Options:
        heads: blocks of the weights; must divide the channels (published: 8).
        threshold: size up to which a part of an output becomes 0; at least 0 (published: 0.01).
        activation: of the hidden layer, as in kernel networks (published: ``relu``).

    A row is transformed over its own tokens, so that padding has no effect; the published code transforms padding too.
    Two-sided only. ValueError for options out of range.

    The residual, and the half of the spectrum that says the other, are those of the published code; its cut of high
    frequencies, by default off, is left out.

    Source: Guibas et al. 2022, "Adaptive Fourier Neural Operators: Efficient Token Mixers for Transformers", §4.
    """

    directions = (False,)

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = False,
        heads: int = 8,
        threshold: float = 0.01,
        activation: str = "relu",
    ):
        super().__init__(channels, causal)
        self.network = FrequencyNetwork(channels, heads, threshold, activation)

    def reset_parameters(self) -> None:
        self.network.reset_parameters()

    def mix(self, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
        return _mixed(self.network, x, layout, (1, x.shape[1])), None


class AFNO2d(AFNOMixer):
    """`AFNOMixer` over a grid, by Fourier transforms of two dimensions.

    Options:
        heads: blocks of the weights; must divide the channels (published: 8).
        threshold: size up to which a part of an output becomes 0; at least 0 (published: 0.01).
        activation: of the hidden layer, as in kernel networks (published: ``relu``).

    An image is transformed over its own height and width: over the smallest rectangle that holds all that its mask
    shows. Two-sided only. Grid and errors as in `GridMixer`.

    Source: Guibas et al. 2022, "Adaptive Fourier Neural Operators: Efficient Token Mixers for Transformers", §4.
    """

    needs_grid = True

    def mix(self, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
        return _mixed(self.network, x, layout, layout.require_grid(type(self).__name__)), None


class FrequencyNetwork(nn.Module):
    """The network of `AFNOMixer`, with the shrinkage of its outputs: complex ``(..., channels)`` to the same."""

    undecayed = ("first_bias", "second_bias")

    def __init__(self, channels: int, heads: int, threshold: float, activation: str):
        super().__init__()
        check_heads(channels, heads)
        if not threshold >= 0:
            raise ValueError(f"threshold must be at least 0, got {threshold}")
        self.heads, self.threshold = heads, threshold
        self.activation = known(activation, ACTIVATIONS, "activation")
        size = channels // heads
        self.first, self.second = (nn.Parameter(torch.empty(heads, size, size, 2)) for _ in range(2))
        self.first_bias, self.second_bias = (nn.Parameter(torch.empty(channels, 2)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both parts from normal distributions: weights of variance 0.0384 / inputs, so that heads of 96 channels
        have the published deviation of 0.02 and smaller ones are not all shrunk to nothing; biases of deviation
        0.02."""
        for weight in (self.first, self.second):
            nn.init.normal_(weight, std=_DEVIATION * weight.shape[1] ** -0.5)
        for bias in (self.first_bias, self.second_bias):
            nn.init.normal_(bias, std=0.02)

    def forward(self, z: Tensor) -> Tensor:
        hidden = torch.view_as_real(self._layer(z, self.first, self.first_bias))
        hidden = torch.view_as_complex(ACTIVATIONS[self.activation](hidden))
        y = torch.view_as_real(self._layer(hidden, self.second, self.second_bias))
        return torch.view_as_complex(y - y.clamp(-self.threshold, self.threshold))

    def _layer(self, z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight, bias = (torch.view_as_complex(p.to(z.real.dtype)) for p in (weight, bias))
        return torch.einsum("...hi,hio->...ho", z.unflatten(-1, (self.heads, -1)), weight).flatten(-2) + bias


def _mixed(network: FrequencyNetwork, x: Tensor, layout: Layout, grid: tuple[int, int]) -> Tensor:
    """Add to x the network's output for its frequencies. Shapes: x ``(batch, height * width, channels)``, zero at
    padding, as is the result."""
    image = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(1, grid)
    if layout.mask is None:
        spectrum = torch.fft.rfft2(image, dim=(1, 2), norm="ortho")
        y = torch.fft.irfft2(network(spectrum), s=grid, dim=(1, 2), norm="ortho")
    else:
        y = _ragged(network, image, layout.mask.unflatten(1, grid))
    return x + y.flatten(1, 2).to(x.dtype)


def _ragged(network: FrequencyNetwork, image: Tensor, mask: Tensor) -> Tensor:
    """Transform every image over its own rectangle."""
    _, height, width = mask.shape
    (top, heights), (left, widths) = row_extents(mask.any(2)), row_extents(mask.any(1))
    area = (heights * widths).to(image.dtype)[:, None, None, None]
    row_sizes, column_sizes = widths.repeat_interleave(height), heights.repeat_interleave(width)
    rows = (_shift(image, -top, -left) / area.sqrt()).to(image.dtype.to_complex()).flatten(0, 1)
    spectrum = _down(ragged_dft, ragged_dft(rows, row_sizes).unflatten(0, (-1, height)), column_sizes)
    down, across = (torch.arange(n, device=image.device) for n in (height, width))
    inside = (down < heights[:, None])[:, :, None] & (across <= widths[:, None] // 2)[:, None]
    mixed = network(spectrum).masked_fill(~inside[..., None], 0)
    columns = _down(lambda z, n: ragged_dft(z.conj(), n).conj() / n[:, None, None], mixed, column_sizes)
    y = ragged_irdft(columns.flatten(0, 1), row_sizes).unflatten(0, (-1, height))
    return _shift(area.sqrt() * y, top, left)


def _shift(image: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Shift every image by its own offset ``(batch,)``."""
    height, width = image.shape[1:3]
    y = move_rows(image.flatten(2), down, height).unflatten(2, (width, -1))
    return move_rows(y.transpose(1, 2).flatten(2), right, width).unflatten(2, (height, -1)).transpose(1, 2)


def _down(transform: Callable[[Tensor, Tensor], Tensor], z: Tensor, lengths: Tensor) -> Tensor:
    """Apply a transform to all columns as one batch. Shapes: z ``(batch, height, width, channels)``; lengths ``(batch *
    width,)``."""
    columns = transform(z.transpose(1, 2).flatten(0, 1), lengths)
    return columns.unflatten(0, (len(z), -1)).transpose(1, 2)
