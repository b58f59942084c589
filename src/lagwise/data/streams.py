"""Running text that is encoded while a model trains, and written nowhere: for corpora that are too large to prepare."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from lagwise.data.sources import checked_text, document_parts, hub_splits, is_dataset, open_source
from lagwise.data.tokenizers import encode_texts, load_tokenizer, pieces
from lagwise.data.tokens import EncodedText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HELD_OUT = 1 << 20  # characters of text, at least, for validation, and as many for testing
_ROW_CHARACTERS = 1 << 16  # characters of a row, at least, where a document has more
_UNLIMITED_EPOCHS = 1 << 20

Row = Mapping[str, Any]  # text, and piece: its number in the document


@dataclass(frozen=True)
class StreamedText(EncodedText):
    """A text whose training split is read as it is used.

    Attributes:
        splits: what is held out, encoded.
        rows: a `datasets.IterableDataset` of pieces of documents.
        as_bytes: whether tokens are bytes.
        held_out: where that is from, for people.
        skipped: texts of rows that are not trained on, since they are held out.
    """

    rows: Any
    as_bytes: bool
    held_out: str
    skipped: frozenset[str] = frozenset()


def open_stream(name: str, tokenizer: str) -> StreamedText:
    """Open a source (as in `open_source`) to stream it with a tokenizer that needs no text to be made.

    For validation and testing the first `HELD_OUT` characters of each of the source's splits are used: those that it
    names, or whole files; of a source of one or two files, and of a data set without splits, those before the text to
    train on. ValueError if nothing is left to train on, and the errors of reading.
    """
    made = load_tokenizer(tokenizer)
    rows, held = _hub_rows(name) if is_dataset(name) else _file_rows(name)
    splits, sizes, skipped = {}, {}, frozenset()
    where = f"the first {HELD_OUT:,} characters of each of valid and test"
    if not held:
        first = iter(rows)
        held = {split: _first(first) for split in ("valid", "test")}
        skipped = frozenset(row["text"] for texts in held.values() for row in texts)
        where = f"the first {HELD_OUT:,} characters for validation and the next for testing"
        if all(row["text"] in skipped for row in first):
            raise ValueError(
                f"`streaming` holds out {where} of {name!r}, and nothing is left to train on; give more text, or a "
                "folder of files with train, valid and test in their names, or leave out `streaming`"
            )
    for split, texts in held.items():
        if not texts:
            raise ValueError(f"the split {split} of {name!r} has no text")
        parts = [*encoded(texts, made, as_bytes=tokenizer == "bytes")]
        splits[split], sizes[split] = np.concatenate([ids for ids, _ in parts]), sum(size for _, size in parts)
    return StreamedText(made, splits, sizes, rows, tokenizer == "bytes", where, skipped)


def stream_key(name: str, tokenizer: str) -> str:
    """Hash of the names and sizes of a source's files, without reading them, and of its tokenizer."""
    if is_dataset(name):
        made_of: Any = name
    else:
        source = open_source(name)
        made_of = [{s: [(p.name, p.stat().st_size) for p in files] for s, files in source.files.items()}, source.ranges]
    return hashlib.sha256(json.dumps([made_of, tokenizer]).encode()).hexdigest()[:24]


def encoded(
    rows: Iterable[Row], tokenizer: PreTrainedTokenizerBase, *, as_bytes: bool, before: int = -1
) -> Iterator[tuple[np.ndarray, int]]:
    """The tokens of each row and its bytes of text. The end of text precedes a row, unless it goes on with the document
    of the row before, of which ``before`` is the number."""
    for row in rows:
        parts = encode_texts([*pieces(row["text"], _ROW_CHARACTERS)], tokenizer, as_bytes)
        end = [] if 0 < row["piece"] == before + 1 else [np.asarray([tokenizer.eos_token_id])]
        yield np.concatenate([*end, *parts]).astype(np.int64), len(row["text"].encode())
        before = row["piece"]


