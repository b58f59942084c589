"""Windows of labelled series as examples, with a target for each step of a model, and random augmentations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lagwise.data.hf as hf
from lagwise.data.arrays import row_arrays
from lagwise.data.batches import IGNORED, Examples, PaddingCollator, padded
from lagwise.tables import check_integer

#: The kinds of changes, and the largest sensible strength of each. All but the first are in units of a feature's
#: deviation:
#: - stretch: deviation of the logarithm of a factor on time.
#: - mix: deviation of the entries of a matrix, around the identity, that features are multiplied by.
#: - filter: deviation of the taps of smooth filters, from every feature to every feature, whose outputs are added:
#:   shapes change, and alike in the whole window, as between two sensors.
#: - wander: deviation of an offset, and of the amplitude of a slow wave, added to each feature.
#: - noise: largest deviation of white noise.
#: - drop: probability that one of several features is silenced.
CHANGES = {"stretch": 1.0, "mix": 10.0, "filter": 10.0, "wander": 100.0, "noise": 100.0, "drop": 1.0}
_SLOWEST, _FASTEST = 1.0, 16.0  # waves in a window
_NODES = 5  # between which the taps of a filter are interpolated


def changed(x: np.ndarray, change: Mapping[str, float], taps: int, random: np.random.Generator) -> np.ndarray:
    """A window of standardised features ``(samples, features)`` with random changes, each of the strength given by its
    name in `CHANGES`; all but stretch, for which see `stretched`. taps: of filters, in samples."""
    length, features = x.shape
    y = x
    if change["mix"]:
        y = y @ (np.eye(features) + random.normal(0, change["mix"], (features, features)))
    if change["filter"]:
        y = y + filtered(x, random.normal(0, change["filter"], (_NODES, features, features)), taps)
    if features > 1 and random.random() < change["drop"]:
        y = y * (np.arange(features) != random.integers(features))
    if change["wander"]:
        angle = 2 * np.pi * (random.uniform(_SLOWEST, _FASTEST) * np.arange(length) / length + random.random())
        offset, amplitude = random.normal(0, change["wander"], (2, features))
        y = y + offset + amplitude * np.sin(angle)[:, None]
    if change["noise"]:
        y = y + random.normal(0, 1, y.shape) * random.uniform(0, change["noise"], features)
    return y


def filtered(x: np.ndarray, nodes: np.ndarray, taps: int) -> np.ndarray:
    """Filter x ``(samples, features)``, from every feature to every feature, centred so that events stay in place.

    Formula: ``y_{t,j} = sum_i sum_{l < taps} k_{l,i,j} x_{t+c-l,i}`` with ``c = (taps - 1) // 2``, the taps ``k_l``
    being linear between the nodes ``(nodes, features, features)`` and divided by taps / nodes, so that the gain does
    not depend on the number of taps.
    """
    at = np.linspace(0, len(nodes) - 1, taps)
    below = np.minimum(at.astype(int), len(nodes) - 2)
    share = (at - below)[:, None, None]
    kernel = ((1 - share) * nodes[below] + share * nodes[below + 1]) * (len(nodes) / taps)
    y = np.zeros_like(x)
    for i, j in np.ndindex(*nodes.shape[1:]):
        start = (taps - 1) // 2
        y[:, j] += np.convolve(x[:, i], kernel[:, i, j])[start : start + len(x)]
    return y


def stretched(values: np.ndarray, labels: np.ndarray, length: int, *, events: bool) -> tuple[np.ndarray, np.ndarray]:
    """A window, values ``(samples, features)`` and labels ``(samples,)``, resampled to ``length`` samples: values by
    linear interpolation, labels by the nearest sample; ``events`` stay single samples."""
    source = np.linspace(0, len(values) - 1, length)
    positions = np.arange(len(values))
    moved = np.stack([np.interp(source, positions, feature) for feature in values.T], axis=1)
    if not events:
        return moved, labels[source.round().astype(np.int64)]
    result = labels[source.astype(np.int64)]
    result = np.where(result > 0, 0, result)
    at = np.flatnonzero(labels > 0)
    result[(at * ((length - 1) / max(1, len(values) - 1))).round().astype(np.int64)] = labels[at]
    return moved, result


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


def windows(cut: Callable[[int, int, int], Any], ranges: Sequence[tuple[int, int, int]]) -> Examples:
    """The windows of series that ``cut`` makes, each of a row, a start and an end, in samples."""
    return Examples(len(ranges), partial(_window, cut, ranges))


def _window(cut: Callable[[int, int, int], Any], ranges: Sequence[tuple[int, int, int]], index: int) -> Any:
    return cut(*ranges[index])


def random_windows(draw: Callable[..., Any], lengths: Sequence[int], count: int, seed: int) -> Examples:
    """The ``count`` windows that ``draw`` makes of a row and a random generator, anywhere in the rows with equal
    probability. Window i depends only on the rows, seed and i."""
    return Examples(count, partial(_random_window, draw, np.cumsum(np.asarray(lengths, dtype=np.int64)), seed))


def _random_window(draw: Callable[..., Any], ends: np.ndarray, seed: int, index: int) -> Any:
    random = np.random.default_rng((seed, index))
    return draw(random_row(ends, random), random)


def random_row(ends: np.ndarray, random: np.random.Generator) -> int:
    """The number of the row in which a random sample is, of rows that end at samples ``ends``."""
    return int(np.searchsorted(ends, random.integers(ends[-1]), side="right"))


def random_start(length: int, size: int, random: np.random.Generator) -> int:
    """The first sample of a window of ``size`` samples in a row, 0 if the row is shorter."""
    return int(random.integers(max(1, length - size + 1)))


class LabelledWindows:
    """Examples of rows with input_values ``(samples, features)`` and a label for each sample (`LabelledSeries`): the
    input_values of a window and labels ``(steps,)`` (`step_targets`). Random windows have at most ``length`` samples,
    and ``changes`` by the names of `CHANGES`."""

    def __init__(
        self,
        rows: hf.Dataset,
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

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the values and labels of a whole row, read-only."""
        return self.read(number, 0, self.lengths[number])

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


def even_windows(lengths: Sequence[int], window: int, max_windows: int) -> list[tuple[int, int, int]]:
    """Return the row, start and end of consecutive windows of all rows, or of evenly spaced ones if there are over
    ``max_windows``."""
    ranges = [
        (number, start, min(start + window, length))
        for number, length in enumerate(lengths)
        for start in range(0, length, window)
    ]
    chosen = np.linspace(0, len(ranges) - 1, min(len(ranges), max(1, max_windows))).round().astype(int)
    return [ranges[i] for i in chosen]


class WindowCollator:
    """Pads the windows of a batch on the right to the longest, in whole steps, with labels of steps ``(batch, steps)``
    or of samples ``(batch, samples, outputs)``, -100 in padding."""

    def __init__(self, stride: int):
        self.stride = check_integer("stride", stride)
        self.pad = PaddingCollator(stride=stride)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = self.pad(examples)
        if "labels" in examples[0]:
            labels, samples = [example["labels"] for example in examples], batch["input_values"].shape[1]
            batch["labels"] = padded(labels, samples // self.stride if labels[0].dim() == 1 else samples, IGNORED)
        return batch
