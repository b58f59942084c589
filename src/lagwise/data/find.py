"""The files or data set that a name stands for: files by split, with the classes that their folders tell."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import lagwise.data.arrow as pa
import lagwise.data.hf as hf
from lagwise.data.reading import inner_suffix, plain_table, read_columns, read_table
from lagwise.data.splits import SPLITS
from lagwise.files import expanded, file_digest, is_run, one_line
from lagwise.outside import elsewhere

Data = Any  # a name, a Dataset or DatasetDict, or a table of pandas, polars or pyarrow
_SPLIT_WORDS = {  # the library datasets has the same
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev"), "valid"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # between the words of trainImages
_WORD = re.compile(rf"(?<![^\W\d_])({'|'.join(_SPLIT_WORDS)})(?:sets?|data)?(?![^\W\d_])")
_MAX_NAMED = 4  # kinds of files in a message
_SYSTEM_FOLDERS = ("/proc", "/sys")
_SETTLED = 10**9  # nanoseconds since a change, after which file systems give another change another time
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
_PIPE_HEAD_BYTES = 64  # bytes
#: How the content of a pipe begins, and the suffix of such files.
_PIPED = {b"PAR1": ".parquet", b"{": ".jsonl", b"[": ".jsonl", b"PK\x03\x04": ".npz", b"RIFF": ".wav"}
_SAVED = (("dataset_dict.json",), ("state.json", "dataset_info.json"))  # files of a folder of `save_to_disk`
_HUB_NAME = re.compile(r"\w[\w-]*(/\w[\w-]*)?(:[\w.-]+)?")  # without points, which the names of files have
_LABEL_TABLES = ("metadata.csv", "metadata.tsv", "metadata.jsonl", "metadata.parquet", "labels.csv", "labels.tsv")
_FILE_COLUMNS = ("file_name", "filename", "file", "image", "path")  # of which a table of labels has the first


@dataclass(frozen=True)
class DataSource:
    """The files or the data set that a name stands for."""

    name: str
    files: dict[str, list[Path]] = field(default_factory=dict)  # of each split; of none that is named all in train
    dataset: Any = None  # the splits of a data set instead of files
    file_notes: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return facts about the data that the reader should know, one line each."""
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

    def hashed(self, declared: Any, *others: Mapping[str, Sequence[Path]]) -> str:
        """Hash of the content and of what is declared about it. others: further files by split."""
        digest = hashlib.sha256(json.dumps(declared, sort_keys=True).encode())
        if self.dataset is not None:
            digest.update("".join(self.dataset[split]._fingerprint for split in self.split_names).encode())
        for files in (self.files, *others):
            for split in SPLITS:
                for path in files.get(split, ()):
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


# Names.


class Named(NamedTuple):
    """The path or data set of a name, before it is known which files are read."""

    name: str
    path: Path  # of a pipe that of a temporary copy
    dataset: dict[str, Any] | None = None  # the splits of a data set instead
    below: Sequence[Path] = ()  # the files in a folder


def find(name: Data, suffix: str, others: str = "") -> Named:
    """Find a file, a folder, a named pipe, such as bash's ``<(command)``, or a data set by name.

    suffix: of texts or tables in a pipe. others: what else the name could stand for, for the message.
    """
    if not isinstance(name, str):
        return Named(type(name).__name__, Path(), _by_words(_loaded(name, Path()), type(name).__name__))
    path = expanded(name)
    if name.startswith("hub:"):
        return Named(name, path, _by_words(load_hub(name), name))
    if any(all((path / each).is_file() for each in names) for names in _SAVED):
        return Named(name, path, _by_words(_loaded(name, path), name))
    path = _unpiped(path, suffix) if path.is_fifo() else path
    if path.is_dir():
        return Named(name, path, below=files_below(path))
    if not path.is_file():
        hint = f" ({others}'hub:{name}' would be a Hugging Face data set)" if _HUB_NAME.fullmatch(name) else ""
        raise FileNotFoundError(f"there is no file or folder {name!r}{hint}")
    check_file(path)
    return Named(name, path)


def check_file(path: Path) -> None:
    """Raise ValueError, with advice, for a spreadsheet, a file that a package reads that is not installed, and one that
    is empty."""
    if path.suffix.lower() in _SPREADSHEETS:
        raise ValueError(f"{path} is a spreadsheet; save the sheet as .csv in UTF-8 and give that file")
    if advice := elsewhere(inner_suffix(path)):
        raise ValueError(f"cannot read {path}: the reader of {advice}")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty")


