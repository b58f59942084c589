"""Splits written as files, in the form of the data that they are of."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import lagwise.data.arrow as pa
from lagwise.data.published import RECORD_FILES
from lagwise.data.reading import inner_suffix, read_whole
from lagwise.data.row_files import JSON, TEXT_TABLES, has_records, read_table
from lagwise.data.rows import RowSource
from lagwise.data.sources import SUFFIXES, Source
from lagwise.data.splits import SPLITS
from lagwise.data.text_tables import parse_text_table
from lagwise.files import is_unused, saved_whole


def check_split_folder(folder: Path) -> None:
    """FileExistsError if a folder for a split has files."""
    if not is_unused(folder):
        raise FileExistsError(f"{str(folder)!r} is not empty; choose another folder for the files of the split")


def write_text_split(source: Source, folder: Path) -> None:
    """Write the documents of running text into ``folder``: a file for each split, or, where the data are several files,
    for each file of a split, numbered as they are read. `open_source` finds the same splits there."""
    check_split_folder(folder)
    with saved_whole(folder, "the split") as partial:
        for split in SPLITS:
            parts = [(".jsonl", list(source.documents(split)))] if source.dataset is not None else _texts(source, split)
            parts = [(suffix, documents) for suffix, documents in parts if documents]
            for name, (suffix, documents) in zip(_names(split, len(parts)), parts, strict=True):
                (partial / f"{name}{suffix}").write_bytes(_file_bytes(suffix, documents))


def write_row_split(source: RowSource, places: Mapping[str, tuple[str, Sequence[int]]], folder: Path) -> None:
    """Write the rows of each split into ``folder``, all their columns: text tables and JSON as such and others as
    .parquet, named by the split, and files that are a class or a row each into the folder of their class in that of
    the split. `open_rows` and `open_series` find the same splits there.

    places: of each split, a split that the data name, and the numbers of its rows.
    """
    check_split_folder(folder)
    with saved_whole(folder, "the split") as partial:
        for split, (of, numbers) in places.items():
            if source.dataset is not None:
                source.dataset[of].select(numbers).to_parquet(partial / f"{split}.parquet")
                continue
            parts, wanted, start = [], np.sort(np.asarray(numbers)), 0
            for path, count, label in source.files_of(of):
                own = wanted[(wanted >= start) & (wanted < start + count)] - start
                start += count
                if not len(own):
                    continue
                kept = None if len(own) == count else own  # a recording is one row of many lines
                if label is None:
                    parts.append((path, kept))
                elif kept is None:
                    shutil.copyfile(path, _unused(partial / split / label, path.name))
                else:
                    kind, data = _rows(path, inner_suffix(path), kept)
                    _unused(partial / split / label, f"{path.name.partition('.')[0]}{kind}").write_bytes(data)
            for name, (path, own) in zip(_names(split, len(parts)), parts, strict=True):
                kind = inner_suffix(path)
                kind, data = (kind, read_whole(path)) if own is None else _rows(path, kind, own)
                (partial / f"{name}{kind}").write_bytes(data)


def _names(split: str, count: int) -> list[str]:
    digits = len(str(count))
    return [split] if count == 1 else [f"{split}-{i:0{digits}}" for i in range(1, count + 1)]


def _texts(source: Source, split: str) -> Iterator[tuple[str, list[str]]]:
    """The suffix and the documents of each file of a split."""
    for path in source.files[split]:
        kept, suffix = ["".join(parts) for parts in source.parts_of(path, split)], inner_suffix(path)
        yield ".jsonl" if has_records(path) else suffix if suffix in SUFFIXES else ".txt", kept


def _file_bytes(suffix: str, documents: list[str]) -> bytes:
    """A file of documents."""
    if suffix in JSON:
        return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in documents).encode()
    if suffix == ".parquet":
        return _parquet(pa.table({"text": pa.array(documents, pa.string())}))
    return "".join(documents).encode()


def _unused(folder: Path, name: str) -> Path:
    """A file in a folder, under another name where this one is taken."""
    folder.mkdir(parents=True, exist_ok=True)
    target, number = folder / name, 1
    while target.exists():
        target, number = folder / f"{number}-{name}", number + 1
    return target


def _rows(path: Path, kind: str, numbers: np.ndarray) -> tuple[str, bytes]:
    """A file with some rows of another, and its suffix: that of a text table or of records, else .parquet."""
    if kind in TEXT_TABLES:
        table, text = parse_text_table(read_whole(path), path), io.StringIO()
        writer = csv.writer(text, delimiter=table.separator, lineterminator="\n")
        writer.writerow(table.names)
        writer.writerows([cells[i] for cells in table.columns.values()] for i in numbers)
        return kind, text.getvalue().encode()
    if has_records(path):
        records = RECORD_FILES[kind].written(read_whole(path), path)
        return kind, "".join(records[i] for i in numbers).encode()
    rows = read_table(path).take(numbers)
    if kind in JSON:
        return ".jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows.to_pylist()).encode()
    return ".parquet", _parquet(rows)


def _parquet(table: Any) -> bytes:
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()
