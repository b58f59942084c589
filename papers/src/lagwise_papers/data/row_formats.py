"""Published data sets with file formats of their own: the meaning of each field, and the file of each split."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagwise.data.find import check_file, load_hub
from lagwise.data.labelled_rows import label_cells
from lagwise.data.reading import COMPRESSIONS, decoded, inner_suffix, is_compressed, read_whole
from lagwise.data.rows import RowSource
from lagwise.data.splits import SPLITS
from lagwise.data.text_tables import text_rows
from lagwise.files import expanded

if TYPE_CHECKING:
    from datasets import Dataset

LABEL = "label"
_SUFFIXES = (".tsv", ".txt", ".csv")


@dataclass(frozen=True)
class RowFormat:
    """The positions of the texts and labels of a task.

    Attributes:
        name: the task's name.
        family: its benchmark, for messages.
        hub: the data set on the hub whose configuration has the task's name, for messages.
        texts: our columns, each with its aliases in headers.
        label: aliases of the label's column in headers.
        classes: names in the order of their numbers in files; None where labels are numbers from 0 to ``best``.
        fields: the fields of files without a header.
        file_sets: names of the training file and of the file that scores are reported on, optionally with the
            validation file between them; the first complete set is used.
        broken: at most this number of lines may lack a text, and are left out.
        clean: applied to every text.
    """

    name: str
    _: KW_ONLY
    family: str
    texts: dict[str, tuple[str, ...]]
    classes: tuple[str, ...] | None
    label: tuple[str, ...] = ()
    best: float = 1.0
    fields: tuple[str, ...] = ()
    file_sets: tuple[tuple[str, ...], ...] = (("train", "dev"),)
    broken: int = 0
    clean: Callable[[str], str] = str.strip
    hub: str = ""

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """All our columns, each with the names that it may have, our own among them."""
        every = (*self.texts.items(), (LABEL, self.label))
        return {name: tuple(dict.fromkeys((name, *aliases))) for name, aliases in every}

    def open(self, name: str) -> FormatSource:
        """Open the rows of a name as in `open_row_format`, or of a data set that is generated. Errors as there."""
        from lagwise_papers.data.generated import RETRIEVAL, generated_source  # a circular import otherwise

        if name == RETRIEVAL:
            raise FileNotFoundError(
                f"{RETRIEVAL} is made of your own texts: write it with lagwise_papers.data.generated.generate, or "
                f"'lagwise data {RETRIEVAL}', and give the folder"
            )
        return open_row_format(str(generated_source(name) or name), self)

    def cleaned(self, cell: Any) -> Any:
        """Apply `clean` to a cell of a text column if it has a text."""
        return self.clean(cell) if isinstance(cell, str) else cell


@dataclass(frozen=True)
class FormatSource(RowSource):
    """Source of rows with the columns of a format and ``label``."""

    format: RowFormat = field(kw_only=True)

    @property
    def usual_decimal(self) -> str:  # type: ignore[override]
        return "."  # some files have no header to tell

    def _folder_column(self, path: Path) -> str | None:
        return None  # a .txt file is a table

    def key(self) -> str:
        return hashlib.sha256(f"{self.format.name}:{super().key()}".encode()).hexdigest()

    def read(self, columns: Sequence[str] | None = None) -> dict[str, Dataset]:
        """Read rows as `RowSource.read`. Labels are classes with names, or numbers; files without labels have no such
        column, which is an error in files with a known split."""
        read: dict[str, Any] = {}
        for split in self.split_names:
            if self.dataset is None:
                rows = _file_rows(self.files[split][0], self.format)
                if len(self.files) > 1 and LABEL not in rows.column_names:
                    path = self.files[split][0]
                    names = " or ".join(map(repr, self.format.columns[LABEL]))
                    raise ValueError(
                        f"{path} has no labels (column {names}); without them, as in GLUE's own test files, it cannot "
                        "be trained or scored on"
                    )
            else:
                rows = _hub_rows(self.dataset[split], self.format, f"{split} row {{}} of {self.name!r}")
            read[split] = rows.select_columns([c for c in rows.column_names if columns is None or c in columns])
        return read


def open_row_format(name: str, format: RowFormat) -> FormatSource:
    """Open the rows of a task by its format, in the splits train and test, and valid where it has one.

    name: a folder with the task's files (.tsv, .txt or .csv, each also compressed), or with a folder of the task's
    name; one file, all of it train; or ``hub:NAME:CONFIG``, whose validation set is test where the format has no test
    set.

    FileNotFoundError or ValueError name what is missing.
    """
    family, task = format.family, format.name
    if name.startswith("hub:"):
        loaded = load_hub(name)
        words = ("train", "validation") if len(format.file_sets[0]) == 2 else ("train", "validation", "test")
        matches = [next((split for split in loaded if split.startswith(word)), None) for word in words]
        if None in matches:
            raise ValueError(f"data set {name!r} needs splits {', '.join(words)} (it has {', '.join(loaded)})")
        splits = zip(("train", "test") if len(words) == 2 else SPLITS, matches, strict=True)
        return FormatSource(name, dataset={ours: loaded[split] for ours, split in splits}, format=format)
    path = expanded(name)
    if path.is_file():
        check_file(path)
        if inner_suffix(path) not in _SUFFIXES:
            endings = f"{', '.join(_SUFFIXES)} (each also {COMPRESSIONS})"
            raise ValueError(f"{name!r} is not a file of {family}: the name must end in {endings}")
        return FormatSource(name, {"train": [path]}, format=format)
    if not path.is_dir():
        other = f" ({f'{format.hub}:{task}'!r} would be the hub's)" if format.hub else ""
        raise FileNotFoundError(f"no file or folder {name!r}{other}")
    below = [f for f in sorted(path.iterdir()) if f.is_dir() and f.name.lower().translate(_NO_MARKS) == task]
    for folder in (path, *below):
        for stems in format.file_sets:
            files = [_find_file(folder, stem) for stem in stems]
            if all(files):
                splits = ("train", "test") if len(stems) == 2 else SPLITS
                files_by_split = {split: [file] for split, file in zip(splits, files, strict=True) if file}
                return FormatSource(name, files_by_split, format=format)
    needed = " or ".join(" and ".join(stems) for stems in format.file_sets)
    raise ValueError(
        f"no files of {family}'s {task} in {name!r}: {needed} (.tsv, .txt or .csv, each also compressed) are needed, "
        f"there or in a folder {task!r} in it"
    )


_NO_MARKS = str.maketrans("", "", "-_ ")


def _find_file(folder: Path, stem: str) -> Path | None:
    names = {stem + suffix for suffix in _SUFFIXES}
    candidates = [f for f in sorted(folder.glob(f"{stem}.*")) if (f.stem if is_compressed(f) else f.name) in names]
    if len(candidates) > 1:
        first, second = (file.name for file in candidates[:2])
        raise ValueError(f"{str(folder)!r} has both {first} and {second}; move one of them away")
    for file in candidates:
        check_file(file)
    return candidates[0] if candidates else None


def _file_rows(path: Path, format: RowFormat) -> Dataset:
    """Read the rows of a file. ValueError names the line that does not match the format."""
    task = format.name
    lines = _lines(decoded(read_whole(path), path).removeprefix("\ufeff"), path)
    number, first = next(lines, (1, []))
    header = [field.strip() for field in first]
    if _positions(header, format).keys() >= format.texts.keys():
        rows: Iterable[tuple[int, list[str]]] = lines
    elif format.fields and len(first) == len(format.fields):
        header, rows = list(format.fields), [(number, first), *lines]
    else:
        shown = ", ".join(f"{field!r:.40}" for field in header) or "nothing"  # without a header these are texts
        columns = (*format.texts.items(), (LABEL, format.label))
        needed = ", ".join(repr((*aliases, name)[0]) for name, aliases in columns)
        raise ValueError(f"{path}, line {number}: {task} needs the columns {needed}, got {shown}")
    positions = _positions(header, format)
    cells: dict[str, list[Any]] = {name: [] for name in positions}
    broken: list[int] = []
    for number, row in rows:
        present = {name: index for name, index in positions.items() if index < len(row)}
        texts = {name: format.clean(row[index]) for name, index in present.items() if name != LABEL}
        if len(row) != len(header) or not all(texts.values()):
            broken.append(number)
            if len(broken) <= format.broken:
                continue
            empty = next((name for name, text in texts.items() if not text), None)
            fault = f"{len(row)} fields, not {len(header)}" if len(row) != len(header) else f"{empty!r} is empty"
            raise ValueError(f"{path}, line {number}: {fault}; is the file damaged, or of another task than {task}?")
        for name, text in texts.items():
            cells[name].append(text)
        if LABEL in positions:
            cells[LABEL].append(_label(row[positions[LABEL]].strip(), format, f"{path}, line {number}"))
    if broken:
        warnings.warn(f"{path}: {len(broken)} line(s) without a text are left out, first {broken[0]}", stacklevel=2)
    return _dataset(cells, format)


def _lines(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the fields of each line that is not empty. Between tabs a quote is an ordinary character."""
    if inner_suffix(path) != ".csv":
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield number, line.removesuffix("\r").split("\t")
        return
    yield from ((number, row) for number, row in text_rows(text, path) if any(map(str.strip, row)))


