"""Encoded rows in the cache: a folder for each key, with an Arrow file for each split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import lagwise.data.arrow as pa
from lagwise.cache import cached_folder, default_cache
from lagwise.data.arrays import row_arrays
from lagwise.data.splits import SPLITS

if TYPE_CHECKING:
    from datasets import Dataset


def key_of(options: Sequence[Any]) -> str:
    """The key of data: a hash of all that decides what is in their folder."""
    return hashlib.sha256(json.dumps(options).encode()).hexdigest()[:24]


def prepared_rows(
    kind: str, key: str, write: Callable[[Path], dict[str, Any]], cache: Path | None = None
) -> tuple[Path, dict[str, Dataset], dict[str, Any]]:
    """The folder of a key, the rows of its splits and further information, now written by ``write`` or earlier
    (`lagwise.cache.cached_folder`)."""
    folder = (cache or default_cache()) / kind / key
    meta = cached_folder(folder, write)
    from datasets import Dataset

    return folder, {split: Dataset.from_file(str(folder / f"{split}.arrow")) for split in SPLITS}, meta


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
