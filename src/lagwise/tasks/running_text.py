"""Running text as data: shared code of all tasks that learn from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lagwise.data import TokenData, content_key, load_tokenizer, open_source, prepare
from lagwise.data.options import DataOptions
from lagwise.data.reading import inner_suffix
from lagwise.data.sources import SPLITS
from lagwise.files import expanded
from lagwise.tasks.base import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEFAULT_LENGTHS = (512, 1024, 2048, 4096, 8192, 14336)
DEFAULT_TOKENS = 16 * 14336 + 1


class RunningText(Task):
    """A task that learns from text in token files. Abstract.

    Data: text as in `lagwise.data.open_source`, by default Python's standard library.
    """

    splits = True

    def __init__(self, data: DataOptions):
        super().__init__(data)
        data.source = "stdlib" if data.source is None else data.source
        self.text: TokenData

    @staticmethod
    def prepared(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """The tokenizer of the token files with the tokens that the task adds."""
        return tokenizer

    def lengths(self) -> dict[str, int]:
        evaluate_length = self.data.evaluate_length
        return super().lengths() | ({} if evaluate_length is None else {"data.evaluate_length": evaluate_length})

    def identity(self) -> str:
        return content_key(open_source(self._source), self.data.tokenizer, self.data.vocab_size)

    def open(self, *, run: Path | None = None, source: str | None = None, progress: bool = True) -> None:
        run = None if run is None else run.resolve()  # a path is never taken for a tokenizer's name
        if source is not None:
            self.text = prepare(source, str(run), progress=progress)
        else:
            options = self.data
            self.text = prepare(self._source, options.tokenizer, vocab_size=options.vocab_size, progress=progress)
            if run is not None and self._vocabulary() != load_tokenizer(str(run)).get_vocab():
                self.text = prepare(self._source, str(run), progress=progress)
        self.tokenizer = self.prepared(self.text.tokenizer)

    def notes(self) -> Sequence[str]:
        source = "Python's standard library, as no data are given" if self._source == "stdlib" else self._source
        tokens = ", ".join(f"{split} {len(self.text.splits[split]):,}" for split in SPLITS)
        notes = [f"text: {source}; tokens: {tokens}"]
        if inner_suffix(Path(self._source)) in (".csv", ".tsv"):
            notes.append("a table is read as plain text here; recipes for its columns are classify and forecast-tnn")
        if expanded(self._source).is_dir():
            notes += open_source(self._source).notes
        return notes

    def steps_per_epoch(self, batch_size: int) -> int:
        return max(1, round(len(self.text.splits["train"]) / (batch_size * self.tokens_per_example())))

    def _vocabulary(self) -> dict[str, int]:
        return self.prepared(self.text.tokenizer).get_vocab()

    @property
    def _source(self) -> str:
        assert self.data.source is not None
        return self.data.source
