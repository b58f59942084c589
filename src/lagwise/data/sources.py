"""Sources of text: files, folders, the standard library, the hub. All become documents in three splits."""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from lagwise.data.fasta import FASTA, FASTQ, sequence_records
from lagwise.data.folders import by_split, check_file, files_below, meant_splits, split_word, unread_note
from lagwise.data.reading import (
    COMPRESSIONS,
    check_size,
    check_spreadsheet,
    inner_suffix,
    is_compressed,
    marked_encoding,
    most_text,
    not_utf8_mark,
    opened,
    read_text,
    read_whole,
)
from lagwise.data.row_files import read_records
from lagwise.data.splits import SPLITS, TEXT_HELD_OUT, deal, split_shares, text_between, text_places
from lagwise.files import expanded
from lagwise.tables import shown

SUFFIXES = (".txt", ".jsonl", ".parquet", *FASTA, *FASTQ)
_STDLIB_SKIPPED = {
    "site-packages",
    "dist-packages",
    "__pycache__",
    "test",
    "tests",
    "idle_test",
    "lib2to3",
    "ensurepip",
}


_HUB_NAME = re.compile(r"\w[\w-]*(/\w[\w-]*)?(:[\w.-]+)?")  # without points, which the names of files have


def no_source(name: str, others: str = "") -> FileNotFoundError:
    """The error for data that do not exist. It also says what else the name could stand for, if it looks like the name
    of a data set and not like a path."""
    hint = f" ({others}'hub:{name}' would be a Hugging Face data set)" if _HUB_NAME.fullmatch(name) else ""
    return FileNotFoundError(f"there is no file or folder {name!r}{hint}")


@dataclass(frozen=True)
class Source:
    """Documents by split, and what identifies them.

    Attributes:
        files: the files of each split, for hashing.
        ranges: the share (from, to) of a single text file that each split has; empty if whole files or documents are
            assigned.
        dataset: a hub data set instead of files.
        notes: facts about files that are not read.
    """

    name: str
    files: dict[str, list[Path]] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    dataset: Any = None
    notes: Sequence[str] = ()
    _places: dict[Path, dict[str, np.ndarray]] = field(default_factory=dict, compare=False, repr=False)

    def documents(self, split: str) -> Iterator[str]:
        """The documents of a split in a fixed order. ValueError for a file that does not match its suffix."""
        return (_joined(parts, Path(self.name)) for parts in self.document_parts(split))

    def document_parts(self, split: str) -> Iterator[Iterable[str]]:
        """The documents of a split, each in parts (`document_parts`)."""
        if self.dataset is not None:
            for number, row in enumerate(self.dataset[split]):
                yield [checked_text(row["text"], f"data set {self.name!r}, {split} row {number}")]
            return
        for path in self.files[split]:
            yield from self.parts_of(path, split)

    def parts_of(self, path: Path, split: str) -> Iterator[Iterable[str]]:
        """The documents of one file that are in a split, each in parts."""
        if not self.ranges:
            yield from document_parts(path)
            return
        if path not in self._places:
            self._places[path] = text_places(lambda: document_parts(path), self.ranges)
        for parts, (start, stop) in zip(document_parts(path), self._places[path][split].tolist(), strict=True):
            if start >= 0:
                yield text_between(parts, start, stop)

    def key(self) -> str:
        """Hash of the content (and of how it is split)."""
        digest = hashlib.sha256(json.dumps(self.ranges, sort_keys=True).encode())
        if self.dataset is not None:
            digest.update("".join(self.dataset[s]._fingerprint for s in SPLITS).encode())
        return hash_files(self.files, digest)


def open_source(name: str) -> Source:
    """Find data by name.

    ``stdlib``: the Python files of this interpreter's standard library, split by file. A file (.txt, .jsonl, .parquet,
    FASTA or FASTQ, each also compressed): split by position or by document. A folder of such files: split by the words
    in their names (`split_word`), else by file. ``hub:NAME`` or ``hub:NAME:CONFIG``: a Hugging Face data set with a
    ``text`` column.

    FileNotFoundError or ValueError name what is missing. Only names and sizes of files are read yet.
    """
    if name == "stdlib":
        return _by_file(name, _stdlib_files())
    if name.startswith("hub:"):
        return _hub(name)
    if not name.strip():
        raise ValueError("name the data: a file, a folder, 'stdlib' or 'hub:NAME'")
    path = expanded(name)
    if path.is_file():
        check_spreadsheet(path)
        check_file(path)
        return Source(name, {s: [path] for s in SPLITS}, split_shares(TEXT_HELD_OUT))
    if not path.is_dir():
        raise no_source(name, "'stdlib' is Python's own source, ")
    found = files_below(path)
    files = [file for file in found if _is_data(file)]
    notes = unread_note(path, found, files)
    if not files:
        raise ValueError(f"no {', '.join(SUFFIXES)} file (each also {COMPRESSIONS}) in folder {name!r}")
    for file in files:
        check_file(file)
    words, titles = meant_splits(path, {file: split_word(file.relative_to(path)) for file in files})
    notes += titles
    if {"valid", "test"} & {*words.values()}:  # train alone does not say what is held out
        named = by_split(path, words)
        if "train" not in named:
            raise ValueError(
                f"{name!r} has no file to train on, only {' and '.join(named)} by the names in it; add one with train "
                "in its name, or rename the files if these words do not mean splits"
            )
        named = {s: named.get(s) or named["valid" if s == "test" else "test"] for s in SPLITS}
        return Source(name, named, notes=notes)
    if len(files) < len(SPLITS):
        return Source(name, dict.fromkeys(SPLITS, files), split_shares(TEXT_HELD_OUT), notes=notes)
    return replace(_by_file(name, files), notes=notes)


