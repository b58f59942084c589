"""Running text as data: shared code of all tasks that learn from it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagwise.data import (
    TokenData,
    content_key,
    load_tokenizer,
    open_source,
    prepare,
)
from lagwise.data.options import DataOptions
from lagwise.data.reading import inner_suffix
from lagwise.files import expanded
from lagwise.tasks.base import Sizes, Task, TaskData

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEFAULT_LENGTHS = (512, 1024, 2048, 4096, 8192, 14336)
DEFAULT_TOKENS = 16 * 14336 + 1


class RunningText(Task):
    """A task that learns from text in token files. Abstract.

    Data: text as in `lagwise.data.open_source`, by default Python's standard library.
    """

    #: the class of its data
    opened: type[TextData]
    supports = frozenset({"lengths", "evaluate_length", "sequence_parallel"})

    def __init__(self, data: DataOptions):
        super().__init__(data)
        self.by_default = data.source is None
        data.source = "stdlib" if data.source is None else data.source

    @staticmethod
    def prepared(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """The tokenizer of the token files with the tokens that the task adds."""
        return tokenizer

    def lengths(self) -> dict[str, int]:
        evaluate_length = self.data.evaluate_length
        return super().lengths() | ({} if evaluate_length is None else {"`evaluate_length`": evaluate_length})

    def key(self) -> str:
        return content_key(open_source(self.source), self.data.tokenizer, self.data.vocab_size)

    def open(self, *, run: Path | None = None, source: str | None = None, progress: bool = True) -> TextData:
        run = None if run is None else run.resolve()  # a path is never taken for a tokenizer's name
        if source is not None:
            return self.opened(self, prepare(source, str(run), progress=progress))
        options = self.data
        if run is None and progress and self.by_default:  # before the minutes that reading it may take
            print("no data are given, so the text is Python's standard library", file=sys.stderr)
        text = prepare(self.source, options.tokenizer, vocab_size=options.vocab_size, progress=progress)
        if run is not None and self.prepared(text.tokenizer).get_vocab() != load_tokenizer(str(run)).get_vocab():
            text = prepare(self.source, str(run), progress=progress)
        return self.opened(self, text)

    @property
    def source(self) -> str:
        """The name of the text."""
        assert self.data.source is not None
        return self.data.source


class TextData(TaskData):
    """The text of a task in token files. Abstract."""

    task: RunningText

    def __init__(self, task: RunningText, text: TokenData):
        super().__init__(task, task.prepared(text.tokenizer))
        self.text: Any = text

    def notes(self) -> Sequence[str]:
        source = "Python's standard library" if self.task.source == "stdlib" else self.task.source
        tokens = ", ".join(f"{split} {len(ids):,}" for split, ids in self.text.splits.items())
        notes = [f"text: {source}; tokens: {tokens}"]
        if inner_suffix(Path(self.task.source)) in (".csv", ".tsv"):
            notes.append("a table is read as plain text here; recipes for its columns are classify and forecast-tnn")
        if expanded(self.task.source).is_dir():
            notes += open_source(self.task.source).notes
        return notes

    @property
    def sequence_lengths(self) -> Sequence[int]:
        """The lengths of training sequences; every step draws one."""
        return self.task.data.lengths or [self.task.data.length]

    def sizes(self, batch_size: int) -> Sizes:
        tokens = sum(self.sequence_lengths) / len(self.sequence_lengths)
        steps = max(1, round(len(self.text.splits["train"]) / (batch_size * tokens)))
        return Sizes(steps, tokens, self.task.data.length)
