"""The splits train, valid and test of data that do not name them, and encoded rows of these in the cache."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

import lagwise.data.arrow as pa
import lagwise.data.hf as hf
from lagwise.cache import cached_folder, default_cache
from lagwise.data.arrays import row_arrays

SPLITS = ("train", "valid", "test")
_FORMAT = 3  # raise when the meaning of any files in the cache changes
#: Share of valid, and of test: of rows or series, and of running text.
ROWS_HELD_OUT, TEXT_HELD_OUT = 0.1, 0.05
_MAX_NAMED_CLASSES = 10  # classes in a message
_MAX_SHARE_ERROR = 0.03  # share of the rows by which a split that is made may be larger or smaller, without a word
Item = TypeVar("Item")
Share = tuple[float, float]  # a part of a sequence, from and to, as shares of it


def split_shares(held_out: float) -> dict[str, Share]:
    """The part of a sequence that is each split, from and to, as shares: valid and test are at its end."""
    return {"train": (0.0, 1 - 2 * held_out), "valid": (1 - 2 * held_out, 1 - held_out), "test": (1 - held_out, 1.0)}


def split_sizes(count: int, train: int = 8, valid: int = 1) -> dict[str, int]:
    """Compute how many of some things in order are in each split, of which train and valid get so many tenths: eight
    and one as of Long Range Arena's images, seven and one as of the published series to forecast."""
    first, last = count * train // 10, count * (train + valid) // 10
    return {"train": first, "valid": last - first, "test": count - last}


def deal(names: Mapping[Item, str]) -> dict[str, list[Item]]:
    """Deal files or other items to the three splits, in order, by a hash of their names: the split of one does not
    depend on the others, and the beginning of a split is a fair sample of it."""
    dealt: dict[str, list[Item]] = {split: [] for split in SPLITS}
    shares = {item: int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32 for item, name in names.items()}
    for item, share in sorted(shares.items(), key=lambda pair: pair[1]):
        dealt["test" if share < TEXT_HELD_OUT else "valid" if share < 2 * TEXT_HELD_OUT else "train"].append(item)
    for split in ("valid", "test"):  # a few items may all have fallen to train
        if not dealt[split]:
            dealt[split].append(max(dealt.values(), key=len).pop())
    return dealt


