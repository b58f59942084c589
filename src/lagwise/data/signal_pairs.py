"""Signals and the targets of their samples, read once into the cache."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.data.arrays import list_column, row_arrays
from lagwise.data.encoding import feature_scale
from lagwise.data.prepared import arrow_file, key_of, prepared_rows
from lagwise.data.signal_files import Signal, SignalSource
from lagwise.data.splits import ROWS_HELD_OUT, SPLITS, split_shares
from lagwise.progress import progress_bar

if TYPE_CHECKING:
    from datasets import Dataset

_FORMAT = 1  # raise when the meaning of the files changes


@dataclass(frozen=True)
class SignalPairs:
    """Signals in three splits.

    splits: data sets with the columns signal (lists of ``inputs + outputs`` float32 each, NaN where one is missing; if
    ``same``, the targets are the inputs and are not stored twice) and length (in samples). mean, std: of each input and
    output over the samples of train.
    """

    splits: dict[str, Dataset]
    inputs: int
    outputs: int
    same: bool
    mean: list[float]
    std: list[float]
    notes: tuple[str, ...]


def signals_key(source: SignalSource) -> str:
    """Hash of the signals and of everything that affects how they are read."""
    return key_of([_FORMAT, source.key(), list(source.columns)])


def prepare_signals(source: SignalSource, *, progress: bool = True) -> SignalPairs:
    """Read signals, or load the cached result.

    Named splits are kept. Missing ones take a tenth of the signals of train each, by a hash of their content; of one or
    two signals the last two tenths of each are valid and test. ValueError for infinite values, signals without a
    sample that is not missing, a target of another length, and signals of different features.
    """
    folder, splits, meta = prepared_rows("signals", signals_key(source), lambda to: _write(source, to, progress))
    del folder
    return SignalPairs(
        splits,
        inputs=meta["inputs"],
        outputs=meta["outputs"],
        same=meta["same"],
        mean=meta["mean"],
        std=meta["std"],
        notes=(*source.notes, *meta["notes"]),
    )


def checked_signal(signal: Signal, like: tuple[int, int] | None) -> np.ndarray:
    """Inputs and targets side by side. Errors as `prepare_signals`; like: the numbers of inputs and outputs of those
    before."""
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


def _write(source: SignalSource, folder: Path, progress: bool) -> dict[str, Any]:
    import pyarrow as pa

    shapes: tuple[int, int] | None = None
    same = True
    hashes: dict[str, list[str]] = {}
    if "train" not in source.split_names:
        only = f"only {' and '.join(source.split_names)} by the names in it"
        raise ValueError(f"{source.rows.name!r} has no signals to train on, {only}")
    for split in source.split_names:
        hashes[split] = []
        for signal in progress_bar(source.signals(split), desc=f"checking {split}", unit="signal", show=progress):
            both = checked_signal(signal, shapes)
            shapes = shapes or (signal.inputs.shape[1], signal.targets.shape[1])
            same = same and signal.targets is signal.inputs
            hashes[split].append(hashlib.sha256(both.tobytes()).hexdigest())
    assert shapes is not None
    width = shapes[0] if same else sum(shapes)
    schema = pa.schema({"signal": pa.list_(pa.list_(pa.float32(), width)), "length": pa.int32()})
    places, cut = _places(hashes)
    writers: dict[str, Any] = {}
    counts = dict.fromkeys(SPLITS, 0)
    opened = {split: arrow_file(folder / f"{split}.arrow", schema) for split in SPLITS}
    try:
        writers = {split: each.__enter__() for split, each in opened.items()}
        for split in source.split_names:
            for i, signal in enumerate(source.signals(split)):
                whole = checked_signal(signal, shapes)
                for to, (start, end) in cut.items() if cut else [(places[split][i], (0.0, 1.0))]:
                    part = whole[round(start * len(whole)) : round(end * len(whole))]
                    if not len(part):
                        raise ValueError(f"{signal.where} is too short to be cut into train, valid and test")
                    columns = [list_column([part], schema.field(0).type), pa.array([len(part)], pa.int32())]
                    writers[to].write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
                    counts[to] += 1
    finally:
        for each in opened.values():
            each.__exit__(None, None, None)
    with pa.memory_map(str(folder / "train.arrow")) as stored, pa.ipc.open_stream(stored) as batches:
        mean, std = feature_scale(
            x for batch in batches for x in row_arrays(pa.chunked_array([batch.column("signal")]))
        )
    made = [split for split in SPLITS if split not in source.split_names]
    notes = (
        [f"{' and '.join(made)} made from 10 % of the signals of train{' each' if len(made) > 1 else ''}"]
        if made
        else []
    )
    if cut:
        notes = ["valid and test are the last two tenths of each signal, as there are too few to hold some out"]
    inputs, outputs = shapes
    both = (slice(0, inputs), slice(0, outputs) if same else slice(inputs, None))
    return {
        "inputs": inputs,
        "outputs": outputs,
        "same": same,
        "mean": [mean[part] for part in both],
        "std": [std[part] for part in both],
        "notes": notes,
    }


def _places(hashes: dict[str, list[str]]) -> tuple[dict[str, list[str]], dict[str, tuple[float, float]]]:
    """The split of each signal of the named splits; or the shares of every signal that are each split."""
    missing = [split for split in SPLITS if split not in hashes]
    places = {split: [split] * len(own) for split, own in hashes.items()}
    different = sorted({*hashes["train"]})
    if len(missing) == 2 and len(different) < len(SPLITS):
        return places, split_shares(ROWS_HELD_OUT)
    if len(different) <= len(missing):
        raise ValueError(f"train has {len(different)} different signal(s), too few to hold out {' and '.join(missing)}")
    count = max(1, round(ROWS_HELD_OUT * len(different)))
    held = {"test": different[:count], "valid": different[-count:]}
    to = {content: split for split in missing for content in held[split]}
    places["train"] = [to.get(content, "train") for content in hashes["train"]]
    return places, {}
