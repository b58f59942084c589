"""Tables of rows with named columns, from files, folders or the hub, in the splits train, valid and test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lagwise.data.arrow as pa
from lagwise.data.arrays import FOLDER_LABEL, SERIES
from lagwise.data.folders import (
    by_split,
    check_classes,
    check_file,
    class_folders,
    files_below,
    folder_name,
    meant_splits,
    name_in,
    nested_note,
    split_word,
    unread_note,
)
from lagwise.data.numbers import usual_decimal
from lagwise.data.prepared import arrow_file
from lagwise.data.reading import COMPRESSIONS, check_spreadsheet, inner_suffix, without_pipe
from lagwise.data.row_files import (
    ONE_ROW,
    READERS,
    TEXT_TABLES,
    check_reader,
    file_kind,
    has_records,
    read_columns,
    read_table,
)
from lagwise.data.sound_files import SOUNDS
from lagwise.data.sources import Found, hub_splits, is_dataset, no_source, source_name
from lagwise.data.text_tables import read_head
from lagwise.files import expanded
from lagwise.tables import counted

if TYPE_CHECKING:
    from datasets import Dataset

    from lagwise.data.sources import Data

RATE = "sampling_rate"  # the column of that of sounds, in Hz
_FILES_PER_BATCH = 500  # files of a row each that are copied at a time
_LABEL_TABLES = ("metadata.csv", "metadata.tsv", "metadata.jsonl", "metadata.parquet", "labels.csv", "labels.tsv")
_FILE_COLUMNS = ("file_name", "filename", "file", "image", "path")  # of which a table of labels has the first


@dataclass(frozen=True)
class RowSource(Found):
    """The source of rows, and what identifies them.

    Attributes:
        classes: classes by their folders, of files that are a row each.
        rate: the sampling rate that sounds must have, in Hz.
        any_rate: whether sounds may have other rates, each its own; their rows have them in ``sampling_rate``.
    """

    classes: Mapping[Path, str | None] = field(default_factory=dict)
    rate: int | None = None
    any_rate: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that all splits and files have; for a .jsonl file, the fields of its first record."""
        if self.dataset is not None:
            tables = [tuple(self.dataset[split].column_names) for split in self.split_names]
        else:
            tables = list(map(self._columns_of, self.paths))
        return tuple(name for name in tables[0] if all(name in table for table in tables))

    @property
    def has_headers(self) -> bool:
        """Whether the columns are named by the first lines of files."""
        return any(file_kind(path) in TEXT_TABLES for path in self.paths)

    @property
    def has_sounds(self) -> bool:
        """Whether any file is a sound."""
        return any(file_kind(path) in SOUNDS for path in self.paths)

    def options(self) -> dict[str, Any]:
        """The fields of this source, to make another one of the same files."""
        return {each.name: getattr(self, each.name) for each in fields(RowSource)}

    def key(self) -> str:
        return self.hashed(self._declared(), self.files)

    def _declared(self) -> list[Any]:
        """The declarations that decide how files are read, beside their content."""
        classes = [self._class(path) for path in self.paths if self._folder_column(path) is not None]
        return ["rows", self.split_names, classes]

    @cached_property
    def usual_decimal(self) -> str | None:
        """The decimal separator that is usual in .csv and .tsv files like the first one; a point in other files."""
        first = next((path for path in self.paths if file_kind(path) in TEXT_TABLES), None)
        return "." if first is None else usual_decimal(read_head(first).separator)

    def has_classes_of_folders(self, label: str) -> bool:
        """Whether every label in this column is the name of a folder."""
        return bool(self.paths) and all(self._folder_column(path) == label for path in self.paths)

    def _class(self, path: Path) -> str | None:
        """The class of a file that is a row: that of its folder, or if no file is in a class folder, its folder's
        name; of a file of records, its own name."""
        if has_records(path):
            return self.classes.get(path) or path.name[: path.name.lower().rindex(inner_suffix(path))]
        return self.classes[path] if any(self.classes.values()) else folder_name(path)

    def _folder_column(self, path: Path) -> str | None:
        """The column that has the name of the file's folder, or its own, its class."""
        return FOLDER_LABEL if file_kind(path) in ONE_ROW or has_records(path) else None

    def read(self, columns: Sequence[str] | None = None, work: Path | None = None) -> dict[str, Dataset]:
        """The rows of every named split, of all columns or those that are named here and occur.

        Values of .csv and .tsv are strings as written in the file. ValueError for a file that does not match its
        suffix, or files of one split that do not fit together.

        work: a folder for a copy of the rows, which are then read as they are needed; without one they are in memory.
        """
        if self.dataset is not None:
            rows = {split: self._of_dataset(split) for split in self.split_names}
        else:
            like: dict[str, Any] = {}  # the first sound, and what others must have like it
            rows = {split: self._joined(split, columns, work, like) for split in self.split_names}
        if columns is None:
            return rows
        return {
            split: each.select_columns([c for c in each.column_names if c in columns]) for split, each in rows.items()
        }

    def _of_dataset(self, split: str) -> Any:
        return self.dataset[split]

    def _joined(self, split: str, columns: Sequence[str] | None, work: Path | None, like: dict[str, Any]) -> Any:
        """The rows of all files of a split."""
        from datasets import Dataset

        tables = self.tables(split, columns, like)
        try:
            if work is None:
                return Dataset(pa.concat_tables(tables, promote_options="permissive"))
            path = work / f"{split}.arrow"
            first = next(tables)
            with arrow_file(path, first.schema) as writer:
                batch = [first]
                for table in tables:
                    if len(batch) == _FILES_PER_BATCH:
                        writer.write_table(pa.concat_tables(batch).combine_chunks())
                        batch = []
                    batch.append(table.select(first.column_names).cast(first.schema))
                writer.write_table(pa.concat_tables(batch).combine_chunks())
            return Dataset.from_file(str(path))
        except pa.ArrowException as error:
            raise ValueError(f"files of {self.name!r} have columns of different types: {error}") from error

    def tables(self, split: str, columns: Sequence[str] | None, like: dict[str, Any]) -> Iterator[Any]:
        """The rows of each file of a split. like: what sounds must have in common, empty before the first."""
        first: list[str] | None = None
        for path in self.files[split]:
            if file_kind(path) in SOUNDS:
                table = self._table(path)
                self._check_sound(path, table, like)
            else:
                table = self._table(path, columns)
            names = [name for name in table.column_names if columns is None or name in columns]
            first = names if first is None else first
            if table.num_rows and {*names} != {*first}:
                raise ValueError(
                    f"files of {self.name!r} have different columns: {self.files[split][0].name} has "
                    f"{', '.join(first)}; {path.name} has {', '.join(names)}"
                )
            yield table.select(names)

    def _check_sound(self, path: Path, table: Any, like: dict[str, Any]) -> None:
        """ValueError if a sound has another number of channels than the first one, or, unless any rate may be, another
        sampling rate, in Hz."""
        rate, channels = table.column(RATE)[0].as_py(), table.schema.field(SERIES).type.value_type.list_size
        trained = None if self.rate is None else (self.rate, "the model was trained at")
        wanted, by = like.setdefault("rate", trained or (rate, f"{path} has"))
        if rate != wanted and not self.any_rate:
            raise ValueError(
                f"{path} has a sampling rate of {rate} Hz, {by} {wanted} Hz; resample the sounds to one rate"
            )
        as_many, first = like.setdefault("channels", (channels, path))
        if channels != as_many:
            raise ValueError(
                f"{path} has {counted(channels, 'channel')}, {first} has {as_many}; give all sounds as many, for "
                f"example with 'ffmpeg -i {path.name} -ac 1 mono-{path.name}'"
            )

    def named(self, path: Path) -> str:
        """The name of a file in the source."""
        return name_in(expanded(self.name), path)

    def _columns_of(self, path: Path) -> tuple[str, ...]:
        return read_columns(path)

    def _table(self, path: Path, columns: Sequence[str] | None = None) -> Any:
        table = read_table(path, columns)
        if file_kind(path) in ONE_ROW and "file" in table.column_names:
            table = table.set_column(table.column_names.index("file"), "file", pa.array([self.named(path)]))
        if self._folder_column(path) is None or FOLDER_LABEL not in table.column_names:
            return table
        own = pa.array([self._class(path)] * table.num_rows, pa.string())
        return table.set_column(table.column_names.index(FOLDER_LABEL), FOLDER_LABEL, own)


