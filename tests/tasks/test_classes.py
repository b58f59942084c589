"""The classes of a task, for people."""

from __future__ import annotations

from lagwise.tasks.classes import class_counts


def test_counts_of_classes_are_shown_from_the_most_common() -> None:
    assert class_counts({"no": 30, "yes": 1200}) == ["classes in train: yes 1,200, no 30"]
    assert class_counts({}) == []
    [line] = class_counts({f"c{i}": 100 - i for i in range(60)})
    assert line.startswith("classes in train: c0 100, c1 99")
    assert line.endswith("..., c57 43, c58 42, c59 41")
