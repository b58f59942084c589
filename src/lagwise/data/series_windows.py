"""Windows of labelled series as examples, with a target for each step of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class RandomPlaces:
    """Draws places in rows of some lengths, each sample with equal probability."""

    def __init__(self, lengths: Sequence[int]):
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.ends = np.cumsum(self.lengths)

    def row(self, random: np.random.Generator) -> int:
        """The number of the row in which a random sample is."""
        return int(np.searchsorted(self.ends, random.integers(self.ends[-1]), side="right"))

    def start(self, row: int, size: int, random: np.random.Generator) -> int:
        """The first sample of a window of ``size`` samples in a row, 0 if the row is shorter."""
        return int(random.integers(max(1, self.lengths[row] - size + 1)))


class SeriesWindows(Dataset):
    """A data set of windows of rows with input_values ``(samples, features)`` and a label for each sample
    (`LabelledSeries`), as input_values and labels ``(steps,)`` (`step_targets`).

    ranges: row, start and end of each window, in samples.
    """

    def __init__(self, rows: Rows, ranges: Sequence[tuple[int, int, int]], stride: int, delay: int, events: bool):
        self.rows = rows.with_format("arrow")
        self.ranges = ranges
        self.stride, self.delay, self.events = stride, delay, events

    def __len__(self) -> int:
        return len(self.ranges)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.example(*self.cut(*self.ranges[index]))

    def cut(self, number: int, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the values and labels of the samples of a row, read-only."""
        row: Any = self.rows[number]
        values, labels = (next(row_arrays(row.column(name)))[start:end] for name in ("input_values", "label"))
        return values, labels

    def example(self, values: np.ndarray, labels: np.ndarray) -> dict[str, Tensor]:
        targets = step_targets(labels, self.stride, self.delay, events=self.events)
        return {"input_values": torch.tensor(values), "labels": torch.from_numpy(targets)}


class WholeSeries:
    """A sequence of the series and labels of encoded rows, read one by one each time."""

    def __init__(self, rows: Rows):
        self.windows = SeriesWindows(rows, [(i, 0, n) for i, n in enumerate(rows["length"][:])], 1, 0, events=False)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return self.windows.cut(*self.windows.ranges[number])


class RandomWindows(SeriesWindows):
    """A data set of ``count`` windows of at most ``length`` samples, each anywhere in the rows with equal probability.

    changes: the strength of each random augmentation, by the names of `lagwise.data.augmentation.CHANGES`. mean, std:
    of each feature. Window i depends only on the rows, the options, seed and i.
    """

    def __init__(
        self,
        rows: Rows,
        count: int,
        length: int,
        stride: int,
        delay: int,
        events: bool,
        *,
        seed: int,
        mean: Sequence[float],
        std: Sequence[float],
        changes: Mapping[str, float] | None = None,
    ):
        super().__init__(rows, [], stride, delay, events)
        self.count, self.length, self.seed = count, length, seed
        self.mean, self.std = np.asarray(mean), np.asarray(std)
        self.changes = dict.fromkeys(CHANGES, 0.0) | dict(changes or {})
        self.places = RandomPlaces(rows["length"][:])

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        random = np.random.default_rng((self.seed, index))
        number = self.places.row(random)
        faster = float(np.exp(random.normal(0, self.changes["stretch"]))) if self.changes["stretch"] else 1.0
        size = max(2, round(self.length * faster))
        start = self.places.start(number, size, random)
        values, labels = self.cut(number, start, start + size)
        if self.changes["stretch"]:
            values, labels = stretched(values, labels, max(1, round(len(values) / faster)), events=self.events)
        if any(self.changes.values()):
            z, gaps = (values - self.mean) / self.std, np.isnan(values)
            x = changed(np.where(gaps, 0, z), self.changes, _FILTER_STEPS * self.stride, random)
            values = np.where(gaps, np.nan, x * self.std + self.mean).astype(np.float32)
        return self.example(values, labels)


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
