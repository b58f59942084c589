"""Sources of text: files, folders, the standard library, the hub. All become documents in three splits."""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

import lagwise.data.arrow as pa
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
    standard_input,
    without_pipe,
)
from lagwise.data.row_files import JSON, check_reader, has_records, open_parquet, plain_table, read_records, read_table
from lagwise.data.splits import SPLITS, TEXT_HELD_OUT, deal, split_shares, text_between, text_places
from lagwise.files import expanded, file_digest, one_line
from lagwise.tables import shown

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    Data = str | Dataset | DatasetDict | Any  # a name, a data set, or a table of pandas, polars or pyarrow

_FIELDS = ("text", "id")  # of records
_SETTLED = 10**9  # nanoseconds since a change, after which file systems give another change another time
SUFFIXES = (".txt", *JSON, ".parquet")
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


_SAVED = (("dataset_dict.json",), ("state.json", "dataset_info.json"))  # files of a folder of `save_to_disk`
_HUB_NAME = re.compile(r"\w[\w-]*(/\w[\w-]*)?(:[\w.-]+)?")  # without points, which the names of files have


def no_source(name: str, others: str = "") -> FileNotFoundError:
    """The error for data that do not exist. It also says what else the name could stand for, if it looks like the name
    of a data set and not like a path."""
    hint = f" ({others}'hub:{name}' would be a Hugging Face data set)" if _HUB_NAME.fullmatch(name) else ""
    return FileNotFoundError(f"there is no file or folder {name!r}{hint}")


@dataclass(frozen=True)
class Found:
    """Files or a data set that a name stands for.

    Attributes:
        files: the files of each split that is named; those without named splits are all in train.
        dataset: the splits of a data set instead of files.
        file_notes: what else a reader should know about the files.
    """

    name: str
    files: dict[str, list[Path]] = field(default_factory=dict)
    dataset: Any = None
    file_notes: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts about the data that the reader should know, one line each."""
        return self.file_notes

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that the data name, in the order train, valid, test."""
        return tuple(split for split in SPLITS if split in (self.dataset or self.files))

    @property
    def paths(self) -> list[Path]:
        """The files of all splits."""
        return [path for split in self.split_names for path in self.files.get(split, ())]

    def key(self) -> str:
        """Hash of the content, and of all that decides how it is read and split."""
        raise NotImplementedError

    def hashed(self, declared: Any, *files: Mapping[str, Sequence[Path]]) -> str:
        """Hash of the content and of what is declared about it."""
        digest = hashlib.sha256(json.dumps(declared, sort_keys=True).encode())
        if self.dataset is not None:
            digest.update("".join(self.dataset[split]._fingerprint for split in self.split_names).encode())
        for each in files:
            for split in SPLITS:
                for path in each.get(split, ()):
                    digest.update(f"{split}:{path.name}:".encode() + _content(path))
        return digest.hexdigest()


def _content(path: Path) -> bytes:
    """The hash of a file, which a process reads once, unless the file has just changed: then it may change again
    without having another time."""
    status, now = path.stat(), time.time_ns()
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return _digest(path.absolute(), (*state, 0 if now - changed > _SETTLED else now))


@lru_cache(maxsize=1 << 16)
def _digest(path: Path, state: tuple[int, ...]) -> bytes:
    return file_digest(path)


@dataclass(frozen=True)
class Source(Found):
    """The source of documents by split, and what identifies it.

    Attributes:
        ranges: the share (from, to) of a single text file that each split has; empty if whole files or documents are
            assigned.
    """

    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
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
        return self.hashed(self.ranges, self.files)


