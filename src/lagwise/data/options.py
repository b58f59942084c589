"""What a recipe says of its data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DataOptions:
    """source: text or labelled rows, as the task needs: a file, a folder, `hub:NAME`, or `stdlib`, Python's own source.
    tokenizer: `bytes`, `bpe` (trained on the data), or a tokenizer folder.
    vocab_size: tokens of a `bpe` tokenizer; of associative recall, half keys and half values.
    length: tokens in a training sequence (of `lengths`, the largest); labelled rows are cut to it.
    lengths: each step draws the length of its sequences from these; for language modelling.
    evaluate_length: tokens in a validation sequence; by default `length`."""

    source: str | None = None
    tokenizer: str = "bytes"
    vocab_size: int = 8192
    length: int = 512
    lengths: list[int] | None = None
    evaluate_length: int | None = None