@cache  # a pipe is read only once
def _unpiped(path: Path, suffix: str) -> Path:
    with open(path, "rb") as source:
        return _copied(source, suffix)


def standard_input(suffix: str) -> Path:
    """The path of a temporary copy of standard input, as of a pipe (`find`). ValueError if it is empty."""
    path = _copied(sys.stdin.buffer, suffix)
    if not path.stat().st_size:
        raise ValueError("standard input is empty")
    return path


def _copied(source: IO[bytes], suffix: str) -> Path:
    """A copy that is removed at the end of the process, with the suffix that its content shows, or that given."""
    folder = Path(tempfile.mkdtemp(prefix="lagwise-pipe-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = folder / "pipe"
    with open(copy, "wb") as target:
        shutil.copyfileobj(source, target)
    with open(copy, "rb") as f:
        head = f.read(_PIPE_HEAD_BYTES).lstrip()
    kind = next((kind for start, kind in _PIPED.items() if head.startswith(start)), suffix)
    return copy.rename(copy.with_suffix(kind))


def load_hub(name: str) -> Any:
    """The splits of a data set ``hub:NAME`` or ``hub:NAME:CONFIG``, a DatasetDict."""
    path, _, config = name.removeprefix("hub:").partition(":")
    try:
        return hf.load_dataset(path, config or None)
    except Exception as error:
        raise ValueError(f"cannot load data set {path!r} from the hub: {error}") from error


def _loaded(data: Data, folder: Path) -> Any:
    """The splits of a Dataset or DatasetDict, one in a folder of `save_to_disk`, or a table of pandas, polars or
    pyarrow."""
    try:
        loaded: Any = hf.load_from_disk(str(folder)) if isinstance(data, str) else data
    except Exception as error:
        raise ValueError(f"cannot load the data set in folder {data!r}: {one_line(error)}") from error
    if isinstance(loaded, hf.Dataset | hf.DatasetDict):
        return loaded if isinstance(loaded, hf.DatasetDict) else {"train": loaded}
    try:
        pandas = hasattr(loaded, "iloc")  # whose index is no column
        table = pa.Table.from_pandas(loaded, preserve_index=False) if pandas else pa.table(loaded)
        return {"train": hf.Dataset(plain_table(table))}
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise ValueError(
            "a source must be a name, a Dataset or DatasetDict, or a table of pandas, polars or pyarrow, got "
            f"{type(data).__name__}"
        ) from error


def _by_words(loaded: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Map the splits of a data set to train, valid and test; of several validation or test sets the first counts."""
    named = {word: loaded[split] for split in reversed([*loaded]) if (word := _split_of(split))}
    if "train" not in named and len(loaded) != 1:
        raise ValueError(f"data set {name!r} has no train split (it has {', '.join(loaded)})")
    return named or {"train": next(iter(loaded.values()))}


# Folders.


class FoldersAbove(NamedTuple):
    """Split and class of a file, as the folders above it say; None where they say none."""

    split: str | None
    label: str | None
    parent: Path  # the folder that has the class folders
    inner: tuple[str, ...]  # the folders between the class folder and the file


def files_below(root: Path) -> list[Path]:
    """The files in a folder and in those below it, also through links, in order, without hidden ones and those of runs.
    ValueError if the system makes up any of them: they are no data, and link to each other without end."""
    paths: list[Path] = []
    for folder, folders, names in os.walk(root, followlinks=True):
        here = Path(folder)
        whole = here.resolve()
        if any(whole.is_relative_to(system) for system in _SYSTEM_FOLDERS):
            raise ValueError(f"{here} holds no files of data, but what the system says of itself; name another folder")
        if here != root and is_run(names):
            folders.clear()
            continue
        links = {name: (here / name).resolve() for name in folders if (here / name).is_symlink()}
        # a link to a folder above would be followed without end
        folders[:] = [name for name in folders if name not in links or not whole.is_relative_to(links[name])]
        paths += [here / name for name in names]
    return sorted(path for path in paths if not _is_hidden(path, root) and path.is_file())


def _is_hidden(path: Path, root: Path) -> bool:
    """Whether a file in the folder ``root`` is not meant as data: its own name or a folder's begins with a point, or it
    is what macOS adds to archives."""
    return any(part.startswith((".", "__MACOSX")) for part in path.relative_to(root).parts)


def named_splits(at: Named, splits: Mapping[Path, str | None], also: Iterable[Path] = ()) -> dict[str, Any]:
    """The fields files and file_notes of a folder's source: the files of each split that is named, of none all as
    train. ``splits`` has the split that the name of each file says, None for none; ``also`` further files that are
    read.

    Where only titles have such a word, as ``A Test of Wills.txt``, none is meant: no file is named train, several name
    no split, and no name is that of a split alone, or but for the word that of another file."""
    if empty := next((file for file in splits if not file.stat().st_size), None):
        raise ValueError(f"{empty} is empty")
    root, notes = at.path, unread_note(at, [*splits, *also])
    named = [path for path, split in splits.items() if split]
    others = {_without_word(path.stem) for path, split in splits.items() if not split}
    bare = {_without_word(path.stem) for path in named if _split_of(path.name)}
    in_names = all(_split_of(path.name) for path in named)
    if named and in_names and "train" not in splits.values() and len(others) > len(named) and not bare & {"", *others}:
        first = named[0].relative_to(root)
        notes.append(f"{str(first)!r} is not taken for a {splits[named[0]]} split, as no file has train in its name")
        named = []
    if not named:
        return {"files": {"train": list(splits)}, "file_notes": tuple(notes)}
    if stray := next((path for path, split in splits.items() if split is None), None):
        raise ValueError(
            f"the names in {str(root)!r} say which files are train, valid and test, such as "
            f"{str(named[0].relative_to(root))!r}, but {str(stray.relative_to(root))!r} does not; rename it or move it "
            "away"
        )
    files = {split: [path for path, own in splits.items() if own == split] for split in SPLITS}
    return {"files": {split: paths for split, paths in files.items() if paths}, "file_notes": tuple(notes)}


def _without_word(stem: str) -> str:
    """The letters of a file's name without the word of a split."""
    return re.sub(r"[\W\d_]", "", _WORD.sub("", _HUMP.sub(" ", stem).lower()))


def split_word(path: Path) -> str | None:
    """The split named by a file's name, or else by the folders above it: train or training; valid, validation, val or
    dev; test, testing, eval or evaluation; at any separator, in any case, also as in testset and traindata."""
    return next(filter(None, map(_split_of, reversed(path.parts))), None)


@lru_cache(maxsize=1 << 16)
def _split_of(name: str) -> str | None:
    match = _WORD.search(_HUMP.sub(" ", name).lower())
    return _SPLIT_WORDS[match[1]] if match else None


def require_files(at: Named, files: list[Path], kinds: str) -> list[Path]:
    """The files of some kinds in a folder. ValueError, with advice, if there are none."""
    if not files:
        for file in at.below:
            check_file(file)
        raise ValueError("; ".join((f"no {kinds} in folder {str(at.path)!r}", *unread_note(at, ()))))
    return files


def unread_note(at: Named, read: Iterable[Path]) -> list[str]:
    """A note of the files in a folder that are not read, counted by kind."""
    left = sorted({*at.below} - {*read})
    if not left:
        return []
    kinds = Counter(path.suffix.lower() or "without a suffix" for path in left).most_common()
    shown = ", ".join(f"{count:,} {kind}" for kind, count in kinds[:_MAX_NAMED])
    more = f", {len(kinds) - _MAX_NAMED} other kinds" if len(kinds) > _MAX_NAMED else ""
    first = f"first {str(left[0].relative_to(at.path))!r}"
    return [f"{len(left):,} file{'s are' if len(left) > 1 else ' is'} not read: {shown}{more} ({first})"]


def class_folders(root: Path, files: Sequence[Path]) -> dict[Path, FoldersAbove]:
    """The split and the class of files whose folders are their classes, as in ``train/cat/1.png``. Folders that are all
    named as splits are those of splits, and a folder that has all others is none of a class. The folders below are the
    classes, as in torchvision and Keras; those in them are none, but may be splits."""
    rest = {folder: folder.relative_to(root).parts for folder in dict.fromkeys(path.parent for path in files)}
    splits: dict[Path, str | None] = dict.fromkeys(rest)
    while any(len(parts) > 1 for parts in rest.values()):
        first = {folder: parts[0] for folder, parts in rest.items() if parts}
        words = {folder: _split_of(name) for folder, name in first.items()}
        several = len({(splits[folder], name) for folder, name in first.items()}) > len({*map(splits.get, first)})
        if all(words.values()) and all(splits[folder] in (None, word) for folder, word in words.items()):
            splits |= words
        elif several or min(map(len, rest.values())) < 2:
            break
        rest = {folder: parts[1:] for folder, parts in rest.items()}
    by_folder = {
        folder: FoldersAbove(splits[folder], next(iter(parts), None), (folder, *folder.parents)[len(parts)], parts[1:])
        for folder, parts in rest.items()
    }
    inner = {folder: next(filter(None, map(_split_of, above.inner)), None) for folder, above in by_folder.items()}
    if not any(splits.values()) and "train" in inner.values() and len({*inner.values()} - {None}) > 1:
        for folder, above in by_folder.items():
            left = tuple(name for name in above.inner if not _split_of(name))
            by_folder[folder] = above._replace(split=inner[folder], inner=left)
    return {path: by_folder[path.parent] for path in files}


def check_names(classes: Iterable[str], noun: str) -> None:
    """Raise ValueError if folders that would be classes are named like splits."""
    names = sorted(set(classes))
    if all(map(_split_of, names)):
        raise ValueError(
            f"the folders {', '.join(map(repr, names))} are named as splits, not as classes; put the {noun} of each "
            "class into a folder of its own in them"
        )


def classed_files(at: Named, files: Sequence[Path], one_row: Sequence[Path], noun: str) -> dict[str, Any]:
    """The fields files, classes and file_notes of a source of ``files`` in a folder, of which some are a row each, in
    class folders. ValueError where only some folders name splits."""
    root = at.path
    by_file = class_folders(root, one_row)
    _check_classes(root, by_file, noun)
    tables = class_folders(root, [file for file in files if file not in by_file])
    words = {file: by_file[file].split if file in by_file else split_word(file.relative_to(root)) for file in files}
    folders = {file.parent for file in files}
    for file in files:  # without IMDb's reviews without a label
        if file.parent.name == "unsup" and {file.parent.with_name(name) for name in ("pos", "neg")} <= folders:
            del words[file]
    labels = {file: above.label for file, above in {**by_file, **tables}.items() if file in words}
    return {**named_splits(at, words), "classes": labels}


def _check_classes(root: Path, by_file: Mapping[Path, FoldersAbove], noun: str) -> None:
    outside = [path for path, above in by_file.items() if above.split is None or above.label is None]
    if outside and any(above.split for above in by_file.values()):
        raise ValueError(
            f"folders of {str(root)!r} say which {noun} are train, valid and test, but {str(outside[0])!r} is in none "
            "of their class folders; move it away"
        )
    for level in (lambda above: (above.label or "",), lambda above: above.inner) if outside else ():
        named = next((name for above in by_file.values() for name in level(above) if _split_of(name)), None)
        stray = next((path for path, above in by_file.items() if not any(map(_split_of, level(above)))), None)
        if named and stray and by_file[stray].label is not None:
            raise ValueError(
                f"folders of {str(root)!r} such as {named!r} are named as splits of the {noun}, but {str(stray)!r} is "
                f"in none of their class folders; move it away, or rename {named!r} if it is not meant as a split"
            )


def listed_files(at: Named, files: Sequence[Path], label: str = "label") -> dict[str, Any] | None:
    """Do as `classed_files`, for sounds or images whose labels are in tables beside them, as in folders of `datasets`;
    None without such a table. label: the column of the labels; without it, the only column beside the names."""
    tables = [p for p in at.below if p.name.lower() in _LABEL_TABLES and {*read_columns(p)} & {*_FILE_COLUMNS}]
    labels: dict[Path, str | None] = {}
    existing = {*files}
    for table in tables:
        rows = read_table(table)
        column = next(name for name in _FILE_COLUMNS if name in rows.column_names)
        others = [name for name in rows.column_names if name != column]
        if label not in others and len(others) != 1:
            has = ", ".join(rows.column_names)
            raise ValueError(f"{table} has no column {label!r} (columns: {has}); name the column of labels so")
        own = rows.column(label if label in others else others[0]).to_pylist()
        for number, (name, value) in enumerate(zip(rows.column(column).to_pylist(), own, strict=True), 1):
            path = table.parent / str(name)
            if path in labels or path not in existing:
                fault = f"{name!r} is listed twice; keep one of the rows"
                absent = f"there is no file {str(path)!r}; add it or remove the row"
                raise ValueError(f"{table}, row {number}: {fault if path in labels else absent}")
            labels[path] = None if value is None or value == "" else str(value)
    if not tables:
        return None
    words = {file: split_word(file.relative_to(at.path)) for file in labels}
    return {**named_splits(at, words, tables), "classes": labels}
