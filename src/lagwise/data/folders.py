"""Folders of data: their files, and the splits and classes that their names tell."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

_SPLIT_WORDS = {
    "train": "train",
    "valid": "valid",
    "val": "valid",
    "validation": "valid",
    "dev": "valid",
    "test": "test",
}


def files_below(root: Path) -> list[Path]:
    """The files in a folder and in those below it, also through links, in order. Hidden ones are left out."""
    found: list[Path] = []
    for folder, folders, names in os.walk(root, followlinks=True):
        here = Path(folder)
        whole = here.resolve()
        # a link to a folder above would be followed without end
        folders[:] = [name for name in folders if not (here / name).is_symlink() or _leads_down(here / name, whole)]
        found += [here / name for name in names]
    return sorted(path for path in found if not is_hidden(path, root) and path.is_file())


def _leads_down(link: Path, folder: Path) -> bool:
    return not folder.is_relative_to(link.resolve())


def folder_name(path: Path) -> str:
    """The name of a file's folder, also if the path is relative to that folder."""
    return path.absolute().parent.name


def is_hidden(path: Path, root: Path) -> bool:
    """Whether a file in the folder ``root`` is not meant as data: its own name or a folder's begins with a point, or it
    is what macOS adds to archives."""
    return any(part.startswith((".", "__MACOSX")) for part in path.relative_to(root).parts)


def check_file(path: Path) -> None:
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty")


def check_names(classes: Iterable[str], what: str) -> None:
    """ValueError if folders that would be classes are named like splits."""
    names = sorted(set(classes))
    if all(split_word(Path(name)) for name in names):
        raise ValueError(
            f"the folders {', '.join(map(repr, names))} are named as splits, not as classes; put the {what} of each "
            "class into a folder of its own in them"
        )


def check_classes(root: Path, files: Sequence[Path], what: str) -> None:
    """ValueError if one of the class folders has no files, or a file is in none of them although others are in those of
    a split train."""
    splits = {path: split_word(Path(*path.relative_to(root).parts[:-2])) for path in files}
    outside = next((path for path, split in splits.items() if split is None), None)
    if "train" in splits.values() and outside is not None:
        raise ValueError(
            f"folders of {str(root)!r} say which {what} are train, valid and test, but {str(outside)!r} is in none of "
            "their class folders; move it away"
        )
    filled = {folder for path in files for folder in path.parents}
    for parent in {path.parent.parent for path in files if path.parent != root}:
        for folder in sorted(parent.iterdir()):
            if folder.is_dir() and not is_hidden(folder, root) and folder not in filled:
                raise ValueError(f"class folder {str(folder)!r} has no {what}; fill it or remove it")


def split_word(path: Path) -> str | None:
    """The split named by a file's name, or else by the folders above it."""
    for part in reversed(path.parts):
        words = part.lower().replace("-", ".").replace("_", ".").split(".")
        for word in words:
            if word in _SPLIT_WORDS:
                return _SPLIT_WORDS[word]
    return None
