"""Predictions as files."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lagwise.data.series_files import sound_bytes
from lagwise.files import saved_whole


def rows_as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as the text of a .csv file, with every column that any has, except series and images; lists as JSON."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [name for name in names if not any(_is_long(row.get(name)) for row in rows)]
    writer = csv.DictWriter(text := io.StringIO(), fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {name: row[name] for name in columns if name in row}
        writer.writerow({k: json.dumps(v, ensure_ascii=False) if isinstance(v, list) else v for k, v in cells.items()})
    return text.getvalue()


def _is_long(value: Any) -> bool:
    """Whether a value is a series or an image."""
    if isinstance(value, list):
        return not all(isinstance(item, str) for item in value)
    return isinstance(value, bytes | np.ndarray)


def write_sounds(sounds: Mapping[str, tuple[np.ndarray, int]], folder: Path) -> None:
    """Write samples and their sampling rates as .wav files, by the names of the files they were made of; those that
    differ in the suffix alone keep it."""
    shared = Counter(Path(name).with_suffix("") for name in sounds)
    for name, (samples, rate) in sounds.items():
        bare = Path(name).with_suffix("")
        path = folder / (f"{name}.wav" if shared[bare] > 1 else f"{bare}.wav")
        with saved_whole(path.parent, path.name) as partial:
            (partial / path.name).write_bytes(sound_bytes(samples, rate))