def _hub_rows(rows: Dataset, format: RowFormat, where: str) -> Dataset:
    positions = _positions(rows.column_names, format)
    missing = [name for name in format.texts if name not in positions]
    if missing:
        raise ValueError(
            f"{where.partition(' of ')[2]} has no column {' or '.join(map(repr, format.columns[missing[0]]))} (it has "
            f"{', '.join(rows.column_names)})"
        )
    columns = {name: rows[rows.column_names[index]][:] for name, index in positions.items()}
    cells = {name: [format.cleaned(text) for text in texts] for name, texts in columns.items() if name != LABEL}
    if LABEL in positions:
        values = label_cells(rows, rows.column_names[positions[LABEL]])
        cells[LABEL] = [_label(value, format, where.format(i)) for i, value in enumerate(values, 1)]
    return _dataset(cells, format)


def _positions(header: Sequence[str], format: RowFormat) -> dict[str, int]:
    """Find the positions of our columns in a header, as far as it has them."""
    first = {name: next((i for i, c in enumerate(header) if c in names), -1) for name, names in format.columns.items()}
    return {name: index for name, index in first.items() if index >= 0}


def _label(cell: Any, format: RowFormat, where: str) -> Any:
    """Read the number of a class, or a score; -1 or None for the set's mark of a missing label. ValueError for anything
    else."""
    if format.classes is None:
        if cell in (None, -1, "-1"):
            return None
        try:
            score = float(cell)
        except ValueError:
            score = math.nan
        if not 0 <= score <= format.best:
            raise ValueError(f"{where}: the score {cell!r} is not a number from 0 to {format.best:g}")
        return score
    if cell in (None, -1, "-1"):
        return -1
    if cell in format.classes:
        return format.classes.index(cell)
    numbers = [str(i) for i in range(len(format.classes))]
    number = str(cell).removesuffix(".0")
    if number not in numbers:
        raise ValueError(
            f"{where}: the label {cell!r} is none of {', '.join(dict.fromkeys((*numbers, *format.classes)))}"
        )
    return int(number)


def _dataset(cells: dict[str, list[Any]], format: RowFormat) -> Dataset:
    from datasets import ClassLabel, Dataset, Features, Value

    label = Value("float32") if format.classes is None else ClassLabel(names=list(format.classes))
    return Dataset.from_dict(cells, Features({name: label if name == LABEL else Value("string") for name in cells}))
