"""What is counted of ListOps' outermost operator and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from lagwise_papers.data import listops


@pytest.fixture
def script(benchmark_script: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_script("listops_arguments")


def test_arguments_and_their_counts(script: ModuleType) -> None:
    operator, arguments = script.outermost("[MAX 2 [SM 9 9 ] 7 [MIN 4 [MED 1 4 ] ] 3 3 ]")
    assert operator == 1
    assert [tuple(each) for each in arguments] == [(2, 0, -1), (8, 1, 3), (7, 0, -1), (2, 2, 0), (3, 0, -1), (3, 0, -1)]
    assert script.ends(arguments, both=False) == [2]
    assert script.ends(arguments, both=True) == [2, 3, 3]
    assert script.ends(arguments[:1], both=True) == [2]
    counts = script.counts(operator, script.up_to(1, arguments), 14).reshape(4, 15)
    assert {place: int(n) for place, n in enumerate(counts[1]) if n} == {2: 1, 8: 1, 7: 1, 10: 1, 3: 2, 14: 1}
    assert counts.sum() == counts[1].sum()


def test_evaluation_agrees_with_the_generator(script: ModuleType) -> None:
    made = listops.expressions(3, 0, count=40)
    for text, answer in zip(listops.texts(made, brackets=False), made.answers, strict=True):
        operator, arguments = script.outermost(text)
        assert script._evaluated(operator, arguments).value == answer


@pytest.mark.parametrize("wrong", ["", "3", "[MAX 2 3", "[MAX 2 ] ]", "[MAX 2 ] 3", "] 2"])
def test_what_is_no_list_is_refused(script: ModuleType, wrong: str) -> None:
    with pytest.raises(ValueError, match="expected one list"):
        script.outermost(wrong)


def test_accuracy_rises_with_what_is_known(script: ModuleType) -> None:
    made = listops.expressions(0, 0, count=256)
    read = [script.outermost(text) for text in listops.texts(made, brackets=False)]
    features = np.stack([script.counts(operator, script.up_to(9, arguments), 14) for operator, arguments in read] * 2)
    assert script.accuracy(features, np.tile(made.answers, 2), 256) > np.bincount(made.answers).max() / 256
