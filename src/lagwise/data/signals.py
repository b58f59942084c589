"""Signals and the targets of their samples: found by name, read once into the cache, and cut into examples with noise
and gaps."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import lagwise.data.arrow as pa
from lagwise.data.arrays import row_arrays, series
from lagwise.data.batches import IGNORED, with_all_labels
from lagwise.data.encoding import feature_scale
from lagwise.data.find import Data, Named, find, named_splits, split_word
from lagwise.data.labelled_series import write_rows, write_splits
from lagwise.data.reading import inner_suffix, is_compressed
from lagwise.data.rows import RowSource, rows_of
from lagwise.data.series import TARGET, SeriesSource, Signal
from lagwise.data.series_files import SOUNDS
from lagwise.data.series_windows import random_row, random_start
from lagwise.data.splits import SPLITS, Prepared, key_of
from lagwise.progress import progress_bar

INPUT_FOLDERS = ("noisy", "input", "inputs", "mixture", "mixtures", "mixed")
TARGET_FOLDERS = ("clean", "target", "targets", "output", "outputs", "reference", "references")
_ROLE = re.compile(rf"(?<![a-z])({'|'.join((*INPUT_FOLDERS, *TARGET_FOLDERS))})(?![a-z])", re.IGNORECASE)


def open_signals(
    name: Data,
    *,
    features: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    rate: int | None = None,
    any_rate: bool = False,
    time: str | None = None,
    alone: bool = False,
) -> SeriesSource:
    """Find signals and the targets of their samples by name, as `open_rows` finds rows: ``input_values`` and, where
    these are not the targets themselves, ``target_values``. Sounds are paired by the names of their files: inputs are
    in a folder named as one of `INPUT_FOLDERS`, targets in one of `TARGET_FOLDERS`. A .csv or .tsv file is a signal,
    with a line for each sample; ``targets`` are the columns of the targets, ``features`` those of the inputs, by
    default all others. Other tables have a signal in every row, in columns of lists. alone: without targets, which are
    then the inputs; of pairs of sounds the targets are read. Other options as in `open_series`."""
    options: dict[str, Any] = {"features": features, "rate": rate, "any_rate": any_rate, "time": time}
    return _opened(name, ("target", "none", "input") if alone else (), tuple(targets or TARGET), **options)


def open_inputs(name: str, *, features: Sequence[str] | None = None, time: str | None = None) -> SeriesSource:
    """The signals to predict: of a folder with inputs and targets the inputs, otherwise all rows."""
    return _opened(name, ("input", "none", "target"), (), features=features, any_rate=True, time=time)


def _opened(name: Data, alone: Sequence[str], targets: tuple[str, ...], **options: Any) -> SeriesSource:
    """Open signals; alone: roles of sounds, the first of which that exists is read without targets; none for pairs."""
    at = find(name, ".csv")
    pairs = _sounds(at, alone) if at.below else None
    if pairs is not None and options["time"] is not None:
        raise ValueError(f"`time` {options['time']!r} names a column of tables or records, but {name!r} has sounds")
    rows, partners = pairs or (rows_of(at), {})
    if pairs is None and not alone and rows.of_kind(SOUNDS):
        raise ValueError(_unpaired(rows.name))
    options["targets"] = () if alone or pairs else targets
    return SeriesSource(**{**vars(rows), **options}, partners=partners, per_sample=True)


def _unpaired(name: str) -> str:
    return (
        f"{name!r} has sounds, but not in pairs: put the inputs into a folder 'noisy' (or 'input') and the targets, "
        "with the same names of files, into a folder 'clean' (or 'target'); or, of sounds without noise, name a folder "
        "of noises with `noise`"
    )


def _sounds(at: Named, alone: Sequence[str]) -> tuple[RowSource, dict[Path, Path]] | None:
    """The sounds in a folder and the partner of each, or ``alone`` those of the first of these roles that it has; None
    if it has none."""
    roles: dict[str, dict[tuple[str, ...], Path]] = {"input": {}, "target": {}, "none": {}}
    splits: dict[Path, str | None] = {}
    for path in (path for path in at.below if inner_suffix(path) in SOUNDS):
        parts = path.relative_to(at.path).parts[:-1]
        words = [word[0].lower() for part in parts if (word := _ROLE.search(part))]
        role = "none" if not words else "input" if words[0] in INPUT_FOLDERS else "target"
        bare = Path(path.stem if is_compressed(path) else path).stem
        key = (*(_ROLE.sub("", part) for part in parts), path.name if role == "none" else bare)
        if key in roles[role]:
            raise ValueError(f"{roles[role][key]} and {path} have the same name; keep one of them")
        roles[role][key] = path
        splits[path] = split_word(Path(*parts))
    if not splits:
        return None
    if not alone:
        _check_partners(at.path, roles)
    chosen = next((roles[role] for role in alone if roles[role]), roles["input"])
    partners = {} if alone else {path: roles["target"][key] for key, path in chosen.items()}
    named = named_splits(at, {path: splits[path] for path in chosen.values()}, partners.values())
    return RowSource(str(at.path), **named), partners


def _check_partners(root: Path, roles: Mapping[str, Mapping[tuple[str, ...], Path]]) -> None:
    """Raise ValueError for sounds in no folder of inputs or targets, and for a sound without a partner."""
    if not roles["input"] and not roles["target"]:
        raise ValueError(_unpaired(str(root)))
    for one, other, words in (("input", "target", TARGET_FOLDERS), ("target", "input", INPUT_FOLDERS)):
        if not roles[other]:
            names = ", ".join(words)
            raise ValueError(f"{str(root)!r} has no sounds in a folder of {other}s, which may be named {names}")
        if lonely := sorted(roles[one].keys() - roles[other].keys()):
            more = f" (and {len(lonely) - 1:,} more)" if len(lonely) > 1 else ""
            raise ValueError(
                f"{roles[one][lonely[0]]}{more} has no {other} of the same name; add it, or remove the file"
            )


@dataclass(frozen=True)
class SignalPairs(Prepared):
    """A set of signals and targets in three splits: data sets with the columns signal (lists of ``inputs + outputs``
    float32 each, NaN where one is missing) and length (in samples)."""

    inputs: int
    outputs: int
    same: bool  # whether the targets are the inputs, which are then not stored twice
    mean: list[list[float]]  # of each input, and of each output, over the samples of train
    std: list[list[float]]


def prepare_signals(source: SeriesSource, *, progress: bool = True) -> SignalPairs:
    """Read signals, or load the cached result. Missing splits are made as by `split_series`."""
    write = partial(_write, source, progress=progress)
    return SignalPairs.load(key_of([source.key()]), write, source.notes, None)


def checked_signal(signal: Signal, like: tuple[int, int] | None, by: str = "those before it have") -> np.ndarray:
    """Check a signal and return its inputs and targets side by side. like: its numbers of inputs and outputs, and by
    whom."""
    where, inputs, targets, _ = signal
    if len(inputs) != len(targets):
        raise ValueError(
            f"{where} has {len(inputs):,} samples, its target has {len(targets):,}; cut them to one length"
        )
    if not len(inputs):
        raise ValueError(f"{where} has no samples")
    shapes = inputs.shape[1], targets.shape[1]
    if like is not None and shapes != like:
        raise ValueError(f"{where} has {shapes[0]} inputs and {shapes[1]} outputs, but {by} {like[0]} and {like[1]}")
    for name, x in (("inputs", inputs), ("targets", targets)):
        if np.isinf(x).any():
            sample, column = np.argwhere(np.isinf(x))[0]
            raise ValueError(f"{where}: feature {column + 1} of the {name} is infinite at sample {sample}")
        if np.isnan(x).all():
            raise ValueError(f"{where}: all samples of the {name} are missing")
    return inputs if targets is inputs else np.concatenate([inputs, targets], axis=1)


def _write(source: SeriesSource, folder: Path, *, progress: bool) -> dict[str, Any]:
    if "train" not in source.split_names:
        only = f"only {' and '.join(source.split_names)} by the names in it"
        raise ValueError(f"{source.name!r} has no signals to train on, {only}")
    first = next(source.signals("train"))
    width, same = checked_signal(first, None).shape[1], first.targets is first.inputs
    inputs, outputs = shapes = first.inputs.shape[1], first.targets.shape[1]
    kinds = {"signal": pa.list_(pa.list_(pa.float32(), width))}
    work = folder / "work"
    work.mkdir()
    tables = {}
    for split in source.split_names:
        signals = progress_bar(source.signals(split), desc=f"reading {split}", unit="signal", show=progress)
        whole = ([checked_signal(each, shapes)] for each in signals)
        tables[split] = write_rows(work / f"{split}.arrow", kinds, whole)  # splits depend on all columns

    def read(rows: Any) -> Iterator[list[np.ndarray]]:
        return ([x] for x in series(rows, "signal"))

    try:
        written, notes = write_splits(folder, tables, kinds, read, "signal", progress=progress)
    except ValueError as error:
        raise ValueError(f"{source.name!r}: {error}") from error
    shutil.rmtree(work)  # an open file remains readable until its last reader closes it
    mean, std = feature_scale(series(written["train"], "signal"))
    both = (slice(0, inputs), slice(0, outputs) if same else slice(inputs, None))
    scale = {name: [each[part] for part in both] for name, each in (("mean", mean), ("std", std))}
    return {"inputs": inputs, "outputs": outputs, "same": same, **scale, "notes": notes}


@dataclass
class Damage:
    """The damage to the inputs of signals: of those that are their own targets, or of others."""

    noises: SignalPairs | None = None  # signals to add, in splits
    #: of the signal's power to the noise's, in dB, each about its mean; of a signal as a whole, and of the noise where
    #: it is added
    ratios: Sequence[float] = ()
    hide: float = 0.0  # the share of samples that is hidden, of each feature by itself
    hide_length: int = 1  # samples that are hidden together; such spans may overlap

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
        """Choose hidden samples, each with probability ``hide``. Spans begin at random, also before the first sample,
        and may overlap, so that none of ``hide_length`` positions begins one with probability ``1 - hide``."""
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
    """Raise ValueError for a split of the noise ``name`` that is silent, which no ratio can add."""
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

    def __init__(self, pairs: SignalPairs, split: str, damage: Damage, delay: int = 0, ahead: int = 0, length: int = 0):
        self.pairs, self.split, self.damage, self.delay, self.ahead = pairs, split, damage, delay, ahead
        self.length = length  # samples of a random window, at most
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

    def draw(self, number: int, random: np.random.Generator) -> dict[str, Tensor]:
        """The example of a random window of a signal, freshly corrupted."""
        start = random_start(self.lengths[number], self.length, random)
        inputs, targets = self.read(number)
        ratio = float(random.choice(self.damage.ratios)) if self.damage.ratios else None
        if ratio is not None and number not in self._powers:
            self._powers[number] = power(inputs)
        inputs, targets = (each[start : start + self.length] for each in (inputs, targets))
        inputs = self.damage(inputs, self._powers.get(number, 0.0), self.split, ratio, random)
        return self._example(inputs, targets)

    def _example(self, inputs: np.ndarray, targets: np.ndarray) -> dict[str, Tensor]:
        labels = torch.from_numpy(delayed(targets, self.delay))
        batch = with_all_labels({"input_values": torch.tensor(inputs), "labels": labels})
        return {**batch, "labels": batch["labels"].nan_to_num(nan=IGNORED)}

    def __iter__(self) -> Iterator[Whole]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, number: int) -> Whole:
        if self._last is None or self._last[0] != number:
            inputs, targets = self.read(number)
            random = np.random.default_rng((number, SPLITS.index(self.split)))
            ratios = self.damage.ratios
            ratio = ratios[number % len(ratios)] if ratios else None
            self._last = number, Whole(self.damage(inputs, power(inputs), self.split, ratio, random), targets, ratio)
        return self._last[1]

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the inputs as they are stored, and the targets, those of ``ahead`` samples later."""
        row, inputs = _row(self.rows, number), self.pairs.inputs
        targets = row[:, : self.pairs.outputs] if self.pairs.same else row[:, inputs:]
        return row[:, :inputs], delayed(targets, -self.ahead) if self.ahead else targets


def power(x: np.ndarray) -> float:
    """Compute the mean square about the mean, over the samples that are not missing and the features."""
    present = x[~np.isnan(x).any(1)]
    return float(present.var(0).mean()) if len(present) else 0.0


def delayed(targets: np.ndarray, delay: int) -> np.ndarray:
    """Delay the targets of the outputs: sample n has that of sample ``n - delay``, NaN where there is none."""
    late, count = np.full_like(targets, np.nan), max(0, len(targets) - abs(delay))
    late[max(delay, 0) :][:count] = targets[max(-delay, 0) :][:count]
    return late
