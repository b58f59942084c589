"""Signals and the targets of their samples, read once into the cache."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import lagwise.data.arrow as pa
from lagwise.data.arrays import list_column, row_arrays
from lagwise.data.encoding import feature_scale
from lagwise.data.prepared import Prepared, arrow_file, key_of, stored_arrays
from lagwise.data.series import SeriesSource, Signal
from lagwise.data.splits import split_series
from lagwise.progress import progress_bar

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class SignalPairs(Prepared):
    """A set of signals and targets in three splits.

    Attributes:
        splits: data sets with the columns signal (lists of ``inputs + outputs`` float32 each, NaN where one is missing)
            and length (in samples).
        same: whether the targets are the inputs, which are then not stored twice.
        mean, std: those of each input, and of each output, over the samples of train.
    """

    inputs: int
    outputs: int
    same: bool
    mean: list[list[float]]
    std: list[list[float]]


def prepare_signals(source: SeriesSource, *, progress: bool = True) -> SignalPairs:
    """Read signals, or load the cached result.

    Missing splits are made as by `split_series`. ValueError for infinite values, signals without a sample that is not
    missing, a target of another length, and signals of different features.
    """
    key = key_of([source.key()])
    return SignalPairs.load(key, lambda folder: _write(source, folder, progress), source.notes, None)


def checked_signal(signal: Signal, like: tuple[int, int] | None) -> np.ndarray:
    """Check a signal and return its inputs and targets side by side. Errors as `prepare_signals`.

    like: the numbers of inputs and of outputs of the signals before.
    """
    where, inputs, targets, _ = signal
    if len(inputs) != len(targets):
        raise ValueError(
            f"{where} has {len(inputs):,} samples, its target has {len(targets):,}; cut them to one length"
        )
    if not len(inputs):
        raise ValueError(f"{where} has no samples")
    shapes = inputs.shape[1], targets.shape[1]
    if like is not None and shapes != like:
        raise ValueError(
            f"{where} has {shapes[0]} inputs and {shapes[1]} outputs, those before it {like[0]} and {like[1]}"
        )
    for name, x in (("inputs", inputs), ("targets", targets)):
        if np.isinf(x).any():
            place, column = np.argwhere(np.isinf(x))[0]
            raise ValueError(f"{where}: feature {column + 1} of the {name} is infinite at sample {place}")
        if np.isnan(x).all():
            raise ValueError(f"{where}: all samples of the {name} are missing")
    return inputs if targets is inputs else np.concatenate([inputs, targets], axis=1)


def _write(source: SeriesSource, folder: Path, progress: bool) -> dict[str, Any]:
    from datasets import Dataset

    if "train" not in source.split_names:
        only = f"only {' and '.join(source.split_names)} by the names in it"
        raise ValueError(f"{source.name!r} has no signals to train on, {only}")
    first = next(source.signals("train"))
    width, same = checked_signal(first, None).shape[1], first.targets is first.inputs
    inputs, outputs = shapes = first.inputs.shape[1], first.targets.shape[1]
    schema = pa.schema({"signal": pa.list_(pa.list_(pa.float32(), width)), "length": pa.int32()})

    def row(samples: np.ndarray) -> pa.RecordBatch:
        columns = [list_column([samples], schema.field("signal").type), pa.array([len(samples)], pa.int32())]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    work = folder / "work"
    work.mkdir()
    tables = {}
    for split in source.split_names:
        with arrow_file(work / f"{split}.arrow", schema) as writer:
            for signal in progress_bar(source.signals(split), desc=f"reading {split}", unit="signal", show=progress):
                writer.write_batch(row(checked_signal(signal, shapes)))
        tables[split] = Dataset.from_file(str(work / f"{split}.arrow"))
    try:
        parts, notes = split_series(tables, "signal")
    except ValueError as error:
        raise ValueError(f"{source.name!r}: {error}") from error
    for split, (rows, (start, end)) in parts.items():
        with arrow_file(folder / f"{split}.arrow", schema) as writer:
            tables_of_one: Any = rows.with_format("arrow").iter(1)
            for table in tables_of_one:
                (whole,) = row_arrays(table.column("signal"))
                part = whole[round(start * len(whole)) : round(end * len(whole))]
                if not len(part):
                    raise ValueError(
                        f"a signal of {len(whole)} sample(s) is too short to be cut into train, valid and test"
                    )
                writer.write_batch(row(part))
    shutil.rmtree(work)  # an open file remains readable until its last reader closes it
    mean, std = feature_scale(stored_arrays(folder / "train.arrow", "signal"))
    both = (slice(0, inputs), slice(0, outputs) if same else slice(inputs, None))
    return {
        "inputs": inputs,
        "outputs": outputs,
        "same": same,
        "mean": [mean[part] for part in both],
        "std": [std[part] for part in both],
        "notes": notes,
    }