def split_rows(
    rows: dict[str, hf.Dataset],
    label: str | None = None,
    *,
    classes: bool = True,
    names: Sequence[str] | None = None,
    group: str | None = None,
    kinds: Sequence[Any] | None = None,
    hint: str = "",
) -> dict[str, hf.Dataset]:
    """Return rows in the three splits: named splits are kept, missing ones are taken from train.

    Each missing split gets 10 % of train's rows: of every class, those whose hash of the content without the label
    is smallest (test) or largest (valid), and at least one. Therefore rows of equal content share a split, the order of
    the rows does not matter, and added rows move few others, and none from valid to test.

    Args:
        label: the column of labels; None if all columns are content.
        classes: whether labels are classes (``names``, by id, are for messages).
        group: a column whose value alone counts as the content, so that rows that have it in common share a split, and
            each missing split gets 10 % of the values.
        kinds: what rows of train are divided by instead of their labels; None for rows of no kind.
        hint: what else to do about classes with too few rows.

    ValueError for a class with fewer different rows than the splits that it must be in.

    >>> from datasets import Dataset
    >>> rows = {"train": Dataset.from_dict({"text": [f"row {i}" for i in range(100)]})}
    >>> {split: len(part) for split, part in split_rows(rows).items()}
    {'train': 80, 'valid': 10, 'test': 10}
    """
    train: Any = rows["train"]
    missing = [split for split in ("test", "valid") if split not in rows]
    if not missing:
        return {split: rows[split] for split in SPLITS}
    absent = [] if group is None else [i for i, value in enumerate(train[group][:]) if value in (None, "")]
    if absent:
        raise ValueError(f"row {absent[0] + 1} of train has no {group!r}, which says what rows stay together (`group`)")
    hashes = list(_hashes(train if group is None else train.select_columns(group), skip=label))
    stratified = label is not None and classes
    strata: Any = kinds if kinds is not None else train[label] if stratified else [None] * len(train)
    members: defaultdict[Any, set[bytes]] = defaultdict(set)
    for value, content in zip(strata, hashes, strict=True):
        members[value].add(content)
    if kinds is not None and len(members) > 1 and len(members[None]) <= len(missing):
        del members[None]  # rows of no kind that are too few to be in every split are trained
    if few := {value: len(contents) for value, contents in members.items() if len(contents) <= len(missing)}:
        noun = "rows" if group is None else f"values of {group!r}"
        parts = f"too few different {noun} for {', '.join(reversed(missing))} and train, which need {len(missing) + 1}"
        if not stratified:
            raise ValueError(f"{parts}: the table has {few[None]}")
        each = [f"{count} of {names[v] if names and v is not None else v!r}" for v, count in few.items()]
        more = f" and of {len(each) - _MAX_NAMED_CLASSES:,} more classes" if len(each) > _MAX_NAMED_CLASSES else ""
        raise ValueError(
            f"{parts} of each class: {', '.join(each[:_MAX_NAMED_CLASSES])}{more}; add rows, remove such "
            f"classes, or name the splits in the data{hint}"
        )
    assigned: dict[bytes, str] = {}
    for contents in sorted(members.values(), key=len):
        taken = Counter(map(assigned.get, contents))  # the same content may have two classes
        for split in missing:
            free = sorted((c for c in contents if c not in assigned), reverse=split == "valid")
            count = max(1, round(ROWS_HELD_OUT * len(contents))) - taken[split]
            assigned |= dict.fromkeys(free[: max(0, count)], split)
    splits = [assigned.get(content, "train") for content in hashes]
    divided = {s: train.select([i for i, own in enumerate(splits) if own == s]) for s in ("train", *missing)}
    return {split: divided.get(split, rows.get(split)) for split in SPLITS}


def random_rows(labels: np.ndarray, random: Any) -> np.ndarray:
    """Choose the rows that are held out, a random tenth of each class, of labels from 0, by a generator of numpy."""
    held_out = np.zeros(len(labels), dtype=bool)
    for each in range(labels.max() + 1):
        own = random.permutation(np.flatnonzero(labels == each))
        held_out[own[: int(ROWS_HELD_OUT * len(own))]] = True
    return held_out


def split_series(
    tables: dict[str, hf.Dataset], noun: str, group: str | None = None
) -> tuple[dict[str, tuple[hf.Dataset, Share]], list[str]]:
    """The rows of each split, which are series, with the share of each that is in it, and a note of what is made.
    Missing splits are made as by `split_rows`; of one or two series the last two tenths of each are valid and test."""
    if len(tables) == 1 and len(tables["train"]) < len(SPLITS):
        notes = [f"valid and test are the last two tenths of each {noun}, as there are too few to hold some out"]
        return {split: (tables["train"], share) for split, share in split_shares(ROWS_HELD_OUT).items()}, notes
    return {split: (rows, (0.0, 1.0)) for split, rows in split_rows(tables, group=group).items()}, made_note(tables)


def made_note(named: Mapping[str, Any], splits: Mapping[str, Any] | None = None, group: str | None = None) -> list[str]:
    """A note of the splits that are made, where the data do not name all. splits: their rows, whose numbers the note
    states where rows of equal content made them other than a tenth."""
    missing = [split for split in SPLITS if split not in named]
    if not missing:
        return []
    rows = len(named["train"])
    shares = {split: len(splits[split]) / rows for split in missing} if splits else {}
    if any(abs(share - ROWS_HELD_OUT) > _MAX_SHARE_ERROR + 1 / rows for share in shares.values()):
        parts = " and ".join(f"{split} from {share:.0%}" for split, share in shares.items())
        same = "content" if group is None else repr(group)
        return [f"{parts} of the rows of train, not 10 %: all rows with the same {same} are in one split"]
    return [f"{' and '.join(missing)} made from 10 % of train{' each' if len(missing) > 1 else ''}"]


