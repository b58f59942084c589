"""Compressed sound files, by the library soundfile."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from lagwise.extras import require

COMPRESSED = (".flac", ".mp3", ".ogg")
SOUNDS = (".wav", *COMPRESSED)


def read_compressed(data: bytes, path: Path) -> tuple[int, np.ndarray]:
    """Sampling rate in Hz and samples ``(length, channels)`` in [-1, 1], float32. ImportError without soundfile;
    ValueError for a damaged file, or one without samples."""
    require("sounds", f"a {path.suffix} file", "soundfile")
    import soundfile

    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise ValueError(f"{path} is not a complete {path.suffix} file ({error})") from error
    if not samples.size:
        raise ValueError(f"{path} has no samples")
    return rate, samples
