"""Tables of rows with named columns, from files, folders or the hub, in the splits train, valid and test."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lagwise.data.arrow as pa
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
from lagwise.data.reading import COMPRESSIONS, check_spreadsheet
from lagwise.data.row_files import ONE_ROW, READERS, SEQUENCES, TEXT_TABLES, file_kind, read_columns, read_table
from lagwise.data.series_files import FOLDER_LABEL, check_sounds
from lagwise.data.sound_files import SOUNDS
from lagwise.data.sources import hash_files, hub_splits, no_source
from lagwise.data.splits import SPLITS
from lagwise.data.text_tables import read_head
from lagwise.files import expanded

if TYPE_CHECKING:
    from datasets import Dataset

_HEAD = 1000  # rows of a table that show how its numbers are written


@dataclass(frozen=True)
class RowSource:
    """The source of rows, and what identifies them.

    Attributes:
        files: the files of each split that is named; rows without named splits are all in train.
        dataset: the splits of a hub data set instead of files.
        classes: classes by their folders, of files that are a row each.
        file_notes: what else a reader should know about the files.
        rate: the sampling rate that sounds must have, in Hz.
        any_rate: whether sounds may have other rates, each its own; their rows have them in ``sampling_rate``.
        written: columns of .csv and .tsv files whose cells stay as they are written: names, such as 1,2, not numbers.
    """

    name: str
    files: dict[str, list[Path]] = field(default_factory=dict)
    dataset: Any = None
    classes: dict[Path, str | None] = field(default_factory=dict)
    file_notes: tuple[str, ...] = ()
    rate: int | None = None
    any_rate: bool = False
    written: Sequence[str] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know about the files beside their rows."""
        return self.file_notes

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that the data name, in the order train, valid, test."""
        return tuple(split for split in SPLITS if split in (self.dataset or self.files))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that all splits and files have; for a .jsonl file, the fields of its first record."""
        if self.dataset is not None:
            tables = [tuple(self.dataset[split].column_names) for split in self.split_names]
        else:
            paths = [path for split in self.split_names for path in self.files[split]]
            tables = list(map(self._columns_of, paths))
        return tuple(name for name in tables[0] if all(name in table for table in tables))

    @property
    def has_headers(self) -> bool:
        """Whether the columns are named by the first lines of files."""
        return any(file_kind(path) in TEXT_TABLES for path in chain(*self.files.values()))

    @property
    def has_sounds(self) -> bool:
        """Whether any file is a sound."""
        return any(file_kind(path) in SOUNDS for path in chain(*self.files.values()))

    @property
    def has_sequences(self) -> bool:
        """Whether the files are FASTA or FASTQ."""
        return any(file_kind(path) in SEQUENCES for path in chain(*self.files.values()))

    def key(self) -> str:
        """Hash of the content and of the splits."""
        digest = hashlib.sha256(b"rows")
        if self.dataset is not None:
            digest.update("".join(f"{s}:{self.dataset[s]._fingerprint}" for s in self.split_names).encode())
        for path in (path for split in self.split_names for path in self.files.get(split, ())):
            if self._folder_column(path) is not None:
                digest.update(f"{self._class(path)}/{path.name}:".encode())
        if self.decimal_commas(self.written):
            digest.update(b"as written")
        return hash_files(self.files, digest)

    def decimal_commas(self, columns: Sequence[str]) -> list[str]:
        """The first cells in ``columns`` of the .csv and .tsv files, where these have numbers with decimal commas."""
        for path in chain(*self.files.values()):
            if columns and file_kind(path) in TEXT_TABLES:
                head = read_head(path, _HEAD)
                for name in {*columns} & {*head.names}:
                    if head.cells(name) != head.columns[name]:
                        return head.columns[name]
        return []

    def has_classes_of_folders(self, label: str) -> bool:
        """Whether every label in this column is the name of a folder."""
        paths = list(chain(*self.files.values()))
        return bool(paths) and all(self._folder_column(path) == label for path in paths)

    def files_of(self, split: str) -> Iterator[tuple[Path, int, str | None]]:
        """The files of a named split, the number of rows of each, and the folder that is their class, if one is."""
        for path in self.files[split]:
            folder = None if self._folder_column(path) is None else self._class(path)
            yield path, self._table(path).num_rows, folder

    def _class(self, path: Path) -> str | None:
        """The class of a file that is a row: that of its folder, or if no file is in a class folder, its folder's
        name; of a file of sequences, its own name."""
        if (kind := file_kind(path)) in SEQUENCES:
            return self.classes.get(path) or path.name[: path.name.lower().rindex(str(kind))]
        return self.classes[path] if any(self.classes.values()) else folder_name(path)

    def _folder_column(self, path: Path) -> str | None:
        """The column that has the name of the file's folder, or its own, its class."""
        return FOLDER_LABEL if file_kind(path) in (*ONE_ROW, *SEQUENCES) else None

    def read(self, columns: Sequence[str] | None = None) -> dict[str, Dataset]:
        """The rows of every named split, of all columns or those that are named here and occur.

        Values of .csv and .tsv are strings as written in the file, numbers with decimal points. ValueError for a file
        that does not match its suffix, or files of one split that do not fit together.
        """
        from datasets import Dataset

        if self.dataset is not None:
            kept = {s: self.dataset[s] for s in self.split_names}
            if columns is None:
                return kept
            return {s: rows.select_columns([c for c in rows.column_names if c in columns]) for s, rows in kept.items()}
        sounds = {path for path in chain(*self.files.values()) if file_kind(path) in SOUNDS}
        whole = {
            path: self._table(path, None if path in sounds else columns)
            for split in self.split_names
            for path in self.files[split]
        }
        if sounds:
            check_sounds({p: table for p, table in whole.items() if p in sounds}, self.rate, any_rate=self.any_rate)
        read = {}
        for split in self.split_names:
            tables = [whole[path] for path in self.files[split]]
            if columns is not None:
                tables = [each.select([name for name in each.column_names if name in columns]) for each in tables]
            for path, table in zip(self.files[split], tables, strict=True):
                if table.num_rows and set(table.column_names) != set(tables[0].column_names):
                    raise ValueError(
                        f"files of {self.name!r} have different columns: {self.files[split][0].name} has "
                        f"{', '.join(tables[0].column_names)}; {path.name} has {', '.join(table.column_names)}"
                    )
            try:
                read[split] = Dataset(pa.concat_tables(tables, promote_options="permissive"))
            except pa.ArrowException as error:
                raise ValueError(f"files of {self.name!r} have columns of different types: {error}") from error
        return read

    def _name(self, path: Path) -> str:
        """The name of a file in the source."""
        return name_in(expanded(self.name), path)

    def _columns_of(self, path: Path) -> tuple[str, ...]:
        return read_columns(path)

    def _table(self, path: Path, columns: Sequence[str] | None = None) -> Any:
        table = read_table(path, columns, self.written)
        if file_kind(path) in ONE_ROW and "file" in table.column_names:
            table = table.set_column(table.column_names.index("file"), "file", pa.array([self._name(path)]))
        if self._folder_column(path) is None or FOLDER_LABEL not in table.column_names:
            return table
        own = pa.array([self._class(path)] * table.num_rows, pa.string())
        return table.set_column(table.column_names.index(FOLDER_LABEL), FOLDER_LABEL, own)


