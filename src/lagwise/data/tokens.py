"""Token files: text encoded once, memory-mapped, and cached by the hash of its content."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lagwise.cache import cached_folder, default_cache
from lagwise.data.options import MADE_OF_TEXT
from lagwise.data.sources import Source, open_source
from lagwise.data.splits import SPLITS
from lagwise.data.tokenizers import BYTE_PAIRS, encode_texts, load_tokenizer, tokenizer_folder
from lagwise.files import file_digest
from lagwise.progress import progress_bar
from lagwise.text import split_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lagwise.data.rows import RowSource

_FORMAT = 1  # raise when the token files' meaning changes
_TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "vocab.txt"}
_PIECE_CHARACTERS = 1 << 16  # characters given to the tokenizer at a time, about
_BATCH_CHARACTERS = 1 << 22  # characters encoded in parallel, about


@dataclass(frozen=True)
class TokenData:
    """A text as arrays of token ids by split, documents separated by end of text, memory-mapped from a folder.

    Attributes:
        text_bytes: UTF-8 bytes of the text of each split, separators not counted.
    """

    tokenizer: PreTrainedTokenizerBase
    splits: dict[str, np.ndarray]
    text_bytes: dict[str, int]
    folder: Path

    @property
    def key(self) -> str:
        return self.folder.name

    def bytes_per_token(self, split: str) -> float:
        """Return the average bytes of a token of a split, separators included."""
        return self.text_bytes[split] / len(self.splits[split])

    def validation_examples(self, length: int, tokens: int) -> TrainingWindows:
        """The windows in the first ``tokens`` of the validation text, and at least one, no longer than the text."""
        valid = self.splits["valid"][: max(tokens, length)]
        length = min(length, len(valid))
        return TrainingWindows(valid, length, max(1, len(valid) // length - 1), 0)

    def training_examples(self, length: int, count: int, seed: int) -> TrainingWindows:
        """Return ``count`` windows of the training text."""
        return TrainingWindows(self.splits["train"], length, count, seed)


def prepare(
    name: str, tokenizer: str = "bytes", *, vocab_size: int = 8192, cache: Path | None = None, progress: bool = True
) -> TokenData:
    """Encode a source with a tokenizer, or load the cached result.

    name as in `open_source`, tokenizer and vocab_size as in `load_tokenizer`. The result is complete or absent: files
    are written under temporary names and renamed. Files that have changed since are rebuilt, with a warning. Raises the
    errors of those functions, and OSError with advice when the disk is full.
    """
    source = open_source(name)
    folder = (cache or default_cache()) / "tokens" / content_key(source, tokenizer, vocab_size)
    meta = cached_folder(folder, lambda partial: _encode(source, tokenizer, vocab_size, partial, progress))
    splits: dict[str, np.ndarray] = {s: np.memmap(folder / f"{s}.bin", dtype=meta["dtype"], mode="r") for s in SPLITS}
    return TokenData(load_tokenizer(str(folder / "tokenizer")), splits, meta["text_bytes"], folder)


class TrainingWindows(Dataset):
    """A data set of ``count`` training examples: windows of ``length`` tokens, every window once an epoch, in random
    order.

    Example i depends only on (tokens, length, seed, i), so a resumed run and any number of processes see the same
    examples. Each epoch starts its windows at another offset. ValueError if the tokens do not fill one window.

    >>> windows = TrainingWindows(np.arange(100), length=10, count=20, seed=0)
    >>> len(windows), windows[0]["input_ids"].shape
    (20, torch.Size([10]))
    """

    def __init__(self, tokens: np.ndarray, length: int, count: int, seed: int):
        if len(tokens) < length:
            raise ValueError(
                f"the training text has {len(tokens)} tokens, fewer than one sequence of {length}; "
                "give more text or a smaller `length`"
            )
        self.tokens, self.length, self.count, self.seed = tokens, length, count, seed
        self.per_epoch = max(1, len(tokens) // length - 1)
        self._epoch, self._offset, self._order = -1, 0, np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        epoch, place = divmod(index, self.per_epoch)
        if epoch != self._epoch:
            random = np.random.default_rng((self.seed, epoch))
            slack = len(self.tokens) - self.per_epoch * self.length
            self._epoch, self._offset = epoch, int(random.integers(0, slack + 1))
            self._order = random.permutation(self.per_epoch)
        start = self._offset + int(self._order[place]) * self.length
        ids = torch.from_numpy(self.tokens[start : start + self.length].astype(np.int64))
        return {"input_ids": ids, "labels": ids}


def content_key(source: Source | RowSource, tokenizer: str, vocab_size: int) -> str:
    """Return the name of the folder of an encoded source: a hash of the text, its splits and the tokenizer."""
    made_of = [str(_FORMAT), source.key(), tokenizer]
    if tokenizer in MADE_OF_TEXT:
        made_of.append(str(vocab_size))
    elif folder := tokenizer_folder(tokenizer):
        made_of[2] = "folder"
        for file in sorted(folder.glob("*")):
            if file.name in _TOKENIZER_FILES or file.suffix == ".model":
                made_of.append(f"{file.name}:{file_digest(file).hex()}")
    return hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:24]


def copy_tokenizer(folder: Path, target: Path) -> None:
    """Copy the files that make a tokenizer. `content_key` is the same for the copy."""
    target.mkdir()
    for file in sorted(folder.glob("*")):
        if file.name in _TOKENIZER_FILES or file.suffix == ".model":
            shutil.copyfile(file, target / file.name)


def _encode(source: Source, name: str, vocab_size: int, folder: Path, progress: bool) -> dict[str, Any]:
    texts: Any = source.document_parts("train") if name in BYTE_PAIRS else source.documents("train")
    load_tokenizer(name, vocab_size=vocab_size, texts=texts).save_pretrained(folder / "tokenizer")
    tokenizer = load_tokenizer(str(folder / "tokenizer"))
    dtype = "uint16" if len(tokenizer) <= 1 << 16 else "uint32"
    ends, text_bytes = np.asarray([tokenizer.eos_token_id]), dict.fromkeys(SPLITS, 0)
    for split in SPLITS:
        with (
            open(folder / f"{split}.bin", "wb") as f,
            progress_bar(desc=f"tokenizing {split}", unit="B", unit_scale=True, show=progress) as bar,
        ):
            for batch in _batches(_pieces(source, split)):
                encoded = encode_texts([text for text, _ in batch], tokenizer, name == "bytes")
                for ids, (_, last) in zip(encoded, batch, strict=True):
                    f.write(np.concatenate([ids, ends] if last else [ids]).astype(dtype).tobytes())
                read = sum(len(text.encode()) for text, _ in batch)
                text_bytes[split] += read
                bar.update(read)
        if text_bytes[split] == 0:
            raise ValueError(
                f"{source.name!r} is too short: after {text_bytes['train']} bytes for training nothing is left "
                f"for the {split} split; give more text"
            )
    return {"source": source.name, "tokenizer": name, "dtype": dtype, "text_bytes": text_bytes}


def _pieces(source: Source, split: str) -> Iterator[tuple[str, bool]]:
    """The documents of a split in pieces, and whether a document ends with the piece."""
    for document in source.document_parts(split):
        last = ""  # empty documents still yield one (empty) piece
        for number, piece in enumerate(split_text(document, _PIECE_CHARACTERS)):
            if number:
                yield last, False
            last = piece
        yield last, True


def _batches(pieces: Iterator[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    """Group pieces of about `_BATCH_CHARACTERS` characters together."""
    batch, size = [], 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[0])
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
