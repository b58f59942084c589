"""Labelled images: files, arrays and tables with encoded images, checked once and kept as encoded files."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import lagwise.data.arrow as pa
import lagwise.data.hf as hf
from lagwise.cache import keep_also
from lagwise.data.encoding import feature_scale
from lagwise.data.find import Data, check_names, classed_files, find, listed_files, require_files, split_word
from lagwise.data.images import SUFFIXES, ImageReader, decode, encode_array
from lagwise.data.labelled_rows import label_cells, split_labelled
from lagwise.data.labels import read_labels
from lagwise.data.reading import file_kind, inner_suffix, load_arrays, read_whole
from lagwise.data.rows import RowSource, check_train, rows_of
from lagwise.data.splits import SPLITS, Prepared, arrow_file, key_of
from lagwise.outside import Registry, elsewhere
from lagwise.progress import progress_bar

DIGITS = "digits"
#: Functions of the arguments of `open_images`, which return None for what is not in their layout.
IMAGE_LAYOUTS = Registry("layout of images", None, "lagwise.image_layouts", {})


@dataclass(frozen=True)
class ImageSource(RowSource):
    """The source of labelled images: files and their classes, arrays in an .npz file, a table with a column of images,
    or scikit-learn's digits."""

    _: KW_ONLY
    image: str = "image"  # columns of a table
    label: str = "label"
    rows: RowSource | None = None  # the table

    def key(self) -> str:
        columns = [self.image, self.label]
        if self.rows is not None:
            return self.hashed([*columns, self.rows.key()])
        return self.hashed(["images", *columns, [self.classes.get(path) for path in self.paths]])

    def read(self, columns: Sequence[str] | None = None, work: Path | None = None) -> dict[str, hf.Dataset]:
        """The rows of every split that is named: ``image``, the bytes of an encoded image, ``label``, its class by name
        (if there are labels), and ``file``, its name in messages. Image files alone are copied to ``work``."""
        if self.rows is not None:
            return {split: self._of_table(rows, split) for split, rows in self.rows.read().items()}
        if not self.files:
            from sklearn.datasets import load_digits

            data: Any = load_digits()
            return self._of_arrays({"image": (data.images * 15.9375).astype(np.uint8), "label": data.target}, DIGITS)
        if not self.classes:
            (path,) = self.paths
            return self._of_arrays(load_arrays(read_whole(path), path), str(path))
        read: dict[str, Any] = super().read(columns, work)
        for split, paths in self.files.items():
            if not any(map(self.classes.get, paths)):
                read[split] = read[split].remove_columns("label")
        return read

    def _table(self, path: Path, columns: Sequence[str] | None = None) -> Any:
        row = {"image": [path.read_bytes()], "label": [self.classes[path]], "file": [str(path)]}
        return pa.table(row, schema=pa.schema({"image": pa.large_binary(), "label": pa.string(), "file": pa.string()}))

    def _of_arrays(self, arrays: Mapping[str, np.ndarray], where: str) -> dict[str, hf.Dataset]:
        """Return the arrays of one table, or of several with the split in their names, such as train_images and
        y_test."""
        tables: defaultdict[str | None, dict[str, np.ndarray]] = defaultdict(dict)
        for name, array in arrays.items():
            kind, own = "image" if array.ndim >= 3 else "label", tables[split_word(Path(name))]
            if kind in own:
                raise ValueError(f"{where} has more than one array that could be the {kind}s: {', '.join(arrays)}")
            own[kind] = array
        if len(tables) > 1:
            tables.pop(None, None)
        read = {}
        for split, table in tables.items():
            images, labels = table.get("image"), table.get("label")
            if images is None or images.dtype != np.uint8 or images.shape[3:] not in ((), (1,), (3,)):
                got = "none" if images is None else f"{images.shape} of {images.dtype}"
                raise ValueError(
                    f"{where}: images must be an array (n, height, width) or (n, height, width, 1 or 3) of uint8, got "
                    f"{got}"
                )
            if labels is not None and labels.size != len(images):
                raise ValueError(f"{where} has {len(images)} images and {labels.size} labels")
            columns: dict[str, Any] = {"image": [encode_array(image) for image in images]}
            columns |= {} if labels is None else {"label": labels.reshape(-1).tolist()}
            columns["file"] = [f"image {i + 1} of {where}" for i in range(len(images))]
            read[split or "train"] = hf.Dataset.from_dict(columns)
        return {split: read[split] for split in SPLITS if split in read}

    def _of_table(self, rows: hf.Dataset, split: str) -> hf.Dataset:
        if self.image not in rows.column_names:
            raise ValueError(
                f"{self.name!r} has no column {self.image!r}; name the column of the images with `image=COLUMN` "
                f"(columns: {', '.join(rows.column_names)})"
            )
        if isinstance(rows.features[self.image], hf.Image):
            rows = rows.cast_column(self.image, hf.Image(decode=False))
        names = [f"{split} row {i + 1} of {self.name!r}" for i in range(len(rows))]
        labels = label_cells(rows, self.label) if self.label in rows.column_names else None
        chosen: Any = rows.select_columns(self.image)
        chosen = chosen.map(  # a data set on disk stays there
            lambda row, i: {"image": _bytes(row[self.image], names[i])},
            with_indices=True,
            remove_columns=[] if self.image == "image" else [self.image],
            features=hf.Features(image=hf.Value("large_binary")),
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
    for layout in IMAGE_LAYOUTS.values() if isinstance(name, str) else ():
        if (source := layout(name, **columns)) is not None:
            return source
    if advice := elsewhere(name):
        raise ValueError(f"data {advice}")
    at = find(name, ".csv")
    name, path = at.name, at.path
    files = [file for file in at.below if file.suffix.lower() in SUFFIXES]
    if at.dataset is None and path.is_file() and inner_suffix(path) == ".npz":
        return ImageSource(name, {"train": [path]}, **columns)
    if at.dataset is not None or path.is_file() or (not files and any(map(file_kind, at.below))):
        rows = rows_of(at)
        return ImageSource(name, rows=rows, file_notes=rows.notes, **columns)
    require_files(at, files, f"image ({', '.join(SUFFIXES)}) or table of images")
    numbered = any(file.parent.parent.name == "imgs" and file.parent.name.isdecimal() for file in files)
    if numbered and (advice := elsewhere("lra-pathfinder")):
        raise ValueError(f"{name!r} has Pathfinder's folder imgs; the layout of {advice}")
    own = listed_files(at, files, label) or classed_files(at, files, files, "images")
    return ImageSource(name, **own, **columns)


def _bytes(value: Any, where: str) -> bytes:
    """The bytes of an image in a table: plain, or beside a path as `datasets` stores them."""
    if isinstance(value, Mapping):
        value = value["bytes"] if value.get("bytes") is not None else Path(str(value.get("path"))).read_bytes()
    if not isinstance(value, bytes):
        raise ValueError(f"{where} holds {type(value).__name__}, not an encoded image")
    return value


_IMAGES_PER_BATCH = 500  # images that are written at a time
_MIN_STD = 0.01  # of pixels between 0 and 1
_MAX_MEASURED_IMAGES = 5000  # training images whose mean and deviation are used for all


@dataclass(frozen=True)
class ImageData(Prepared):
    """The labelled images of a source in three splits: data sets with the columns image (an encoded image) and label
    (the id of a class)."""

    label_names: tuple[str, ...]
    size: tuple[int, int]  # height and width to which images are resized
    mean: tuple[float, ...]  # of the training pixels of each channel, between 0 and 1
    std: tuple[float, ...]
    counts: dict[str, dict[str, int]]  # images of each class in each split

    @property
    def reader(self) -> ImageReader:
        return ImageReader(self.size, self.mean, self.std)

    def describe(self) -> str:
        """Return the classes and sizes in one line, then a line for everything unusual."""
        height, width = self.size
        kind = f"{len(self.label_names)} classes of images of {height} x {width}"
        return "\n".join([f"{kind}: {self.sizes()}", *self.notes])


def prepare_images(
    source: ImageSource,
    *,
    size: tuple[int, int] | None = None,
    channels: int = 3,
    cache: Path | None = None,
    progress: bool = True,
) -> ImageData:
    """Check labelled images and split them into train, valid and test (`split_rows`), or load the cached result. size:
    height and width, by default those of the first image. channels: 3 or 1, to which images are converted. ValueError
    for an image that cannot be read, images without labels, and classes too small to split."""

    content, write = source.key(), partial(_write, source, size, channels, progress=progress)
    data = ImageData.load(key_of([content, size, channels]), write, source.notes, cache)
    if size is None:  # a run opens its images by the size of the first
        keep_also(data.folder, data.folder.with_name(key_of([content, data.size, channels])))
    return data


def _write(
    source: ImageSource, size: tuple[int, int] | None, channels: int, folder: Path, *, progress: bool
) -> dict[str, Any]:
    work = folder / "work"
    work.mkdir()
    tables = source.read(work=work)
    check_train(tables, repr(source.name), "images")
    for split, rows in tables.items():
        if "label" not in rows.column_names:
            raise ValueError(
                f"{split} of {source.name!r} has no labels; put the images of each class into a folder of its own, "
                "or name the column with `label=COLUMN`"
            )
    cells = {split: rows["label"][:] for split, rows in tables.items()}
    try:
        labels = read_labels(cells, "classification", lambda split, i: str(tables[split]["file"][i]))
        labelled = split_labelled(tables, ["image"], labels, label="label", noun="image")
    except ValueError as error:
        raise ValueError(f"{source.name!r}: {error}") from error
    assert labels.names is not None
    if source.classes:
        check_names(labels.names, "images")
    sizes: Counter[tuple[int, int]] = Counter()
    total = sum(map(len, tables.values()))
    with progress_bar(desc="checking images", total=total, unit="image", show=progress) as bar:
        for split, rows in tables.items():
            some: Any = rows
            for row, value in zip(some, labels.values[split], strict=True):
                if value is not None:
                    sizes[decode(row["image"], channels, row["file"]).size[::-1]] += 1
                bar.update()
    size = size or next(iter(sizes))
    for split, rows in labelled.splits.items():
        with arrow_file(folder / f"{split}.arrow", rows.features.arrow_schema) as writer:
            for batch in rows.with_format("arrow").iter(_IMAGES_PER_BATCH):
                writer.write_table(batch)  # type: ignore[bad-argument-type]
    mean, std = _statistics(labelled.splits["train"], size, channels)
    shutil.rmtree(work)  # an open file remains readable until its last reader closes it
    total, notes = sizes.total(), [*labelled.notes]
    if other := total - sizes[size]:
        notes.append(f"{other:,} of {total:,} images are of another size and are resized to {size[0]} x {size[1]}")
    scale = {"size": size, "mean": mean, "std": std}
    return {"label_names": labels.names, **scale, "counts": labelled.counts, "notes": notes}


def _statistics(rows: hf.Dataset, size: tuple[int, int], channels: int) -> tuple[list[float], list[float]]:
    """Return the mean and standard deviation of each channel over some images, between 0 and 1."""
    read = ImageReader(size, (0.0,) * channels, (1.0,) * channels)
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), _MAX_MEASURED_IMAGES)).astype(int)
    pixels = (read(rows[i]["image"], f"image {i + 1}").flatten(1).T.numpy() for i in chosen.tolist())
    mean, std = feature_scale(pixels)
    return np.round(mean, 6).tolist(), np.maximum(std, _MIN_STD).round(6).tolist()
