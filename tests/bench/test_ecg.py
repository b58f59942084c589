"""Conversion of MIT-BIH records to rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from lagwise.data import open_rows
from lagwise.data.labelled_series import prepare_series

wfdb: Any = pytest.importorskip("wfdb")
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # pandas warns in wfdb


@pytest.fixture
def ecg(benchmark_script: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_script("ecg")


def record(folder: Path, name: str, leads: list[str], rate: int = 360) -> np.ndarray:
    """Noise with beats of several kinds and two annotations that are not beats."""
    samples = np.random.default_rng(int(name)).normal(0, 0.3, (1000, 2)).round(2)
    options = {"adc_gain": [200.0] * 2, "baseline": [0] * 2, "write_dir": str(folder)}
    wfdb.wrsamp(name, rate, ["mV"] * 2, leads, samples, fmt=["212"] * 2, **options)
    places = np.array([50, 100, 300, 420, 500, 700, 810])
    wfdb.wrann(name, "atr", places, symbol=["N", "+", "A", "R", "V", "~", "F"], write_dir=str(folder))
    return samples


def test_patients_are_in_one_split_each(ecg: ModuleType) -> None:
    names = [name for split in ecg.SPLITS.values() for name in split]
    assert len(names) == len(set(names)) == 44
    assert set(names).isdisjoint({"102", "104", "107", "217"})
    assert ecg.VALID == ["109", "118", "203", "215"]


def test_records_become_rows_of_samples_and_beats(
    ecg: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leads = {"1": ["MLII", "V1"], "2": ["V5", "MLII"], "3": ["MLII", "V1"]}
    samples = {name: record(tmp_path, name, own) for name, own in leads.items()}
    monkeypatch.setattr(ecg, "SPLITS", {"train": ["1"], "valid": ["2"], "test": ["3"]})
    ecg.prepare(tmp_path, tmp_path / "rows")
    source = open_rows(str(tmp_path / "rows"))
    data = prepare_series(source, label="classes", events="positions", cache=tmp_path / "cache", progress=False)
    assert data.label_names == ("none", "F", "N", "S", "V")
    for split, name in (("train", "1"), ("valid", "2"), ("test", "3")):
        (row,) = data.splits[split]
        expected = samples[name][:, ::-1] if name == "2" else samples[name]  # lead MLII first
        np.testing.assert_allclose(row["input_values"], expected, atol=0.006)
        beats = [(at, data.label_names[c]) for at, c in enumerate(row["label"]) if c]
        assert beats == [(50, "N"), (300, "S"), (420, "N"), (500, "V"), (810, "F")]


def test_another_sampling_rate_is_refused(ecg: ModuleType, tmp_path: Path) -> None:
    record(tmp_path, "1", ["MLII", "V1"], rate=250)
    with pytest.raises(ValueError, match="250 samples per second, not 360"):
        ecg.read_record(tmp_path / "1")
