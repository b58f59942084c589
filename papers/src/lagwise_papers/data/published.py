"""The published files of the tasks of GLUE (Wang et al. 2019, arXiv:1804.07461) and of Long Range Arena (Tay et al.
2020, arXiv:2011.04006)."""

from __future__ import annotations

from functools import partial

from lagwise.tables import known
from lagwise_papers.data.row_formats import FormatSource, RowFormat, open_row_format

_Glue = partial(RowFormat, family="GLUE", hub="hub:nyu-mll/glue")
_Arena = partial(RowFormat, family="Long Range Arena")


def _pair(first: str = "sentence1", second: str = "sentence2") -> dict[str, tuple[str, ...]]:
    return {"sentence1": (first,), "sentence2": (second,)}


_ENTAILMENT = ("entailment", "not_entailment")
_GLUE_TASKS = (
    _Glue(
        "cola",
        texts={"text": ("sentence",)},
        classes=("unacceptable", "acceptable"),
        fields=("source", "label", "judgement", "sentence"),
    ),
    _Glue("sst2", texts={"text": ("sentence", "content")}, classes=("negative", "positive")),
    _Glue(
        "mrpc",
        texts=_pair("#1 String", "#2 String"),
        classes=("not_equivalent", "equivalent"),
        label=("Quality",),
        file_sets=(("train", "dev"), ("msr_paraphrase_train", "msr_paraphrase_test"), ("train", "test")),
    ),
    _Glue("rte", texts=_pair(), classes=_ENTAILMENT),
    _Glue("wnli", texts=_pair(), classes=_ENTAILMENT[::-1]),
    _Glue(
        "stsb",
        texts=_pair(),
        classes=None,
        label=("score",),
        best=5.0,  # the score of two sentences that mean the same
        fields=("sentence1", "sentence2", "score"),
    ),
    _Glue(
        "mnli",
        texts=_pair("premise", "hypothesis"),
        classes=("entailment", "neutral", "contradiction"),
        label=("gold_label",),
        file_sets=(("train", "dev_matched"),),
    ),
    _Glue("qnli", texts=_pair("question", "sentence"), classes=_ENTAILMENT),
    _Glue(
        "qqp",
        texts=_pair("question1", "question2"),
        classes=("not_duplicate", "duplicate"),
        label=("is_duplicate",),
        broken=10,
    ),
)
cola, sst2, mrpc, rte, wnli, stsb, mnli, qnli, qqp = _GLUE_TASKS  # for entry points
LAYOUTS = {each.name: each for each in _GLUE_TASKS}


def without_brackets(text: str) -> str:
    """An expression of ListOps without the round brackets that its files have around every argument. Square brackets
    belong to the expression."""
    return text.replace("(", " ").replace(")", " ").strip()


_ARENA_TASKS = (
    _Arena(
        "listops",
        texts={"text": ("Source",)},
        classes=tuple("0123456789"),
        label=("Target",),
        file_sets=(("basic_train", "basic_val", "basic_test"),),
        clean=without_brackets,
    ),
    _Arena(
        "aan",
        texts={"text1": ("text1",), "text2": ("text2",)},
        classes=("unrelated", "related"),
        fields=("label", "id1", "id2", "text1", "text2"),
        file_sets=(("new_aan_pairs.train", "new_aan_pairs.eval", "new_aan_pairs.test"),),
    ),
)
listops, aan = _ARENA_TASKS
ARENA = {each.name: each for each in _ARENA_TASKS}


def open_glue(name: str, task: str) -> FormatSource:
    """Open the rows of a task of GLUE (a name of `LAYOUTS`), in the splits train and test, as `open_row_format` finds
    them.

    GLUE's dev set (of MNLI the matched one, of MRPC in its original files the test set) becomes our test, because
    scores are reported on it; the valid set is held out of train later. GLUE's unlabelled test files are ignored, but
    can be opened one by one for predictions.
    """
    return open_row_format(name, LAYOUTS[known(task, LAYOUTS, "data.format")])
