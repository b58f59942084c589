"""Sound files, by the library soundfile."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from lagwise.extras import require

SOUNDS = (".wav", ".flac", ".mp3", ".ogg")
_UNKNOWN_SIZE = 0x7FFF0000  # bytes; a .wav file from a pipe claims at least as many


def read_sound(data: bytes, path: Path) -> tuple[int, np.ndarray]:
    """Read the sampling rate in Hz and the samples ``(length, channels)``, float32, of a .wav, .flac, .mp3 or .ogg
    file.

    Integers of 8 (unsigned), 16, 24 and 32 bits are scaled to [-1, 1); floating-point numbers stay as they are.
    Where the header of a .wav file does not know the sizes, as that of a pipe or of a recorder that lost its power, the
    samples go on to the end of the file. ImportError without soundfile; ValueError for a file that is truncated, empty
    or damaged.
    """
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
