"""The data section of a recipe."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

from pydantic import Field

from lagwise.tables import LARGEST_VOCABULARY, Count, Whole, options

AUTO = "auto"  # the tokenizer that suits the length of a training and of its text
#: Options that are gone and what they were by default, by section: recipes of earlier runs have them.
_GONE: dict[str, dict[str, Any]] = {
    "data": {"streaming": False, "shuffle_tokens": 2**22},
    "task": {"packing": False, "span": 1},
    "training": {"carry_states": False, "average": 0, "shard": False},
}
TRAINED_TOKENIZERS = ("bpe", "bpe-uncased", "words", "characters")  # whose vocabulary is that of the data


@options
class DataOptions:
    """The data to train and evaluate on."""

    source: str | None = None
    """Text or labelled rows, as the task needs: a file, a folder, `hub:NAME`, or `stdlib`, Python's own source."""
    format: str | None = None
    """The layout of the rows, for published data whose files differ, by a name that another package declares, such as
    lagwise-papers those of GLUE and Long Range Arena."""
    tokenizer: str = "bytes"
    """`bytes`, `bpe` (trained on the data), `bpe-uncased` (the same in lower case), `words` (those between spaces),
    `characters` (those of the data), one that another package declares, such as lagwise-papers `dna`, or a tokenizer
    folder. `auto`, for text: `bpe` with 1,024 or 4,096 tokens for long trainings of language models on long texts,
    and `bytes` for others."""
    vocab_size: Annotated[Count, Field(le=LARGEST_VOCABULARY)] = 8192
    """Tokens of a `bpe` tokenizer, at most of `bpe-uncased`, `words` and `characters`; of associative recall, half
    keys and half values."""
    length: Annotated[Whole, Field(ge=2)] = 512
    """Tokens in a training sequence (of `lengths`, the largest); labelled rows are cut to it."""
    lengths: list[Annotated[Whole, Field(ge=2)]] | None = None
    """Each step draws the length of its sequences from these; for language modelling."""
    evaluate_length: Annotated[Whole, Field(ge=2)] | None = None
    """Tokens in a validation sequence; by default `length`."""


def upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """The sections of a recipe in today's form: without options that are gone; of lagwise 0.1, whose data options told
    the task; and of earlier classifiers of DNA."""
    for section, defaults in _GONE.items():
        options = values.get(section)
        if not isinstance(options, dict):
            continue
        for name, default in defaults.items():
            if options.pop(name, default) not in (default, None):
                warnings.warn(f"{section}.{name} of the recipe is gone and is ignored", stacklevel=2)
    data, task = values.get("data"), values.get("task")
    if isinstance(task, dict) and task.get("name") == "sequence_classification" and "reverse_complement" in task:
        both = {**task, "name": "dna_classification"}
        one = {key: value for key, value in task.items() if key != "reverse_complement"}
        return {**values, "task": both if task["reverse_complement"] else one}
    if "task" in values or not isinstance(data, dict):
        return values
    loss = {"loss": data["loss"]} if "loss" in data else {}
    if data.get("source") == "associative-recall":
        rest = {key: value for key, value in data.items() if key not in ("loss", "source")}
        return {**values, "task": {"name": "associative_recall", **loss}, "data": rest}
    if "description" in values and "training" in values and "loss" in data:  # written into a run by 0.1
        return {**values, "data": {key: value for key, value in data.items() if key != "loss"}}
    return values
