"""Signals to learn from: pairs of sounds by the names of their files, and columns of tables."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lagwise.data.arrays import row_arrays
from lagwise.data.folders import by_split, check_file, files_below, name_in, split_word, unread_note
from lagwise.data.reading import inner_suffix, is_compressed, read_whole
from lagwise.data.row_files import TEXT_TABLES, file_kind, read_columns
from lagwise.data.rows import RowSource, open_rows
from lagwise.data.sample_times import read_times, with_times
from lagwise.data.series_files import SERIES, first_rate, read_sound, row_numbers
from lagwise.data.sound_files import SOUNDS
from lagwise.data.sources import is_dataset
from lagwise.data.text_tables import read_text_table
from lagwise.files import expanded
from lagwise.tables import known

if TYPE_CHECKING:
    from lagwise.data.sources import Data

INPUTS = ("noisy", "input", "inputs", "mixture", "mixtures", "mixed")
TARGETS = ("clean", "target", "targets", "output", "outputs", "reference", "references")
TARGET = ["target"]  # columns, where none are named
_ROLE = re.compile(rf"(?<![a-z])({'|'.join((*INPUTS, *TARGETS))})(?![a-z])", re.IGNORECASE)
_TRAINED = "the signals of training have"


class Signal(NamedTuple):
    """A signal and its target.

    Attributes:
        where: its file and row, for people.
        inputs, targets: ``(samples, features)``, NaN where a sample is missing.
        rate: the sampling rate of a sound, in Hz.
    """

    where: str
    inputs: np.ndarray
    targets: np.ndarray
    rate: int | None = None


@dataclass(frozen=True)
class SignalSource:
    """A source of signals and of the targets of their samples; see `open_signals`.

    Attributes:
        rows: the files; of pairs, those of the inputs.
        partners: the target of each input of a pair.
        any_rate: whether sounds may have different sampling rates.
        time: the column of the samples' times, which makes the time since the sample before the first input.
    """

    rows: RowSource
    partners: Mapping[Path, Path] = field(default_factory=dict)
    features: Sequence[str] | None = None
    targets: Sequence[str] | None = None
    rate: int | None = None
    any_rate: bool = False
    time: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the files."""
        return self.rows.file_notes

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that the data name."""
        return self.rows.split_names

    def key(self) -> str:
        """Hash of the content, of the splits, and of the columns."""
        root = expanded(self.rows.name)
        others = sorted(
            (str(one.relative_to(root)), hashlib.sha256(other.read_bytes()).hexdigest())
            for one, other in self.partners.items()
        )
        return hashlib.sha256(f"{self.rows.key()}{others}{self.columns}{self.time or ''}".encode()).hexdigest()

    @cached_property
    def columns(self) -> tuple[list[str], list[str]]:
        """The columns of the inputs and of the targets in tables and records; of sounds none."""
        first = next((path for paths in self.rows.files.values() for path in paths), None)
        if first is not None and file_kind(first) in SOUNDS:
            return [], []
        if first is None or file_kind(first) not in TEXT_TABLES:
            inputs = list(self.features or [SERIES])
            return inputs, inputs if self.targets is None else list(self.targets)
        names = read_columns(first)
        others = [name for name in names if name not in (*(self.targets or ()), self.time)]
        numbers = row_numbers(first, others, samples=True)
        inputs = list(self.features or [name for name in others if name not in numbers])
        return inputs, inputs if self.targets is None else list(self.targets)

    def reading_options(self) -> dict[str, Any]:
        """The options that read other files as these: ``rate`` of sounds, ``features`` of tables. ValueError for sounds
        of another rate than a given one."""
        rate = first_rate(self.rows.files)
        if rate is None:
            return {"features": self.columns[0]}
        if self.rate not in (None, rate):
            raise ValueError(_other_rate(Path(self.rows.name), rate, f"{_TRAINED} {self.rate}"))
        return {"rate": rate}

    def signals(self, split: str) -> Iterator[Signal]:
        """The signals of a split that the data name, in order. ValueError names the file and what is wrong with it."""
        rate, by = self.rate, _TRAINED
        if self.rows.dataset is not None:
            yield from self._of_records(self.rows.read()[split], f"{self.rows.name} {split}")
            return
        for path in self.rows.files[split]:
            if file_kind(path) in TEXT_TABLES:
                table = read_text_table(path)
                inputs, targets = self.columns
                x = self._numbers(table, inputs)
                y = x if targets is inputs else self._numbers(table, targets)
                if self.time is not None:
                    x = with_times(x, read_times(table, self.time), str(path))
                yield Signal(str(path), x, y)
            elif file_kind(path) in SOUNDS:
                signal = self._sound(path)
                if rate is not None and signal.rate != rate and not self.any_rate:
                    raise ValueError(_other_rate(path, signal.rate, f"{by} {rate}"))
                rate, by = (signal.rate, f"{path} has") if rate is None else (rate, by)
                yield signal
            else:
                records = replace(self.rows, files={split: [path]})
                yield from self._of_records(records.read()[split], str(path))

    def input_rows(self, split: str) -> Iterator[dict[str, Any]]:
        """The inputs of a split as rows: input_values, the name of the file in the source or the place of the row, and
        of sounds the sampling_rate."""
        root = expanded(self.rows.name)
        for signal in self.signals(split):
            path = Path(signal.where)
            name = name_in(root, path) if path.is_relative_to(root.parent) else signal.where
            rate = {} if signal.rate is None else {"sampling_rate": signal.rate}
            yield {"file": name, **rate, SERIES: signal.inputs}

    def _numbers(self, table: Any, names: Sequence[str]) -> np.ndarray:
        _check_columns(names, table.names, str(table.path))
        if not names or not table.lines:
            raise ValueError(f"{table.path} has no samples")
        return table.numbers(*names).astype(np.float32)

    def _sound(self, path: Path) -> Signal:
        rate, inputs = read_sound(read_whole(path), path)
        if not self.partners:
            return Signal(str(path), inputs, inputs, rate)
        other = self.partners[path]
        other_rate, targets = read_sound(read_whole(other), other)
        if other_rate != rate:
            raise ValueError(f"{path} has a sampling rate of {rate} Hz, its partner {other} one of {other_rate} Hz")
        return Signal(str(path), inputs, targets, rate)

    def _of_records(self, rows: Any, where: str) -> Iterator[Signal]:
        table = rows.with_format("arrow")[:]
        times = [] if self.time is None else [self.time]
        for names in (*self.columns, times):
            _check_columns(names, table.column_names, where)
        if not table.num_rows:
            raise ValueError(f"{where} has no rows")
        try:
            inputs, targets = self.columns
            columns = {name: row_arrays(table.column(name)) for name in {*inputs, *targets, *times}}
            for i in range(table.num_rows):
                found = {name: next(arrays).astype(_type(name, times)) for name, arrays in columns.items()}
                place = f"{where}, row {i + 1}"
                x = _stacked([found[name] for name in inputs], place)
                y = x if targets is inputs else _stacked([found[name] for name in targets], place)
                yield Signal(place, x if self.time is None else with_times(x, found[self.time], place), y)
        except TypeError as error:
            raise ValueError(
                f"{where}: a signal must be a list of numbers or of equally long vectors ({error})"
            ) from error


def _type(name: str, times: Sequence[str]) -> type[np.floating]:
    return np.float64 if name in times else np.float32  # times are large numbers, of which differences count


def _other_rate(path: Path, rate: int | None, wanted: str) -> str:
    return f"{path} has a sampling rate of {rate} Hz, {wanted} Hz; resample the sounds to one rate"


def _check_columns(names: Sequence[str], existing: Sequence[str], where: str) -> None:
    if list(names) == TARGET and not {*names} & {*existing}:
        raise ValueError(
            f"{where} has no column {TARGET[0]!r} (columns: {', '.join(existing)}); name the columns of the targets "
            "with `targets=[COLUMN]`, or let `noise` or `hide` make inputs of the signals"
        )
    for name in names:
        known(name, existing, f"column of {where} (`features`, `targets`)")


def _stacked(arrays: Sequence[np.ndarray], where: str) -> np.ndarray:
    """Join the signals of one row side by side, ``(samples, features)``."""
    sizes = sorted({len(array) for array in arrays})
    if len(sizes) > 1:
        raise ValueError(f"{where} has features of {sizes[0]} and of {sizes[-1]} samples")
    return np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)


def open_signals(
    name: Data,
    *,
    features: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    rate: int | None = None,
    time: str | None = None,
    alone: bool = False,
) -> SignalSource:
    """Find signals by name, as `open_rows` finds rows.

    Sounds are paired by the names of their files, the inputs being in a folder named as one of `INPUTS` and the targets
    in one of `TARGETS`; the paths must be the same but for that word. A .csv or .tsv file is a signal, with a line for
    each sample; ``targets`` are the columns of the targets, ``features`` those of the inputs, by default all others.
    Other tables have a signal in every row, in columns of lists. time: as in `SignalSource`. alone: without targets,
    which are then the inputs; of pairs of sounds the targets are read.

    FileNotFoundError or ValueError name what is missing, such as a partner. Only names of files are read yet.
    """
    in_folder = not is_dataset(name) and (path := expanded(str(name))).is_dir()
    sounds = _sounds(path, ("target", "none", "input") if alone else ()) if in_folder else None
    if sounds is not None and time is not None:
        raise ValueError(f"`time` {time!r} names a column of tables or records, but {name!r} has sounds")
    if sounds is not None:
        return replace(sounds, rate=rate)
    rows = open_rows(name)
    source = SignalSource(rows, features=features, targets=None if alone else targets or TARGET, rate=rate, time=time)
    if not alone and any(file_kind(file) in SOUNDS for file in rows.files.get("train", ())):
        raise ValueError(_unpaired(rows.name))
    if time in (*(features or ()), *(targets or TARGET)):
        raise ValueError(f"column {time!r} is in `time` and in `features` or `targets`")
    if features is not None and not alone and (both := {*features} & {*(targets or TARGET)}):
        raise ValueError(f"column {min(both)!r} is in both `features` and `targets`")
    return source


def _unpaired(name: str) -> str:
    return (
        f"{name!r} has sounds, but not in pairs: put the inputs into a folder 'noisy' (or 'input') and the targets, "
        "with the same names of files, into a folder 'clean' (or 'target'); or, of sounds without noise, name a folder "
        "of noises with `noise`"
    )


def _sounds(root: Path, alone: Sequence[str] = ()) -> SignalSource | None:
    """The sounds in a folder, in pairs, or ``alone`` those of the first of these roles that it has; None if it has none
    and no folder that should have some."""
    found = files_below(root)
    roles: dict[str, dict[tuple[str, ...], Path]] = {"input": {}, "target": {}, "none": {}}
    splits: dict[Path, str | None] = {}
    for path in (path for path in found if inner_suffix(path) in SOUNDS):
        parts = path.relative_to(root).parts[:-1]
        words = [word[0].lower() for part in parts if (word := _ROLE.search(part))]
        role = "none" if not words else "input" if words[0] in INPUTS else "target"
        place = (*(_ROLE.sub("", part) for part in parts), path.name if role == "none" else _bare(path))
        if place in roles[role]:
            raise ValueError(f"{roles[role][place]} and {path} have the same name; keep one of them")
        roles[role][place] = path
        splits[path] = split_word(Path(*parts))
    folders = [each for each in sorted(root.rglob("*")) if each.is_dir() and _ROLE.fullmatch(each.name)]
    if not splits and not folders:
        return None
    if not alone and not roles["input"] and not roles["target"] and not folders:
        raise ValueError(_unpaired(str(root)))
    chosen = next((roles[role] for role in alone if roles[role]), roles["input"])
    if not alone:
        _check_partners(root, roles, folders)
    for path in splits:
        check_file(path)
    read = [*chosen.values(), *([] if alone else roles["target"].values())]
    if not read:
        raise ValueError(f"{str(root)!r} has no sounds ({', '.join(SOUNDS)})")
    rows = RowSource(
        str(root),
        by_split(root, {path: splits[path] for path in chosen.values()}),
        file_notes=tuple(unread_note(root, found, read)),
    )
    return SignalSource(rows, {} if alone else {path: roles["target"][place] for place, path in chosen.items()})


def _bare(path: Path) -> str:
    """The name of a file without its suffix, and that of a compression."""
    return Path(path.stem if is_compressed(path) else path).stem


def _check_partners(root: Path, roles: Mapping[str, Mapping[tuple[str, ...], Path]], folders: Sequence[Path]) -> None:
    """ValueError for a folder of inputs or targets without sounds, and for a sound without a partner."""
    for role, words in (("input", INPUTS), ("target", TARGETS)):
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


def inputs_of(name: str) -> RowSource:
    """The rows that `predict` reads: of a folder with inputs and targets the inputs, otherwise all rows."""
    path = expanded(name)
    sounds = _sounds(path, ("input", "none", "target")) if path.is_dir() else None
    return open_rows(name) if sounds is None else sounds.rows
