"""Published data sets with file layouts of their own: the meaning of each field, and the file of each split."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagwise.data.folders import check_file
from lagwise.data.labelled_rows import label_cells
from lagwise.data.reading import decoded, inner_suffix, read_whole
from lagwise.data.rows import RowSource
from lagwise.data.sources import load_hub
from lagwise.data.splits import SPLITS
from lagwise.files import expanded

if TYPE_CHECKING:
    from datasets import Dataset

LABEL = "label"
_SUFFIXES = (".tsv", ".txt", ".csv")


@dataclass(frozen=True)
class Layout:
    """The positions of the texts and labels of a task.

    name: of the task. family: its benchmark, for messages. texts: our columns, each with its names in headers. label:
    the same for the labels. classes: their names, in the order of their numbers in files; None where labels are numbers
    from 0 to ``best``. fields: the fields of files without a header. parts: names of the training file and of the file
    that scores are reported on, optionally with the validation file between them; the first complete set is used.
    broken: at most this number of lines may lack a text, and are left out. clean: applied to every text.
    """

    name: str
    _: KW_ONLY
    family: str
    texts: dict[str, tuple[str, ...]]
    classes: tuple[str, ...] | None
    label: tuple[str, ...] = ()
    best: float = 1.0
    fields: tuple[str, ...] = ()
    parts: tuple[tuple[str, ...], ...] = (("train", "dev"),)
    broken: int = 0
    clean: Callable[[str], str] = str.strip

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """All our columns, each with the names that it may have, our own among them."""
        every = (*self.texts.items(), (LABEL, self.label))
        return {name: tuple(dict.fromkeys((name, *others))) for name, others in every}

    def cleaned(self, cell: Any) -> Any:
        """A cell of a text column, with `clean` applied if it has a text."""
        return self.clean(cell) if isinstance(cell, str) else cell


@dataclass(frozen=True)
class LayoutSource(RowSource):
    """Rows with the columns of a layout and ``label``."""

    layout: Layout = field(kw_only=True)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.layout.columns)

    def _folder_column(self, path: Path) -> str | None:
        return None  # a .txt file is a table

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.layout.name}:{super().fingerprint()}".encode()).hexdigest()

    def read(self, columns: Sequence[str] | None = None) -> dict[str, Dataset]:
        """As `RowSource.read`. Labels are classes with names, or numbers; files without labels have no such column,
        which is an error in files with a known split."""
        read: dict[str, Any] = {}
        for split in self.split_names:
            if self.dataset is None:
                rows = _file_rows(self.files[split][0], self.layout)
                if len(self.files) > 1 and LABEL not in rows.column_names:
                    path = self.files[split][0]
                    names = " or ".join(map(repr, self.layout.columns[LABEL]))
                    raise ValueError(
                        f"{path} has no labels (column {names}); without them, as in GLUE's own test files, it cannot "
                        "be trained or scored on"
                    )
            else:
                rows = _hub_rows(self.dataset[split], self.layout, f"{split} row {{}} of {self.name!r}")
            read[split] = rows.select_columns([c for c in rows.column_names if columns is None or c in columns])
        return read


def open_layout(name: str, layout: Layout, hub: str | None = None) -> LayoutSource:
    """The rows of a task by its layout, in the splits train and test, and valid where it has one.

    name: a folder with the task's files (.tsv, .txt or .csv, each also .xz), or with a folder of the task's name; one
    file, all of it train; or ``hub:NAME:CONFIG``, whose validation set is test where the layout has no test set. hub:
    such a name, for messages.

    FileNotFoundError or ValueError name what is missing.
    """
    family, task = layout.family, layout.name
    if name.startswith("hub:"):
        loaded = load_hub(name)
        words = ("train", "validation") if len(layout.parts[0]) == 2 else ("train", "validation", "test")
        found = [next((split for split in loaded if split.startswith(word)), None) for word in words]
        if None in found:
            raise ValueError(f"data set {name!r} needs splits {', '.join(words)} (it has {', '.join(loaded)})")
        splits = zip(("train", "test") if len(words) == 2 else SPLITS, found, strict=True)
        return LayoutSource(name, dataset={ours: loaded[split] for ours, split in splits}, layout=layout)
    path = expanded(name)
    if path.is_file():
        if inner_suffix(path) not in _SUFFIXES:
            raise ValueError(f"{name!r} is not a file of {family}: the name must end in {', '.join(_SUFFIXES)} or .xz")
        check_file(path)
        return LayoutSource(name, {"train": [path]}, layout=layout)
    if not path.is_dir():
        other = f" ({hub!r} would be the hub's)" if hub else ""
        raise FileNotFoundError(f"no file or folder {name!r}{other}")
    below = [f for f in sorted(path.iterdir()) if f.is_dir() and f.name.lower().translate(_NO_MARKS) == task]
    for folder in (path, *below):
        for stems in layout.parts:
            files = [_file_named(folder, stem) for stem in stems]
            if all(files):
                splits = ("train", "test") if len(stems) == 2 else SPLITS
                named = {split: [file] for split, file in zip(splits, files, strict=True) if file}
                return LayoutSource(name, named, layout=layout)
    parts = " or ".join(" and ".join(stems) for stems in layout.parts)
    raise ValueError(
        f"no files of {family}'s {task} in {name!r}: {parts} (.tsv, .txt or .csv, each also .xz) are needed, there or "
        f"in a folder {task!r} in it"
    )


_NO_MARKS = str.maketrans("", "", "-_ ")


def _file_named(folder: Path, stem: str) -> Path | None:
    found = [f for f in sorted(folder.glob(f"{stem}.*")) if f.name.removesuffix(".xz") in _named(stem)]
    if len(found) > 1:
        raise ValueError(f"{str(folder)!r} has both {found[0].name} and {found[1].name}; move one of them away")
    for file in found:
        check_file(file)
    return found[0] if found else None


def _named(stem: str) -> set[str]:
    return {stem + suffix for suffix in _SUFFIXES}


def _file_rows(path: Path, layout: Layout) -> Dataset:
    """The rows of a file. ValueError names the line that does not match the layout."""
    task = layout.name
    lines = _lines(decoded(read_whole(path), path).removeprefix("\ufeff"), path)
    number, first = next(lines, (1, []))
    header = [field.strip() for field in first]
    if _places(header, layout).keys() >= layout.texts.keys():
        rows: Iterable[tuple[int, list[str]]] = lines
    elif layout.fields and len(first) == len(layout.fields):
        header, rows = list(layout.fields), [(number, first), *lines]
    else:
        shown = ", ".join(f"{field!r:.40}" for field in header) or "nothing"  # without a header these are texts
        needed = ", ".join(repr((*others, name)[0]) for name, others in (*layout.texts.items(), (LABEL, layout.label)))
        raise ValueError(f"{path}, line {number}: {task} needs the columns {needed}, got {shown}")
    places = _places(header, layout)
    cells: dict[str, list[Any]] = {name: [] for name in places}
    broken: list[int] = []
    for number, row in rows:
        texts = {name: layout.clean(row[place]) for name, place in places.items() if place < len(row) and name != LABEL}
        if len(row) != len(header) or not all(texts.values()):
            broken.append(number)
            if len(broken) <= layout.broken:
                continue
            empty = next((name for name, text in texts.items() if not text), None)
            fault = f"{len(row)} fields, not {len(header)}" if len(row) != len(header) else f"{empty!r} is empty"
            raise ValueError(f"{path}, line {number}: {fault}; is the file damaged, or of another task than {task}?")
        for name, text in texts.items():
            cells[name].append(text)
        if LABEL in places:
            cells[LABEL].append(_label(row[places[LABEL]].strip(), layout, f"{path}, line {number}"))
    if broken:
        warnings.warn(f"{path}: {len(broken)} line(s) without a text are left out, first {broken[0]}", stacklevel=2)
    return _dataset(cells, layout)


def _lines(text: str, path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not empty, as their numbers and fields. Between tabs a quote is an ordinary character."""
    if inner_suffix(path) != ".csv":
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield number, line.removesuffix("\r").split("\t")
        return
    number, reader = 1, csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if any(field.strip() for field in row):
                yield number, row
            number = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {number}: {error}; check the quotes") from error


