"""Series with labels inside them: one for every sample, or events at some samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import lagwise.data.arrow as pa
import lagwise.data.hf as hf
from lagwise.data.arrays import is_list, list_column, series
from lagwise.data.batches import IGNORED
from lagwise.data.encoding import feature_scale, read_series
from lagwise.data.labels import class_name, is_missing, read_labels, read_labels_for
from lagwise.data.rows import RowSource, check_train
from lagwise.data.splits import SPLITS, Prepared, arrow_file, key_of, shared_rows, split_series
from lagwise.progress import progress_bar
from lagwise.tables import known

NO_EVENT = "none"


@dataclass(frozen=True)
class LabelledSeries(Prepared):
    """A set of series with labels inside them, in three splits: data sets with the columns input_values (lists of
    ``features`` float32 each), label (a list of as many class ids, -100 where there is none) and length (in samples).
    """

    features: int
    label_names: tuple[str, ...]  # by id; for events the first is ``none``, the class of samples without one
    mean: list[float]  # of each feature over the samples of train
    std: list[float]
    gaps: bool  # whether any sample is missing (NaN)
    counts: dict[str, dict[str, int]]  # samples, or events, of each class in each split


def prepare_series(
    source: RowSource,
    *,
    values: str = "input_values",
    label: str = "label",
    events: str | None = None,
    group: str | None = None,
    cache: Path | None = None,
    progress: bool = True,
) -> LabelledSeries:
    """Read series with labels inside them, or load the cached result. ``label`` is the column of the labels, of which
    each row has a list of as many classes as it has samples (null or an empty string where there is none), or one class
    for all; with ``events``, a column of lists of positions, in samples from 0 and in order, the class of each event.
    Equal values of ``group`` stay in one split; missing splits are made as in `split_series`."""

    def write(folder: Path) -> dict[str, Any]:
        try:
            return _write(source, (values, label, events), group, folder, progress)
        except ValueError as error:
            raise ValueError(f"{source.name!r}: {error}") from error

    if len({values, label, events}) < 3:
        raise ValueError(f"`values`, `label` and `events` must name different columns, got {label!r} twice")
    return LabelledSeries.load(key_of([source.key(), values, label, events, group]), write, source.notes, cache)


Columns = tuple[str, str, str | None]  # of the values, the labels and the positions of events


def _read(
    rows: hf.Dataset, columns: Columns, where: Callable[[int], str], **options: Any
) -> Iterator[tuple[np.ndarray, list[Any], np.ndarray]]:
    """Yield for each row its samples ``(length, features)``, its different labels as stored, and the index of each
    sample's label among these, IGNORED for none. options: of `read_series`."""
    values, label, events = columns
    for column in filter(None, columns):
        known(column, rows.column_names, "column")
    table: Any = rows.with_format("arrow")[:]
    cells = table.column(label)
    for i, samples in enumerate(read_series(table.column(values), values, where, **options)):
        try:
            if events is not None:
                unique, inverse = _of_events(cells[i].values or [], table.column(events)[i].as_py() or [], len(samples))
            elif is_list(cells.type):
                unique, inverse = _of_samples(cells[i].values, len(samples))
            else:
                unique, inverse = [cells[i].as_py()], np.zeros(len(samples), dtype=np.int64)
        except ValueError as error:
            raise ValueError(f"{where(i)}: {error}") from error
        yield samples, unique, inverse


def _of_samples(labels: Any, length: int) -> tuple[list[Any], np.ndarray]:
    """The different labels of a row, and the index among them of the label of each sample."""
    count = 0 if labels is None else len(labels)
    if count != length:
        raise ValueError(f"it has {count} labels and {length} samples")
    encoded = labels.dictionary_encode()
    inverse = encoded.indices.fill_null(IGNORED).to_numpy(zero_copy_only=False).astype(np.int64)
    unique = encoded.dictionary.to_pylist()
    missing = [k for k, value in enumerate(unique) if is_missing(value)]
    return unique, np.where(np.isin(inverse, missing), IGNORED, inverse)


def _of_events(labels: Any, positions: list[Any], length: int) -> tuple[list[Any], np.ndarray]:
    """Return what `_of_samples` does, of a row with the classes of events at some positions."""
    if len(labels) != len(positions):
        raise ValueError(f"it has {len(positions)} events and {len(labels)} classes of events")
    unique, before = [NO_EVENT], -1
    inverse = np.zeros(length, dtype=np.int64)
    for number, (at, value) in enumerate(zip(positions, labels, strict=True), 1):
        at = int(at) if isinstance(at, float) and at.is_integer() else at  # as pandas writes a column with gaps
        if type(at) is not int:
            raise ValueError(f"event {number} is at {at!r}, which is not an integer")
        if not 0 <= at < length:
            raise ValueError(f"event {number} is at {at!r}, outside the series of {length} samples")
        if at <= before:
            raise ValueError(f"event {number} is at {at}, not after the one before it, at {before}")
        name, before = class_name(value.as_py()), at
        if name in ("None", "nan", "", NO_EVENT):
            raise ValueError(f"event {number} has no class but {name!r}")
        unique += [name] * (name not in unique)
        inverse[at] = unique.index(name)
    return unique, inverse


def _ids(ids: Sequence[int], inverse: np.ndarray) -> np.ndarray:
    """The id of the label of each sample of a row, IGNORED where there is none; ids: of its different labels."""
    return np.asarray([*ids, IGNORED])[np.where(inverse == IGNORED, len(ids), inverse)]


