"""Recordings as rows: sound files, and tables with a line for each sample."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.data.reading import inner_suffix, read_whole
from lagwise.tables import known

if TYPE_CHECKING:
    import pyarrow as pa

SERIES = "input_values"
FOLDER_LABEL = "label"  # the column of the names of folders


def read_sound(data: bytes, path: Path) -> tuple[int, np.ndarray]:
    """Sampling rate in Hz and samples ``(length, channels)``, float32, of a .wav file.

    Whole numbers of 8 (unsigned), 16, 24 and 32 bits are scaled to [-1, 1); floating-point numbers stay as they are.
    ValueError for a file that is truncated, empty, damaged, or compressed.
    """
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
    return _row({SERIES: samples, FOLDER_LABEL: path.parent.name, "sampling_rate": rate, "file": path.name}, columns)


def series_table(
    table: pa.Table, path: Path, label: str, features: Sequence[str], wanted: Sequence[str] | None, *, lines: bool
) -> pa.Table:
    """The lines of a .csv or .tsv file as series.

    If ``lines``, every line is a series of one feature, its numbers in the columns ``features`` in this order, with the
    label in the column of labels if there is one. Else the file is one recording: a line for each sample and a column
    for each feature, with a label for each sample in the column of labels, or one label for all, the name of the
    folder. wanted: the columns that are returned, None for all. An empty field is NaN. ValueError names the line and
    column of any other field that is not a number, and a feature without a column.
    """
    import pyarrow as pa

    if not features or not table.num_rows:
        raise ValueError(f"{path} has no samples")
    for name in features:
        known(name, table.column_names, f"column of {path}")
    values = np.stack([_numbers(table.column(name).to_pylist(), name, path, label) for name in features], axis=1)
    labels = table.column(label).to_pylist() if label in table.column_names else None
    if lines:
        offsets = pa.array(np.arange(len(values) + 1, dtype=np.int32) * len(features))
        kept = {SERIES: pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1)))}
        kept |= {} if labels is None else {label: pa.array(labels)}
        return pa.table({name: column for name, column in kept.items() if wanted is None or name in wanted})
    return _row({SERIES: values, label: path.parent.name if labels is None else labels, "file": path.name}, wanted)


def check_sounds(files: Mapping[str, Sequence[Path]], rate: int | None = None) -> None:
    """ValueError if .wav files have different sampling rates or numbers of channels, or others than ``rate``, in Hz, or
    cannot be read."""
    wanted, by = rate, "the model was trained at"
    channels: tuple[int, Path] | None = None
    for path in (path for paths in files.values() for path in paths if inner_suffix(path) == ".wav"):
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
