"""Windows of signals as examples, with noise and gaps that are made as they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lagwise.data.arrays import row_arrays
from lagwise.data.batches import with_all_labels
from lagwise.data.packing import IGNORED
from lagwise.data.series_windows import random_row, random_start
from lagwise.data.signal_pairs import SignalPairs
from lagwise.data.splits import SPLITS


@dataclass
class Damage:
    """The damage to the inputs of signals: of those that are their own targets, or of others.

    Attributes:
        noises: signals to add, in splits; None for none.
        ratios: of the signal's power to the noise's, in dB, each about its mean; of a signal as a whole, and of the
            noise where it is added.
        hide: the share of samples that is hidden, of each feature by itself.
        hide_length: samples that are hidden together; such spans may overlap.
    """

    noises: SignalPairs | None = None
    ratios: Sequence[float] = ()
    hide: float = 0.0
    hide_length: int = 1

    def __post_init__(self) -> None:
        splits = {} if self.noises is None else self.noises.splits
        self._rows: dict[str, Any] = {split: rows.with_format("arrow") for split, rows in splits.items()}
        self._ends = {split: np.cumsum(rows["length"][:]) for split, rows in splits.items()}

    def __call__(
        self, inputs: np.ndarray, power: float, split: str, ratio: float | None, random: np.random.Generator
    ) -> np.ndarray:
        """Damage the inputs ``(samples, features)`` of a split; power: of their signal as a whole. The noise is that of
        the same split, so that none of the test is heard in training. Noise of one channel is added to all."""
        x = inputs
        if self.noises is not None and ratio is not None:
            noise = self._noise(len(x), split, random)
            loud = float(noise.var(0).mean())
            if loud > 0:
                x = x + noise * np.float32((power / (loud * 10 ** (ratio / 10))) ** 0.5)
        if self.hide:
            x = np.where(self._hidden(x.shape, random), np.float32(np.nan), x)
        return x

    def _hidden(self, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
        """Where samples are hidden: each with probability ``hide``. Spans begin at random, also before the first
        sample, and may overlap, so that none of ``hide_length`` places begins one with probability ``1 - hide``."""
        length = self.hide_length
        begins = random.random((shape[0] + length - 1, *shape[1:])) < 1 - (1 - self.hide) ** (1 / length)
        begun = np.cumsum(np.concatenate([np.zeros_like(begins[:1]), begins]), axis=0, dtype=np.int64)
        return begun[length:] > begun[:-length]

    def _noise(self, length: int, split: str, random: np.random.Generator) -> np.ndarray:
        noise = _row(self._rows[split], random_row(self._ends[split], random))
        return np.nan_to_num(noise[(int(random.integers(len(noise))) + np.arange(length)) % len(noise)])


def _row(rows: Any, number: int) -> np.ndarray:
    return next(row_arrays(rows[number].column("signal")))


def check_loud(noises: SignalPairs, name: str) -> None:
    """ValueError for a split of the noise ``name`` that is silent, which no ratio can add."""
    for split, rows in noises.splits.items():
        arrow: Any = rows.with_format("arrow")
        if not any(np.nanvar(_row(arrow, number), axis=0).max() > 0 for number in range(len(arrow))):
            raise ValueError(
                f"the noise in {name!r} is silent: all samples for {split} are equal; name other recordings with "
                "`noise`"
            )


class Whole(NamedTuple):
    """A whole signal: inputs ``(samples, features)``, targets ``(samples, outputs)``, and the ratio of its noise."""

    inputs: np.ndarray
    targets: np.ndarray
    ratio: float | None


class WholeSignals:
    """The signals of a split, each damaged in its own way, the same every time; and windows of them as examples:
    input_values ``(samples, features)`` and labels ``(samples, outputs)``, those of ``delay`` samples before, -100
    where a target is missing, as the Trainer counts labels."""

    def __init__(self, pairs: SignalPairs, split: str, damage: Damage, delay: int = 0):
        self.pairs, self.split, self.damage, self.delay = pairs, split, damage, delay
        self.rows: Any = pairs.splits[split].with_format("arrow")
        self.lengths = pairs.splits[split]["length"][:]
        self._last: tuple[int, Whole] | None = None
        self._powers: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def cut(self, number: int, start: int, end: int) -> dict[str, Tensor]:
        """The example of a window."""
        whole = self[number]
        return self._example(whole.inputs[start:end], whole.targets[start:end])

    def draw(self, length: int, number: int, random: np.random.Generator) -> dict[str, Tensor]:
        """The example of a random window of a signal, freshly corrupted."""
        start = random_start(self.lengths[number], length, random)
        inputs, targets = self.read(number)
        ratio = float(random.choice(self.damage.ratios)) if self.damage.ratios else None
        if ratio is not None and number not in self._powers:
            self._powers[number] = power(inputs)
        inputs, targets = (each[start : start + length] for each in (inputs, targets))
        inputs = self.damage(inputs, self._powers.get(number, 0.0), self.split, ratio, random)
        return self._example(inputs, targets)

    def _example(self, inputs: np.ndarray, targets: np.ndarray) -> dict[str, Tensor]:
        labels = torch.from_numpy(delayed(targets, self.delay))
        batch = with_all_labels({"input_values": torch.tensor(inputs), "labels": labels})
        return {**batch, "labels": batch["labels"].nan_to_num(nan=IGNORED)}

    def __iter__(self) -> Iterator[Whole]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> Whole:
        if self._last is None or self._last[0] != number:
            inputs, targets = self.read(number)
            random = np.random.default_rng((number, SPLITS.index(self.split)))
            ratios = self.damage.ratios
            ratio = ratios[number % len(ratios)] if ratios else None
            self._last = number, Whole(self.damage(inputs, power(inputs), self.split, ratio, random), targets, ratio)
        return self._last[1]

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs and targets as they are stored."""
        row = _row(self.rows, number)
        return row[:, : self.pairs.inputs], row[:, : self.pairs.outputs] if self.pairs.same else row[
            :, self.pairs.inputs :
        ]


def power(x: np.ndarray) -> float:
    """Compute the mean square about the mean, over the samples that are not missing and the features."""
    known = x[~np.isnan(x).any(1)]
    return float(known.var(0).mean()) if len(known) else 0.0


def delayed(targets: np.ndarray, delay: int) -> np.ndarray:
    """Delay the targets of the outputs: sample n has that of sample ``n - delay``, NaN before the first."""
    late = np.full_like(targets, np.nan)
    late[delay:] = targets[: max(0, len(targets) - delay)]
    return late
