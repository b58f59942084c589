"""Folders of data: their files, and the splits and classes that their names tell."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from lagwise.data.splits import SPLITS
from lagwise.files import is_run

_SPLIT_WORDS = {  # as `datasets` reads them
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev"), "valid"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # between the words of trainImages
_WORD = re.compile(rf"(?<![^\W\d_])({'|'.join(_SPLIT_WORDS)})(?:sets?|data)?(?![^\W\d_])")
_MOST_NAMED = 4  # most kinds of files in a message


@dataclass(frozen=True)
class Place:
    """What the folders above a file say.

    Attributes:
        split: its split, None if they name none.
        label: its class, the name of a folder, None for a file in no class folder.
        parent: the folder that has the class folders.
        inner: the folders between the class folder and the file.
    """

    split: str | None
    label: str | None
    parent: Path
    inner: tuple[str, ...]


_MADE_UP = ("/proc", "/sys")


def files_below(root: Path) -> list[Path]:
    """The files in a folder and in those below it, also through links, in order, without hidden ones and those of runs
    (`lagwise.files.is_run`), which a training inside of the data's folder leaves there. ValueError
    if the system makes up any of them: they are no data, and link to each other without end."""
    found: list[Path] = []
    for folder, folders, names in os.walk(root, followlinks=True):
        here = Path(folder)
        whole = here.resolve()
        if any(whole.is_relative_to(made_up) for made_up in _MADE_UP):
            raise ValueError(f"{here} holds no files of data, but what the system says of itself; name another folder")
        if here != root and is_run(names):
            folders.clear()
            continue
        links = {name: (here / name).resolve() for name in folders if (here / name).is_symlink()}
        # a link to a folder above would be followed without end
        folders[:] = [name for name in folders if name not in links or not whole.is_relative_to(links[name])]
        found += [here / name for name in names]
    return sorted(path for path in found if not is_hidden(path, root) and path.is_file())


def folder_name(path: Path) -> str:
    """The name of a file's folder, also if the path is relative to that folder."""
    return path.absolute().parent.name


def name_in(root: Path, path: Path) -> str:
    """The name of a file in a folder, with those of the folders between them; of the file itself, its own."""
    return path.relative_to(root if root.is_dir() else root.parent).as_posix()


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


def class_folders(root: Path, files: Sequence[Path]) -> dict[Path, Place]:
    """The split and the class of files whose folders are their classes, as in ``train/cat/1.png``.

    Folders that are all named as splits are those of splits, and a folder that has all others is none of a class. The
    folders below are the classes, as in torchvision and Keras; those in them are none, but may be splits.
    """
    above = [path.parent for path in files]
    places = _places(root, dict.fromkeys(above))
    return {path: places[folder] for path, folder in zip(files, above, strict=True)}


def _places(root: Path, folders: Iterable[Path]) -> dict[Path, Place]:
    """As `class_folders`, of the folders that have files."""
    rest = {folder: folder.relative_to(root).parts for folder in folders}
    splits: dict[Path, str | None] = dict.fromkeys(rest)
    while any(len(parts) > 1 for parts in rest.values()):
        inside = {folder: parts for folder, parts in rest.items() if parts}
        words = {folder: _split_of(parts[0]) for folder, parts in inside.items()}
        if all(words.values()) and all(splits[folder] in (None, word) for folder, word in words.items()):
            splits |= words
        elif len(inside) < len(rest) or any(len(parts) == 1 for parts in inside.values()) or _branches(rest, splits):
            break
        rest |= {folder: parts[1:] for folder, parts in inside.items()}
    places = {
        folder: Place(splits[folder], next(iter(parts), None), (folder, *folder.parents)[len(parts)], parts[1:])
        for folder, parts in rest.items()
    }
    inner = {folder: _first_word(place.inner) for folder, place in places.items()}
    if any(splits.values()) or "train" not in inner.values() or len({*inner.values()} - {None}) < 2:
        return places
    return {
        folder: replace(place, split=inner[folder], inner=tuple(name for name in place.inner if not _split_of(name)))
        for folder, place in places.items()
    }


def _first_word(names: Iterable[str]) -> str | None:
    """The split that the first of some folders names that names one."""
    return next(filter(None, map(_split_of, names)), None)


def _branches(rest: Mapping[Path, tuple[str, ...]], splits: Mapping[Path, str | None]) -> bool:
    """Whether a split, or the whole, has more than one folder at this level."""
    names: defaultdict[str | None, set[str]] = defaultdict(set)
    for folder, parts in rest.items():
        names[splits[folder]].add(parts[0])
    return any(len(each) > 1 for each in names.values())