def rows_to_evaluate(tables: Mapping[str, Dataset], name: str) -> Dataset:
    """The test split of another table, or else its first. ValueError if it has no rows."""
    rows = tables["test"] if "test" in tables else next(iter(tables.values()))
    if not len(rows):
        raise ValueError(f"{name!r} has no rows to evaluate on")
    return rows


def open_rows(name: str) -> RowSource:
    """Find a table of rows by name.

    A file (.csv, .tsv, .jsonl, .parquet, .npz, .ts, .arff, FASTA, FASTQ or a sound, each also compressed). A folder of
    such files: in splits by the words in their names (`split_word`), else all of them as one table. ``hub:NAME`` or
    ``hub:NAME:CONFIG``: a Hugging Face data set. Of .csv and .tsv see `read_text_table`. Every array of an .npz file is
    a column, its first axis the rows. A sound (.wav, .flac, .mp3, .ogg) is a row, whose label is the name of a folder:
    sounds are in a folder for each class, and these may be in a folder for each split (`class_folders`). So are .txt
    files, in the column ``text``, in a folder without other rows; texts beside the class folders and in IMDb's folder
    of reviews without a label, unsup, are left out. Of FASTA and FASTQ see `read_sequences`: a row for each record,
    whose label is the name of its class folder, or else of its file. Files of other kinds are counted in the notes.

    FileNotFoundError or ValueError name what is missing. Only names and sizes of files are read yet.

    >>> import tempfile
    >>> import pandas as pd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pd.DataFrame({"text": ["good", "bad"], "label": [1, 0]}).to_csv(f"{folder}/rows.csv", index=False)
    ...     open_rows(f"{folder}/rows.csv").columns
    ('text', 'label')
    """
    if name.startswith("hub:"):
        return RowSource(name, dataset=hub_splits(name))
    path = expanded(name)
    suffixes = f"{', '.join(READERS)} (each also {COMPRESSIONS})"
    if path.is_file():
        check_spreadsheet(path)
        if file_kind(path) is None:
            from lagwise.data.images import SUFFIXES  # which imports torch

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
    others = [file for file, kind in kinds.items() if kind != ".txt"]
    files = others or _texts(path, texts)
    if not files:
        raise ValueError("; ".join((f"no {suffixes} file in folder {name!r}", *unread_note(path, found, ()))))
    places = class_folders(path, [file for file in files if kinds[file] in ONE_ROW])
    check_classes(path, places, "sounds" if others else "texts")
    files = _labelled(files)
    for file in files:
        check_file(file)
    splits = {file: places[file].split if file in places else split_word(file.relative_to(path)) for file in files}
    tables = class_folders(path, [file for file in files if file not in places])
    classes = {file: place.label for file, place in {**places, **tables}.items()}
    splits, titles = meant_splits(path, splits)
    notes = (*nested_note(places), *unread_note(path, found, files), *titles)
    return RowSource(name, by_split(path, splits), classes=classes, file_notes=notes)


def _texts(root: Path, texts: list[Path]) -> list[Path]:
    """Texts without those beside the class folders: in the root, or in the folder of a split that has class folders."""
    inside = [text for text in texts if text.parent != root]
    above = {text.parent.parent for text in inside}
    beside = {folder for folder in above if split_word(folder.relative_to(root))}
    return [text for text in inside if text.parent not in beside] or texts


def _labelled(files: list[Path]) -> list[Path]:
    """Files without IMDb's reviews that have no label: those in the folder unsup beside the folders pos and neg."""
    folders = {file.parent for file in files}
    unlabelled = {
        folder
        for folder in folders
        if folder.name == "unsup" and {folder.with_name(n) for n in ("pos", "neg")} <= folders
    }
    return [file for file in files if file.parent not in unlabelled]
