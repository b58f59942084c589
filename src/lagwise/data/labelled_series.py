"""Series with labels inside them: one for every sample, or events at some samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import lagwise.data.arrow as pa
from lagwise.data.arrays import is_list, list_column
from lagwise.data.batches import IGNORED
from lagwise.data.encoding import feature_scale, read_series
from lagwise.data.labels import class_name, is_missing, known_labels, read_labels
from lagwise.data.prepared import Prepared, arrow_file, key_of, stored_arrays
from lagwise.data.rows import RowSource
from lagwise.data.splits import SPLITS, Share, shared_rows, split_series
from lagwise.progress import progress_bar
from lagwise.tables import known

if TYPE_CHECKING:
    from datasets import Dataset

NO_EVENT = "none"


@dataclass(frozen=True)
class LabelledSeries(Prepared):
    """A set of series with labels inside them, in three splits.

    Attributes:
        splits: data sets with the columns input_values (lists of ``features`` float32 each), label (a list of as many
            class ids, -100 where there is none) and length (in samples).
        label_names: names of the classes, by id; for events the first is ``none``, the class of samples without one.
        mean, std: those of each feature over the samples of train.
        gaps: whether any sample is missing (NaN).
        counts: samples, or events, of each class in each split.
    """

    features: int
    label_names: tuple[str, ...]
    mean: list[float]
    std: list[float]
    gaps: bool
    counts: dict[str, dict[str, int]]


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
    """Read series with labels inside them, or load the cached result.

    Args:
        values: the column of the series.
        label: the column of the labels; each row has a list of as many classes as it has samples (null or an empty
            string where there is none), or one class for all its samples.
        events: a column of lists of positions, in samples from 0 and in order; ``label`` then has the class of each.
        group: a column whose equal values stay in one split (`split_rows`).

    Missing splits are made as in `split_rows`; of one or two series the last two tenths of each are valid and test.

    ValueError, one line, for missing columns, inf, a number of labels other than that of samples, positions
    that are out of order, occur twice or lie outside the series, labels that are fractions, and as in `read_labels`.
    """

    def write(folder: Path) -> dict[str, Any]:
        try:
            return _write(source, values, label, events, group, folder, progress)
        except ValueError as error:
            raise ValueError(f"{source.name!r}: {error}") from error

    if len({values, label, events}) < 3:
        raise ValueError(f"`values`, `label` and `events` must name different columns, got {label!r} twice")
    return LabelledSeries.load(key_of([source.key(), values, label, events, group]), write, source.notes, cache)


def read_label_rows(
    rows: Dataset, values: str, label: str, events: str | None, where: Callable[[int], str], *, gaps: bool = True
) -> Iterator[tuple[np.ndarray, list[Any], np.ndarray]]:
    """Yield for each row its samples ``(length, features)``, its different labels as stored, and the index of each
    sample's label among these, IGNORED for none. Errors as `prepare_series`; ``where`` names row i in them."""
    for column in (values, label, *([] if events is None else [events])):
        if column not in rows.column_names:
            raise ValueError(f"there is no column {column!r} (columns: {', '.join(rows.column_names)})")
    table: Any = rows.with_format("arrow")[:]
    cells = table.column(label)
    positions = None if events is None else table.column(events)
    for i, samples in enumerate(read_series(table.column(values), values, where, gaps=gaps)):
        try:
            own = None if positions is None else positions[i].as_py() or []
            found, places = _label_places(cells[i], own, len(samples))
        except ValueError as error:
            raise ValueError(f"{where(i)}: {error}") from error
        yield samples, found, places


