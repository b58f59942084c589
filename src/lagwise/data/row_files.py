"""Files of rows as Arrow tables, also compressed: one reader for each ending of a name (`READERS`)."""

from __future__ import annotations

import codecs
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import lagwise.data.arrow as pa
from lagwise.data.arrays import FOLDER_LABEL, SERIES, array_column, list_column
from lagwise.data.reading import decoded, inner_suffix, is_compressed, marked_encoding, opened, read_whole
from lagwise.data.sound_files import SOUNDS, read_sound
from lagwise.data.text_tables import check_different, parse_text_table, read_head
from lagwise.files import one_line
from lagwise.outside import Parts

_RELATION = re.compile(r"""^(['"])(.*)\1\s*,\s*(.*)$""")  # quoted dimensions, and the class


def ts_table(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    """A row for each line: dimensions between colons, each of the same number of values between commas, and last the
    class or number, if the header has @classLabel or @targetLabel. ``?`` and NaN are missing values.

    ValueError names the line of an error; series with time stamps are not read.
    """
    labelled = False

    def header(key: str, value: str) -> None:
        nonlocal labelled
        if key in ("classlabel", "targetlabel"):
            labelled = value.lower().startswith("true")
        if key == "timestamps" and value.lower() == "true":
            raise ValueError("has time stamps; write the values alone, at equal distances")

    def row(line: str) -> tuple[list[str], str | None]:
        *dimensions, last = line.split(":")
        return (dimensions, last.strip()) if labelled else ([*dimensions, last], None)

    return _table(data, path, "#", header, row)


def arff_table(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    r"""A row for each line: the values of one dimension between commas, or in quotes several dimensions, which ``\n``
    separates, and last the class. Errors as `ts_table`, and for a class among the values."""
    nominal = False

    def header(key: str, value: str) -> None:
        nonlocal nominal
        if key == "attribute":
            if nominal:
                raise ValueError("follows an attribute that is a class, which must be the last; move it there")
            nominal = value.endswith("}")

    def row(line: str) -> tuple[list[str], str]:
        found = _RELATION.match(line)
        if found:
            return found[2].split(r"\n"), found[3].strip()
        values, _, label = line.rpartition(",")
        return [values], label.strip().strip("'\"")

    return _table(data, path, "%", header, row)


def _table(
    data: bytes,
    path: Path,
    comment: str,
    header: Callable[[str, str], None],
    row: Callable[[str], tuple[list[str], str | None]],
) -> pa.Table:
    rows: list[np.ndarray] = []
    labels: list[str | None] = []
    begun = False
    for number, line in enumerate(decoded(data, path).removeprefix("\ufeff").splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(comment):
            continue
        try:
            if not begun:
                if not line.startswith("@"):
                    raise ValueError("is before @data, but does not begin with @")
                key, value = (*line[1:].split(maxsplit=1), "", "")[:2]
                begun = key.lower() == "data"
                header(key.lower(), value)
                continue
            dimensions, label = row(line)
            rows.append(_values(dimensions))
            labels.append(label)
            if rows[-1].shape[1] != rows[0].shape[1]:
                raise ValueError(f"has {rows[-1].shape[1]} dimensions, and the first series {rows[0].shape[1]}")
        except ValueError as error:
            raise ValueError(f"{path}, line {number} {error}") from error
    if not rows:
        raise ValueError(f"{path} has no series after @data")
    found = {SERIES: list_column(rows, pa.list_(pa.list_(pa.float32(), rows[0].shape[1])))}
    return pa.table(found if labels[0] is None else {**found, FOLDER_LABEL: pa.array(labels)})


def _values(dimensions: Sequence[str]) -> np.ndarray:
    """Parse the texts of a series as an array ``(samples, dimensions)``. ValueError for other values than numbers, and
    other lengths."""
    parts = [["nan" if cell.strip() == "?" else cell for cell in dimension.split(",")] for dimension in dimensions]
    lengths = sorted({len(part) for part in parts})
    if len(lengths) > 1:
        raise ValueError(f"has dimensions of {lengths[0]} to {lengths[-1]} values; resample them to one rate")
    try:
        return np.array(parts, dtype=np.float32).T
    except ValueError as error:
        raise ValueError(f"has a value that is not a number ({error})") from error


#: Modules for files of records, by suffix. ``read(data, path, columns)`` returns a table with a row for each record:
#: its ``text``, and as ``label`` the file's own name.
RECORD_FILES = Parts("kind of file", None, "lagwise.record_files", {})
_TEXT_COLUMNS, _SOUND_COLUMNS = ("text", FOLDER_LABEL, "file"), (FOLDER_LABEL, "sampling_rate", "file", SERIES)
ONE_ROW = (*SOUNDS, ".txt")  # files that are a row each; the name of a folder is its class
TEXT_TABLES = (".csv", ".tsv")
JSON = (".jsonl", ".json")  # objects on lines, or in an array
RECORDS = (*JSON, ".parquet", ".npz", ".ts", ".arff")  # files whose values have types


def file_kind(path: Path) -> str | None:
    """The suffix of a file of rows, under that of a compression; None for another file."""
    suffix = inner_suffix(path)
    return suffix if suffix in READERS or suffix in RECORD_FILES else None


def has_records(path: Path) -> bool:
    """Whether another package reads a file (`RECORD_FILES`); each such file, or its folder, is a class."""
    return (suffix := inner_suffix(path)) not in READERS and suffix in RECORD_FILES


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of one file, of all columns or those named; the cells of .csv and .tsv as they are written. ValueError
    names the file and the position of the error."""
    kind = file_kind(path)
    assert kind is not None
    reader = RECORD_FILES[kind].read if has_records(path) else READERS[kind]
    table = reader(read_whole(path), path, columns)
    return table if columns is None else table.select([name for name in table.column_names if name in columns])


def folder_name(path: Path) -> str:
    """The name of a file's folder, also if the path is relative to that folder."""
    return path.absolute().parent.name


def read_columns(path: Path) -> tuple[str, ...]:
    """The columns of one file: of .csv and .tsv the header, of .jsonl the fields of the first record."""
    kind = file_kind(path)
    if kind in TEXT_TABLES:
        return tuple(read_head(path).names)
    if kind in JSON:
        with opened(path) as f:
            line = next((line for line in f if line.strip()), b"")
        whole = marked_encoding(line) or not line.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{")
        return tuple(_jsonl(read_whole(path) if whole else line, path, None).column_names)
    if kind in ONE_ROW:
        return _TEXT_COLUMNS if kind == ".txt" else _SOUND_COLUMNS
    if kind == ".npz" and not is_compressed(path) and zipfile.is_zipfile(path):
        with np.load(path, allow_pickle=False) as archive:
            return tuple(archive.files)
    if kind == ".parquet":
        return tuple(open_parquet(path).schema_arrow.names)
    return tuple(read_table(path).column_names)


def _text_table(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    cells = parse_text_table(data, path).columns
    return pa.table({name: pa.array(column, pa.string()) for name, column in cells.items()})


def read_records(lines: Iterable[bytes], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects in the lines that are not empty, and the numbers of these; of a JSON array its objects, and
    their numbers. ValueError names a faulty line."""
    rest, found = iter(lines), False
    for number, line in enumerate(rest, 1):
        if not line.strip():
            continue
        if not found and line.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
            yield from _array_records(b"\n".join([line, *rest]), path)
            return
        try:
            record = json.loads(decoded(line, path).removeprefix("\ufeff"))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not a JSON object ({one_line(error)})") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: not a JSON object but {type(record).__name__}")
        found = True
        yield number, record


def _array_records(data: bytes, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON array, and their numbers."""
    try:
        records = json.loads(decoded(data, path).removeprefix("\ufeff"))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a JSON array of objects ({one_line(error)}); write one, or an object on each line"
        ) from error
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise ValueError(f"{path}: element {number} of the array is not an object but {type(record).__name__}")
        yield number, record


def _jsonl(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    data = decoded(data, path).encode() if marked_encoding(data) else data
    found = list(read_records(data.split(b"\n"), path))
    lines, records = [number for number, _ in found], [record for _, record in found]
    names = dict.fromkeys(name for record in records for name in record)
    return pa.table(
        {
            name: _json_column(name, [record.get(name) for record in records], lines, path)
            for name in names
            if _is_wanted(name, columns)
        }
    )


def _json_column(name: str, values: list[Any], lines: list[int], path: Path) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
        first: dict[str, int] = {}
        for value, line in zip(values, lines, strict=True):
            try:
                pa.array([value])
            except (pa.ArrowException, UnicodeEncodeError, OverflowError) as own:
                raise ValueError(f"{path}, line {line}: {name!r} cannot be read ({own})") from error
            if value is not None:
                first.setdefault(type(value).__name__, line)
        kinds = ", ".join(f"{kind} (line {line})" for kind, line in first.items())
        raise ValueError(f"{path}: {name!r} has mixed types: {kinds}; use one type") from error


def open_parquet(path: Path, data: bytes | None = None) -> Any:
    """An open .parquet file, or its content if that was read. ValueError for other files."""
    from pyarrow import parquet

    data = read_whole(path) if data is None and is_compressed(path) else data
    try:
        return parquet.ParquetFile(path if data is None else pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a parquet file ({one_line(error)})") from error


def _parquet(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    file = open_parquet(path, data)
    try:
        table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged ({one_line(error)})") from error
    check_different(table.column_names, path)
    return plain_table(table)


def plain_table(table: pa.Table) -> pa.Table:
    """A table with the values of what pandas calls categories, and plain strings."""
    for i, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(i, field.name, table.column(i).cast(field.type.value_type))
        elif pa.types.is_string_view(field.type):
            table = table.set_column(i, field.name, table.column(i).cast(pa.string()))
    return table


def load_arrays(data: bytes, path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name. ValueError for a damaged file, and for arrays of Python objects."""
    arrays: dict[str, np.ndarray] = {}
    if not data.startswith(b"PK"):  # numpy would read it as a pickle
        raise ValueError(f"{path} is not an .npz file")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            for name in archive.files:
                try:
                    arrays[name] = archive[name]
                except ValueError as error:
                    raise ValueError(
                        f"{path}: array {name!r} holds Python objects, which are never loaded; store series of "
                        "different lengths as lists in .parquet or .jsonl"
                    ) from error
    except (zipfile.BadZipFile, EOFError, zlib.error, RuntimeError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path} is not an .npz file ({one_line(error)})") from error
    return arrays


def _npz(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    arrays = load_arrays(data, path)
    sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"{path}: the arrays must have the same number of rows (first axis), got "
            + ", ".join(f"{name} {arrays[name].shape}" for name in arrays)
        )
    found = {}
    for name, array in arrays.items():
        try:
            found |= {name: array_column(array)} if _is_wanted(name, columns) else {}
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: array {name!r} of {array.dtype} cannot be read ({error})") from error
    return pa.table(found)


def _txt(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    """Read a text as one row: the text, as label the name of the folder, and the name of the file."""
    values = decoded(data, path).removeprefix("\ufeff"), folder_name(path), path.name
    return pa.table({name: [value] for name, value in zip(_TEXT_COLUMNS, values, strict=True)})


def _sound(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    """Read a sound as one row: as label the name of its folder, the sampling rate, the name of the file, and the
    samples."""
    rate, samples = read_sound(data, path)
    values = [folder_name(path)], [rate], [path.name], array_column(samples[None])
    return pa.table(dict(zip(_SOUND_COLUMNS, values, strict=True)))


def _is_wanted(name: str, columns: Sequence[str] | None) -> bool:
    return columns is None or name in columns


READERS: dict[str, Callable[[bytes, Path, Sequence[str] | None], pa.Table]] = {
    ".csv": _text_table,
    ".tsv": _text_table,
    **dict.fromkeys(JSON, _jsonl),
    ".parquet": _parquet,
    ".npz": _npz,
    ".ts": ts_table,
    ".arff": arff_table,
    **dict.fromkeys(SOUNDS, _sound),
    ".txt": _txt,
}
