"""Find the cheapest stack of dilated convolutions that covers a length, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from lagwise.mixers import TCNMixer
from lagwise.ops.toeplitz import receptive_field
from lagwise.progress import progress_bar
from lagwise.tables import check_integer
from lagwise_papers.bench.timing import Timing, interleaved, training_step

_LONGEST_KERNEL = 64  # longer kernels cost more multiplications than fewer passes over the signal save


def smallest_dilation(kernel_size: int, depth: int, field: int) -> int:
    """Find the smallest dilation factor that gives a stack this `receptive_field`, if it has at least two taps and two
    layers."""
    dilation = 1
    while receptive_field(kernel_size, dilation, depth) < field:
        dilation += 1
    return dilation


class StackShape(NamedTuple):
    """Shape of a stack: kernel_size K, dilation factor f and depth D."""

    kernel_size: int
    dilation: int
    depth: int


def covering_shapes(length: int, *, causal: bool = True, max_depth: int = 8) -> Iterator[StackShape]:
    """List the stacks that see every token of a text.

    A centred stack must see ``length - 1`` tokens on either side. For each depth D and kernel size K, the smallest
    dilation factor f with a sufficient `receptive_field` is taken, if ``f <= K``: a larger factor skips lags that no
    path through the stack reaches, whatever the receptive field. Kernel sizes beyond the smallest sufficient one at a
    depth only cost more, so there is one stack per depth, with an odd kernel size when centred. ValueError if length is
    less than 1.

    Source: TCNCA app. D (which asks for a principled way) and app. E.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    needed = length if causal else 2 * length - 1
    for depth in range(1, max_depth + 1):
        kernel_size = 2 if causal else 3
        while receptive_field(kernel_size, kernel_size, depth) < needed:
            kernel_size += 1 if causal else 2
        yield StackShape(kernel_size, smallest_dilation(kernel_size, depth, needed), depth)


@dataclass(frozen=True)
class Choice:
    """A stack, its parameters per channel, and the time of a training step."""

    shape: StackShape
    parameters: int
    seconds: Timing


def choose_tcn(
    length: int,
    *,
    channels: int = 256,
    tokens: int = 8192,
    causal: bool = True,
    repeats: int = 5,
    progress: bool = True,
) -> list[Choice]:
    """Time a `TCNMixer`'s training step with each stack that covers a length, and sort the stacks by time.

    `covering_shapes` gives one stack per depth, so there are few to time (TCNCA app. D measures more).

    Args:
        length: Tokens to cover.
        channels: Channels of the mixer.
        tokens: Tokens per batch; the batch size is ``tokens / length``, at least 1.
        causal: Whether the convolutions are causal or centred.
        repeats: Timed repeats.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: If length < 2, channels < 1 or tokens < 1.
    """
    for name, value, minimum in (("length", length, 2), ("channels", channels, 1), ("tokens", tokens, 1)):
        check_integer(name, value, minimum)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = [s for s in covering_shapes(length, causal=causal) if s.kernel_size <= _LONGEST_KERNEL]
    x = torch.randn(max(1, tokens // length), length, channels, device=device)
    mixer = partial(TCNMixer, channels, causal=causal)
    steps = {
        str(n): training_step(mixer(kernel_size=k, dilation=f, depth=d).to(device), x)
        for n, (k, f, d) in enumerate(progress_bar(shapes, desc="stacks", show=progress))
    }
    seconds = interleaved(steps, repeats=repeats)
    choices = [Choice(shape, shape.kernel_size * shape.depth, seconds[str(n)]) for n, shape in enumerate(shapes)]
    return sorted(choices, key=lambda choice: choice.seconds.median)