def read_series_for(
    rows: Dataset, names: Sequence[str], values: str, label: str, events: str | None, source: str, *, gaps: bool = True
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each row its samples, and the label of each as an id of the model's classes ``names``, -100 where there
    is none. gaps: samples may be missing. ValueError for a class that the model does not know, and as
    `prepare_series`."""

    def where(i: int) -> str:
        return f"row {i + 1} of {source!r}"

    for i, (samples, found, places) in enumerate(read_label_rows(rows, values, label, events, where, gaps=gaps)):
        used = np.unique(places[places != IGNORED])
        ids = np.full(len(found) + 1, IGNORED)
        ids[used] = known_labels([found[k] for k in used], names, lambda _, i=i: where(i))
        yield samples, ids[np.where(places == IGNORED, len(found), places)]


def _label_places(cell: Any, positions: list[Any] | None, length: int) -> tuple[list[Any], np.ndarray]:
    """Return the different labels of a row, and the index among them of the label of each of ``length`` samples."""
    if positions is None and not is_list(cell.type):
        return [cell.as_py()], np.zeros(length, dtype=np.int64)
    listed: Any = [] if cell.values is None else cell.values
    if positions is None:
        if len(listed) != length:
            raise ValueError(f"it has {len(listed)} labels and {length} samples")
        encoded = listed.dictionary_encode()
        places = encoded.indices.fill_null(IGNORED).to_numpy(zero_copy_only=False).astype(np.int64)
        found = encoded.dictionary.to_pylist()
        missing = [k for k, value in enumerate(found) if is_missing(value)]
        return found, np.where(np.isin(places, missing), IGNORED, places)
    if len(listed) != len(positions):
        raise ValueError(f"it has {len(positions)} events and {len(listed)} classes of events")
    # pandas writes integers of a column with gaps as floats.
    positions = [int(p) if isinstance(p, float) and p.is_integer() else p for p in positions]
    for number, (before, position) in enumerate(zip([None, *positions], positions, strict=False)):
        if type(position) is not int:
            raise ValueError(f"event {number + 1} is at {position!r}, which is not an integer")
        if not 0 <= position < length:
            raise ValueError(f"event {number + 1} is at {position!r}, outside the series of {length} samples")
        if before is not None and position <= before:
            raise ValueError(f"event {number + 1} is at {position}, not after the one before it, at {before}")
    found = [NO_EVENT]
    places = np.zeros(length, dtype=np.int64)
    for number, (position, value) in enumerate(zip(positions, listed, strict=True)):
        name = class_name(value.as_py())
        if name in ("None", "nan", "", NO_EVENT):
            raise ValueError(f"event {number + 1} has no class but {name!r}")
        if name not in found:
            found.append(name)
        places[position] = found.index(name)
    return found, places


def _write(
    source: RowSource, values: str, label: str, events: str | None, group: str | None, folder: Path, progress: bool
) -> dict[str, Any]:
    tables = source.read([values, label, *filter(None, (events, group))])
    for rows in tables.values() if group is not None else ():
        known(group, rows.column_names, "column (`group`)")
    if "train" not in tables:
        raise ValueError(f"it has no series to train on, only {' and '.join(tables)} by the names in it")
    first: dict[str, dict[Any, int]] = {}  # the row where each label occurs first
    features, gaps = None, False
    for split, rows in tables.items():
        if not len(rows):
            raise ValueError(f"{split} has no rows")

        def where(i: int, split: str = split) -> str:
            return f"row {i + 1}" if len(tables) == 1 else f"{split} row {i + 1}"

        first[split] = {}
        for i, (samples, found, places) in enumerate(read_label_rows(rows, values, label, events, where)):
            features, gaps = features or samples.shape[1], gaps or bool(np.isnan(samples).any())
            if samples.shape[1] != features:
                raise ValueError(
                    f"{values!r} of {where(i)} has {samples.shape[1]} features, those before it {features}"
                )
            for k in np.unique(places[places != IGNORED]).tolist():
                first[split].setdefault(found[k], i)
    assert features is not None
    names, ids = _classes(first, events is not None)

    def read(rows: Dataset) -> Iterator[list[np.ndarray]]:
        for samples, found, places in read_label_rows(rows, values, label, events, str):
            own = np.asarray([*(ids.get(value, IGNORED) for value in found), IGNORED])
            yield [samples, own[np.where(places == IGNORED, len(found), places)]]

    kinds = {"input_values": pa.list_(pa.list_(pa.float32(), features)), "label": pa.list_(pa.int16())}
    parts, notes = split_series(tables, "series", group)
    mean, std = write_parts(folder, parts, kinds, read, "series", progress)
    counts = {}
    for split in SPLITS:
        labels = np.concatenate(list(stored_arrays(folder / f"{split}.arrow", "label")))
        found = np.bincount(labels[labels != IGNORED], minlength=len(names))
        counts[split] = dict(zip(names, found.tolist(), strict=True))
    inputs: dict[str, Any] = {split: rows.select_columns(values) for split, rows in tables.items()}
    shared = shared_rows(inputs, tables)
    absent = [(split, name) for split in SPLITS for name, count in counts[split].items() if not count]
    return {
        "features": features,
        "label_names": names,
        "mean": mean,
        "std": std,
        "gaps": gaps,
        "counts": counts,
        "notes": [*notes, *shared, *(f"{split} has no {name!r}" for split, name in absent)],
    }


def write_parts(
    folder: Path,
    parts: Mapping[str, tuple[Dataset, Share]],
    kinds: Mapping[str, pa.DataType],
    read: Callable[[Dataset], Iterator[list[np.ndarray]]],
    what: str,
    progress: bool,
) -> tuple[list[float], list[float]]:
    """Write the part of each series that is in a split (`split_series`), and return the mean and standard deviation of
    each feature of train.

    Args:
        kinds: The types of the columns of lists, the first of which has the features; beside them is length.
        read: The arrays of each row, one for each column.
        what: A series, for people.
    """
    schema = pa.schema({**kinds, "length": pa.int32()})
    for split, (rows, (start, end)) in parts.items():
        with arrow_file(folder / f"{split}.arrow", schema) as writer:
            series = progress_bar(read(rows), desc=f"reading {split}", unit="row", total=len(rows), show=progress)
            for arrays in series:
                length = len(arrays[0])
                cut = [array[round(start * length) : round(end * length)] for array in arrays]
                if not len(cut[0]):
                    raise ValueError(f"a {what} of {length} samples is too short to be cut into train, valid and test")
                columns = [list_column([array], kind) for array, kind in zip(cut, kinds.values(), strict=True)]
                columns.append(pa.array([len(cut[0])], pa.int32()))
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return feature_scale(stored_arrays(folder / "train.arrow", next(iter(kinds))))


def _classes(first: Mapping[str, Mapping[Any, int]], events: bool) -> tuple[list[str], dict[Any, int]]:
    """Return the names of the classes, and the id of every label as stored; ``first``: the first row of each split that
    has it."""
    columns = {split: list(rows) for split, rows in first.items()}

    def where(split: str, i: int) -> str:
        return f"{split} row {first[split][columns[split][i]] + 1}"

    labels = read_labels(columns, "auto", where)
    if labels.names is None:
        raise ValueError(f"labels inside series must be classes, but {labels.reason}")
    names = list(labels.names)
    if events:
        names = [NO_EVENT, *(name for name in names if name != NO_EVENT)]
    ids = {
        value: names.index(labels.names[place])
        for split in columns
        for value, place in zip(columns[split], labels.values[split], strict=True)
        if place is not None
    }
    return names, ids
