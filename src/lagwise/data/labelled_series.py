"""Series with labels inside them: of every sample, or events at some of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.cache import cached_folder, default_cache
from lagwise.data.encoding import list_column, read_series
from lagwise.data.labels import class_name, read_labels
from lagwise.data.packing import IGNORED
from lagwise.data.rows import RowSource, split_rows
from lagwise.data.sources import SPLITS
from lagwise.progress import progress_bar

if TYPE_CHECKING:
    from datasets import Dataset

NO_EVENT = "none"
_FORMAT = 1  # raise when the meaning of the files changes


@dataclass(frozen=True)
class LabelledSeries:
    """Series in three splits.

    splits: data sets with the columns input_values (lists of ``features`` float32 each), label (a list of as many class
    ids, -100 where there is none) and length (in samples). label_names: of the classes, by id; of events the first is
    ``none``, the class of samples without one. mean, std: of each feature over the samples of train. counts: samples,
    or events, of each class in each split.
    """

    folder: Path
    splits: dict[str, Dataset]
    features: int
    label_names: tuple[str, ...]
    mean: list[float]
    std: list[float]
    counts: dict[str, dict[str, int]]
    notes: tuple[str, ...]


def series_key(source: RowSource, values: str, label: str, events: str | None) -> str:
    """Hash of the rows and of all that decides how they are read; arguments as in `prepare_series`."""
    if len({values, label, events}) < 3:
        raise ValueError(f"task.values, task.label and task.events must name different columns, got {label!r} twice")
    options = [_FORMAT, source.fingerprint(), values, label, events]
    return hashlib.sha256(json.dumps(options).encode()).hexdigest()[:24]


def prepare_series(
    source: RowSource,
    *,
    values: str = "input_values",
    label: str = "label",
    events: str | None = None,
    cache: Path | None = None,
    progress: bool = True,
) -> LabelledSeries:
    """Read series with labels inside them, or find the result of having done so.

    values: the column of the series. label: the column of the labels, of each row a list of as many classes as it has
    samples (null or an empty string where there is none), or one class for all its samples. events: a column of lists
    of positions, in samples from 0 and in order; ``label`` then has the class of each. Missing splits are made as in
    `split_rows`.

    ValueError, one line, for missing columns, NaN and inf, labels that are not as many as samples, positions that are
    out of order, occur twice or lie outside the series, labels that are numbers with fractions, and as in
    `read_labels`.
    """
    folder = (cache or default_cache()) / "series" / series_key(source, values, label, events)

    def make(partial: Path) -> dict[str, Any]:
        try:
            return _write(source, values, label, events, partial, progress)
        except ValueError as error:
            raise ValueError(f"{source.name!r}: {error}") from error

    meta = cached_folder(folder, make)
    from datasets import Dataset

    return LabelledSeries(
        folder=folder,
        splits={split: Dataset.from_file(str(folder / f"{split}.arrow")) for split in SPLITS},
        **{**meta, "label_names": tuple(meta["label_names"]), "notes": tuple(meta["notes"])},
    )


def read_label_rows(
    rows: Dataset, values: str, label: str, events: str | None, where: Callable[[int], str]
) -> Iterator[tuple[np.ndarray, list[Any], np.ndarray]]:
    """Of each row its samples ``(length, features)``, the different labels in it as they stand, and the place of each
    sample's label among these, IGNORED for none. Errors as `prepare_series`; ``where`` names row i in them."""
    for column in (values, label, *([] if events is None else [events])):
        if column not in rows.column_names:
            raise ValueError(f"there is no column {column!r} (columns: {', '.join(rows.column_names)})")
    table: Any = rows.with_format("arrow")[:]
    cells = table.column(label)
    positions = None if events is None else table.column(events)
    features = None
    for i, samples in enumerate(read_series(table.column(values), values, where)):
        features = features or samples.shape[1]
        if samples.shape[1] != features:
            raise ValueError(f"{values!r} of {where(i)} has {samples.shape[1]} features, those before it {features}")
        try:
            found, places = _label_places(cells[i], None if positions is None else positions[i].as_py(), len(samples))
        except ValueError as error:
            raise ValueError(f"{where(i)}: {error}") from error
        yield samples, found, places