class TextStream(IterableDataset):
    """A stream of batches of windows of streamed text for one of several readers, which share the text; each with the
    state that the stream has after it.

    Documents follow each other with an end of text between them, and are cut into windows of ``length`` tokens. Windows
    are shuffled within a buffer of ``shuffled`` tokens; the files are in another order in every epoch. A state
    tells where the buffer began and which of its batches have been used, so a stream that is given the state
    reads the buffer again and goes on exactly.

    Args:
        text: What to stream.
        example: A training example from its tokens and a seed.
        collate: A batch from its examples.
        length: Tokens of a window.
        batch_size: Windows of a batch.
        shuffled: Tokens of the buffer.
        seed: Of the order.
        reader: The number of this reader.
        readers: How many there are.
    """

    def __init__(
        self,
        text: StreamedText,
        example: Callable[[np.ndarray, Sequence[int]], dict[str, torch.Tensor]],
        collate: Callable[[list[Any]], dict[str, torch.Tensor]],
        *,
        length: int,
        batch_size: int,
        shuffled: int,
        seed: int,
        reader: int,
        readers: int,
    ):
        from datasets.distributed import split_dataset_by_node

        self.tokenizer, self.example, self.collate = text.tokenizer, example, collate
        self.as_bytes, self.skipped = text.as_bytes, text.skipped
        self.rows = split_dataset_by_node(text.rows, reader, readers)
        self.whole = text.rows.num_shards % readers == 0  # else rows that follow each other have other readers
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.reader, self.readers = reader, readers
        self.batches = max(1, shuffled // (length * batch_size))  # in a buffer
        self.states: list[Any] = [None]  # one for each worker

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], dict[str, Any]]]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        state = self.states[worker] or {"place": _place(0, None, -1), "buffer": 0, "used": 0}
        number, used = state["buffer"], state["used"]
        count = self.batches * self.batch_size
        for place, tokens in self._buffers(state["place"], count * self.length):
            seed = (self.seed, self.reader, worker, number)
            order, windows = np.random.default_rng(seed).permutation(count), tokens.reshape(count, self.length)
            for batch in range(used, self.batches):
                chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size].tolist()
                examples = [self.example(windows[i], (*seed, i)) for i in chosen]
                yield self.collate(examples), {"place": place, "buffer": number, "used": batch + 1}
            number, used = number + 1, 0

    def _buffers(self, place: dict[str, Any], size: int) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """Yield arrays of ``size`` tokens from a place on, each with the place where it begins."""
        held: list[np.ndarray] = []
        missing, skipped = size, place["tokens"]
        for row, ids in self._rows_from(place):
            start, skipped = skipped, 0
            while start < len(ids):
                if not held:
                    place = {**row, "tokens": start}
                held.append(ids[start : start + missing])
                start += len(held[-1])
                missing -= len(held[-1])
                if not missing:
                    yield place, np.concatenate(held)
                    held, missing = [], size

    def _rows_from(self, place: dict[str, Any]) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """The tokens of all rows from a place on, one epoch after the other, each with the place of the row."""
        epoch, begun = place["epoch"], place["rows"]
        if begun is not None:
            self.rows.load_state_dict(begun)
        while True:
            self.rows.set_epoch(1 + self.seed * _UNLIMITED_EPOCHS + epoch)
            empty, before = begun is None, place["piece"]
            for row in self.rows:
                if row["text"] in self.skipped:
                    before = -1
                else:
                    empty = False
                    for ids, _ in encoded([row], self.tokenizer, as_bytes=self.as_bytes, before=before):
                        yield place, ids
                    before = row["piece"] if self.whole else -1
                place = _place(epoch, self.rows.state_dict(), before)
            if empty:
                raise ValueError(
                    f"`streaming` has no text for reader {self.reader + 1} of {self.readers}; start fewer processes "
                    "or `workers`, or give more text"
                )
            epoch, begun = epoch + 1, None
            place = _place(epoch, None, -1)


