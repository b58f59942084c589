"""Files of series: sounds, by the library soundfile, and the .ts of the archives UCR and UEA."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import lagwise.data.arrow as pa
from lagwise.data.arrays import FOLDER_LABEL, SERIES, list_column
from lagwise.extras import require

SOUNDS = (".wav", ".flac", ".mp3", ".ogg")
_UNKNOWN_SIZE = 0x7FFF0000  # bytes; a .wav file from a pipe claims at least as many


def read_sound(data: bytes, path: Path) -> tuple[int, np.ndarray]:
    """Read the sampling rate in Hz and the samples ``(length, channels)`` of a sound, float32 in [-1, 1) for integers.
    ImportError without soundfile; ValueError for a file that is truncated, empty or damaged."""
    suffix = next((suffix for suffix in reversed(path.suffixes) if suffix.lower() in SOUNDS), path.suffix).lower()
    require("train", f"a {suffix} file", "soundfile")
    import soundfile

    try:
        whole = _with_size(data) if data.startswith(b"RIFF") else data
        samples, rate = soundfile.read(io.BytesIO(whole), dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
        reason = str(error).rpartition(">: ")[2]  # without the name of an object in memory
        raise ValueError(f"{path} is not a complete {suffix} file ({reason})") from error
    if not samples.size:
        raise ValueError(f"{path} has no samples")
    return rate, samples


def _with_size(data: bytes) -> bytes:
    """A .wav file whose header has the size of its samples, or the largest one instead of a 0 before samples, which
    soundfile reads to the end. ValueError for a file that is shorter than its header says, of which soundfile would
    read what is there."""
    start, size = 12, 0
    while data[start : start + 4] != b"data" and start + 8 <= len(data):
        size = int.from_bytes(data[start + 4 : start + 8], "little")
        start += 8 + size + size % 2
    size, rest = int.from_bytes(data[start + 4 : start + 8], "little"), data[start + 8 :]
    if len(rest) < size < _UNKNOWN_SIZE:
        raise ValueError(f"it has {len(rest):,} of the {size:,} bytes of samples that its header names")
    if size == 0 and rest and not rest.startswith(b"LIST"):
        return data[: start + 4] + b"\xff\xff\xff\xff" + rest
    return data


def sound_bytes(samples: np.ndarray, rate: int) -> bytes:
    """A .wav file of 16 bits, of samples ``(length, channels)`` in [-1, 1); others are cut off."""
    require("train", "a .wav file", "soundfile")
    import soundfile

    whole = np.clip(np.round(samples * 32768.0), -32768, 32767).astype(np.int16)
    soundfile.write(file := io.BytesIO(), whole, rate, format="WAV")
    return file.getvalue()


def ts_table(text: str, path: Path) -> pa.Table:
    """A row for each line: dimensions between colons, each of the same number of values between commas, and last the
    class or number, if the header has @classLabel or @targetLabel. ``?`` and NaN are missing values.

    ValueError names the line of an error; series with time stamps are not read.
    """
    rows: list[np.ndarray] = []
    labels: list[str] = []
    begun = labelled = False
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            if begun:
                dimensions = line.split(":")
                labels += [dimensions.pop().strip()] if labelled else []
                rows.append(_values(dimensions))
                if rows[-1].shape[1] != rows[0].shape[1]:
                    raise ValueError(f"has {rows[-1].shape[1]} dimensions, and the first series {rows[0].shape[1]}")
                continue
            key, value = (*line.lower().split(maxsplit=1), "")[:2]
            if not key.startswith("@"):
                raise ValueError("is before @data, but does not begin with @")
            if key == "@timestamps" and value == "true":
                raise ValueError("has time stamps; write the values alone, at equal distances")
            labelled |= key in ("@classlabel", "@targetlabel") and value.startswith("true")
            begun = key == "@data"
        except ValueError as error:
            raise ValueError(f"{path}, line {number} {error}") from error
    if not rows:
        raise ValueError(f"{path} has no series after @data")
    columns = {SERIES: list_column(rows, pa.list_(pa.list_(pa.float32(), rows[0].shape[1])))}
    return pa.table({**columns, FOLDER_LABEL: pa.array(labels)} if labelled else columns)


def _values(dimensions: Sequence[str]) -> np.ndarray:
    """The values of a series as an array ``(samples, dimensions)``, of their texts."""
    parts = [["nan" if cell.strip() == "?" else cell for cell in dimension.split(",")] for dimension in dimensions]
    lengths = sorted({len(part) for part in parts})
    if not parts:
        raise ValueError("has no values")
    if len(lengths) > 1:
        raise ValueError(f"has dimensions of {lengths[0]} to {lengths[-1]} values; resample them to one rate")
    try:
        return np.array(parts, dtype=np.float32).T
    except ValueError as error:
        raise ValueError(f"has a value that is not a number ({error})") from error
