"""Tables of rows with named columns, from files, folders or the hub, in the splits train, valid and test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import lagwise.data.arrow as pa
import lagwise.data.hf as hf
from lagwise.data.arrays import FOLDER_LABEL, SERIES
from lagwise.data.find import (
    Data,
    DataSource,
    Named,
    classed_files,
    find,
    listed_files,
    require_files,
    split_word,
)
from lagwise.data.reading import (
    COMPRESSIONS,
    ONE_ROW,
    READERS,
    TEXT_TABLES,
    file_kind,
    folder_name,
    has_records,
    inner_suffix,
    read_columns,
    read_head,
    read_table,
)
from lagwise.data.series_files import SOUNDS
from lagwise.data.splits import arrow_file
from lagwise.data.text_tables import usual_decimal
from lagwise.files import expanded
from lagwise.outside import Registry
from lagwise.tables import counted

#: The values of ``data.format``. Each opens the files of a name as a `RowSource` (``open``), and has the columns of its
#: texts (``texts``) and what a text is in its files (``cleaned``).
FORMATS = Registry("format", None, "lagwise.formats", {})
RATE = "sampling_rate"  # the column of that of sounds, in Hz
_FILES_PER_BATCH = 500  # files of a row each that are copied at a time


@dataclass(frozen=True)
class RowSource(DataSource):
    """The source of rows, and what identifies them."""

    classes: Mapping[Path, str | None] = field(default_factory=dict)  # by their folders, of files that are a row each
    rate: int | None = None  # the sampling rate that sounds must have, in Hz
    any_rate: bool = False  # whether sounds may have other rates, which their rows have in ``sampling_rate``

    def of_kind(self, kinds: Sequence[str]) -> list[Path]:
        """The files with one of some suffixes."""
        return [path for path in self.paths if file_kind(path) in kinds]

    @property
    def header(self) -> tuple[str, ...]:
        """The columns that the first line of the first .csv or .tsv file names; empty without such a file."""
        tables = self.of_kind(TEXT_TABLES)
        return read_columns(tables[0]) if tables else ()

    def key(self) -> str:
        return self.hashed(self._declared())

    def _declared(self) -> list[Any]:
        """The declarations that decide how files are read, beside their content."""
        classes = [self._class(path) for path in self.paths if self._folder_column(path) is not None]
        return ["rows", self.split_names, classes]

    @cached_property
    def usual_decimal(self) -> str | None:
        """The decimal separator that is usual in .csv and .tsv files like the first one; a point in other files."""
        tables = self.of_kind(TEXT_TABLES)
        return usual_decimal(read_head(tables[0]).separator) if tables else "."

    @property
    def folder_label(self) -> str | None:
        """The column whose labels are all the names of folders, or of files."""
        columns = {self._folder_column(path) for path in self.paths}
        return columns.pop() if len(columns) == 1 else None

    def _class(self, path: Path) -> str | None:
        """The class of a file that is a row: that of its folder, or if no file is in a class folder, its folder's
        name; of a file of records, its own name."""
        if has_records(path):
            return self.classes.get(path) or path.name[: path.name.lower().rindex(inner_suffix(path))]
        return self.classes[path] if any(self.classes.values()) else folder_name(path)

    def _folder_column(self, path: Path) -> str | None:
        """The column that has the name of the file's folder, or its own, its class."""
        return FOLDER_LABEL if file_kind(path) in ONE_ROW or has_records(path) else None

    def read(self, columns: Sequence[str] | None = None, work: Path | None = None) -> dict[str, hf.Dataset]:
        """The rows of every named split, of all columns or those that are named here and occur.

        Values of .csv and .tsv are strings as written in the file. ValueError for a file that does not match its
        suffix, or files of one split that do not fit together.

        work: a folder for a copy of the rows, which are then read as they are needed; without one they are in memory.
        """
        if self.dataset is not None:
            rows = {split: self._of_dataset(split) for split in self.split_names}
        else:
            like: dict[str, Any] = {}  # the first sound, and what others must have like it
            rows = {split: self._joined(split, self.tables(split, columns, like), work) for split in self.split_names}
        if columns is None:
            return rows
        return {
            split: each.select_columns([c for c in each.column_names if c in columns]) for split, each in rows.items()
        }

    def _of_dataset(self, split: str) -> Any:
        return self.dataset[split]

    def _joined(self, split: str, tables: Iterator[Any], work: Path | None) -> Any:
        """The rows of all files of a split."""
        try:
            if work is None:
                return hf.Dataset(pa.concat_tables(tables, promote_options="permissive"))
            path = work / f"{split}.arrow"
            batch = [next(tables)]
            names, schema = batch[0].column_names, batch[0].schema
            with arrow_file(path, schema) as writer:
                for table in tables:
                    if len(batch) == _FILES_PER_BATCH:
                        writer.write_table(pa.concat_tables(batch).combine_chunks())
                        batch = []
                    batch.append(table.select(names).cast(schema))
                writer.write_table(pa.concat_tables(batch).combine_chunks())
            return hf.Dataset.from_file(str(path))
        except pa.ArrowException as error:
            raise ValueError(f"files of {self.name!r} have columns of different types: {error}") from error

    def tables(self, split: str, columns: Sequence[str] | None, like: dict[str, Any]) -> Iterator[Any]:
        """The rows of each file of a split. like: what sounds must have in common, empty before the first."""
        first: list[str] | None = None
        for path in self.files[split]:
            sound = file_kind(path) in SOUNDS
            table = self._table(path, None if sound else columns)
            if sound:
                self._check_sound(path, table, like)
            names = [name for name in table.column_names if columns is None or name in columns]
            first = names if first is None else first
            if table.num_rows and {*names} != {*first}:
                raise ValueError(
                    f"files of {self.name!r} have different columns: {self.files[split][0].name} has "
                    f"{', '.join(first)}; {path.name} has {', '.join(names)}"
                )
            yield table.select(names)

    def _check_sound(self, path: Path, table: Any, like: dict[str, Any]) -> None:
        """Raise ValueError if a sound has another number of channels than the first one, or, unless any rate may be,
        another sampling rate, in Hz."""
        rate, channels = table.column(RATE)[0].as_py(), table.schema.field(SERIES).type.value_type.list_size
        trained = None if self.rate is None else (self.rate, "the model was trained at")
        expected, by = like.setdefault("rate", trained or (rate, f"{path} has"))
        if rate != expected and not self.any_rate:
            raise ValueError(
                f"{path} has a sampling rate of {rate} Hz, {by} {expected} Hz; resample the sounds to one rate"
            )
        as_many, first = like.setdefault("channels", (channels, path))
        if channels != as_many:
            raise ValueError(
                f"{path} has {counted(channels, 'channel')}, {first} has {as_many}; give all sounds as many, for "
                f"example with 'ffmpeg -i {path.name} -ac 1 mono-{path.name}'"
            )

    def named(self, path: Path) -> str:
        """The name of a file in the source, with those of the folders between them."""
        root = expanded(self.name)
        return path.relative_to(root if root.is_dir() else root.parent).as_posix()

    def _table(self, path: Path, columns: Sequence[str] | None = None) -> Any:
        table = read_table(path, columns)
        own = {"file": [self.named(path)]} if file_kind(path) in ONE_ROW else {}
        if self._folder_column(path) is not None:
            own[FOLDER_LABEL] = [self._class(path)] * table.num_rows
        for name in {*own} & {*table.column_names}:
            table = table.set_column(table.column_names.index(name), name, pa.array(own[name], pa.string()))
        return table


