"""Sources of text: files, folders, the standard library, the hub. All become documents in three splits."""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from lagwise.data.fasta import FASTA, FASTQ, read_records
from lagwise.data.folders import SPLITS, by_split, check_file, files_below, split_word, unread_note
from lagwise.data.reading import (
    check_size,
    decoded,
    inner_suffix,
    is_compressed,
    marked_encoding,
    most_text,
    not_utf8_mark,
    opened,
    read_whole,
)
from lagwise.files import expanded, one_line

SUFFIXES = (".txt", ".jsonl", ".parquet", *FASTA, *FASTQ)
_FEW_DOCUMENTS = 20  # fewer are each cut in three, more are split whole
_HELD_OUT = 0.05  # share of valid and of test when the data name no splits
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


@dataclass(frozen=True)
class Source:
    """Documents by split, and what identifies them.

    files: the files of each split, for hashing. ranges: of a single text file, the share (from, to) of each split;
    empty when whole files or documents are assigned. dataset: a hub data set instead of files. notes: on files that are
    not read.
    """

    name: str
    files: dict[str, list[Path]] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    dataset: Any = None
    notes: Sequence[str] = ()

    def documents(self, split: str) -> Iterator[str]:
        """The documents of a split in a fixed order. ValueError for a file that does not match its suffix."""
        if self.dataset is not None:
            for number, row in enumerate(self.dataset[split]):
                yield _text(row["text"], f"data set {self.name!r}, {split} row {number}")
            return
        for path in self.files[split]:
            documents = read_documents(path)
            yield from _cut(_held(documents, path), self.ranges[split]) if self.ranges else documents

    def fingerprint(self) -> str:
        """Hash of the content (and of how it is split)."""
        digest = hashlib.sha256(json.dumps(self.ranges, sort_keys=True).encode())
        if self.dataset is not None:
            digest.update("".join(self.dataset[s]._fingerprint for s in SPLITS).encode())
        return hash_files(self.files, digest)


def open_source(name: str) -> Source:
    """Find data by name.

    ``stdlib``: the Python files of this interpreter's standard library, split by file. A file (.txt, .jsonl, .parquet,
    FASTA or FASTQ, each also .xz, .gz or .bz2): split by position or by document. A folder of such files: split by the
    words in their names (`split_word`), else by file. ``hub:NAME`` or ``hub:NAME:CONFIG``: a Hugging Face data set
    with a ``text`` column.

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
        check_file(path)
        return Source(name, {s: [path] for s in SPLITS}, _ranges())
    if not path.is_dir():
        raise FileNotFoundError(
            f"no file or folder {name!r} ('stdlib' is Python's own source, 'hub:{name}' a Hugging Face data set)"
        )
    found = files_below(path)
    files = [file for file in found if _is_data(file)]
    notes = unread_note(path, found, files)
    if not files:
        raise ValueError(f"no {', '.join(SUFFIXES)} file (or the same with .xz, .gz or .bz2) in folder {name!r}")
    for file in files:
        check_file(file)
    words = {file: split_word(file.relative_to(path)) for file in files}
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
        return Source(name, dict.fromkeys(SPLITS, files), _ranges(), notes=notes)
    return replace(_by_file(name, files), notes=notes)


def hash_files(files: dict[str, list[Path]], digest: Any) -> str:
    """Hexadecimal hash of the files of each split, of their names and content, added to a hashlib ``digest``."""
    for split in SPLITS:
        for path in files.get(split, []):
            digest.update(f"{split}:{path.name}:".encode())
            with open(path, "rb") as f:
                digest.update(hashlib.file_digest(f, "sha256").digest())
    return digest.hexdigest()


def read_documents(path: Path) -> Iterator[str]:
    """The documents of one file: the whole text, or the ``text`` field or the sequence of every record.

    ValueError names the file, and the position where it stops being valid.
    """
    kind = _kind(path)
    if kind == ".parquet":
        yield from _parquet(path)
    elif kind == ".jsonl":
        with opened(path) as f:
            for number, line in enumerate(iter(partial(f.readline, most_text() + 1), b""), 1):
                check_size(path, len(line))
                if number == 1 and (encoding := marked_encoding(line)):
                    raise ValueError(not_utf8_mark(path, encoding))
                if line.strip():
                    yield _record(line, path, number)
    elif kind in FASTA + FASTQ:
        yield from (sequence for _, sequence in read_records(read_whole(path), path))
    else:
        yield decoded(read_whole(path), path)


def _parquet(path: Path) -> Iterator[str]:
    from pyarrow import ArrowException, parquet

    try:
        for batch in parquet.ParquetFile(path).iter_batches(columns=["text"]):
            yield from (_text(value, f"{path}") for value in batch.column("text").to_pylist())
    except (ArrowException, KeyError, OSError) as error:
        raise ValueError(f"{path} is not a parquet file with a 'text' column ({error})") from error


def _record(line: bytes, path: Path, number: int) -> str:
    where = f"{path}, line {number}"
    try:
        return _text(json.loads(decoded(line, path).removeprefix("\ufeff"))["text"], where)
    except (json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
        message = f"{where}: expected a JSON object with a 'text' field ({type(error).__name__}: {one_line(error)})"
        raise ValueError(message) from error


def _text(value: Any, where: str) -> str:
    """A record's text, if it can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise ValueError(f"{where}: 'text' must be a string, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: 'text' is not valid Unicode ({error})") from error
    return value