class StreamLoader:
    """The batches of a `TextStream`, read by this process or some workers in turn. It knows the state after the last
    batch that was used, for a training to go on from it with as many processes and workers."""

    def __init__(self, stream: TextStream, workers: int):
        shards = stream.rows.num_shards
        if workers > shards:
            raise ValueError(
                f"`workers` {workers} are more than the {shards} file(s) that a process streams; a file is read "
                "by one worker"
            )
        self.stream, self.workers, self.turn = stream, workers, 0
        stream.states = [None] * max(1, workers)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        states = list(self.stream.states)
        loader: Any = DataLoader(self.stream, batch_size=None, num_workers=self.workers, collate_fn=_same)
        ready: list[deque[Any]] = [deque() for _ in states]
        arriving = zip(itertools.cycle(range(len(states))), loader, strict=False)
        while True:
            while not ready[self.turn]:
                worker, found = next(arriving)
                ready[worker].append(found)
            batch, self.stream.states[self.turn] = ready[self.turn].popleft()
            self.turn = (self.turn + 1) % len(states)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return {"readers": self.stream.readers, "turn": self.turn, "workers": self.stream.states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state. ValueError if it is of other numbers of processes or workers."""
        own = self.state_dict()
        if state["readers"] != own["readers"] or len(state["workers"]) != len(own["workers"]):
            raise ValueError(
                f"the stream was shared by {state['readers']} process(es) of {len(state['workers'])} worker(s), not "
                f"{own['readers']} of {len(own['workers'])}; resume it with as many"
            )
        self.stream.states, self.turn = state["workers"], state["turn"]


def _place(epoch: int, rows: Any, piece: int) -> dict[str, Any]:
    """Describe the place before a row: the epoch, the state of the rows (None at their start), and the number of the
    row before it in its document. A buffer that begins after some tokens of the row says after how many."""
    return {"epoch": epoch, "rows": rows, "piece": piece, "tokens": 0}


def _same(batch: Any) -> Any:
    return batch


def _rows_of(files: Sequence[str]) -> Iterator[Row]:
    for document in itertools.chain.from_iterable(document_parts(Path(path)) for path in files):
        for number, text in enumerate(pieces(document, _ROW_CHARACTERS)):
            yield {"text": text, "piece": number}


def _first(rows: Iterator[Row]) -> list[Row]:
    """Return the first rows, of `HELD_OUT` characters together, or all."""
    found, size = [], 0
    for row in rows:
        found.append(row)
        size += len(row["text"])
        if size >= HELD_OUT:
            break
    return found


def _file_rows(name: str) -> tuple[Any, dict[str, list[Row]]]:
    """The rows of files to train on, and those that are held out; none if no files are."""
    from datasets import IterableDataset as Rows

    source = open_source(name)
    rows = Rows.from_generator(_rows_of, gen_kwargs={"files": [str(path) for path in source.files["train"]]})
    if source.ranges:
        return rows, {}
    files = {split: [str(path) for path in source.files[split]] for split in ("valid", "test")}
    return rows, {split: _first(_rows_of(own)) for split, own in files.items()}


def _hub_rows(name: str) -> tuple[Any, dict[str, list[Row]]]:
    """As `_file_rows`, of a data set."""
    splits = hub_splits(name, streaming=True)
    if (columns := splits["train"].column_names) is not None and "text" not in columns:
        raise ValueError(f"data set {name!r} has no 'text' column (it has {', '.join(columns)})")
    rows = {split: each.select_columns("text").map(_row) for split, each in splits.items()}
    named = [split for split in ("valid", "test") if split in rows]
    return rows["train"], {s: _first(iter(rows[s if s in rows else named[0]])) for s in ("valid", "test") if named}


def _row(row: Row) -> Row:
    return {"text": checked_text(row["text"], "a row of the data set"), "piece": 0}
