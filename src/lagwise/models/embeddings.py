"""Model inputs as one vector per token, from token ids, real values or images, and their positions."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.models.configuration import LagwiseLinearConfig
from lagwise.models.inputs import check_ids
from lagwise.ops import Layout
from lagwise.ops.operation import surely
from lagwise.tables import check_integer

_ROUNDING = 1e-6  # standard deviation, relative to the mean, that is rounding error
_MIN_SCALE = 1e-9  # minimum scale of a row, relative to the standard deviation of all rows
_SIDE = 16.0  # radians of the fastest sinusoid along a side of an image


class TokenInput(nn.Embedding):
    """One vector per token id: input_ids ``(batch, length)`` to ``(batch, length, hidden_size)``."""

    argument: ClassVar[str] = "input_ids"

    def __init__(self, hidden_size: int, *, vocab_size: int):
        super().__init__(vocab_size, hidden_size)

    @staticmethod
    def check(input_ids: Tensor, config: Any) -> None:
        """Raise ValueError for ids of a wrong type or shape, or outside the vocabulary."""
        if input_ids.dim() != 2 or 0 in input_ids.shape:
            raise ValueError(
                f"input_ids must be (batch >= 1, length >= 1), got {tuple(input_ids.shape)}; begin an empty prompt "
                "with the end-of-text token"
            )
        if input_ids.is_floating_point():
            raise ValueError(f"input_ids must be integers, got {input_ids.dtype}")
        check_ids("input_ids", input_ids, config.vocab_size)


class ValueInput(nn.Linear):
    """A linear map of real vectors: input_values ``(batch, length, features)`` to ``(batch, length / stride,
    hidden_size)``.

    Formula: step t is ``W [z_{t s}, ..., z_{t s + s - 1}] + b`` with ``z = (x - mean) / std`` and s the stride: a
    filter bank over the samples of that step only. So a causal model stays causal, a step is complete with its last
    sample, and masks, labels, documents and positions refer to steps.

    With ``gaps``, a value may be missing (NaN). It then counts as the mean, and a learned vector for its position in
    the step marks it as missing.

    With ``by_row``, z is ``(x - m) / s`` with the mean m and the deviation s of each feature over the row, for rows of
    very different sizes, whose common scale would leave most of them constant. So that their sizes are not lost, every
    step also reads ``log10(s / std)`` and ``asinh(m / s)``. Padding, and zeros that fill the last step, do not count.
    It is for two-sided models, as m and s depend on the whole row.

    With ``time``, the first feature of a sample is the time since the one before, and 0 for the first of a series. It
    is no input of the map: relative to ``time``, it is what the step lasts for in the mixers (`Layout.token_time`); the
    first of a series lasts for 1.

    Options: features, the values per sample, its time included; stride, the samples per step (1); mean and std of each
    feature (0 and 1: values are used as they are), by which they are standardised; gaps (false); by_row (false); time,
    that of a step of 1 (none: samples are equally spaced). ValueError if a std or the time is not positive, unless
    there is a std for each feature, and for a time with a stride.
    """

    argument: ClassVar[str] = "input_values"

    def __init__(
        self,
        hidden_size: int,
        *,
        features: int = 1,
        stride: int = 1,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        gaps: bool = False,
        by_row: bool = False,
        time: float | None = None,
    ):
        self.timed = time is not None
        if time is not None and not (0 < time < math.inf):
            raise ValueError(f"time must be a number greater than 0, got {time}")
        if time is not None and stride != 1:
            raise ValueError(f"samples with times of their own need a stride of 1, got {stride}")
        if time is not None and check_integer("features", features) == 1:
            raise ValueError("features must count the time of a sample and its values, got 1")
        values = check_integer("features", features) - self.timed
        samples = values * check_integer("stride", stride)
        super().__init__(samples + 2 * values * by_row, hidden_size)
        self.features, self.stride, self.by_row, self.time = features, stride, by_row, time
        self.samples = samples  # number of values of a step
        check_scale(features, mean, std, "features")
        # Plain lists, because buffers would be lost when a model is loaded through the meta device.
        self.mean, self.std = (None if scale is None else scale[self.timed :] for scale in (mean, std))
        self.missing = nn.Linear(samples, hidden_size, bias=False) if gaps else None

    def values(self, input_values: Tensor) -> Tensor:
        """The values of samples, without their times."""
        return input_values[..., 1:] if self.timed else input_values

    def token_time(self, input_values: Tensor) -> Tensor | None:
        """Duration of each step ``(batch, length)``, as in `Layout`; None if samples have no times."""
        if self.time is None:
            return None
        since = input_values[..., 0].to(torch.promote_types(input_values.dtype, torch.float32))
        return torch.where(since == 0, 1, since / self.time)

    def standardized(self, input_values: Tensor) -> Tensor:
        """Standardised values of samples: ``(x - mean) / std``."""
        return standardised(self.values(input_values), self.mean, self.std)

    def steps(self, z: Tensor) -> Tensor:
        """The steps ``(batch, steps, hidden_size)`` of standardised samples."""
        return super().forward(self._in_steps(z).to(self.weight.dtype))

    def _in_steps(self, z: Tensor) -> Tensor:
        return z.reshape(z.shape[0], -1, self.samples)

    def forward(self, input_values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Embed samples. mask ``(batch, steps)``: true at real steps; only used with ``by_row``."""
        missing = self.values(input_values).isnan()
        h = self._rows(input_values, mask) if self.by_row else self._samples(input_values, missing)
        return h if self.missing is None else h + self.missing(self._in_steps(missing).to(self.missing.weight.dtype))

    def _samples(self, x: Tensor, missing: Tensor) -> Tensor:
        z = self.standardized(x)
        return self.steps(z if self.missing is None else z.masked_fill(missing, 0))

    def _rows(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.values(x)
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        present = ~x.isnan() & filled(x, mask, self.stride)[..., None]
        count = present.sum(1, keepdim=True).clamp(min=1)
        mean = x.masked_fill(~present, 0).sum(1, keepdim=True) / count
        centred = (x - mean).masked_fill(~present, 0)
        std = (centred.square().sum(1, keepdim=True) / count).sqrt()
        std = std + _ROUNDING * mean.abs() + torch.finfo(x.dtype).tiny
        usual = x.new_ones(x.shape[-1]) if self.std is None else x.new_tensor(self.std)
        size = torch.cat([(std / usual).clamp(min=_MIN_SCALE).log10(), (mean / std).asinh()], 2)
        z = self._in_steps(centred / std)
        return super().forward(torch.cat([z, size.expand(-1, z.shape[1], -1)], 2).to(self.weight.dtype))

    @staticmethod
    def check(input_values: Tensor, config: Any) -> None:
        """Raise ValueError for values of a wrong shape, for infinity, for NaN without ``gaps``, and for times that are
        negative or missing."""
        options = config.input_options
        features, stride, timed = options.get("features", 1), options.get("stride", 1), options.get("time") is not None
        if input_values.dim() != 3 or 0 in input_values.shape or input_values.shape[2] != features:
            raise ValueError(
                f"input_values must be (batch >= 1, length >= 1, features={features}), got {tuple(input_values.shape)}"
            )
        if input_values.shape[1] % stride:
            raise ValueError(
                f"the length of input_values must be a multiple of the stride {stride}, got {input_values.shape[1]}; "
                "pad the last step with zeros"
            )
        times, values = input_values[..., :timed], input_values[..., timed:]
        if timed:
            check_finite("the times in input_values", times)
            if times.device.type == "cpu" and surely(lambda: (times < 0).any()):
                raise ValueError(
                    "the times in input_values must not be negative: each is the time since the one before"
                )
        check_finite("input_values", values.masked_fill(values.isnan(), 0) if config.takes_gaps else values)


class PatchInput(nn.Conv2d):
    """Square patches of images: pixel_values ``(batch, channels, height, width)`` to ``(batch, height / size * width
    / size, hidden_size)``, row by row.

    Options: channels of the images (3; greyscale images have 1); size, the side of a patch in pixels (16). Height
    and width of the images may be any multiples of ``size``.
    """

    argument: ClassVar[str] = "pixel_values"
    SIZE: ClassVar[int] = 16

    def __init__(self, hidden_size: int, *, channels: int = 3, size: int = SIZE):
        check_integer("size", size)
        super().__init__(check_integer("channels", channels), hidden_size, kernel_size=size, stride=size)

    def forward(self, pixel_values: Tensor) -> Tensor:
        # A matrix product, because a convolution's result would not be contiguous.
        side = self.stride[0]
        patches = pixel_values.unflatten(3, (-1, side)).unflatten(2, (-1, side)).permute(0, 2, 4, 1, 3, 5)
        return F.linear(patches.flatten(3).flatten(1, 2).to(self.weight.dtype), self.weight.flatten(1), self.bias)

    def grid(self, pixel_values: Tensor) -> tuple[int, int]:
        """Return the numbers of rows and columns of patches."""
        return pixel_values.shape[2] // self.stride[0], pixel_values.shape[3] // self.stride[1]

    @staticmethod
    def check(pixel_values: Tensor, config: Any) -> None:
        """Raise ValueError for images of a wrong shape, and for NaN or infinity."""
        channels, side = config.input_options.get("channels", 3), patch_side(config)
        if pixel_values.dim() != 4 or 0 in pixel_values.shape or pixel_values.shape[1] != channels:
            colour = pixel_values.dim() == 4 and (channels, pixel_values.shape[1]) == (1, 3)
            advice = "; this model reads grey images, and pipelines give colour: train with task.channels=3 for them"
            raise ValueError(
                f"pixel_values must be (batch >= 1, channels={channels}, height, width), "
                f"got {tuple(pixel_values.shape)}{advice if colour else ''}"
            )
        if pixel_values.shape[2] % side or pixel_values.shape[3] % side:
            raise ValueError(
                f"height and width of pixel_values must be multiples of the patch's {side} pixels, "
                f"got {tuple(pixel_values.shape[2:])}"
            )
        if not pixel_values.is_floating_point():
            raise ValueError(
                f"pixel_values must be normalised numbers, as from the image processor, got {pixel_values.dtype}"
            )
        check_finite("pixel_values", pixel_values)


def patch_side(config: Any) -> int:
    """The side in pixels of the patches that an image model reads, from its configuration; 1 of a linear model, whose
    patches overlap."""
    return 1 if isinstance(config, LagwiseLinearConfig) else config.input_options.get("size", PatchInput.SIZE)


INPUTS: dict[str, Any] = {"tokens": TokenInput, "values": ValueInput, "patches": PatchInput}


def filled(x: Tensor, mask: Tensor | None, stride: int) -> Tensor:
    """Mask ``(batch, length)`` of the samples x ``(batch, length, features)`` that are neither padding nor zeros with
    which a collator fills the last real step. mask: ``(batch, steps)`` or None."""
    if mask is None:
        mask = x.new_ones(x.shape[0], x.shape[1] // stride, dtype=torch.bool)
    real = mask.bool().repeat_interleave(stride, 1)
    if stride == 1:
        return real
    last = mask.bool() & (_at_or_after(mask.bool()) == 1)
    some = _at_or_after(real & (x != 0).any(2)) > 0
    return real & (some | ~last.repeat_interleave(stride, 1))


def _at_or_after(mask: Tensor) -> Tensor:
    """Number of true entries of a mask ``(batch, length)`` at or after each."""
    return mask.long().flip(1).cumsum(1).flip(1)


def standardised(x: Tensor, mean: list[float] | None, std: list[float] | None) -> Tensor:
    """Standardise samples ``(..., channels)`` by the mean and deviation of each channel, as far as these are given, in
    at least float32: in bfloat16 a signal far from 0 would lose its digits."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if mean is not None:
        x = x - x.new_tensor(mean)
    return x if std is None else x / x.new_tensor(std)


def check_scale(count: int, mean: list[float] | None, std: list[float] | None, noun: str, prefix: str = "") -> None:
    """Raise ValueError unless mean and std, where given, have a number for each feature, and std positive ones."""
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and len(values) != count:
            raise ValueError(f"{prefix}{name} must have a number for each of {count} {noun}, got {values}")
    if std is not None and min(std) <= 0:
        raise ValueError(f"{prefix}std must be greater than 0, got {std}")


def check_finite(name: str, x: Tensor) -> None:
    """Raise ValueError if any value is NaN or infinite."""
    # The sum takes one pass over x. It is finite only if every value is, but finite values may overflow it.
    if surely(lambda: not (x.detach().sum().isfinite() or x.isfinite().all())):
        raise ValueError(f"{name} has NaN or infinite values; one would spread over its whole row")


def sinusoids(positions: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    """Compute sinusoidal positions (Vaswani et al. 2017).

    Formula: the first half of the channels is ``sin(p w_i)``, the second ``cos(p w_i)``, with
    ``w_i = 10000^(-i / half)`` for i = 0..half-1; an odd last channel is 0.

    Shapes: positions ``(batch, length)`` in tokens; result ``(batch, length, channels)``.
    """
    half, kind = channels // 2, torch.promote_types(dtype, torch.float32)
    rates = torch.exp(torch.arange(half, dtype=kind, device=positions.device) * (-math.log(10000.0) / max(1, half)))
    angles = positions[..., None].to(kind) * rates
    waves = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return nn.functional.pad(waves, (0, channels - 2 * half)).to(dtype)


def grid_sinusoids(layout: Layout, like: Tensor, *, rms: float) -> Tensor:
    """Compute sinusoidal positions of the patches of images: half the channels for the row, the others for the column.

    Formula: ``sinusoids(16 (i + 1/2) / height)`` beside ``sinusoids(16 (j + 1/2) / width)`` for the patch in row i and
    column j, scaled to a root mean square of ``rms``, that of the embeddings of white noise at initialisation.
    Positions are relative to an image's sides, those of its real patches where it is smaller than others in a batch.

    Shapes: like ``(batch, length, channels)``; result ``(batch or 1, length, channels)``. ValueError for tokens without
    a grid, and for packed rows.

    Source: positions by row and column as in Chen et al. 2021 (MoCo v3, §5); ours are relative to the sides.
    """
    height, width = layout.require_grid("position_embedding 'sinusoidal_2d'")
    if layout.seq_idx is not None:
        raise ValueError("position_embedding 'sinusoidal_2d' needs one image in each row, got packed rows (seq_idx)")
    real = like.new_ones(1, height * width, dtype=torch.bool) if layout.mask is None else layout.mask
    rows, columns = (_shares(real.unflatten(1, (height, width)).any(axis)) for axis in (2, 1))
    half = like.shape[2] // 2
    by_row = sinusoids(_SIDE * rows, half, like.dtype)[:, :, None].expand(-1, -1, width, -1)
    by_column = sinusoids(_SIDE * columns, like.shape[2] - half, like.dtype)[:, None].expand(-1, height, -1, -1)
    return math.sqrt(2) * rms * torch.cat([by_row, by_column], dim=-1).flatten(1, 2)


def _shares(real: Tensor) -> Tensor:
    """Centre of each row (or column) of a grid, as a fraction of the real ones: ``(batch, rows)``, like the mask."""
    return (real.cumsum(1) - 0.5) / real.sum(1, keepdim=True).clamp(min=1)
