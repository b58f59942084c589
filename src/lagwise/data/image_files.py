"""Where labelled images come from: folders of files, arrays, tables with encoded images, the hub."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import lagwise.data.arrow as pa
from lagwise.data.folders import (
    by_split,
    check_classes,
    check_file,
    class_folders,
    files_below,
    meant_splits,
    nested_note,
    split_word,
    unread_note,
)
from lagwise.data.images import SUFFIXES, encode_array
from lagwise.data.label_tables import label_tables, listed_labels
from lagwise.data.labelled_rows import label_cells
from lagwise.data.published import IMAGE_LAYOUTS
from lagwise.data.reading import inner_suffix, read_whole
from lagwise.data.row_files import file_kind, load_arrays
from lagwise.data.rows import RowSource, open_rows
from lagwise.data.sources import hash_files, is_dataset
from lagwise.data.splits import SPLITS
from lagwise.files import expanded
from lagwise.outside import elsewhere

if TYPE_CHECKING:
    from datasets import Dataset

    from lagwise.data.sources import Data

DIGITS = "digits"
_FILES_PER_BATCH = 500  # image files that are copied at a time


@dataclass(frozen=True)
class ImageSource:
    """The source of labelled images, and what identifies it. One of: files of each split, and their classes, None for a
    file in no class folder; arrays, an .npz file; rows, a table with a column of images; none of them, scikit-learn's
    digits. notes: what else a reader should know about the files."""

    name: str
    image: str
    label: str
    files: dict[str, list[Path]] = field(default_factory=dict)
    labels: Mapping[Path, str | None] = field(default_factory=dict)
    arrays: Path | None = None
    rows: RowSource | None = None
    notes: tuple[str, ...] = ()

    def key(self) -> str:
        """Hash of the content, of the classes and of the splits."""
        if self.rows is not None:
            return self.rows.key()
        if self.arrays is not None:
            return hash_files({"train": [self.arrays]}, hashlib.sha256(b"pictures"))
        classes = "\n".join(f"{split}:{self.labels[path]}" for split, paths in self.files.items() for path in paths)
        return hash_files(self.files, hashlib.sha256(b"pictures" + classes.encode()))

    def read(self, work: Path | None = None) -> dict[str, Dataset]:
        """The rows of every split that is named: ``image``, the bytes of an encoded image, ``label``, its class by
        name (if there are labels), and ``file``, its name in messages. ValueError names the error.

        work: a folder for copies of image files, which the rows then read as they are needed; without one, and of
        arrays, they are in memory.
        """
        if self.rows is not None:
            return {split: self._of_table(rows, split) for split, rows in self.rows.read().items()}
        if self.arrays is not None:
            return self._of_arrays(load_arrays(read_whole(self.arrays), self.arrays), str(self.arrays))
        if not self.files:
            from sklearn.datasets import load_digits

            found: Any = load_digits()
            return self._of_arrays({"image": (found.images * 15.9375).astype(np.uint8), "label": found.target}, DIGITS)
        return {
            split: _of_files(paths, self.labels.__getitem__, work and work / f"{split}.arrow")
            for split, paths in self.files.items()
        }

    def _of_arrays(self, arrays: Mapping[str, np.ndarray], where: str) -> dict[str, Dataset]:
        """Return the arrays of one table, or of several with the split in their names, such as train_images and
        y_test."""
        from datasets import Dataset

        tables: defaultdict[str | None, dict[str, np.ndarray]] = defaultdict(dict)
        for name, array in arrays.items():
            kind = "image" if array.ndim >= 3 else "label"
            split = split_word(Path(name))
            if kind in tables[split]:
                raise ValueError(f"{where} has more than one array that could be the {kind}s: {', '.join(arrays)}")
            tables[split][kind] = array
        if len(tables) > 1:
            tables.pop(None, None)
        read = {}
        for split, table in tables.items():
            images, labels = table.get("image"), table.get("label")
            if images is None:
                raise ValueError(f"{where} has no array of images (n, height, width) or (n, height, width, channels)")
            if images.dtype != np.uint8 or images.ndim > 4 or (images.ndim == 4 and images.shape[3] not in (1, 3)):
                raise ValueError(
                    f"{where}: images must be (n, height, width) or (n, height, width, 1 or 3) of uint8, got "
                    f"{images.shape} of {images.dtype}"
                )
            columns: dict[str, Any] = {"image": [encode_array(image) for image in images]}
            if labels is not None:
                if labels.reshape(-1).shape != images.shape[:1]:
                    raise ValueError(f"{where} has {len(images)} images and {labels.size} labels")
                columns["label"] = labels.reshape(-1).tolist()
            columns["file"] = [f"image {i + 1} of {where}" for i in range(len(images))]
            read[split or "train"] = Dataset.from_dict(columns)
        return {split: read[split] for split in SPLITS if split in read}

    def _of_table(self, rows: Dataset, split: str) -> Dataset:
        from datasets import Features, Image, Value

        if self.image not in rows.column_names:
            raise ValueError(
                f"{self.name!r} has no column {self.image!r}; name the column of the images with `image=COLUMN` "
                f"(columns: {', '.join(rows.column_names)})"
            )
        if isinstance(rows.features[self.image], Image):
            rows = rows.cast_column(self.image, Image(decode=False))
        names = [f"{split} row {i + 1} of {self.name!r}" for i in range(len(rows))]
        labels = label_cells(rows, self.label) if self.label in rows.column_names else None
        chosen: Any = rows.select_columns(self.image)
        if self.image != "image":
            chosen = chosen.rename_column(self.image, "image")
        chosen = chosen.map(  # a data set on disk stays there
            lambda row, i: {"image": _bytes(row["image"], names[i])},
            with_indices=True,
            features=Features(image=Value("large_binary")),
        )
        chosen = chosen if labels is None else chosen.add_column("label", labels)
        return chosen.add_column("file", names)


def _of_files(paths: list[Path], class_of: Callable[[Path], str | None], copy: Path | None) -> Dataset:
    """Image files as rows with their classes, if any has one, in memory, or in an Arrow file ``copy`` to be read
    from."""
    from datasets import Dataset

    schema = pa.schema({"image": pa.large_binary(), "label": pa.string(), "file": pa.string()})
    sink = pa.BufferOutputStream() if copy is None else pa.OSFile(str(copy), "wb")
    with sink, pa.ipc.new_stream(sink, schema) as writer:
        for start in range(0, len(paths), _FILES_PER_BATCH):
            some = paths[start : start + _FILES_PER_BATCH]
            columns = ([path.read_bytes() for path in some], list(map(class_of, some)), list(map(str, some)))
            writer.write_batch(
                pa.record_batch([pa.array(c, t) for c, t in zip(columns, schema.types, strict=True)], schema=schema)
            )
    rows: Any = Dataset.from_file(str(copy)) if copy else Dataset(pa.ipc.open_stream(sink.getvalue()).read_all())
    return rows if any(map(class_of, paths)) or not paths else rows.remove_columns("label")


def open_images(name: Data, *, image: str = "image", label: str = "label") -> ImageSource:
    """Find labelled images by name.

    A folder of image files: their folders are the classes, which may be in folders of splits (`class_folders`). An .npz
    file of uint8 arrays, of one table or of several with a split in their names. A table as in
    `lagwise.data.open_rows`, also ``hub:NAME``, whose column ``image`` holds encoded images. ``digits``: scikit-learn's
    1,797 handwritten digits of 8 x 8. What one of `IMAGE_LAYOUTS` takes, such as Pathfinder's folders.

    Image files directly in a folder, in no class folder, have no label, unless a table ``metadata.csv`` or
    ``labels.csv`` beside them or above has it, in columns ``file_name`` and ``label``.

    FileNotFoundError or ValueError name what is missing. Only names and sizes of files are read yet.
    """
    if name == DIGITS:
        return ImageSource(name, image, label)
    if not isinstance(name, str) or is_dataset(name):
        return _of_rows(name, image, label)
    for layout in IMAGE_LAYOUTS.values():
        if (source := layout(name, image=image, label=label)) is not None:
            return source
    if place := elsewhere(name):
        raise ValueError(f"data {place}")
    path = expanded(name)
    if inner_suffix(path) == ".npz" and path.is_file():
        check_file(path)
        return ImageSource(name, image, label, arrays=path)
    if not path.is_dir():
        return _of_rows(name, image, label)
    found = files_below(path)
    files = [file for file in found if file.suffix.lower() in SUFFIXES]
    if not files and not any(map(file_kind, found)):
        kinds = f"no image ({', '.join(SUFFIXES)}) or table of images in folder {name!r}"
        raise ValueError("; ".join((kinds, *unread_note(path, found, ()))))
    if not files:
        return _of_rows(name, image, label)
    numbered = any(file.parent.parent.name == "imgs" and file.parent.name.isdecimal() for file in files)
    if numbered and (place := elsewhere("lra-pathfinder")):
        raise ValueError(f"{name!r} has Pathfinder's folder imgs; the layout of {place}")
    if listed := label_tables(found):
        labels = listed_labels(listed, files, label)
        splits, titles = meant_splits(path, {file: split_word(file.relative_to(path)) for file in labels})
        notes = (*unread_note(path, found, [*labels, *listed]), *titles)
        return ImageSource(name, image, label, by_split(path, splits), labels, notes=notes)
    places = class_folders(path, files)
    check_classes(path, places, "images")
    for file in files:
        check_file(file)
    return ImageSource(
        name,
        image,
        label,
        by_split(path, {file: place.split for file, place in places.items()}),
        {file: place.label for file, place in places.items()},
        notes=(*nested_note(places), *unread_note(path, found, files)),
    )


def _of_rows(name: Data, image: str, label: str) -> ImageSource:
    rows = open_rows(name)
    return ImageSource(rows.name, image, label, rows=rows, notes=rows.notes)


def _bytes(value: Any, where: str) -> bytes:
    """The bytes of an image in a table: plain, or beside a path as `datasets` stores them."""
    if isinstance(value, Mapping):
        value = value["bytes"] if value.get("bytes") is not None else Path(str(value.get("path"))).read_bytes()
    if not isinstance(value, bytes):
        raise ValueError(f"{where} holds {type(value).__name__}, not an encoded image")
    return value
