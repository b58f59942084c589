"""Stacks of depthwise dilated convolutions: the temporal convolutional network of TCNCA."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.operation import compute_dtype
from lagwise.ops.toeplitz.convolution import convolution
from lagwise.ops.window import Window, extended, spaced
from lagwise.tables import check_integer


def dilated_convolution(x: Tensor, taps: Tensor, dilation: int, *, causal: bool = True) -> Tensor:
    """Depthwise dilated convolution.

    Formula: ``y_i = sum_m w_m x_{i - m dilation}`` for m = 0..K-1 when causal, m = -(K-1)/2..(K-1)/2 (centred)
    otherwise. Tokens outside the signal are zero.

    Args:
        x: ``(batch, length, channels)``.
        taps: ``(channels, K)``, the smallest m first.
        dilation: In tokens, at least 1.
        causal: Whether the convolution is causal or centred.

    Returns:
        A tensor like x. Arithmetic is float64 if either input is, otherwise float32.

    Raises:
        ValueError: For an empty signal, other shapes, a dilation below 1, or an even K for a centred convolution.

    Source: TCNCA §2. Exactly causal for finite values.

    >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 4, 1)
    >>> dilated_convolution(x, torch.tensor([[1.0, 10.0]]), dilation=2).flatten().tolist()
    [1.0, 2.0, 13.0, 24.0]
    """
    if x.dim() != 3 or x.shape[1] == 0 or taps.dim() != 2 or taps.shape[0] != x.shape[2] or taps.shape[1] == 0:
        expected = "x (batch, length >= 1, channels) and taps (channels, K >= 1)"
        raise ValueError(f"expected {expected}, got {tuple(x.shape)} and {tuple(taps.shape)}")
    if dilation < 1:
        raise ValueError(f"dilation must be at least 1, got {dilation}")
    return convolution(x, taps, centre_tap(taps.shape[1], causal), "direct", dilation)


def dilated_prefill(
    x: Tensor, taps: Tensor, dilation: int, past: Any, seen: Tensor | None = None
) -> tuple[Tensor, Window]:
    """`dilated_convolution` of the next tokens of a stream, whose number before, ``seen``, does not matter.

    Shapes: x ``(batch, length >= 1, channels)``; taps ``(channels, K)``; past, a `Window` of the latest ``(K - 1)
    dilation + 1`` tokens. Returns a tensor like x, and the window after these tokens. Fewer tokens than the window
    holds cost O(K) each.
    """
    size, dtype = past.size, compute_dtype(x, taps)
    window, signal = past.append(x), torch.cat([past.tokens.to(dtype), x.to(dtype)], dim=1)
    if x.shape[1] >= size or torch.is_grad_enabled():
        return dilated_convolution(signal, taps, dilation)[:, size:].to(x.dtype), window
    # Without padding: convolving the past too would cost more than it saves, except in a gradient.
    reach = (taps.shape[1] - 1) * dilation
    signal = F.pad(signal, (0, 0, max(0, reach - size), 0))[:, max(0, size - reach) :].transpose(1, 2)
    with torch.autocast(x.device.type, enabled=False):
        y = F.conv1d(signal, taps.flip(1)[:, None].to(dtype), groups=x.shape[2], dilation=dilation)
    return y.transpose(1, 2).to(x.dtype), window


def dilated_step(
    x: Tensor, taps: Tensor, dilation: int, past: Window | Tensor, seen: Tensor
) -> tuple[Tensor, Window | Tensor]:
    """`dilated_prefill` of one token ``(batch, channels)``, with taps ``(K, channels)``, lag 0 last, in O(K): the past
    is read at K positions and not copied (TCNCA app. B leaves this open)."""
    window = extended(past, x[:, None], seen)
    tokens = spaced(window, dilation, taps.shape[0], seen)
    first = taps.shape[0] - tokens.shape[1]  # taps that meet no token yet
    return (tokens * (taps[first:] if first else taps)).sum(1).to(x.dtype), window


def receptive_field(kernel_size: int, dilation: int, depth: int, convolutions: int = 1) -> int:
    """Compute the number of tokens that a stack sees, from the first to the last.

    Formula: ``1 + B (K - 1) (f**D - 1) / (f - 1)``, for kernel size K, dilation factor f, depth D and B convolutions
    per block. ValueError if any is less than 1, for more than 10,000 convolutions, or if ``f**D`` exceeds 2**63.

    Source: TCNCA app. E.

    >>> receptive_field(5, 3, 5)
    485
    """
    sizes = {"kernel_size": kernel_size, "dilation": dilation, "depth": depth, "convolutions": convolutions}
    for name, size in sizes.items():
        check_integer(name, size)
    if depth * convolutions > 10_000 or depth * math.log2(dilation) > 63:
        raise ValueError(f"depth must be smaller for dilation {dilation} and convolutions {convolutions}, got {depth}")
    return 1 + convolutions * (kernel_size - 1) * sum(dilation**i for i in range(depth))


def centre_tap(kernel_size: int, causal: bool) -> int:
    """Index of lag 0 among the taps. ValueError for an even number of centred taps."""
    if not causal and kernel_size % 2 == 0:
        raise ValueError(f"a centred convolution needs an odd kernel size, got {kernel_size}")
    return 0 if causal else kernel_size // 2


def tap_reach(support: int, *, causal: bool) -> tuple[int, int]:
    """Count the tokens before and after its own on which an output of a convolution, or a stack, depends."""
    return (support - 1, 0) if causal else (support // 2, support // 2)
