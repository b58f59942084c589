"""Find the cheapest stack of dilated convolutions that covers a length, on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from lagwise.mixers import TCNMixer
from lagwise.ops.toeplitz import StackShape, covering_shapes
from lagwise.progress import progress_bar
from lagwise.tables import check_integer
from lagwise_papers.bench.timing import Timing, interleaved, training_step

_LONGEST_KERNEL = 64  # longer kernels cost more multiplications than fewer passes over the signal save


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
    for name, value, least in (("length", length, 2), ("channels", channels, 1), ("tokens", tokens, 1)):
        check_integer(name, value, least)
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
