"""Where labelled images come from: folders of files, arrays, tables with encoded images, the hub."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import lagwise.data.arrow as pa
from lagwise.data.folders import check_file, files_below, split_word, unread_note
from lagwise.data.images import SUFFIXES, encode_array
from lagwise.data.labelled_rows import label_cells
from lagwise.data.published import IMAGE_LAYOUTS
from lagwise.data.reading import inner_suffix, read_whole
from lagwise.data.row_files import file_kind, load_arrays
from lagwise.data.rows import RowSource, classed_files, listed_files, open_rows
from lagwise.data.sources import is_dataset
from lagwise.data.splits import SPLITS
from lagwise.files import expanded
from lagwise.outside import elsewhere

if TYPE_CHECKING:
    from datasets import Dataset

    from lagwise.data.sources import Data

DIGITS = "digits"


@dataclass(frozen=True)
class ImageSource(RowSource):
    """The source of labelled images: files and their classes, arrays in an .npz file, a table with a column of images,
    or scikit-learn's digits.

    Attributes:
        image, label: the columns of a table.
        rows: the table; None for other sources.
    """

    _: KW_ONLY
    image: str = "image"
    label: str = "label"
    rows: RowSource | None = None

    def key(self) -> str:
        columns = [self.image, self.label]
        if self.rows is not None:
            return self.hashed([*columns, self.rows.key()])
        return self.hashed(["images", *columns, [self.classes.get(path) for path in self.paths]], self.files)

    def read(self, columns: Sequence[str] | None = None, work: Path | None = None) -> dict[str, Dataset]:
        """The rows of every split that is named: ``image``, the bytes of an encoded image, ``label``, its class by
        name (if there are labels), and ``file``, its name in messages. Image files alone are copied to ``work``.
        ValueError names the error."""
        if self.rows is not None:
            return {split: self._of_table(rows, split) for split, rows in self.rows.read().items()}
        if not self.files:
            from sklearn.datasets import load_digits

            found: Any = load_digits()
            return self._of_arrays({"image": (found.images * 15.9375).astype(np.uint8), "label": found.target}, DIGITS)
        if not self.classes:
            (path,) = self.paths
            return self._of_arrays(load_arrays(read_whole(path), path), str(path))
        read = super().read(columns, work)
        labelled = {split: any(map(self.classes.get, paths)) for split, paths in self.files.items()}
        return {split: rows if labelled[split] else rows.remove_columns("label") for split, rows in read.items()}

    def _table(self, path: Path, columns: Sequence[str] | None = None) -> Any:
        row = {"image": [path.read_bytes()], "label": [self.classes[path]], "file": [str(path)]}
        return pa.table(row, schema=pa.schema({"image": pa.large_binary(), "label": pa.string(), "file": pa.string()}))

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
    columns: dict[str, Any] = {"image": image, "label": label}
    if name == DIGITS:
        return ImageSource(name, **columns)
    if not isinstance(name, str) or is_dataset(name):
        return _of_rows(name, **columns)
    for layout in IMAGE_LAYOUTS.values():
        if (source := layout(name, **columns)) is not None:
            return source
    if place := elsewhere(name):
        raise ValueError(f"data {place}")
    path = expanded(name)
    if inner_suffix(path) == ".npz" and path.is_file():
        check_file(path)
        return ImageSource(name, {"train": [path]}, **columns)
    if not path.is_dir():
        return _of_rows(name, **columns)
    found = files_below(path)
    files = [file for file in found if file.suffix.lower() in SUFFIXES]
    if not files and not any(map(file_kind, found)):
        kinds = f"no image ({', '.join(SUFFIXES)}) or table of images in folder {name!r}"
        raise ValueError("; ".join((kinds, *unread_note(path, found, ()))))
    if not files:
        return _of_rows(name, **columns)
    numbered = any(file.parent.parent.name == "imgs" and file.parent.name.isdecimal() for file in files)
    if numbered and (place := elsewhere("lra-pathfinder")):
        raise ValueError(f"{name!r} has Pathfinder's folder imgs; the layout of {place}")
    own = listed_files(path, found, files, label) or classed_files(path, found, files, files, "images")
    return ImageSource(name, **own, **columns)


def _of_rows(name: Data, **columns: Any) -> ImageSource:
    rows = open_rows(name)
    return ImageSource(rows.name, rows=rows, file_notes=rows.notes, **columns)


def _bytes(value: Any, where: str) -> bytes:
    """The bytes of an image in a table: plain, or beside a path as `datasets` stores them."""
    if isinstance(value, Mapping):
        value = value["bytes"] if value.get("bytes") is not None else Path(str(value.get("path"))).read_bytes()
    if not isinstance(value, bytes):
        raise ValueError(f"{where} holds {type(value).__name__}, not an encoded image")
    return value