def rows_to_evaluate(tables: Mapping[str, Dataset], name: str) -> Dataset:
    """Return the test split of a table, or its first split if it has none. ValueError if it has no rows."""
    rows = tables["test"] if "test" in tables else next(iter(tables.values()))
    if not len(rows):
        raise ValueError(f"{name!r} has no rows to evaluate on")
    return rows


def open_rows(name: Data) -> RowSource:
    """Find a table of rows by name.

    A file (.csv, .tsv, .jsonl, .json, .parquet, .npz, .ts, .arff or a sound, each also compressed). A folder of such
    files: in splits by the words in their names (`split_word`), else all of them as one table. A data set: ``hub:NAME``
    or ``hub:NAME:CONFIG``, a folder of `save_to_disk`, a `datasets.Dataset` or `DatasetDict`, or a table of pandas,
    polars or pyarrow. Of .csv and .tsv see `read_text_table`. Every array of an .npz file is a column, its first axis
    the rows. A sound (.wav, .flac, .mp3, .ogg) is a row, whose label is the name of a folder: sounds are in a folder
    for each class, and these may be in a folder for each split (`class_folders`). A table ``metadata.csv`` or
    ``labels.csv`` beside the sounds, with columns ``file_name`` and ``label``, has their labels instead. So are .txt
    files, in the column ``text``, in a folder without other rows; texts beside the class folders and in IMDb's folder
    of reviews without a label, unsup, are left out. The label of each record of a file in `RECORD_FILES` is the name of
    its class folder, or else of its file. Files of other kinds are counted in the notes.

    FileNotFoundError or ValueError name what is missing. Only names and sizes of files are read yet.

    >>> import pandas as pd
    >>> open_rows(pd.DataFrame({"text": ["good", "bad"], "label": [1, 0]})).columns
    ('text', 'label')
    """
    if not isinstance(name, str) or is_dataset(name):
        return RowSource(source_name(name), dataset=hub_splits(name))
    path = without_pipe(expanded(name), ".csv")
    suffixes = f"{', '.join(READERS)} (each also {COMPRESSIONS})"
    if path.is_file():
        check_spreadsheet(path)
        check_reader(path)
        if file_kind(path) is None:
            from lagwise.data.images import SUFFIXES  # the module imports torch

            if path.suffix.lower() in SUFFIXES:
                raise ValueError(f"{name!r} is an image; name its folder (images are for recipes such as tnn-digits)")
            raise ValueError(f"{name!r} is not a table of rows: the name must end in one of {suffixes}")
        if file_kind(path) == ".txt":
            raise ValueError(
                f"{name!r} is one text, not a table of rows such as .csv or .jsonl; texts can be in a folder for each "
                "class: name the folder above them"
            )
        check_file(path)
        return RowSource(name, {"train": [path]})
    if not path.is_dir():
        raise no_source(name)
    found = files_below(path)
    kinds = {file: kind for file in found if (kind := file_kind(file))}
    texts = [file for file, kind in kinds.items() if kind == ".txt"]
    records = [file for file, kind in kinds.items() if kind == ".json"]  # beside other files it describes them
    others = [file for file, kind in kinds.items() if kind not in (".txt", ".json")]
    sounds = [file for file, kind in kinds.items() if kind in SOUNDS]
    if sounds and (listed := listed_files(path, found, sounds)):
        return RowSource(name, **listed)
    files = others or _texts(path, texts) or records
    if not files:
        for file in found:
            check_reader(file)
        raise ValueError("; ".join((f"no {suffixes} file in folder {name!r}", *unread_note(path, found, ()))))
    one_row = [file for file in files if kinds[file] in ONE_ROW]
    return RowSource(name, **classed_files(path, found, files, one_row, "sounds" if others else "texts"))