def hash_files(files: dict[str, list[Path]], digest: Any) -> str:
    """Hexadecimal hash of the files of each split, of their names and content, added to a hashlib ``digest``."""
    contents: dict[Path, bytes] = {}
    for split in SPLITS:
        for path in files.get(split, []):
            if path not in contents:  # which several splits may share
                with open(path, "rb") as f:
                    contents[path] = hashlib.file_digest(f, "sha256").digest()
            digest.update(f"{split}:{path.name}:".encode())
            digest.update(contents[path])
    return digest.hexdigest()


def read_documents(path: Path) -> Iterator[str]:
    """The documents of one file: the whole text, or the ``text`` field or the sequence of every record.

    ValueError names the file, and the position where it stops being valid.

    >>> import tempfile
    >>> import pandas as pd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "texts.jsonl")
    ...     pd.DataFrame({"text": ["first", "second"]}).to_json(path, orient="records", lines=True)
    ...     list(read_documents(path))
    ['first', 'second']
    """
    return (_joined(parts, path) for parts in document_parts(path))


def _joined(parts: Iterable[str], path: Path) -> str:
    """A document in memory. ValueError if it is too large."""
    document, size = [], 0
    for part in parts:
        document.append(part)
        size += len(part)
        check_size(path, size)
    return "".join(document)


def document_parts(path: Path) -> Iterator[Iterable[str]]:
    """As `read_documents`, each document in parts, of which the file of a whole text holds one at a time."""
    kind = _kind(path)
    if kind == ".parquet":
        yield from ([text] for text in _parquet(path))
    elif kind == ".jsonl":
        with opened(path) as f:
            for number, record in read_records(_lines(f, path), path):
                where = f"{path}, line {number}"
                if "text" not in record:
                    raise ValueError(f"{where}: expected a JSON object with a 'text' field (it has {shown([*record])})")
                yield [checked_text(record["text"], where)]
    elif kind in FASTA + FASTQ:
        yield from ([sequence] for _, sequence in sequence_records(read_whole(path), path))
    else:
        yield read_text(path)


def _parquet(path: Path) -> Iterator[str]:
    from pyarrow import ArrowException, parquet

    try:
        for batch in parquet.ParquetFile(path).iter_batches(columns=["text"]):
            yield from (checked_text(value, f"{path}") for value in batch.column("text").to_pylist())
    except (ArrowException, KeyError, OSError) as error:
        raise ValueError(f"{path} is not a parquet file with a 'text' column ({error})") from error


def _lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    for line in iter(partial(file.readline, most_text() + 1), b""):
        check_size(path, len(line))
        if encoding := marked_encoding(line):
            raise ValueError(not_utf8_mark(path, encoding))
        yield line


def checked_text(value: Any, where: str) -> str:
    """A record's text, if it can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise ValueError(f"{where}: 'text' must be a string, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: 'text' is not valid Unicode ({error})") from error
    return value


def _kind(path: Path) -> str:
    """How to read a file: by its suffix before that of a compression; files other than tables of records are text."""
    suffix = inner_suffix(path)
    return suffix if suffix in SUFFIXES else ".txt"


def _is_data(path: Path) -> bool:
    """Whether a file found in a folder is meant as data."""
    return inner_suffix(path) in SUFFIXES or (is_compressed(path) and path.suffix.lower() != ".zip")


def _by_file(name: str, files: list[Path]) -> Source:
    """Whole files in splits (`deal`)."""
    root = files[0].parent if len(files) == 1 else Path(*_common(files))
    return Source(name, deal({file: file.relative_to(root).as_posix() for file in files}))


def _common(files: list[Path]) -> tuple[str, ...]:
    parts = [f.parent.parts for f in files]
    shortest = min(parts, key=len)
    same = next((i for i, p in enumerate(shortest) if any(q[i] != p for q in parts)), len(shortest))
    return shortest[:same]


def _stdlib_files() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = (f for f in root.rglob("*.py") if not _STDLIB_SKIPPED & set(f.relative_to(root).parts))
    return sorted(f for f in files if f.stat().st_size > 0 and not f.name.startswith("_sysconfigdata"))


def load_hub(name: str, *, streaming: bool = False) -> Any:
    """The splits of ``hub:NAME`` or ``hub:NAME:CONFIG``, a DatasetDict, or streaming an IterableDatasetDict. ValueError
    if it cannot be loaded."""
    from datasets import load_dataset

    path, _, config = name.removeprefix("hub:").partition(":")
    try:
        return load_dataset(path, config or None, streaming=streaming)
    except Exception as error:
        raise ValueError(f"cannot load data set {path!r} from the hub: {error}") from error


def hub_splits(name: str, *, streaming: bool = False) -> dict[str, Any]:
    """Splits by our names; the first of several validation or test sets."""
    loaded = load_hub(name, streaming=streaming)
    named: dict[str, Any] = {}
    for split in loaded:
        word = split_word(Path(split))
        if word is not None:
            named.setdefault(word, loaded[split])
    if "train" not in named:
        if len(loaded) != 1:
            raise ValueError(f"data set {name!r} has no train split (it has {', '.join(loaded)})")
        named = named or {"train": next(iter(loaded.values()))}
    return named


def _hub(name: str) -> Source:
    splits = hub_splits(name)
    train, held = splits["train"], [splits[split] for split in ("valid", "test") if split in splits]
    if "text" not in train.column_names:
        raise ValueError(f"data set {name!r} has no 'text' column (it has {', '.join(train.column_names)})")
    if not held:
        parts = train.train_test_split(2 * TEXT_HELD_OUT, seed=0, shuffle=False)
        train, held = parts["train"], list(parts["test"].train_test_split(0.5, shuffle=False).values())
    return Source(name, dataset={"train": train, "valid": held[0], "test": held[-1]})
