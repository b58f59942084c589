"""Folders of Long Range Arena's Pathfinder, published or generated."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import islice
from pathlib import Path

from lagwise.data.find import check_file, files_below
from lagwise.data.image_files import SUFFIXES, ImageSource
from lagwise.data.reading import decoded, read_whole
from lagwise.data.splits import split_sizes
from lagwise.files import expanded
from lagwise_papers.data.generated import generated_source

_CLASSES = ("apart", "joined")
_HARD = "curv_contour_length_14"  # the difficulty of Long Range Arena


def open_pathfinder(name: str, *, image: str = "image", label: str = "label") -> ImageSource | None:
    """Open the labelled images of a folder with ``imgs`` and ``metadata``: the first 80 % are train, the last 10 %
    test. Of the three difficulties of the published folder ``curv_contour_length_14`` is read, as in the benchmark.
    ``lra-pathfinder`` and ``lra-path-x`` generate such folders. None for anything else.

    FileNotFoundError or ValueError name what is missing."""
    path = None if name.startswith("hub:") else generated_source(name) or expanded(name)
    if path is None or not path.is_dir():
        return None
    paths = files_below(path)
    files = [file for file in paths if file.suffix.lower() in SUFFIXES]
    tables = [file for file in paths if file.parent.name == "metadata" and file.suffix == ".npy"]
    if not tables and any(file.parent.parent.name == "imgs" and file.parent.name.isdecimal() for file in files):
        raise ValueError(
            f"{name!r} has Pathfinder's folder imgs, but not its folder metadata, which has the labels; copy both"
        )
    return _listed(ImageSource(name, image=image, label=label), tables, files) if tables else None


def _listed(source: ImageSource, tables: list[Path], files: list[Path]) -> ImageSource:
    """List the images of Pathfinder's metadata, in the order of their numbers, out of ``files``. ValueError for a
    line without an image and a label, an image that is listed twice or never, and an empty table; FileNotFoundError
    for an image that is not there.

    Of several folders with metadata `_HARD` is taken, with a warning; ValueError if it is not one of them."""
    folders = sorted({table.parent.parent for table in tables})
    folder = folders[0]
    if len(folders) > 1:
        hard = [folder for folder in folders if folder.name == _HARD]
        names = ", ".join(str(folder) for folder in folders)
        if len(hard) != 1:
            raise ValueError(f"{source.name!r} has several sets of Pathfinder images ({names}); name one of them")
        warnings.warn(f"of several sets of Pathfinder images ({names}) only {_HARD} is read", stacklevel=3)
        folder = hard[0]
        tables = [table for table in tables if table.parent.parent == folder]
    labels: dict[Path, str | None] = {}
    for table in sorted(tables, key=lambda path: (path.parent, int(path.stem) if path.stem.isdecimal() else 0)):
        check_file(table)
        for number, line in enumerate(decoded(read_whole(table), table).splitlines(), 1):
            fields = line.split()
            if len(fields) < 4 or fields[3] not in ("0", "1"):
                raise ValueError(
                    f"{table}, line {number}: a folder, a file, a number and a label 0 or 1, got {line!r:.80}"
                )
            image = folder / fields[0] / fields[1]
            if not image.is_file():
                raise FileNotFoundError(f"{table}, line {number}: no image {str(image)!r}")
            if image in labels:
                raise ValueError(f"{table}, line {number}: {str(image)!r} is listed twice")
            check_file(image)
            labels[image] = _CLASSES[int(fields[3])]
    missing = [file for file in files if file not in labels and folder / "imgs" in file.parents]
    if missing:
        raise ValueError(
            f"{len(missing):,} images of {str(folder)!r} are not in its metadata, first {str(missing[0])!r}; are the "
            "files there complete?"
        )
    images = iter(labels)
    by_split = {split: [*islice(images, size)] for split, size in split_sizes(len(labels)).items()}
    return replace(source, files=by_split, classes=labels)