def classed_files(
    root: Path, found: Sequence[Path], files: Sequence[Path], one_row: Sequence[Path], what: str
) -> dict[str, Any]:
    """The splits, classes and notes of the ``files`` of a folder, of which some are a row each, in class folders."""
    places = class_folders(root, one_row)
    check_classes(root, places, what)
    files = _labelled(files)
    for file in files:
        check_file(file)
    splits = {file: places[file].split if file in places else split_word(file.relative_to(root)) for file in files}
    tables = class_folders(root, [file for file in files if file not in places])
    splits, titles = meant_splits(root, splits)
    return {
        "files": by_split(root, splits),
        "classes": {file: place.label for file, place in {**places, **tables}.items() if file in splits},
        "file_notes": (*nested_note(places), *unread_note(root, found, files), *titles),
    }


def listed_files(
    root: Path, found: Sequence[Path], files: Sequence[Path], label: str = "label"
) -> dict[str, Any] | None:
    """As `classed_files`, of sounds or images whose labels are in tables beside them, as in the folders of `datasets`;
    None without such a table. label: the column of the labels; without it, the only column beside the names."""
    tables = [p for p in found if p.name.lower() in _LABEL_TABLES and {*read_columns(p)} & {*_FILE_COLUMNS}]
    if not tables:
        return None
    labels = _listed_labels(tables, {*files}, label)
    for file in labels:
        check_file(file)
    splits, titles = meant_splits(root, {file: split_word(file.relative_to(root)) for file in labels})
    notes = (*unread_note(root, found, [*labels, *tables]), *titles)
    return {"files": by_split(root, splits), "classes": labels, "file_notes": notes}


def _listed_labels(tables: Iterable[Path], files: set[Path], label: str) -> dict[Path, str | None]:
    """The label of each file that the tables list, by the names in them, which are relative to a table's folder.
    ValueError for a table with several other columns, a name that is none of ``files``, and one that is listed
    twice."""
    labels: dict[Path, str | None] = {}
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
            if path not in files:
                raise ValueError(f"{table}, row {number}: there is no file {str(path)!r}; add it or remove the row")
            if path in labels:
                raise ValueError(f"{table}, row {number}: {name!r} is listed twice; keep one of the rows")
            labels[path] = None if value is None or value == "" else str(value)
    return labels


def _texts(root: Path, texts: list[Path]) -> list[Path]:
    """Leave out the texts beside the class folders: in the root, or in the folder of a split that has class folders."""
    inside = [text for text in texts if text.parent != root]
    above = {text.parent.parent for text in inside}
    beside = {folder for folder in above if split_word(folder.relative_to(root))}
    return [text for text in inside if text.parent not in beside] or texts


def _labelled(files: Sequence[Path]) -> list[Path]:
    """Leave out IMDb's reviews without a label, the files in the folder unsup beside the folders pos and neg."""
    folders = {file.parent for file in files}
    unlabelled = {
        folder
        for folder in folders
        if folder.name == "unsup" and {folder.with_name(n) for n in ("pos", "neg")} <= folders
    }
    return [file for file in files if file.parent not in unlabelled]
