"""Recordings as rows: sound files, and tables with a line for each sample."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.data.folders import folder_name
from lagwise.data.reading import inner_suffix, read_whole
from lagwise.data.sound_files import COMPRESSED, SOUNDS, read_compressed
from lagwise.tables import known

if TYPE_CHECKING:
    import pyarrow as pa

SERIES = "input_values"
FOLDER_LABEL = "label"  # the column of the names of folders


def read_sound(data: bytes, path: Path) -> tuple[int, np.ndarray]:
    """Sampling rate in Hz and samples ``(length, channels)``, float32, of a .wav file, or of a compressed one
    (`read_compressed`).

    Whole numbers of 8 (unsigned), 16, 24 and 32 bits are scaled to [-1, 1); floating-point numbers stay as they are.
    ValueError for a file that is truncated, empty, damaged, or compressed.
    """
    if inner_suffix(path) in COMPRESSED:
        return read_compressed(data, path)
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", wavfile.WavFileWarning)
            warnings.filterwarnings("ignore", message="Chunk .* not understood", category=wavfile.WavFileWarning)
            rate, samples = wavfile.read(io.BytesIO(data))
    except Exception as error:  # scipy raises many types of exceptions for damaged files
        raise ValueError(f"{path} is not a complete .wav file of PCM or floating-point samples ({error})") from error
    if not samples.size:
        raise ValueError(f"{path} has no samples")
    if samples.dtype == np.uint8:
        samples = (samples.astype(np.float32) - 128) / 128
    elif samples.dtype.kind == "i":  # of 24 bits, scipy fills the upper bytes
        samples = samples.astype(np.float32) / -float(np.iinfo(samples.dtype).min)
    return rate, samples.astype(np.float32).reshape(len(samples), -1)


def wav_table(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    """One row: the samples, the sampling rate, the name of the file, and as label the name of its folder."""
    rate, samples = read_sound(data, path)
    return _row({SERIES: samples, FOLDER_LABEL: folder_name(path), "sampling_rate": rate, "file": path.name}, columns)


def lines_table(
    table: pa.Table, path: Path, label: str, features: Sequence[str], wanted: Sequence[str] | None
) -> pa.Table:
    """The lines of a .csv or .tsv file as series of one feature: their numbers in the columns ``features``, in this
    order. Other columns stay as they are; only those ``wanted`` are returned, or all. Errors as `recording_table`."""
    import pyarrow as pa

    values = _samples(table, path, label, features)
    offsets = pa.array(np.arange(len(values) + 1, dtype=np.int32) * len(features))
    kept = {name: table.column(name) for name in table.column_names if name not in (*features, SERIES)}
    kept[SERIES] = pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1)))
    return pa.table({name: column for name, column in kept.items() if wanted is None or name in wanted})


def recording_table(
    table: pa.Table,
    path: Path,
    label: str,
    features: Sequence[str],
    wanted: Sequence[str] | None,
    *,
    per_sample: bool,
    labelled: bool,
) -> pa.Table:
    """One row: the recording in a .csv or .tsv file, with a line for each sample and a column for each feature.

    features: their columns, in order. wanted: the columns that are returned, None for all. per_sample: the column
    ``label`` has a label for each sample; otherwise it has one label, that of the recording. Without that column, the
    name of the folder is the recording's label, unless other recordings have the column (``labelled``).

    An empty field is NaN. ValueError names the line and column of any other field that is not a number, a feature
    without a column, a recording with several labels, and one without the column if it is wanted and others have it.
    """
    values = _samples(table, path, label, features)
    found: Any = folder_name(path)
    if label in table.column_names:
        found = table.column(label).to_pylist()
        if not per_sample:
            if len(set(found)) > 1:
                raise ValueError(
                    f"{path} has samples with different labels ({', '.join(map(repr, sorted(set(found))[:2]))}, ...); "
                    "a recording has one, but the task sequence_labelling learns those of samples"
                )
            found = found[0]
    elif labelled:
        if wanted is not None and label in wanted:
            raise ValueError(f"{path} has no column {label!r}, which other recordings have (task.label)")
        found = [""] * len(values) if per_sample else None
    return _row({SERIES: values, "file": path.name, label: found}, wanted)


def _samples(table: pa.Table, path: Path, label: str, features: Sequence[str]) -> np.ndarray:
    if not features or not table.num_rows:
        raise ValueError(f"{path} has no samples")
    for name in features:
        known(name, table.column_names, f"column of {path}")
    return np.stack([_numbers(table.column(name).to_pylist(), name, path, label) for name in features], axis=1)


def check_sounds(files: Mapping[str, Sequence[Path]], rate: int | None = None) -> None:
    """ValueError if sounds have different sampling rates or numbers of channels, or others than ``rate``, in Hz, or
    cannot be read."""
    wanted, by = rate, "the model was trained at"
    channels: tuple[int, Path] | None = None
    for path in (path for paths in files.values() for path in paths if inner_suffix(path) in SOUNDS):
        own, samples = read_sound(read_whole(path), path)
        if wanted is None:
            wanted, by = own, f"{path} has"
        if own != wanted:
            raise ValueError(
                f"{path} has a sampling rate of {own} Hz, {by} {wanted} Hz; resample the sounds to one rate"
            )
        channels = channels or (samples.shape[1], path)
        if samples.shape[1] != channels[0]:
            raise ValueError(f"{path} has {samples.shape[1]} channel(s), {channels[1]} has {channels[0]}; convert them")


def _row(values: Mapping[str, Any], columns: Sequence[str] | None) -> pa.Table:
    import pyarrow as pa

    row = {name: pa.array([value]) for name, value in values.items() if name != SERIES}
    samples = values[SERIES]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(samples.reshape(-1)), samples.shape[1])
    row[SERIES] = pa.ListArray.from_arrays(pa.array([0, len(samples)], pa.int32()), vectors)
    return pa.table({name: column for name, column in row.items() if columns is None or name in columns})


def _numbers(cells: Sequence[str], name: str, path: Path, label: str) -> np.ndarray:
    values = np.empty(len(cells), dtype=np.float32)
    for i, cell in enumerate(cells):
        try:
            values[i] = cell if cell.strip() else np.nan
        except ValueError as error:
            raise ValueError(
                f"{path}, line {i + 2}: {name!r} is {cell!r}, not a number; all columns but that of the labels, "
                f"task.label={label!r}, are read as numbers unless task.features names some"
            ) from error
    return values
