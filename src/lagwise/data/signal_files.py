"""Where signals and their targets come from: pairs of sounds by the names of their files, columns of tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagwise.data.find import files_below, is_dataset, named_splits, split_word
from lagwise.data.reading import inner_suffix, is_compressed
from lagwise.data.rows import RowSource, open_rows
from lagwise.data.series import TARGET, SeriesSource
from lagwise.data.sound_files import SOUNDS
from lagwise.files import expanded

if TYPE_CHECKING:
    from lagwise.data.find import Data

INPUT_FOLDERS = ("noisy", "input", "inputs", "mixture", "mixtures", "mixed")
TARGET_FOLDERS = ("clean", "target", "targets", "output", "outputs", "reference", "references")
_ROLE = re.compile(rf"(?<![a-z])({'|'.join((*INPUT_FOLDERS, *TARGET_FOLDERS))})(?![a-z])", re.IGNORECASE)


def open_signals(
    name: Data,
    *,
    features: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    rate: int | None = None,
    any_rate: bool = False,
    time: str | None = None,
    alone: bool = False,
) -> SeriesSource:
    """Find signals and the targets of their samples by name, as `open_rows` finds rows: ``input_values`` and, where
    these are not the targets themselves, ``target_values``.

    Sounds are paired by the names of their files, the inputs being in a folder named as one of `INPUT_FOLDERS` and the
    targets in one of `TARGET_FOLDERS`; the paths must be the same but for that word. A .csv or .tsv file is a signal,
    with a line for each sample; ``targets`` are the columns of the targets, ``features`` those of the inputs, by
    default all others. Other tables have a signal in every row, in columns of lists. alone: without targets, which are
    then the inputs; of pairs of sounds the targets are read. Other options as in `open_series`.

    FileNotFoundError or ValueError name what is missing, such as a partner. Only names of files are read yet.
    """
    folder = None if is_dataset(name) else expanded(str(name))
    pairs = _sounds(folder, ("target", "none", "input") if alone else ()) if folder and folder.is_dir() else None
    if pairs is not None and time is not None:
        raise ValueError(f"`time` {time!r} names a column of tables or records, but {name!r} has sounds")
    rows, partners = pairs or (open_rows(name), {})
    if pairs is None and not alone and rows.of_kind(SOUNDS):
        raise ValueError(_unpaired(rows.name))
    columns = () if alone or pairs else tuple(targets or TARGET)
    return _signals(rows, partners, columns, features=features, rate=rate, any_rate=any_rate, time=time)


def open_inputs(name: str, *, features: Sequence[str] | None = None, time: str | None = None) -> SeriesSource:
    """The signals to predict: of a folder with inputs and targets the inputs, otherwise all rows."""
    path = expanded(name)
    pairs = _sounds(path, ("input", "none", "target")) if path.is_dir() else None
    rows = open_rows(name) if pairs is None else pairs[0]
    return _signals(rows, {}, (), features=features, any_rate=True, time=None if pairs else time)


def _signals(rows: RowSource, partners: Mapping[Path, Path], targets: tuple[str, ...], **options: Any) -> SeriesSource:
    both: dict[str, Any] = {**vars(rows), **options}
    return SeriesSource(**both, targets=targets, partners=partners, per_sample=True)


def _unpaired(name: str) -> str:
    return (
        f"{name!r} has sounds, but not in pairs: put the inputs into a folder 'noisy' (or 'input') and the targets, "
        "with the same names of files, into a folder 'clean' (or 'target'); or, of sounds without noise, name a folder "
        "of noises with `noise`"
    )


def _sounds(root: Path, alone: Sequence[str] = ()) -> tuple[RowSource, dict[Path, Path]] | None:
    """The sounds in a folder and the partner of each, or ``alone`` those of the first of these roles that it has; None
    if it has none and no folder that should have some."""
    found = files_below(root)
    roles: dict[str, dict[tuple[str, ...], Path]] = {"input": {}, "target": {}, "none": {}}
    splits: dict[Path, str | None] = {}
    for path in (path for path in found if inner_suffix(path) in SOUNDS):
        parts = path.relative_to(root).parts[:-1]
        words = [word[0].lower() for part in parts if (word := _ROLE.search(part))]
        role = "none" if not words else "input" if words[0] in INPUT_FOLDERS else "target"
        bare = Path(path.stem if is_compressed(path) else path).stem
        place = (*(_ROLE.sub("", part) for part in parts), path.name if role == "none" else bare)
        if place in roles[role]:
            raise ValueError(f"{roles[role][place]} and {path} have the same name; keep one of them")
        roles[role][place] = path
        splits[path] = split_word(Path(*parts))
    folders = [each for each in sorted(root.rglob("*")) if each.is_dir() and _ROLE.fullmatch(each.name)]
    if not splits and not folders:
        return None
    if not alone:
        _check_partners(root, roles, folders)
    chosen = next((roles[role] for role in alone if roles[role]), roles["input"])
    if not chosen:
        raise ValueError(f"{str(root)!r} has no sounds ({', '.join(SOUNDS)})")
    partners = {} if alone else {path: roles["target"][place] for place, path in chosen.items()}
    files, notes = named_splits(root, found, {path: splits[path] for path in chosen.values()}, partners.values())
    return RowSource(str(root), files, file_notes=notes), partners


def _check_partners(root: Path, roles: Mapping[str, Mapping[tuple[str, ...], Path]], folders: Sequence[Path]) -> None:
    """ValueError for sounds in no folder of inputs or targets, such a folder without sounds, and a sound without a
    partner."""
    if not roles["input"] and not roles["target"] and not folders:
        raise ValueError(_unpaired(str(root)))
    for role, words in (("input", INPUT_FOLDERS), ("target", TARGET_FOLDERS)):
        if not roles[role]:
            empty = [folder for folder in folders if folder.name.lower() in words]
            where = f"folder {str(empty[0])!r} has" if empty else f"{str(root)!r} has no folder of {role}s, so"
            raise ValueError(f"{where} no sounds ({', '.join(SOUNDS)}); the folder may be named {', '.join(words)}")
    for one, other in (("input", "target"), ("target", "input")):
        if lonely := sorted(roles[one].keys() - roles[other].keys()):
            more = f" (and {len(lonely) - 1:,} more)" if len(lonely) > 1 else ""
            raise ValueError(
                f"{roles[one][lonely[0]]}{more} has no {other} of the same name; add it, or remove the file"
            )
