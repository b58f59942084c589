"""Text: the documents of a name in splits, and token files, encoded once and cached by the hash of the content."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.cache import cached_folder, default_cache
from lagwise.data.examples import TrainingWindows
from lagwise.data.find import (
    Data,
    DataSource,
    Named,
    check_file,
    find,
    named_splits,
    require_files,
    split_word,
    standard_input,
)
from lagwise.data.options import TRAINED_TOKENIZERS
from lagwise.data.reading import (
    COMPRESSIONS,
    JSON,
    check_size,
    has_records,
    inner_suffix,
    is_compressed,
    read_records,
    read_text,
)
from lagwise.data.splits import SPLITS, TEXT_HELD_OUT, Share, deal, split_shares
from lagwise.data.tokenizers import BYTE_PAIRS, encode_texts, load_tokenizer, tokenizer_files, tokenizer_folder
from lagwise.files import file_digest
from lagwise.progress import progress_bar
from lagwise.tables import shown
from lagwise.text import split_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SUFFIXES = (".txt", *JSON, ".parquet")
_FIELDS = ("text", "id")  # of records
_FEW_DOCUMENTS = 20  # fewer are each cut in three, more are split whole
# folders of the standard library that are no source
_SKIPPED = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib2to3", "ensurepip"}
_FORMAT = 1  # raise when the token files' meaning changes
_CHUNK_CHARACTERS = 1 << 16  # characters that the tokenizer encodes at a time, about
_BATCH_CHARACTERS = 1 << 22  # characters encoded in parallel, about


@dataclass(frozen=True)
class Source(DataSource):
    """The source of documents by split, and what identifies it.

    Attributes:
        ranges: the share (from, to) of a single text file that each split has; empty if whole files or documents are
            assigned.
    """

    ranges: dict[str, Share] = field(default_factory=dict)
    _bounds: dict[Path, dict[str, np.ndarray]] = field(default_factory=dict, compare=False, repr=False)

    def documents(self, split: str) -> Iterator[str]:
        """The documents of a split in a fixed order. ValueError for a file that does not match its suffix, and a
        document that is too large for memory."""
        for parts in self.document_parts(split):
            document, size = [], 0
            for part in parts:
                document.append(part)
                size += len(part)
                check_size(Path(self.name), size)
            yield "".join(document)

    def document_parts(self, split: str) -> Iterator[Iterable[str]]:
        """The documents of a split, each in parts (`document_parts`)."""
        if self.dataset is not None:
            for number, row in enumerate(self.dataset[split]):
                yield [checked_text(row["text"], f"data set {self.name!r}, {split} row {number}")]
            return
        for path in self.files[split]:
            if not self.ranges:
                yield from document_parts(path)
                continue
            if path not in self._bounds:
                self._bounds[path] = _text_bounds(partial(document_parts, path), self.ranges)
            for parts, (start, stop) in zip(document_parts(path), self._bounds[path][split].tolist(), strict=True):
                if start >= 0:
                    yield _text_between(parts, start, stop)

    def key(self) -> str:
        return self.hashed(self.ranges)


def open_source(name: Data) -> Source:
    """Find data by name.

    ``stdlib``: the Python files of this interpreter's standard library, split by file. A file (.txt, .jsonl, .parquet
    or one of `RECORD_FILES`, each also compressed): split by position or by document. A folder of such files: split by
    the words in their names (`split_word`), else by file. A data set with a ``text`` column: ``hub:NAME`` or
    ``hub:NAME:CONFIG``, a folder of `save_to_disk`, a `datasets.Dataset` or `DatasetDict`.

    FileNotFoundError or ValueError name what is missing. Only names and sizes of files are read yet.
    """
    if isinstance(name, str) and name == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        files = sorted(f for f in root.rglob("*.py") if not _SKIPPED & set(f.relative_to(root).parts))
        return _by_file(name, [f for f in files if f.stat().st_size > 0 and not f.name.startswith("_sysconfigdata")])
    if isinstance(name, str) and not name.strip():
        raise ValueError("name the data: a file, a folder, 'stdlib' or 'hub:NAME'")
    at = find(name, ".txt", "'stdlib' is Python's own source, ")
    name, path = at.name, at.path
    if at.dataset is not None:
        return _of_dataset(name, at.dataset)
    if path.is_file():
        return Source(name, {s: [path] for s in SPLITS}, ranges=split_shares(TEXT_HELD_OUT))
    files = _texts_in(at)
    words = {file: split_word(file.relative_to(path)) for file in files}
    if not {"valid", "test"} & {*words.values()}:  # train alone does not say what is held out
        words = dict.fromkeys(files)
    fields = named_splits(at, words)
    named, notes = fields["files"], fields["file_notes"]
    if "train" not in named:
        raise ValueError(
            f"{name!r} has no file to train on, only {' and '.join(named)} by the names in it; add one with train "
            "in its name, or rename the files if these words do not mean splits"
        )
    if len(named) > 1:
        named = {s: named.get(s) or named["valid" if s == "test" else "test"] for s in SPLITS}
        return Source(name, named, file_notes=notes)
    if len(files) < len(SPLITS):
        return Source(name, dict.fromkeys(SPLITS, files), file_notes=notes, ranges=split_shares(TEXT_HELD_OUT))
    return _by_file(name, files, notes)


def text_files(names: Iterable[str]) -> dict[Path, str]:
    """The files of texts, whole, and the name of each for people: files as for `open_source`, those in folders that it
    would read, and ``-`` for standard input. FileNotFoundError or ValueError name what is missing or empty."""
    files: dict[Path, str] = {}
    for name in names:
        if name == "-":
            files[standard_input(".txt")] = name
            continue
        at = find(name, ".txt")
        if at.dataset is not None:
            raise ValueError(f"{name!r} is a data set; give files or folders of texts")
        files |= {file: str(file) for file in _texts_in(at)} if at.path.is_dir() else {at.path: name}
    return files


def _texts_in(at: Named) -> list[Path]:
    """The files in a folder that are read as texts. ValueError if there are none, or one is empty."""

    def is_text(file: Path) -> bool:
        packed = is_compressed(file) and file.suffix.lower() != ".zip"
        return packed or inner_suffix(file) in SUFFIXES or has_records(file)

    likely = require_files(at, list(filter(is_text, at.below)), f"{', '.join(SUFFIXES)} (each also {COMPRESSIONS})")
    for file in likely:
        check_file(file)
    return [file for file in likely if inner_suffix(file) != ".json"] or likely  # beside texts it describes them


def _by_file(name: str, files: list[Path], notes: tuple[str, ...] = ()) -> Source:
    """Deal whole files to the splits (`deal`), by their names below the folder that has all of them."""
    root = os.path.commonpath([file.parent for file in files])
    return Source(name, deal({file: file.relative_to(root).as_posix() for file in files}), file_notes=notes)


def _of_dataset(name: str, splits: Mapping[str, Any]) -> Source:
    train, held_out = splits["train"], [splits[split] for split in ("valid", "test") if split in splits]
    if "text" not in train.column_names:
        raise _no_text(f"data set {name!r}", train.column_names)
    if not held_out:
        parts = train.train_test_split(2 * TEXT_HELD_OUT, seed=0, shuffle=False)
        train, held_out = parts["train"], list(parts["test"].train_test_split(0.5, shuffle=False).values())
    return Source(name, dataset={"train": train, "valid": held_out[0], "test": held_out[-1]})


def _no_text(where: str, columns: Iterable[str]) -> ValueError:
    return ValueError(f"{where} has no 'text' (it has {shown([*columns])}){chat_hint(columns)}")


def chat_hint(columns: Iterable[str]) -> str:
    """Say what to do with rows of chats, for the end of a message about a missing column of text; else an empty
    text."""
    chats = next((name for name in ("messages", "conversations") if name in columns), None)
    return "" if chats is None else f"; chats in {chats!r} are learned with trl's SFTTrainer, whose model a run can be"


# Documents.


def document_parts(path: Path) -> Iterator[Iterable[str]]:
    """The documents of `named_documents` without their names."""
    return (parts for _, parts in named_documents(path))


def named_documents(path: Path) -> Iterator[tuple[str | None, Iterable[str]]]:
    """The documents of one file: the whole text, or the ``text`` field of every record; each in parts, of which the
    file of a whole text holds one at a time, after the record's ``id``, if it has one. ValueError names the file, and
    the position where it stops being valid."""
    if inner_suffix(path) not in (*JSON, ".parquet") and not has_records(path):
        yield None, read_text(path)
        return
    for where, record in read_records(path, _FIELDS):
        if "text" not in record:
            raise _no_text(where, record)
        name = record.get("id")
        yield None if name is None else str(name), [checked_text(record["text"], where)]


def checked_text(value: Any, where: str) -> str:
    """A record's text, if it can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise ValueError(f"{where}: 'text' must be a string, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: 'text' is not valid Unicode ({error})") from error
    return value


