"""Checks of values against type annotations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lagwise.mixers import Mixer
from lagwise.tables import Count, Share, build, known, nearest, shown, typed

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        (int, 5, 5),
        (float, 5, 5.0),
        (float, "1e-3", 1e-3),
        (bool, False, False),
        (int | None, None, None),
        (float | None, 2, 2.0),
        (str | dict[str, Any], "rms", "rms"),
        (str | dict[str, Any], {"name": "rms"}, {"name": "rms"}),
        (list[int], (1, 2), [1, 2]),
        (Sequence[Mapping[str, Any]], [{}], [{}]),
        (Any, NAN, NAN),
    ],
)
def test_values_of_the_type_are_accepted(kind: Any, value: Any, result: Any) -> None:
    found = typed(kind, value, "x")
    assert found is result or found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, 2.0, r"x must be an integer, got 2\.0"),
        (int, True, "x must be an integer, got True"),
        (int, 2**63, "at most"),
        (int, -(2**70), "at least"),
        (float, NAN, "x must be a finite number, got nan"),
        (float, INF, "finite"),
        (float, "nan", "finite"),
        (float, True, "finite"),
        (float, 10**400, "finite"),
        (bool, 1, "x must be true or false, got 1"),
        (str, 5, "x must be text, got 5"),
        (int | None, "5", "x must be an integer, got '5'"),
        (str | dict[str, Any], [], "x must be text or a mapping, got"),
        (list[int], [1, 2.5], r"x\[1\] must be an integer, got 2\.5"),
        (list[int], "12", "x must be a list, got '12'"),
        (Mapping[str, Any], [], "x must be a mapping"),
        (dict[str, float], {"a": 1, "b": "one"}, r"x\.b must be a finite number, got 'one'"),
        (str | dict[str, float], {"a": NAN}, r"x\.a must be a finite number, got nan"),
        (Count, 0, "x must be at least 1, got 0"),
        (Share | None, 1, "x must be less than 1, got 1"),
        (str, None, "x must be text, got None"),
    ],
)
def test_other_values_are_named(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        typed(kind, value, "x")


def test_quoted_values_are_shortened() -> None:
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested, nested]
    for value in ("x" * 10**6, nested, "two\nlines", 10**4000, dict.fromkeys(range(10**5))):
        assert len(shown(value)) < 250
        assert "\n" not in shown(value)


def test_a_long_list_of_names_is_cut() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'name-99'\? \(known: name-0, .*-\d+, \.\.\.\)$") as caught:
        known("nane-99", [f"name-{i}" for i in range(100)], "name")
    assert 300 < len(str(caught.value)) < 350


@pytest.mark.parametrize(
    ("name", "names", "near"),
    [
        ("recip", ["device", "recipe"], "recipe"),
        ("device", ["recipe", "resume"], None),  # which has some of its letters
        ("hidden", ["hidden_size"], "hidden_size"),
        ("output", ["out"], "out"),
        ("to", ["tokens"], None),
    ],
)
def test_a_misleading_suggestion_is_worse_than_none(name: str, names: list[str], near: str | None) -> None:
    assert nearest(name, names) == near


def test_a_mixer_needs_no_constructor_of_its_own() -> None:
    """It then has the base class's, which takes the direction by position or by name."""

    class Own(Mixer):
        directions = (True,)

    assert build({"own": Own}, {"name": "own"}, 4, what="mixer", causal=True).causal
    with pytest.raises(ValueError, match="Own has no two-sided form"):
        build({"own": Own}, {"name": "own"}, 4, what="mixer", causal=False)