def check_train(tables: Mapping[str, hf.Dataset], where: str, noun: str) -> None:
    """Raise ValueError for data ``where`` without train, or with a split that has no rows, which ``noun`` names."""
    if "train" not in tables:
        raise ValueError(f"{where} has no {noun} to train on, only {' and '.join(tables)} by the names in it")
    for split, rows in tables.items():
        if not len(rows):
            raise ValueError(f"{f'{split} of ' if len(tables) > 1 else ''}{where} has no {noun}")


def rows_to_evaluate(tables: Mapping[str, hf.Dataset], name: str) -> hf.Dataset:
    """Return the test split of a table, or its first split if it has none. ValueError if it has no rows."""
    rows = tables["test"] if "test" in tables else next(iter(tables.values()))
    if not len(rows):
        raise ValueError(f"{name!r} has no rows to evaluate on")
    return rows


def open_rows(name: Data) -> RowSource:
    """Find a table of rows by name.

    A file (.csv, .tsv, .jsonl, .json, .parquet, .npz, .ts or a sound, each also compressed). A folder of such
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
    >>> open_rows(pd.DataFrame({"text": ["good", "bad"], "label": [1, 0]})).read()["train"].column_names
    ['text', 'label']
    """
    return rows_of(find(name, ".csv"))


def rows_of(named: Named) -> RowSource:
    """The table of rows that a name stands for, as `open_rows`."""
    name, path, dataset, below = named
    suffixes = f"{', '.join(READERS)} (each also {COMPRESSIONS})"
    if dataset is not None:
        return RowSource(name, dataset=dataset)
    if path.is_file():
        kind = file_kind(path)
        if kind is None:
            from lagwise.data.images import SUFFIXES  # the module imports torch

            if path.suffix.lower() in SUFFIXES:
                raise ValueError(f"{name!r} is an image; name its folder (images are for recipes such as tnn-digits)")
            raise ValueError(f"{name!r} is not a table of rows: the name must end in one of {suffixes}")
        if kind == ".txt":
            raise ValueError(
                f"{name!r} is one text, not a table of rows such as .csv or .jsonl; texts can be in a folder for each "
                "class: name the folder above them"
            )
        return RowSource(name, {"train": [path]})
    kinds = {file: kind for file in below if (kind := file_kind(file))}
    sounds = [file for file, kind in kinds.items() if kind in SOUNDS]
    if sounds and (listed := listed_files(named, sounds)):
        return RowSource(name, **listed)
    others = [file for file, kind in kinds.items() if kind not in (".txt", ".json")]
    # beside other files those of .json describe them
    files = require_files(named, others or _texts(path, kinds) or [*kinds], f"{suffixes} file")
    one_row = [file for file in files if kinds[file] in ONE_ROW]
    return RowSource(name, **classed_files(named, files, one_row, "sounds" if others else "texts"))


def _texts(root: Path, kinds: Mapping[Path, str]) -> list[Path]:
    """The texts of a folder without those beside the class folders: in the root, or in the folder of a split that has
    class folders."""
    texts = [file for file, kind in kinds.items() if kind == ".txt"]
    inside = [text for text in texts if text.parent != root]
    above = {text.parent.parent for text in inside}
    beside = {folder for folder in above if split_word(folder.relative_to(root))}
    return [text for text in inside if text.parent not in beside] or texts