def _hub_rows(rows: Dataset, layout: Layout, where: str) -> Dataset:
    places = _places(rows.column_names, layout)
    missing = [name for name in layout.texts if name not in places]
    if missing:
        raise ValueError(
            f"{where.partition(' of ')[2]} has no column {' or '.join(map(repr, layout.columns[missing[0]]))} (it has "
            f"{', '.join(rows.column_names)})"
        )
    columns = {name: rows[rows.column_names[place]][:] for name, place in places.items()}
    cells = {name: [layout.cleaned(text) for text in texts] for name, texts in columns.items() if name != LABEL}
    if LABEL in places:
        values = label_cells(rows, rows.column_names[places[LABEL]])
        cells[LABEL] = [_label(value, layout, where.format(i)) for i, value in enumerate(values, 1)]
    return _dataset(cells, layout)


def _places(header: Sequence[str], layout: Layout) -> dict[str, int]:
    """The positions of our columns in a header, as far as it has them."""
    found = {name: [i for i, column in enumerate(header) if column in names] for name, names in layout.columns.items()}
    return {name: places[0] for name, places in found.items() if places}


def _label(cell: Any, layout: Layout, where: str) -> Any:
    """The number of a class, or a score; -1 or None for the set's mark of a missing label. ValueError for anything
    else."""
    if layout.classes is None:
        if cell in (None, -1, "-1"):
            return None
        try:
            score = float(cell)
        except ValueError:
            score = math.nan
        if not 0 <= score <= layout.best:
            raise ValueError(f"{where}: the score {cell!r} is not a number from 0 to {layout.best:g}")
        return score
    if cell in (None, -1, "-1"):
        return -1
    if cell in layout.classes:
        return layout.classes.index(cell)
    numbers = [str(i) for i in range(len(layout.classes))]
    number = str(cell).removesuffix(".0")
    if number not in numbers:
        raise ValueError(
            f"{where}: the label {cell!r} is none of {', '.join(dict.fromkeys((*numbers, *layout.classes)))}"
        )
    return int(number)


def _dataset(cells: dict[str, list[Any]], layout: Layout) -> Dataset:
    from datasets import ClassLabel, Dataset, Features, Value

    label = Value("float32") if layout.classes is None else ClassLabel(names=list(layout.classes))
    return Dataset.from_dict(cells, Features({name: label if name == LABEL else Value("string") for name in cells}))