def open_source(name: Data) -> Source:
    """Find data by name.

    ``stdlib``: the Python files of this interpreter's standard library, split by file. A file (.txt, .jsonl, .parquet
    or one of `RECORD_FILES`, each also compressed): split by position or by document. A folder of such files: split by
    the words in their names (`split_word`), else by file. A data set with a ``text`` column: ``hub:NAME`` or
    ``hub:NAME:CONFIG``, a folder of `save_to_disk`, a `datasets.Dataset` or `DatasetDict`.

    FileNotFoundError or ValueError name what is missing. Only names and sizes of files are read yet.
    """
    if not isinstance(name, str) or is_dataset(name):
        return _of_dataset(name)
    if name == "stdlib":
        return _by_file(name, _stdlib_files())
    if not name.strip():
        raise ValueError("name the data: a file, a folder, 'stdlib' or 'hub:NAME'")
    path = without_pipe(expanded(name), ".txt")
    if path.is_file():
        check_spreadsheet(path)
        check_reader(path)
        check_file(path)
        return Source(name, {s: [path] for s in SPLITS}, ranges=split_shares(TEXT_HELD_OUT))
    if not path.is_dir():
        raise no_source(name, "'stdlib' is Python's own source, ")
    found, files = _files_in(path)
    notes = unread_note(path, found, files)
    words, titles = meant_splits(path, {file: split_word(file.relative_to(path)) for file in files})
    notes = (*notes, *titles)
    if {"valid", "test"} & {*words.values()}:  # train alone does not say what is held out
        named = by_split(path, words)
        if "train" not in named:
            raise ValueError(
                f"{name!r} has no file to train on, only {' and '.join(named)} by the names in it; add one with train "
                "in its name, or rename the files if these words do not mean splits"
            )
        named = {s: named.get(s) or named["valid" if s == "test" else "test"] for s in SPLITS}
        return Source(name, named, file_notes=notes)
    if len(files) < len(SPLITS):
        return Source(name, dict.fromkeys(SPLITS, files), file_notes=notes, ranges=split_shares(TEXT_HELD_OUT))
    return replace(_by_file(name, files), file_notes=notes)


def text_files(names: Iterable[str]) -> dict[Path, str]:
    """The files of texts, whole, and the name of each for people: files as for `open_source`, those in folders that it
    would read, and ``-`` for standard input. FileNotFoundError or ValueError name what is missing or empty."""
    found: dict[Path, str] = {}
    for name in names:
        path = standard_input(".txt") if name == "-" else without_pipe(expanded(name), ".txt")
        if path.is_dir():
            found |= {file: str(file) for file in _files_in(path)[1]}
        elif path.is_file():
            check_spreadsheet(path)
            check_reader(path)
            check_file(path)
            found[path] = name
        else:
            raise no_source(name)
    return found


def _files_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """All files below a folder, and those of them that are read as texts. ValueError if there are none, or one is
    empty."""
    found = files_below(folder)
    likely = [file for file in found if _is_data(file)]
    files = [file for file in likely if inner_suffix(file) != ".json"] or likely  # beside texts it describes them
    if not files:
        for file in found:
            check_reader(file)
        raise ValueError(f"no {', '.join(SUFFIXES)} file (each also {COMPRESSIONS}) in folder {str(folder)!r}")
    for file in files:
        check_file(file)
    return found, files


def chat_hint(columns: Iterable[str]) -> str:
    """Say what to do with rows of chats, for the end of a message about a missing column of text; else an empty
    text."""
    chats = next((name for name in ("messages", "conversations") if name in columns), None)
    return "" if chats is None else f"; chats in {chats!r} are learned with trl's SFTTrainer, whose model a run can be"


def _joined(parts: Iterable[str], path: Path) -> str:
    """A document in memory. ValueError if it is too large."""
    document, size = [], 0
    for part in parts:
        document.append(part)
        size += len(part)
        check_size(path, size)
    return "".join(document)


def document_parts(path: Path) -> Iterator[Iterable[str]]:
    """The documents of `named_documents` without their names."""
    return (parts for _, parts in named_documents(path))


def named_documents(path: Path) -> Iterator[tuple[str | None, Iterable[str]]]:
    """The documents of one file: the whole text, or the ``text`` field of every record; each in parts, of which the
    file of a whole text holds one at a time, after the record's ``id``, if it has one. ValueError names the file, and
    the position where it stops being valid."""
    kind = _kind(path)
    if kind == ".parquet":
        file = open_parquet(path)
        names = file.schema_arrow.names
        if "text" not in names:
            raise ValueError(f"{path} has no column 'text' (it has {shown(names)})")
        for batch in file.iter_batches(columns=[name for name in _FIELDS if name in names]):
            yield from _named(batch, path)
    elif kind in JSON:
        with opened(path) as f:
            for number, record in read_records(_lines(f, path), path):
                where = f"{path}, line {number}"
                if "text" not in record:
                    raise ValueError(
                        f"{where}: expected a JSON object with a 'text' field (it has {shown([*record])})"
                        f"{chat_hint(record)}"
                    )
                yield _id(record.get("id")), [checked_text(record["text"], where)]
    elif has_records(path):
        yield from _named(read_table(path, _FIELDS), path)
    else:
        yield None, read_text(path)


