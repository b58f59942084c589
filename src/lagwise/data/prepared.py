"""Encoded rows in the cache: a folder for each key, with an Arrow file for each split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import lagwise.data.arrow as pa
from lagwise.cache import cached_folder, default_cache
from lagwise.data.arrays import row_arrays
from lagwise.data.splits import SPLITS

if TYPE_CHECKING:
    from typing import Self

    from datasets import Dataset

_FORMAT = 3  # raise when the meaning of any files changes


@dataclass(frozen=True)
class Prepared:
    """The rows of data in three splits, read once into a folder of the cache, whose name is their key.

    Attributes:
        notes: further facts for the reader, one line each.
    """

    folder: Path
    splits: dict[str, Dataset]
    notes: tuple[str, ...]

    @property
    def key(self) -> str:
        """Hash of the rows and of all that decides how they are encoded."""
        return self.folder.name

    @classmethod
    def load(cls, key: str, write: Callable[[Path], dict[str, Any]], notes: Sequence[str], cache: Path | None) -> Self:
        """Read what ``write`` writes into the folder of a key, now or earlier (`lagwise.cache.cached_folder`), which
        returns the other fields."""
        from datasets import Dataset

        folder = (cache or default_cache()) / cls.__name__.lower() / key
        meta = cached_folder(folder, write)
        splits = {split: Dataset.from_file(str(folder / f"{split}.arrow")) for split in SPLITS}
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


def stored_arrays(path: Path, column: str) -> Iterator[np.ndarray]:
    """The rows of a column of lists in an Arrow file, one by one."""
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        for batch in reader:
            yield from row_arrays(batch.column(column))


@contextmanager
def arrow_file(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatchStreamWriter]:
    """A new Arrow file to write batches or tables to."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        yield writer