def check_classes(root: Path, places: Mapping[Path, Place], what: str) -> None:
    """ValueError if one of the class folders has no files, if a file is in none of them although others are in those of
    a split train, or if some folders beside each other are named as splits and others are not."""
    splits = {place.split for place in places.values()}
    outside = [path for path, place in places.items() if place.split is None or place.label is None]
    if splits - {None} and outside:
        raise ValueError(
            f"folders of {str(root)!r} say which {what} are train, valid and test, but {str(outside[0])!r} is in none "
            "of their class folders; move it away"
        )
    if splits == {None}:
        _check_words(root, places, what)
    with_files = {path.parent for path in places}
    filled = with_files.union(*(folder.parents for folder in with_files))
    for parent in {place.parent for place in places.values() if place.label is not None}:
        for folder in sorted(parent.iterdir()):
            if folder.is_dir() and not is_hidden(folder, root) and folder not in filled and not _has_runs(folder):
                raise ValueError(f"class folder {str(folder)!r} has no {what}; fill it or remove it")


def _has_runs(folder: Path) -> bool:
    return any(is_run(names) for _, _, names in os.walk(folder))


def _check_words(root: Path, places: Mapping[Path, Place], what: str) -> None:
    """ValueError if some class folders, or some folders in them, are named as splits and others are not."""
    for levels in ([(place.label or "",) for place in places.values()], [place.inner for place in places.values()]):
        words = list(map(_first_word, levels))
        if all(words) or not any(words):
            continue
        named = next(name for names in levels for name in names if _split_of(name))
        other = next(path for path, word in zip(places, words, strict=True) if word is None)
        if places[other].label is not None:
            raise ValueError(
                f"folders of {str(root)!r} such as {named!r} are named as splits of the {what}, but {str(other)!r} is "
                f"in none of their class folders; move it away, or rename {named!r} if it is not meant as a split"
            )


def nested_note(places: Mapping[Path, Place]) -> list[str]:
    """A note if class folders have folders."""
    nested = sorted({"/".join((place.label or "", *place.inner)) for place in places.values() if place.inner})
    if not nested:
        return []
    classes = sorted({place.label for place in places.values() if place.label is not None})
    shown = ", ".join(map(repr, classes[:_MOST_NAMED])) + (", ..." if len(classes) > _MOST_NAMED else "")
    return [f"the folders {shown} are the classes; the {len(nested):,} folders in them, such as {nested[0]!r}, are not"]


def unread_note(root: Path, found: Iterable[Path], read: Iterable[Path]) -> list[str]:
    """A note of the files in a folder that are not read, counted by kind."""
    left = sorted({*found} - {*read})
    if not left:
        return []
    kinds = Counter(path.suffix.lower() or "without a suffix" for path in left).most_common()
    shown = ", ".join(f"{count:,} {kind}" for kind, count in kinds[:_MOST_NAMED])
    more = f", {len(kinds) - _MOST_NAMED} other kinds" if len(kinds) > _MOST_NAMED else ""
    first = f"first {str(left[0].relative_to(root))!r}"
    return [f"{len(left):,} file{'s are' if len(left) > 1 else ' is'} not read: {shown}{more} ({first})"]


def meant_splits(root: Path, splits: Mapping[Path, str | None]) -> tuple[dict[Path, str | None], list[str]]:
    """The split of each file, None for all where only titles have a word of one, such as ``A Test of Wills.txt``, and a
    note of these: no file is named train, several files name no split, and no name is that of a split alone, or but for
    the word that of another file."""
    named = [path for path, split in splits.items() if split]
    others = {_without_word(path.stem) for path, split in splits.items() if not split}
    bare = {_without_word(path.stem) for path in named if _split_of(path.name)}
    in_folders = any(not _split_of(path.name) for path in named)
    if not named or "train" in splits.values() or in_folders or len(others) <= len(named) or bare & {"", *others}:
        return dict(splits), []
    first = str(named[0].relative_to(root))
    note = f"{first!r} is not taken for a {splits[named[0]]} split, as no file has train in its name"
    return dict.fromkeys(splits), [note]


def _without_word(stem: str) -> str:
    """The letters of a file's name without the word of a split."""
    return re.sub(r"[\W\d_]", "", _WORD.sub("", _HUMP.sub(" ", stem).lower()))


def by_split(root: Path, splits: Mapping[Path, str | None]) -> dict[str, list[Path]]:
    """The files of each split that is named; of none, all are train. ValueError if only some are in a split."""
    if not any(splits.values()):
        return {"train": list(splits)}
    if stray := next((path for path, split in splits.items() if split is None), None):
        named = next(path for path, split in splits.items() if split)
        raise ValueError(
            f"the names in {str(root)!r} say which files are train, valid and test, such as "
            f"{str(named.relative_to(root))!r}, but {str(stray.relative_to(root))!r} does not; rename it or move it "
            "away"
        )
    files = {split: [path for path, own in splits.items() if own == split] for split in SPLITS}
    return {split: paths for split, paths in files.items() if paths}


def split_word(path: Path) -> str | None:
    """The split named by a file's name, or else by the folders above it: train or training; valid, validation, val or
    dev; test, testing, eval or evaluation; at any separator, in any case, also as in testset and traindata."""
    return next(filter(None, map(_split_of, reversed(path.parts))), None)


@lru_cache(maxsize=1 << 16)
def _split_of(name: str) -> str | None:
    found = _WORD.search(_HUMP.sub(" ", name).lower())
    return _SPLIT_WORDS[found[1]] if found else None
