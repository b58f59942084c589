"""Detection of events from probabilities, offline and streaming, and their comparison with true events."""

from __future__ import annotations

import numpy as np
import pytest

from lagwise.evaluation.events import (
    EventStream,
    event_scores,
    expected_events,
    find_events,
    latest_report,
    lookahead,
    match_events,
    paired_classes,
)


def probabilities(steps: int, classes: int = 4, seed: int = 0) -> np.ndarray:
    """Mostly the background class, with some bumps of other classes."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(steps, classes)) + np.array([3.0, *[0.0] * (classes - 1)])
    for at in random.integers(0, steps, steps // 15):
        logits[at, random.integers(1, classes)] += 6
    p = np.exp(logits)
    return p / p.sum(1, keepdims=True)


def test_expected_events_are_sums_around_each_step() -> None:
    p = probabilities(40)
    expected = [[p[max(0, t - 3) : t + 4, c].sum() for c in (1, 2, 3)] for t in range(40)]
    np.testing.assert_allclose(expected_events(p, 3), expected, rtol=1e-12)


def test_an_event_over_several_steps_is_found_once_with_its_most_likely_class() -> None:
    p = np.zeros((30, 3))
    p[10:13, 1], p[10:13, 2] = (0.1, 0.3, 0.1), (0.15, 0.2, 0.1)
    p[25, 2] = 0.4
    p[:, 0] = 1 - p.sum(1)
    detected = find_events(p, 4)
    assert detected.steps.tolist() == [10]
    assert detected.classes.tolist() == [1]
    assert detected.scores[0] == pytest.approx(0.95)
    assert find_events(p, 4, threshold=0.3).classes.tolist() == [1, 2]


@pytest.mark.parametrize("tolerance", [0, 1, 4, 9])
def test_events_are_further_apart_than_the_tolerance(tolerance: int) -> None:
    steps = find_events(probabilities(500), tolerance, threshold=0.2).steps
    assert len(steps) > 5
    assert np.diff(steps).min() > tolerance


@pytest.mark.parametrize("tolerance", [0, 1, 4, 7])
@pytest.mark.parametrize("seed", [0, 1])
def test_streaming_finds_the_same_events_within_the_stated_delay(tolerance: int, seed: int) -> None:
    p, random, stream = probabilities(400, seed=seed), np.random.default_rng(seed), EventStream(tolerance, 0.3)
    padded = np.concatenate([p, np.tile([[1.0, 0, 0, 0]], (20, 1))])
    offline = find_events(padded, tolerance, 0.3)
    streamed, start = [], 0
    while start < len(padded):
        size = int(random.integers(0, 12))
        events = stream.push(padded[start : start + size])
        start += size
        assert all(step >= start - size - lookahead(tolerance) - 1 for step in events.steps)
        assert stream._recent is not None
        assert len(stream._recent) <= 2 * lookahead(tolerance) + 12
        streamed += zip(*(each.tolist() for each in events), strict=True)
    assert streamed == list(zip(*(each.tolist() for each in offline), strict=True))


@pytest.mark.parametrize("tolerance", [0, 1, 4, 7])
def test_the_end_of_a_recording_reports_the_remaining_events(tolerance: int) -> None:
    p, stream = probabilities(200), EventStream(tolerance, 0.3)
    p[-1, 1:] = 0.33  # the last step is one
    offline = find_events(p, tolerance, 0.3)
    for _ in range(2):  # afterwards another recording begins
        parts = [*(stream.push(part) for part in np.array_split(p, 9)), stream.finish()]
        streamed = [np.concatenate(each).tolist() for each in zip(*parts, strict=True)]
        assert streamed == [each.tolist() for each in offline]
    assert (len(parts[-1].steps) > 0) == (lookahead(tolerance) > 0)
    assert len(EventStream(tolerance).finish().steps) == 0


@pytest.mark.parametrize(("stride", "tolerance"), [(12, 54), (4, 8), (1, 0), (5, 3)])
def test_a_true_event_is_reported_within_the_stated_samples(stride: int, tolerance: int) -> None:
    """A certain event and the earliest true event that matches it: streamed sample by sample, it is reported exactly at
    the stated delay."""
    latest, reach = 0, tolerance // stride // 2
    for step in range(20, 24):
        p = np.tile([1.0, 0.0], (60, 1))
        p[step - reach : step + reach + 1, 1] = 0.9 / (2 * reach + 1)
        stream = EventStream(tolerance // stride)
        position = step * stride + stride // 2
        true = position - tolerance
        assert match_events(np.array([position]), np.array([true]), tolerance).tolist() == [0]
        for sample in range(60 * stride):
            whole = (sample + 1) % stride == 0
            if whole and len(stream.push(p[sample // stride][None]).steps):
                latest = max(latest, sample - true)
    assert latest == latest_report(stride, tolerance)


def test_matches_are_the_closest_pairs_within_the_tolerance() -> None:
    detected, true = np.array([10, 14, 50, 90]), np.array([12, 15, 47, 70])
    assert match_events(detected, true, 3).tolist() == [0, 1, 2, -1]
    assert match_events(detected, true, 0.5).tolist() == [-1, -1, -1, -1]
    assert match_events(detected[:0], true, 3).tolist() == [-1] * 4


def test_missed_and_false_events_count_as_errors() -> None:
    detected, classes = np.array([10, 30, 52, 80]), np.array([1, 1, 2, 2])
    true, labels = np.array([11, 50, 60, 81]), np.array([1, 2, 2, 1])
    pairs = paired_classes(detected, classes, true, labels, 5)
    assert sorted(zip(*(each.tolist() for each in pairs), strict=True)) == [(0, 2), (1, 0), (1, 1), (2, 1), (2, 2)]
    scores, details = event_scores(*pairs, ("none", "a", "b"))
    assert scores == pytest.approx({"accuracy": 0.5, "macro_f1": 0.5, "found": 0.75, "precision": 0.75})
    assert details["confusion"] == [[0, 1, 0], [0, 1, 1], [1, 0, 1]]
    assert details["classes"]["a"]["precision"] == details["classes"]["a"]["recall"] == 0.5