def _held(documents: Iterator[str], path: Path) -> list[str]:
    held, size = [], 0
    for document in documents:
        held.append(document)
        size += len(document)
        check_size(path, size)
    return held


def _cut(documents: list[str], share: tuple[float, float]) -> list[str]:
    """The text between two shares of the total: whole documents, or, if there are few, a part of each."""
    if len(documents) < _FEW_DOCUMENTS:
        parts = (text[_boundary(text, share[0]) : _boundary(text, share[1])] for text in documents)
        return [part for part in parts if part]
    total, position, taken = sum(map(len, documents)), 0, []
    for document in documents:
        if share[0] * total <= position < share[1] * total:
            taken.append(document)
        position += len(document)
    return taken


def _boundary(text: str, share: float) -> int:
    """Where to cut a text at a share of its length: after the next line, else the next space, if one is near."""
    position = round(share * len(text))
    if position in (0, len(text)):
        return position
    for mark in ("\n", " "):
        found = text.find(mark, position - 1, position + len(text) // 100 + 1)
        if found >= 0:
            return found + 1
    return position


def _ranges() -> dict[str, tuple[float, float]]:
    return {
        "train": (0.0, 1 - 2 * _HELD_OUT),
        "valid": (1 - 2 * _HELD_OUT, 1 - _HELD_OUT),
        "test": (1 - _HELD_OUT, 1.0),
    }


def _kind(path: Path) -> str:
    """How to read a file: by its suffix before that of a compression; files other than tables of records are text."""
    suffix = inner_suffix(path)
    return suffix if suffix in SUFFIXES else ".txt"


def _is_data(path: Path) -> bool:
    """Whether a file found in a folder is meant as data."""
    return is_compressed(path) or inner_suffix(path) in SUFFIXES


def _by_file(name: str, files: list[Path]) -> Source:
    """Split and order files by a hash of their names: a file's split does not depend on the others, and the
    beginning of a split is a fair sample of it."""
    root = files[0].parent if len(files) == 1 else Path(*_common(files))
    dealt: dict[str, list[Path]] = {s: [] for s in SPLITS}
    shares = {
        f: int(hashlib.sha256(f.relative_to(root).as_posix().encode()).hexdigest()[:8], 16) / 2**32 for f in files
    }
    for file, share in sorted(shares.items(), key=lambda item: item[1]):
        dealt["test" if share < _HELD_OUT else "valid" if share < 2 * _HELD_OUT else "train"].append(file)
    for split in ("valid", "test"):  # with few files all may be in train
        if not dealt[split]:
            dealt[split].append(max(dealt.values(), key=len).pop())
    return Source(name, dealt)


def _common(files: list[Path]) -> tuple[str, ...]:
    parts = [f.parent.parts for f in files]
    shortest = min(parts, key=len)
    same = next((i for i, p in enumerate(shortest) if any(q[i] != p for q in parts)), len(shortest))
    return shortest[:same]


def _stdlib_files() -> list[Path]:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = (f for f in root.rglob("*.py") if not _STDLIB_SKIPPED & set(f.relative_to(root).parts))
    return sorted(f for f in files if f.stat().st_size > 0 and not f.name.startswith("_sysconfigdata"))


def load_hub(name: str) -> Any:
    """The splits of ``hub:NAME`` or ``hub:NAME:CONFIG``, a DatasetDict. ValueError if it cannot be loaded."""
    from datasets import load_dataset

    path, _, config = name.removeprefix("hub:").partition(":")
    try:
        return load_dataset(path, config or None)
    except Exception as error:
        raise ValueError(f"cannot load data set {path!r} from the hub: {error}") from error


def _hub(name: str) -> Source:
    splits, path = load_hub(name), name.removeprefix("hub:").partition(":")[0]
    if "train" not in splits:
        raise ValueError(f"data set {path!r} has no train split (it has {', '.join(splits)})")
    train = splits["train"]
    held = [splits[s] for s in ("validation", "valid", "test") if s in splits]
    if "text" not in train.column_names:
        raise ValueError(f"data set {path!r} has no 'text' column (it has {', '.join(train.column_names)})")
    if not held:
        parts = train.train_test_split(2 * _HELD_OUT, seed=0, shuffle=False)
        train, held = parts["train"], list(parts["test"].train_test_split(0.5, shuffle=False).values())
    return Source(name, dataset={"train": train, "valid": held[0], "test": held[-1]})