def read_series_for(
    rows: hf.Dataset, names: Sequence[str], values: str, label: str, events: str | None, source: str, *, gaps: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each row its samples, and the label of each as an id of the model's classes ``names``, -100 where there
    is none."""

    def where(i: int) -> str:
        return f"row {i + 1} of {source!r}"

    for i, (samples, unique, inverse) in enumerate(_read(rows, (values, label, events), where, gaps=gaps)):
        used = {*np.unique(inverse).tolist()}
        own = [
            read_labels_for([v], names, lambda _, i=i: where(i))[0] if k in used else 0 for k, v in enumerate(unique)
        ]
        yield samples, _ids(own, inverse)


def _write(source: RowSource, columns: Columns, group: str | None, folder: Path, progress: bool) -> dict[str, Any]:
    values, _, events = columns
    tables = source.read([*filter(None, (*columns, group))])
    for rows in tables.values() if group is not None else ():
        known(group, rows.column_names, "column (`group`)")
    check_train(tables, "it", "series")
    first: dict[str, dict[Any, int]] = {}  # the row where each label occurs first
    features: int | None = None
    gaps = False
    for split, rows in tables.items():

        def where(i: int, split: str = split) -> str:
            return f"row {i + 1}" if len(tables) == 1 else f"{split} row {i + 1}"

        first[split] = {}
        for i, (samples, unique, inverse) in enumerate(_read(rows, columns, where, features=features)):
            features, gaps = samples.shape[1], gaps or bool(np.isnan(samples).any())
            for k in np.unique(inverse[inverse != IGNORED]).tolist():
                first[split].setdefault(unique[k], i)
    names, ids = _classes(first, events is not None)
    assert features is not None

    def read(rows: hf.Dataset) -> Iterator[list[np.ndarray]]:
        for samples, unique, inverse in _read(rows, columns, str):
            yield [samples, _ids([ids.get(value, IGNORED) for value in unique], inverse)]

    kinds = {"input_values": pa.list_(pa.list_(pa.float32(), features)), "label": pa.list_(pa.int16())}
    written, notes = write_splits(folder, tables, kinds, read, "series", group, progress=progress)
    mean, std = feature_scale(series(written["train"]))
    counts = {}
    for split, rows in written.items():
        labels = np.concatenate(list(series(rows, "label")))
        sizes = np.bincount(labels[labels != IGNORED], minlength=len(names))
        counts[split] = dict(zip(names, sizes.tolist(), strict=True))
    inputs: dict[str, Any] = {split: rows.select_columns(values) for split, rows in tables.items()}
    notes += shared_rows(inputs, tables)
    notes += [f"{split} has no {name!r}" for split in SPLITS for name, count in counts[split].items() if not count]
    scale = {"mean": mean, "std": std, "gaps": gaps}
    return {"features": features, "label_names": names, **scale, "counts": counts, "notes": notes}


def write_splits(
    folder: Path,
    tables: dict[str, hf.Dataset],
    kinds: Mapping[str, pa.DataType],
    read: Callable[[hf.Dataset], Iterator[list[np.ndarray]]],
    noun: str,
    group: str | None = None,
    *,
    progress: bool,
) -> tuple[dict[str, hf.Dataset], list[str]]:
    """Write the series of each split (`split_series`), and return them, with notes. kinds: of the columns of lists,
    which ``read`` gives for each row."""

    def cut(rows: Iterator[list[np.ndarray]], start: float, end: float) -> Iterator[list[np.ndarray]]:
        for arrays in rows:
            length = len(arrays[0])
            part = slice(round(start * length), round(end * length))
            if part.start == part.stop:
                raise ValueError(f"a {noun} of {length} samples is too short to be cut into train, valid and test")
            yield [array[part] for array in arrays]

    written, (parts, notes) = {}, split_series(tables, noun, group)
    for split, (rows, share) in parts.items():
        arrays = progress_bar(read(rows), desc=f"reading {split}", unit="row", total=len(rows), show=progress)
        written[split] = write_rows(folder / f"{split}.arrow", kinds, cut(arrays, *share))
    return written, notes


def write_rows(path: Path, kinds: Mapping[str, pa.DataType], rows: Iterable[Sequence[np.ndarray]]) -> hf.Dataset:
    """Write columns of lists, of which each row has as long ones, and their ``length``."""
    schema = pa.schema({**kinds, "length": pa.int32()})
    with arrow_file(path, schema) as writer:
        for arrays in rows:
            columns = [list_column([array], kind) for array, kind in zip(arrays, kinds.values(), strict=True)]
            columns.append(pa.array([len(arrays[0])], pa.int32()))
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return hf.Dataset.from_file(str(path))


def _classes(first: Mapping[str, Mapping[Any, int]], events: bool) -> tuple[list[str], dict[Any, int]]:
    """The names of the classes, and the id of every label as stored; ``first``: the first row of each split that has
    it."""
    columns = {split: list(rows) for split, rows in first.items()}

    def where(split: str, i: int) -> str:
        return f"{split} row {first[split][columns[split][i]] + 1}"

    labels = read_labels(columns, "auto", where)
    if labels.names is None:
        raise ValueError(f"labels inside series must be classes, but {labels.reason}")
    names = [NO_EVENT, *(name for name in labels.names if name != NO_EVENT)] if events else list(labels.names)
    pairs = (
        (value, index) for split in columns for value, index in zip(columns[split], labels.values[split], strict=True)
    )
    return names, {value: names.index(labels.names[index]) for value, index in pairs if index is not None}
