"""The second stage for heart beats: what it reads, when it may answer, and that it learns a rhythm."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def beats(benchmark_script: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_script("ecg_beats")


def record(seed: int, count: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples of two leads, positions and classes: premature beats of normal shape (S), and wide premature ones (V)."""
    random = np.random.default_rng(seed)
    classes = random.choice(["N", "S", "V"], size=count, p=[0.8, 0.1, 0.1])
    classes[:12] = "N"
    usual = random.uniform(250, 330)
    early = np.isin(classes, ["S", "V"])
    steps = usual * random.normal(1, 0.02, count) * np.where(early, 0.65, 1) * np.where(np.roll(early, 1), 1.3, 1)
    at = np.round(300 + np.cumsum(steps)).astype(int)
    x = 0.02 * random.normal(size=(at[-1] + 500, 2))
    place = np.arange(-60, 61)
    for center, name in zip(at, classes, strict=True):
        x[center + place] += np.exp(-((place / (14 if name == "V" else 5)) ** 2))[:, None] * [1.0, -0.5]
    return x, at, classes


def test_the_features_of_a_beat_know_the_two_beats_after_it_and_a_second(beats: ModuleType) -> None:
    x, at, _ = record(0)
    i = 150
    end = max(at[i + beats.LATER] + beats.REACH, at[i] + beats.RATE)
    changed = x.copy()
    changed[end + 40 :] = np.random.default_rng(1).normal(size=changed[end + 40 :].shape)
    whole = beats.features(x, at)
    np.testing.assert_allclose(beats.features(changed, at)[: i + 1], whole[: i + 1], atol=1e-9)
    fewer = beats.features(x[: end + 40], at[: i + beats.LATER + 1])
    np.testing.assert_allclose(fewer[: i + 1], whole[: i + 1], atol=1e-9)
    moved = at.copy()
    moved[i + beats.LATER] += 90
    assert abs(beats.features(x, moved)[i] - whole[i]).max() > 0.1
