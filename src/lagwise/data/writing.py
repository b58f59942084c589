"""Predictions as files."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from lagwise.data.sound_files import sound_bytes
from lagwise.files import saved_whole


def write_rows(rows: Sequence[Mapping[str, Any]], file: IO[str]) -> None:
    """Write rows as .csv, with every column that any of them has, except series and images; lists of names as JSON."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [name for name in names if not any(_is_long(row.get(name)) for row in rows)]
    writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {name: row[name] for name in columns if name in row}
        writer.writerow({k: json.dumps(v, ensure_ascii=False) if isinstance(v, list) else v for k, v in cells.items()})


def _is_long(value: Any) -> bool:
    """Whether a value is a series or an image."""
    if isinstance(value, list):
        return not all(isinstance(item, str) for item in value)
    return isinstance(value, bytes | np.ndarray)


def rows_as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the text that `write_rows` writes."""
    write_rows(rows, text := io.StringIO())
    return text.getvalue()


def write_sounds(sounds: Mapping[str, tuple[np.ndarray, int]], folder: Path) -> None:
    """Write samples and their sampling rates as .wav files, by the names of the files they were made of; those that
    differ in the suffix alone keep it."""
    shared = Counter(Path(name).with_suffix("") for name in sounds)
    for name, (samples, rate) in sounds.items():
        bare = Path(name).with_suffix("")
        path = folder / (f"{name}.wav" if shared[bare] > 1 else f"{bare}.wav")
        with saved_whole(path.parent, path.name) as partial:
            (partial / path.name).write_bytes(sound_bytes(samples, rate))
