"""Series with labels of samples: windows, and targets of steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from lagwise.data import open_rows
from lagwise.data.batches import Examples
from lagwise.data.labelled_series import prepare_series
from lagwise.data.series_windows import (
    CHANGES,
    LabelledWindows,
    WindowCollator,
    changed,
    even_windows,
    filtered,
    random_windows,
    step_targets,
    stretched,
)


def rows(**changes: Any) -> list[dict[str, Any]]:
    """Five series with a label per sample; ``changes`` apply to the second."""
    made = []
    for n in range(5):
        values = np.random.default_rng(n).normal(3, 2, (20 + n, 2)).round(3)
        made.append({"input_values": values.tolist(), "label": ["b" if x > 3 else "a" for x in values[:, 0]]})
    made[1] |= changes
    return made


def source(folder: Path, records: list[Mapping[str, Any]]) -> Any:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return open_rows(str(path))


def prepared(folder: Path, records: list[Any], **options: Any) -> Any:
    return prepare_series(source(folder, records), cache=folder / "cache", progress=False, **options)


def test_labels_of_samples_are_kept_with_their_series(tmp_path: Path) -> None:
    made = rows()
    made[0]["label"][4] = None
    made[2]["label"][7] = ""
    data = prepared(tmp_path, made)
    assert data.label_names == ("a", "b")
    assert data.features == 2
    seen = {}
    for split in data.splits.values():
        for row in split:
            seen[len(row["input_values"])] = row
    for record in made:
        row = seen[len(record["input_values"])]
        np.testing.assert_allclose(row["input_values"], record["input_values"], rtol=1e-6)
        assert row["label"] == [{"a": 0, "b": 1}.get(label, -100) for label in record["label"]]
    train = np.concatenate([np.asarray(row["input_values"]) for row in data.splits["train"]])
    np.testing.assert_allclose(data.mean, train.mean(0), rtol=1e-5)
    np.testing.assert_allclose(data.std, train.std(0), rtol=1e-5)
    assert "valid and test made from 10 %" in data.notes[0]


def test_a_label_of_a_whole_series_applies_to_all_samples(tmp_path: Path) -> None:
    made = [{**row, "label": "xy"[n % 2]} for n, row in enumerate(rows())]
    data = prepared(tmp_path, made)
    assert all(len(set(row["label"])) == 1 for split in data.splits.values() for row in split)


def test_a_single_series_is_split_in_time(tmp_path: Path) -> None:
    (record,) = made = rows()[:1]
    data = prepared(tmp_path, made)
    parts = [data.splits[split]["input_values"][0] for split in ("train", "valid", "test")]
    assert [len(part) for part in parts] == [16, 2, 2]
    np.testing.assert_allclose(np.concatenate(parts), record["input_values"], rtol=1e-6)
    assert "last two tenths" in data.notes[0]
    with pytest.raises(ValueError, match="a series of 2 samples is too short"):
        prepared(tmp_path, [{"input_values": [1, 2], "label": ["a", "b"]}])


def test_events_are_single_samples(tmp_path: Path) -> None:
    made = [{"input_values": row["input_values"], "at": [3, 9], "label": [2, 1]} for row in rows()]
    data = prepared(tmp_path, made, events="at")
    assert data.label_names == ("none", "1", "2")
    for split in data.splits.values():
        for row in split:
            assert row["label"][3], row["label"][9] == (2, 1)
            assert sum(label != 0 for label in row["label"]) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": ["a"] * 20}, "row 2: it has 20 labels and 21 samples"),
        ({"label": ["a"] * 22}, "row 2: it has 22 labels and 21 samples"),
        ({"input_values": [[float("inf"), 1]] * 21}, "row 2 is not a series .*inf at position 0 and 20 more"),
        ({"input_values": [[float("nan")] * 2] * 21}, "row 2 is not a series .*all its samples are missing"),
        ({"input_values": [[1]] * 21}, "row 2 .* it has 1 features, not 2 as other series"),
        ({"input_values": []}, "row 2.*empty"),
    ],
)
def test_faulty_rows_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"rows.jsonl.*: .*{message}"):
        prepared(tmp_path, rows(**changes))


@pytest.mark.parametrize(
    ("at", "label", "message"),
    [
        ([3, 2], ["a", "b"], "row 2: event 2 is at 2, not after the one before it, at 3"),
        ([3, 3], ["a", "b"], "event 2 is at 3, not after"),
        ([3, 21], ["a", "b"], "event 2 is at 21, outside the series of 21 samples"),
        ([-1, 2], ["a", "b"], "event 1 is at -1, outside"),
        ([3], ["a", "b"], "it has 1 events and 2 classes"),
        ([3, 5], ["a", None], "event 2 has no class"),
        ([3, 5], ["a", "none"], "event 2 has no class but 'none'"),
    ],
)
def test_faulty_events_are_named(at: list[int], label: list[Any], message: str, tmp_path: Path) -> None:
    made = [{"input_values": row["input_values"], "at": [1, 9], "label": ["a", "b"]} for row in rows()]
    made[1] |= {"at": at, "label": label}
    with pytest.raises(ValueError, match=message):
        prepared(tmp_path, made, events="at")


def test_numbers_are_not_classes(tmp_path: Path) -> None:
    made = [{**row, "label": np.linspace(0, 1, len(row["label"])).tolist()} for row in rows()]
    with pytest.raises(ValueError, match="must be classes, but the labels are numbers with fractions"):
        prepared(tmp_path, made)
    with pytest.raises(ValueError, match="different columns"):
        prepared(tmp_path, rows(), events="label")


@pytest.mark.parametrize("stride", [1, 3, 4])
@pytest.mark.parametrize("delay", [0, 1, 5, 40])
def test_targets_equal_their_definition(stride: int, delay: int) -> None:
    labels = np.random.default_rng(0).integers(0, 3, 22)
    steps = -(-22 // stride)
    expected = [min((t + 1) * stride, 22) - 1 - delay for t in range(steps)]
    found = step_targets(labels, stride, delay, events=False)
    assert found.tolist() == [labels[n] if n >= 0 else -100 for n in expected]
    events = np.zeros(22, dtype=int)
    events[[2, 9, 17]] = 1, 2, 1
    found = step_targets(events, stride, delay, events=True)
    assert {(t, c) for t, c in enumerate(found.tolist()) if c > 0} == {
        ((n + delay) // stride, events[n]) for n in (2, 9, 17) if n + delay < 22
    }


def test_windows_are_reproducible(tmp_path: Path) -> None:
    data = prepared(tmp_path, rows())
    strengths = {"stretch": 0.2, "mix": 0.3, "filter": 0.3, "wander": 1.0, "noise": 0.5, "drop": 0.5}

    def windows(**options: Any) -> Examples:
        scale = {"mean": data.mean, "std": data.std}
        own = LabelledWindows(data.splits["train"], 4, 3, length=16, **scale, **options)
        return random_windows(own.draw, own.lengths, 12, seed=1)

    for options in ({}, {"changes": strengths}):
        one, other = windows(**options), windows(**options)
        for i in (5, 0, 5, 11):
            assert all(one[i][name].equal(other[i][name]) for name in ("input_values", "labels"))
        assert not one[0]["input_values"].equal(one[1]["input_values"])
    plain = windows()[3]
    assert plain["input_values"].shape == (16, 2)
    assert plain["labels"][0] == plain["input_values"][0, 0].gt(3)  # its last sample, 3, less the delay, 3
    batch = WindowCollator(4)([plain, {name: value[: 9 if len(value) > 9 else 3] for name, value in plain.items()}])
    assert batch["input_values"].shape == (2, 16, 2)
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch["labels"][1, 3] == -100


def test_even_windows_cover_rows_or_are_spread_over_them() -> None:
    assert even_windows([5, 2], 3, 10) == [(0, 0, 3), (0, 3, 5), (1, 0, 2)]
    assert even_windows([5, 2], 3, 2) == [(0, 0, 3), (1, 0, 2)]


def test_augmentation_of_strength_zero_changes_nothing() -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    none = dict.fromkeys(CHANGES, 0.0)
    np.testing.assert_array_equal(changed(x, none, 6, np.random.default_rng(0)), x)
    for name in CHANGES.keys() - {"stretch"}:
        assert not np.allclose(changed(x, {**none, name: 1.0}, 6, np.random.default_rng(0)), x)


def test_filters_are_centred_sums() -> None:
    random = np.random.default_rng(0)
    x, nodes = random.normal(size=(40, 2)), random.normal(size=(5, 2, 2))
    y = filtered(x, nodes, 9)
    middle = (nodes[1:] + nodes[:-1]) / 2
    kernel = np.stack([(middle if lag % 2 else nodes)[lag // 2] for lag in range(9)]) * 5 / 9
    for t in (0, 3, 20):
        expected = sum(x[t + 4 - lag] @ kernel[lag] for lag in range(min(t + 4, 8) + 1))
        np.testing.assert_allclose(y[t], expected)


def test_stretched_windows_keep_their_events() -> None:
    values, labels = np.arange(30.0)[:, None], np.zeros(30, dtype=int)
    labels[[4, 20]] = 1, 2
    for length in (15, 30, 44):
        moved, own = stretched(values, labels, length, events=True)
        assert moved.shape == (length, 1)
        at = np.flatnonzero(own)
        assert own[at].tolist() == [1, 2]
        np.testing.assert_allclose(moved[at, 0], [4, 20], atol=1.1)
        np.testing.assert_array_equal(
            stretched(values, (values[:, 0] > 9).astype(int), length, events=False)[1], moved[:, 0].round() > 9
        )


def test_labels_in_lists_of_a_fixed_size(tmp_path: Path) -> None:
    """As `datasets` writes sequences of a length."""
    made = [{**row, "input_values": row["input_values"][:20], "label": row["label"][:20]} for row in rows()]
    vectors = datasets.List(datasets.List(datasets.Value("float32"), length=2), length=20)
    features = datasets.Features({"input_values": vectors, "label": datasets.List(datasets.Value("string"), length=20)})
    datasets.Dataset.from_list(made, features=features).to_parquet(str(tmp_path / "rows.parquet"))
    data = prepare_series(open_rows(str(tmp_path / "rows.parquet")), cache=tmp_path / "cache", progress=False)
    assert data.label_names == ("a", "b")
    assert all(len(row["label"]) == 20 for split in data.splits.values() for row in split)


def test_positions_of_events_as_whole_floats(tmp_path: Path) -> None:
    made = [{**row, "label": ["p", "q"], "at": [3.0, 9.0]} for row in rows()]
    data = prepared(tmp_path, [*made[:4], {**made[4], "label": None, "at": None}], events="at")
    assert data.label_names is not None
    assert {"p", "q"} <= set(data.label_names)
    with pytest.raises(ValueError, match=r"event 2 is at 9\.5, which is not an integer"):
        prepared(tmp_path, [*made[:4], {**made[4], "at": [3, 9.5]}], events="at")