def shared_rows(splits: Mapping[str, hf.Dataset], named: Collection[str], label: str | None = None) -> list[str]:
    """Note how many rows of valid and test are also in the splits before them, by their content without the label.
    Splits that the data name (``named``) are kept as they are; those that are made share no rows."""
    notes, before = [], set()
    if len({*named} & {*SPLITS}) < 2:
        return notes
    for i, split in enumerate(each for each in SPLITS if each in splits):
        own = list(_hashes(splits[split], skip=label, encode=_encoded))
        count = sum(content in before for content in own)
        if count and split in named:
            notes.append(
                f"{count:,} of {len(own):,} rows of {split} are also in {' or '.join(SPLITS[:i])}, which makes scores "
                "on them too good; remove them from one of the two"
            )
        before.update(own)
    return notes


def _hashes(
    rows: hf.Dataset, skip: str | None, encode: Callable[[Any], bytes] = lambda value: repr(value).encode()
) -> Iterator[bytes]:
    """A hash of each row's content; ``encode`` gives that of a value other than a series."""
    columns = sorted(name for name in rows.column_names if name != skip)
    for batch in rows.with_format("arrow").iter(1000):
        table: Any = batch
        for values in zip(*(_contents(table.column(name), encode) for name in columns), strict=True):
            digest = hashlib.blake2b(key=b"0", digest_size=16)
            for value in values:
                digest.update(len(value).to_bytes(8))
                digest.update(value)
            yield digest.digest()


def _encoded(value: Any) -> bytes:
    """Encode images fast, as they are; splits that were made earlier depend on the encoding of other values."""
    return value if isinstance(value, bytes) else repr(value).encode()


def _contents(column: Any, encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    try:
        for _ in row_arrays(column):
            pass
    except TypeError:
        return map(encode, column.to_pylist())
    return (f"{array.shape}{array.dtype}".encode() + array.tobytes() for array in row_arrays(column))


@dataclass(frozen=True)
class Prepared:
    """The rows of data in three splits, read once into a folder of the cache, whose name is their key."""

    folder: Path
    splits: dict[str, hf.Dataset]
    notes: tuple[str, ...]  # further facts for the reader, one line each

    @property
    def key(self) -> str:
        """Hash of the rows and of all that decides how they are encoded."""
        return self.folder.name

    @classmethod
    def load(cls, key: str, write: Callable[[Path], dict[str, Any]], notes: Sequence[str], cache: Path | None) -> Self:
        """Read what ``write`` writes into the folder of a key, now or earlier (`lagwise.cache.cached_folder`), which
        returns the other fields."""
        folder = (cache or default_cache()) / cls.__name__.lower() / key
        meta = cached_folder(folder, write)
        splits = {split: hf.Dataset.from_file(str(folder / f"{split}.arrow")) for split in SPLITS}
        own: dict[str, Any] = {each.name: meta[each.name] for each in fields(cls) if each.name in meta}
        tuples = {each.name for each in fields(cls) if str(each.type).startswith("tuple")}  # JSON has lists
        own |= {name: tuple(own[name]) for name in tuples & {*own} if own[name] is not None}
        own |= {"folder": folder, "splits": splits, "notes": (*notes, *meta["notes"])}
        return cls(**own)

    def sizes(self) -> str:
        """The rows of each split, for people."""
        return ", ".join(f"{split} {len(rows):,}" for split, rows in self.splits.items())


def key_of(options: Sequence[Any]) -> str:
    """The key of data: a hash of all that decides what is in their folder."""
    return hashlib.sha256(json.dumps([_FORMAT, *options]).encode()).hexdigest()[:24]


@contextmanager
def arrow_file(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatchStreamWriter]:
    """A new Arrow file to write batches or tables to."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        yield writer