def _text_bounds(read: Callable[[], Iterator[Iterable[str]]], ranges: Mapping[str, Share]) -> dict[str, np.ndarray]:
    """The first and last character of each document of a file that each split has ``(documents, 2)``, by its shares of
    the total; -1 for none. Documents are whole or, if there are few, cut; they are read twice at most, never held."""
    sizes = np.fromiter((sum(map(len, parts)) for parts in read()), dtype=np.int64)
    if len(sizes) >= _FEW_DOCUMENTS:
        total, starts = int(sizes.sum()), sizes.cumsum() - sizes
        whole = np.stack([np.zeros_like(sizes), sizes], axis=1)
        inside = {split: (low * total <= starts) & (starts < high * total) for split, (low, high) in ranges.items()}
        return {split: np.where(own[:, None], whole, -1) for split, own in inside.items()}
    shares = sorted({share for both in ranges.values() for share in both})
    boundaries = [_boundaries(parts, size, shares) for parts, size in zip(read(), sizes.tolist(), strict=True)]
    cuts = np.array(boundaries, dtype=np.int64).reshape(len(sizes), len(shares))
    bounds = {split: cuts[:, [shares.index(low), shares.index(high)]] for split, (low, high) in ranges.items()}
    return {split: np.where(own[:, :1] < own[:, 1:], own, -1) for split, own in bounds.items()}


