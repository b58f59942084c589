"""Windows of labelled series as examples, with a target for each step of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lagwise.data.arrays import row_arrays
from lagwise.data.augmentation import CHANGES, changed, stretched
from lagwise.data.batches import PaddingCollator, padded_labels
from lagwise.data.packing import IGNORED
from lagwise.tables import check_integer

if TYPE_CHECKING:
    from datasets import Dataset as Rows


def step_targets(labels: np.ndarray, stride: int, delay: int, *, events: bool) -> np.ndarray:
    """The target of each step of ``stride`` samples, of the labels ``delay`` samples before it; -100 for none.

    Formula: with ``y_n = labels[n - delay]``, -100 before the start, step t has that of its last sample,
    ``y_{(t + 1) stride - 1}``; of ``events`` the largest of its samples, so that an event anywhere in it counts.

    Shapes: labels ``(samples,)``, result ``(ceil(samples / stride),)``.
    """
    steps = -(-len(labels) // stride)
    shifted = np.full(steps * stride, IGNORED, dtype=np.int64)
    shifted[delay : len(labels)] = labels[: max(0, len(labels) - delay)]
    shifted[len(labels) :] = IGNORED if events else shifted[len(labels) - 1]
    blocks = shifted.reshape(steps, stride)
    return blocks.max(1) if events else blocks[:, -1]


_FILTER_STEPS = 3  # reach of the random filter of training windows


class Windows(Dataset):
    """A data set of windows of series, each an example that ``cut`` makes of (row, start, end), in samples."""

    def __init__(self, cut: Callable[[int, int, int], dict[str, Tensor]], ranges: Sequence[tuple[int, int, int]]):
        self.cut, self.ranges = cut, ranges

    def __len__(self) -> int:
        return len(self.ranges)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.cut(*self.ranges[index])


class RandomWindows(Dataset):
    """A data set of ``count`` windows, each of which ``draw`` makes of a row and a random generator. The row is that of
    a random sample, so that windows are anywhere in the rows with equal probability. Window i depends only on the
    rows, seed and i."""

    def __init__(
        self,
        draw: Callable[[int, np.random.Generator], dict[str, Tensor]],
        lengths: Sequence[int],
        count: int,
        seed: int,
    ):
        self.draw, self.ends, self.count, self.seed = draw, np.cumsum(np.asarray(lengths, dtype=np.int64)), count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        random = np.random.default_rng((self.seed, index))
        return self.draw(random_row(self.ends, random), random)


def random_row(ends: np.ndarray, random: np.random.Generator) -> int:
    """The number of the row in which a random sample is, of rows that end at samples ``ends``."""
    return int(np.searchsorted(ends, random.integers(ends[-1]), side="right"))


def random_start(length: int, size: int, random: np.random.Generator) -> int:
    """The first sample of a window of ``size`` samples in a row, 0 if the row is shorter."""
    return int(random.integers(max(1, length - size + 1)))


class LabelledWindows:
    """Examples of rows with input_values ``(samples, features)`` and a label for each sample (`LabelledSeries`): the
    input_values of a window and labels ``(steps,)`` (`step_targets`).

    Args:
        length: Samples of a random window, at most.
        mean, std: Of each feature.
        changes: The strength of each random augmentation of random windows, by the names of
            `lagwise.data.augmentation.CHANGES`.
    """

    def __init__(
        self,
        rows: Rows,
        stride: int = 1,
        delay: int = 0,
        *,
        events: bool = False,
        length: int = 0,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        changes: Mapping[str, float] | None = None,
    ):
        self.rows, self.lengths = rows.with_format("arrow"), rows["length"][:]
        self.stride, self.delay, self.events, self.length = stride, delay, events, length
        self.mean, self.std = np.asarray(mean), np.asarray(std)
        self.changes = dict.fromkeys(CHANGES, 0.0) | dict(changes or {})

    def read(self, number: int, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the values and labels of the samples of a row, read-only."""
        row: Any = self.rows[number]
        values, labels = (next(row_arrays(row.column(name)))[start:end] for name in ("input_values", "label"))
        return values, labels

    def cut(self, number: int, start: int, end: int) -> dict[str, Tensor]:
        """The example of a window."""
        return self._example(*self.read(number, start, end))

    def draw(self, number: int, random: np.random.Generator) -> dict[str, Tensor]:
        """The example of a random window of a row, augmented."""
        stretch = self.changes["stretch"]
        faster = float(np.exp(random.normal(0, stretch))) if stretch else 1.0
        size = max(2, round(self.length * faster))
        start = random_start(self.lengths[number], size, random)
        values, labels = self.read(number, start, start + size)
        if stretch:
            values, labels = stretched(values, labels, max(1, round(len(values) / faster)), events=self.events)
        if any(self.changes.values()):
            z, gaps = (values - self.mean) / self.std, np.isnan(values)
            x = changed(np.where(gaps, 0, z), self.changes, _FILTER_STEPS * self.stride, random)
            values = np.where(gaps, np.nan, x * self.std + self.mean).astype(np.float32)
        return self._example(values, labels)

    def _example(self, values: np.ndarray, labels: np.ndarray) -> dict[str, Tensor]:
        targets = step_targets(labels, self.stride, self.delay, events=self.events)
        return {"input_values": torch.tensor(values), "labels": torch.from_numpy(targets)}


class WholeSeries:
    """A sequence of the series and labels of encoded rows, read one by one each time."""

    def __init__(self, rows: Rows):
        self.windows = LabelledWindows(rows)

    def __len__(self) -> int:
        return len(self.windows.lengths)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return self.windows.read(number, 0, self.windows.lengths[number])


def even_windows(lengths: Sequence[int], window: int, most: int) -> list[tuple[int, int, int]]:
    """Return the row, start and end of consecutive windows of all rows, or of evenly spaced ones if there are over
    ``most``."""
    ranges = [
        (number, start, min(start + window, length))
        for number, length in enumerate(lengths)
        for start in range(0, length, window)
    ]
    chosen = np.linspace(0, len(ranges) - 1, min(len(ranges), max(1, most))).round().astype(int)
    return [ranges[i] for i in chosen]


class WindowCollator:
    """Pads the windows of a batch on the right to the longest, in whole steps; labels with -100.

    Gives input_values ``(batch, steps * stride, features)``, labels of steps ``(batch, steps)`` or of samples ``(batch,
    steps * stride, outputs)``, and attention_mask ``(batch, steps)`` if a window is shorter than the longest.
    """

    def __init__(self, stride: int):
        self.stride = check_integer("stride", stride)
        self.pad = PaddingCollator(stride=stride)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = self.pad(examples)
        if "labels" in examples[0]:
            samples, of_steps = batch["input_values"].shape[1], examples[0]["labels"].dim() == 1
            batch["labels"] = padded_labels(examples, samples // self.stride if of_steps else samples)
        return batch
