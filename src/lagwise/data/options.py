"""The data section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class DataOptions:
    """source: text or labelled rows, as the task needs: a file, a folder, `hub:NAME`, or `stdlib`, Python's own source.
    format: the layout of the rows, for published data whose files differ: a task of GLUE, or of
        Long Range Arena (`listops`, `aan`).
    tokenizer: `bytes`, `bpe` (trained on the data), `words` (those between spaces), or a tokenizer folder.
    vocab_size: tokens of a `bpe` tokenizer, at most of `words`; of associative recall, half keys and half values.
    length: tokens in a training sequence (of `lengths`, the largest); labelled rows are cut to it.
    lengths: each step draws the length of its sequences from these; for language modelling.
    evaluate_length: tokens in a validation sequence; by default `length`."""

    source: str | None = None
    format: str | None = None
    tokenizer: str = "bytes"
    vocab_size: int = 8192
    length: int = 512
    lengths: list[int] | None = None
    evaluate_length: int | None = None


def upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """The sections of a recipe of lagwise 0.1, whose data options told the task, in today's form."""
    data = values.get("data")
    if "task" in values or not isinstance(data, dict):
        return values
    loss = {"loss": data["loss"]} if "loss" in data else {}
    if data.get("source") == "associative-recall":
        kept = {key: value for key, value in data.items() if key not in ("loss", "source")}
        return {**values, "task": {"name": "associative_recall", **loss}, "data": kept}
    if "description" in values and "training" in values and "loss" in data:  # written into a run by 0.1
        return {**values, "data": {key: value for key, value in data.items() if key != "loss"}}
    return values