def _named(rows: pa.Table | pa.RecordBatch, path: Path) -> Iterator[tuple[str | None, Iterable[str]]]:
    texts = rows.column("text").to_pylist()
    ids = rows.column("id").to_pylist() if "id" in rows.schema.names else [None] * len(texts)
    for name, text in zip(ids, texts, strict=True):
        yield _id(name), [checked_text(text, str(path))]


def _id(value: Any) -> str | None:
    return None if value is None else str(value)


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
    compressed = is_compressed(path) and path.suffix.lower() != ".zip"
    return compressed or inner_suffix(path) in SUFFIXES or has_records(path)


def _by_file(name: str, files: list[Path]) -> Source:
    """Deal whole files to the splits (`deal`)."""
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


def is_dataset(source: Data) -> bool:
    """Whether the library datasets loads a source: ``hub:NAME``, a folder of `save_to_disk`, or a data set itself."""
    if not isinstance(source, str):
        return True
    folder = expanded(source)
    return source.startswith("hub:") or any(all((folder / name).is_file() for name in names) for names in _SAVED)


def source_name(source: Data) -> str:
    """The name of a source for people."""
    return source if isinstance(source, str) else type(source).__name__


def load_hub(name: Data) -> Any:
    """The splits of a data set (`is_dataset`), a DatasetDict. ValueError if it cannot be loaded."""
    from datasets import DatasetDict, load_dataset, load_from_disk

    saved = isinstance(name, str) and not name.startswith("hub:")
    if saved or not isinstance(name, str):
        try:
            loaded: Any = load_from_disk(str(expanded(str(name)))) if saved else name
        except Exception as error:
            raise ValueError(f"cannot load the data set in folder {name!r}: {one_line(error)}") from error
        return loaded if isinstance(loaded, DatasetDict) else {"train": _as_dataset(loaded)}
    path, _, config = name.removeprefix("hub:").partition(":")
    try:
        return load_dataset(path, config or None)
    except Exception as error:
        raise ValueError(f"cannot load data set {path!r} from the hub: {error}") from error


def _as_dataset(data: Any) -> Any:
    """A Dataset, or a table of pandas, polars or pyarrow as one. ValueError for anything else."""
    from datasets import Dataset

    if isinstance(data, Dataset):
        return data
    try:
        pandas = hasattr(data, "iloc")  # whose index is no column
        return Dataset(plain_table(pa.Table.from_pandas(data, preserve_index=False) if pandas else pa.table(data)))
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise ValueError(
            "a source must be a name, a Dataset or DatasetDict, or a table of pandas, polars or pyarrow, got "
            f"{type(data).__name__}"
        ) from error


def hub_splits(name: Data) -> dict[str, Any]:
    """Map the splits of a data set (`is_dataset`) to train, valid and test; of several validation or test sets the
    first counts."""
    loaded = load_hub(name)
    named: dict[str, Any] = {}
    for split in loaded:
        word = split_word(Path(split))
        if word is not None:
            named.setdefault(word, loaded[split])
    if "train" not in named:
        if len(loaded) != 1:
            raise ValueError(f"data set {source_name(name)!r} has no train split (it has {', '.join(loaded)})")
        named = named or {"train": next(iter(loaded.values()))}
    return named


def _of_dataset(source: Data) -> Source:
    splits, name = hub_splits(source), source_name(source)
    train, held = splits["train"], [splits[split] for split in ("valid", "test") if split in splits]
    if "text" not in train.column_names:
        has = ", ".join(train.column_names)
        raise ValueError(f"data set {name!r} has no 'text' column (it has {has}){chat_hint(train.column_names)}")
    if not held:
        parts = train.train_test_split(2 * TEXT_HELD_OUT, seed=0, shuffle=False)
        train, held = parts["train"], list(parts["test"].train_test_split(0.5, shuffle=False).values())
    return Source(name, dataset={"train": train, "valid": held[0], "test": held[-1]})