def _label_places(cell: Any, positions: list[Any] | None, length: int) -> tuple[list[Any], np.ndarray]:
    """Different labels of a row, and the place among them of the label of each of ``length`` samples."""
    import pyarrow.types as t

    if positions is None and not (t.is_list(cell.type) or t.is_large_list(cell.type)):
        return [cell.as_py()], np.zeros(length, dtype=np.int64)
    listed = [] if cell.values is None else cell.values
    if positions is None:
        if len(listed) != length:
            raise ValueError(f"it has {len(listed)} labels and {length} samples")
        encoded = listed.dictionary_encode()
        places = encoded.indices.fill_null(IGNORED).to_numpy(zero_copy_only=False).astype(np.int64)
        found = encoded.dictionary.to_pylist()
        missing = [k for k, value in enumerate(found) if value is None or str(value).strip().lower() in ("", "nan")]
        return found, np.where(np.isin(places, missing), IGNORED, places)
    if len(listed) != len(positions):
        raise ValueError(f"it has {len(positions)} events and {len(listed)} classes of events")
    for number, (before, position) in enumerate(zip([None, *positions], positions, strict=False)):
        if type(position) is not int or not 0 <= position < length:
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
    source: RowSource, values: str, label: str, events: str | None, folder: Path, progress: bool
) -> dict[str, Any]:
    import pyarrow as pa

    tables = source.read([values, label, *([] if events is None else [events])])
    named = tuple(tables)
    if empty := [split for split, rows in tables.items() if not len(rows)]:
        raise ValueError(f"{empty[0]} has no rows")
    splits = split_rows(tables)
    read, distinct = {}, {}
    for split, rows in splits.items():

        def where(i: int, split: str = split) -> str:
            return f"row {i + 1}" if named == ("train",) and split == "train" else f"{split} row {i + 1}"

        read[split] = list(read_label_rows(rows, values, label, events, where))
        first: dict[Any, int] = {}
        for i, (_, found, places) in enumerate(read[split]):
            for k in np.unique(places[places >= 0]).tolist():
                first.setdefault(found[k], i)
        distinct[split] = first
    names, ids = _classes(distinct, events is not None)
    schema, counts = None, {}
    for split in SPLITS:
        total = np.zeros(len(names), dtype=np.int64)
        with progress_bar(desc=f"reading {split}", unit=" rows", total=len(read[split]), show=progress) as bar:
            features = read[split][0][0].shape[1]
            schema = pa.schema(
                {
                    "input_values": pa.list_(pa.list_(pa.float32(), features)),
                    "label": pa.list_(pa.int16()),
                    "length": pa.int32(),
                }
            )
            with (
                pa.OSFile(str(folder / f"{split}.arrow"), "wb") as file,
                pa.ipc.new_stream(file, schema) as writer,
            ):
                for samples, found, places in read[split]:
                    table = np.asarray([ids.get(value, IGNORED) for value in found] + [IGNORED])
                    row = table[np.where(places == IGNORED, len(found), places)]
                    total += np.bincount(row[row >= 0], minlength=len(names))
                    columns = [
                        list_column([samples], schema.field("input_values").type),
                        list_column([row], schema.field("label").type),
                        pa.array([len(samples)], pa.int32()),
                    ]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
                    bar.update(1)
        counts[split] = dict(zip(names, total.tolist(), strict=True))
    means, stds = _scale([samples for samples, _, _ in read["train"]])
    made = [split for split in splits if split not in named]
    notes = [f"{' and '.join(made)} made from 10 % of the series of train{' each' if len(made) > 1 else ''}"]
    absent = [(split, name) for split in SPLITS for name, count in counts[split].items() if not count]
    return {
        "features": features,
        "label_names": names,
        "mean": means,
        "std": stds,
        "counts": counts,
        "notes": [*(notes if made else []), *(f"{split} has no {name!r}" for split, name in absent)],
    }


def _classes(distinct: Mapping[str, Mapping[Any, int]], events: bool) -> tuple[list[str], dict[Any, int]]:
    """Names of the classes, and the id of every label as it stands."""
    columns = {split: list(first) for split, first in distinct.items()}

    def where(split: str, i: int) -> str:
        return f"{split} row {distinct[split][columns[split][i]] + 1}"

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


def _scale(series: list[np.ndarray]) -> tuple[list[float], list[float]]:
    """Mean and deviation of each feature over all samples; a constant feature has deviation 1."""
    count = sum(map(len, series))
    mean = sum(each.sum(0, dtype=np.float64) for each in series) / count
    square = sum(((each - mean) ** 2).sum(0) for each in series) / count
    std = np.sqrt(square)
    return mean.tolist(), np.where(std > 1e-12 * (1 + abs(mean)), std, 1.0).tolist()
