"""Labelled images in three splits, checked once and kept as encoded files."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.cache import keep_also
from lagwise.data.folders import check_names
from lagwise.data.image_files import ImageSource
from lagwise.data.images import ImageReader, decode, frames
from lagwise.data.labelled_rows import split_labelled
from lagwise.data.labels import read_labels
from lagwise.data.prepared import Prepared, arrow_file, key_of
from lagwise.progress import progress_bar

if TYPE_CHECKING:
    from datasets import Dataset

_IMAGES_PER_BATCH = 500  # images that are written at a time
_MAX_MEASURED_IMAGES = 5000  # training images whose mean and deviation are used for all


@dataclass(frozen=True)
class ImageData(Prepared):
    """The labelled images of a source in three splits.

    Attributes:
        splits: data sets with the columns image (an encoded image) and label (the id of a class).
        label_names: names of the classes, by id.
        size: height and width to which images are resized.
        mean, std: those of the training pixels of each channel, between 0 and 1.
        counts: images of each class in each split.
    """

    label_names: tuple[str, ...]
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    counts: dict[str, dict[str, int]]

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
    """Check labelled images and split them into train, valid and test, or load the cached result.

    Args:
        size: height and width, by default those of the first image.
        channels: 3 or 1, to which images are converted.

    Missing splits are made as in `split_rows`. ValueError, one line, for an image that cannot be read, images without
    labels, and classes too small to split.
    """

    def key(size: tuple[int, int] | None) -> str:
        return key_of([source.key(), size, channels])

    found = ImageData.load(
        key(size), lambda folder: _write(source, size, channels, folder, progress), source.notes, cache
    )
    if size is None:  # a run opens its images by the size that was found
        keep_also(found.folder, found.folder.with_name(key(found.size)))
    return found


def _write(
    source: ImageSource, size: tuple[int, int] | None, channels: int, folder: Path, progress: bool
) -> dict[str, Any]:
    work = folder / "work"
    work.mkdir()
    tables = source.read(work=work)
    if "train" not in tables:
        raise ValueError(f"{source.name!r} has no images to train on, only {' and '.join(tables)} by their names")
    for split, rows in tables.items():
        if "label" not in rows.column_names:
            raise ValueError(
                f"{split} of {source.name!r} has no labels; put the images of each class into a folder of its own, "
                "or name the column with `label=COLUMN`"
            )
    cells = {split: rows["label"][:] for split, rows in tables.items()}
    try:
        labels = read_labels(cells, "classification", lambda split, i: str(tables[split]["file"][i]))
        found = split_labelled(tables, ["image"], labels, label="label", what="image")
    except ValueError as error:
        raise ValueError(f"{source.name!r}: {error}") from error
    assert labels.names is not None
    if source.classes:
        check_names(labels.names, "images")
    sizes, moving, total = Counter(), [], sum(map(len, tables.values()))
    with progress_bar(desc="checking images", total=total, unit="image", show=progress) as bar:
        for split, rows in tables.items():
            some: Any = rows
            for row, value in zip(some, labels.values[split], strict=True):
                if value is not None:
                    sizes[decode(row["image"], channels, row["file"]).size[::-1]] += 1
                    moving += [row["file"]] * (frames(row["image"]) > 1)
                bar.update()
    size = size or next(iter(sizes))
    for split, rows in found.splits.items():
        batches: Any = rows.with_format("arrow").iter(_IMAGES_PER_BATCH)
        with arrow_file(folder / f"{split}.arrow", rows.features.arrow_schema) as writer:
            for batch in batches:
                writer.write_table(batch)
    mean, std = _statistics(found.splits["train"], size, channels)
    shutil.rmtree(work)  # an open file remains readable until its last reader closes it
    total, notes = sizes.total(), [*found.notes]
    if other := total - sizes[size]:
        notes.append(f"{other:,} of {total:,} images are of another size and are resized to {size[0]} x {size[1]}")
    if moving:
        notes.append(
            f"{len(moving):,} of {total:,} images have several frames, of which the first is read: {moving[0]}"
        )
    return {
        "label_names": labels.names,
        "size": size,
        "mean": mean,
        "std": std,
        "counts": found.counts,
        "notes": notes,
    }


def _statistics(rows: Dataset, size: tuple[int, int], channels: int) -> tuple[list[float], list[float]]:
    """Return the mean and standard deviation of each channel over some images, between 0 and 1."""
    read = ImageReader(size, (0.0,) * channels, (1.0,) * channels)
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), _MAX_MEASURED_IMAGES)).astype(int)
    sums, squares = np.zeros(channels), np.zeros(channels)
    for i in chosen.tolist():
        pixels = read(rows[i]["image"], f"image {i + 1}").double()
        sums += pixels.mean((1, 2)).numpy()
        squares += pixels.square().mean((1, 2)).numpy()
    mean = sums / len(chosen)
    std = np.sqrt(np.maximum(squares / len(chosen) - mean**2, 1e-4))
    return mean.round(6).tolist(), std.round(6).tolist()
