"""Predictions as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lagwise.data import open_rows
from lagwise.data.labels import read_several_for
from lagwise.data.series_files import read_sound
from lagwise.data.writing import rows_as_csv, write_sounds


def test_lists_of_names_are_read_as_they_were(tmp_path: Path) -> None:
    """So that predictions of several labels can be scored; series are left out."""
    labels: list[list[str]] = [["a", 'b "x"'], [], ["ä, b"]]
    rows = [{"label": own, "series": [0.5], "image": b"x", "array": np.zeros(2)} for own in labels]
    (tmp_path / "rows.csv").write_text(rows_as_csv([*rows, {"label": ["a"], "other": 1}]))
    read = open_rows(str(tmp_path / "rows.csv")).read()["train"]
    assert read.column_names == ["label", "other"]
    values = read_several_for(read["label"][:], ("a", 'b "x"', "ä, b"), str)
    assert values == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]


def test_sounds_of_like_names_are_all_written(tmp_path: Path) -> None:
    names = ["a.wav", "a.flac", "x/a.wav", "2024.01.wav", "2024.02.wav"]
    write_sounds({name: (np.full((3, 1), i / 8), 8000) for i, name in enumerate(names)}, tmp_path)
    written = ["a.wav.wav", "a.flac.wav", "x/a.wav", "2024.01.wav", "2024.02.wav"]
    for i, name in enumerate(written):
        rate, samples = read_sound((tmp_path / name).read_bytes(), tmp_path / name)
        assert rate == 8000
        np.testing.assert_array_equal(samples, np.full((3, 1), i / 8))
