"""The table of docs/cluster.md: every recipe, and whether several processes give what one gives. That they do is
compared by `test_sharded`, `test_model_shards` and `test_shared_tasks`, for one recipe of every kind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "models"))
from tiny_models import SHARED, tiny_head

from lagwise.tasks import TASKS
from lagwise.training.recipe import load_recipe, recipe_names

PAGE = Path(__file__).parent.parent / "docs" / "cluster.md"
# Recipes of language models that are the compared ones in other sizes.
SIZES = {
    "best-lm": ["demo"],
    "mega-lm": ["mega-enwik8"],
    "megalodon-lm": ["megalodon-200m", "megalodon-1.3b", "megalodon-7b"],
    "tcnca-lm": ["tcnca-enwik8"],
    "tnn-lm": ["tnn-wikitext-103"],
    "tnn-mlm": ["tnn-roberta", "encoder-base"],
}


def splits(name: str) -> bool:
    """Whether processes may share the sequences of a recipe."""
    if (
        "sequence_parallel" not in TASKS[load_recipe(name).task["name"]].supports
    ):  # which `check_shared` refuses by name
        return False
    try:
        tiny_head(name).split_sequences(object())
    except ValueError:
        return False
    return True


def table() -> str:
    """The rows of the table."""
    of_text = [name for name in recipe_names() if "sequence_parallel" in TASKS[load_recipe(name).task["name"]].supports]
    compared = {*SHARED, *(other for others in SIZES.values() for other in others)}
    assert compared == {*of_text}
    lines = []
    for name in SHARED:
        assert all(splits(each) for each in [name, *SIZES.get(name, [])])
        names = ", ".join(f"`{each}`" for each in [name, *SIZES.get(name, [])])
        lines.append(f"| {names} | equal | equal | equal |")
    others = [name for name in recipe_names() if name not in compared]
    by_batch = [name for name in others if "'norm': 'batch'" in str(load_recipe(name).model)]
    for names, found in (([name for name in others if name not in by_batch], "equal"), (by_batch, "its own norms")):
        assert not any(splits(name) for name in names)
        shown = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {shown} | {found} | refused | refused |")
    return "\n".join(lines)


def test_the_table_has_every_recipe() -> None:
    assert table() in PAGE.read_text()


def test_batch_norm_is_refused_for_split_sequences() -> None:
    with pytest.raises(ValueError, match="batch norm"):
        tiny_head("tnn-lm", norm="batch").split_sequences(object())


if __name__ == "__main__":
    print(table())
