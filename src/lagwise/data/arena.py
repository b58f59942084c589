"""The published files of Long Range Arena (Tay et al. 2020, arXiv:2011.04006)."""

from __future__ import annotations

from functools import partial

from lagwise.data.row_formats import RowFormat

_Arena = partial(RowFormat, family="Long Range Arena")


def without_brackets(text: str) -> str:
    """An expression of ListOps without the round brackets that its files have around every argument. Square brackets
    belong to the expression."""
    return text.replace("(", " ").replace(")", " ").strip()


_TASKS = (
    _Arena(
        "listops",
        texts={"text": ("Source",)},
        classes=tuple("0123456789"),
        label=("Target",),
        parts=(("basic_train", "basic_val", "basic_test"),),
        clean=without_brackets,
    ),
    _Arena(
        "aan",
        texts={"text1": ("text1",), "text2": ("text2",)},
        classes=("unrelated", "related"),
        fields=("label", "id1", "id2", "text1", "text2"),
        parts=(("new_aan_pairs.train", "new_aan_pairs.eval", "new_aan_pairs.test"),),
    ),
)
ARENA = {each.name: each for each in _TASKS}
