"""Predictions as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lagwise.data.row_writing import write_sounds
from lagwise.data.series_files import read_sound


def test_sounds_of_like_names_are_all_written(tmp_path: Path) -> None:
    names = ["a.wav", "a.flac", "x/a.wav", "2024.01.wav", "2024.02.wav"]
    write_sounds({name: (np.full((3, 1), i / 8), 8000) for i, name in enumerate(names)}, tmp_path)
    written = ["a.wav.wav", "a.flac.wav", "x/a.wav", "2024.01.wav", "2024.02.wav"]
    for i, name in enumerate(written):
        rate, samples = read_sound((tmp_path / name).read_bytes(), tmp_path / name)
        assert rate == 8000
        np.testing.assert_array_equal(samples, np.full((3, 1), i / 8))