def _boundaries(parts: Iterable[str], size: int, shares: Sequence[float]) -> list[int]:
    """Choose where to cut a text at shares of its length: after the next line, else the next space, if one is near."""
    cuts = [round(share * size) for share in shares]
    near, before = [""] * len(cuts), 0  # the text from the character before each cut on
    for part in parts:
        for i, cut in enumerate(cuts):
            near[i] += part[max(0, cut - 1 - before) : max(0, cut + size // 100 + 1 - before)]
        before += len(part)
    ends = [next((text.find(mark) for mark in ("\n", " ") if mark in text), 0) for text in near]
    return [cut if cut in (0, size) else cut + end for cut, end in zip(cuts, ends, strict=True)]


def _text_between(parts: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """The characters of a document from ``start`` to ``stop``, in parts."""
    before = 0
    for part in parts:
        if own := part[max(0, start - before) : max(0, stop - before)]:
            yield own
        before += len(part)
        if before >= stop:
            return


# Token files.


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


def content_key(source: DataSource, tokenizer: str, vocab_size: int) -> str:
    """Return the name of the folder of an encoded source: a hash of the text, its splits and the tokenizer."""
    parts = [str(_FORMAT), source.key(), tokenizer]
    if tokenizer in TRAINED_TOKENIZERS:
        parts.append(str(vocab_size))
    elif folder := tokenizer_folder(tokenizer):
        parts[2] = "folder"
        parts += [f"{file.name}:{file_digest(file).hex()}" for file in tokenizer_files(folder)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


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
            for batch in _batches(_chunks(source, split)):
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


def _chunks(source: Source, split: str) -> Iterator[tuple[str, bool]]:
    """Yield the documents of a split in chunks, and whether a document ends with the chunk."""
    for document in source.document_parts(split):
        last = ""  # empty documents still yield one (empty) chunk
        for number, chunk in enumerate(split_text(document, _CHUNK_CHARACTERS)):
            if number:
                yield last, False
            last = chunk
        yield last, True


def _batches(chunks: Iterator[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    """Group chunks of about `_BATCH_CHARACTERS` characters together."""
    batch, size = [], 0
    for chunk in chunks:
        batch.append(chunk)
        size += len(chunk[0])
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
