"""Files as texts and tables: also compressed, damaged, in another encoding, or far larger when unpacked.

One reader for each ending of a name gives a table (`READERS`).
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import itertools
import json
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

import lagwise.data.arrow as pa
from lagwise.data.arrays import FOLDER_LABEL, SERIES, array_column
from lagwise.data.series_files import SOUNDS, read_sound, ts_table
from lagwise.data.text_tables import HEAD_BYTES, HEAD_LINES, TextTable, check_different, text_table
from lagwise.files import one_line
from lagwise.outside import Registry
from lagwise.process import memory

_CHUNK_BYTES = 1 << 24  # bytes read at a time
_ENCODINGS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"}  # first: that of UTF-16 begins like it
_ENCODINGS |= {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
#: Endings of the names of compressed files, for messages.
COMPRESSIONS = ".xz, .gz, .bz2, .zst or .zip"
#: How files begin that are no text, and what to do about them.
_KINDS = {
    b"PK\x03\x04": "is a spreadsheet (.xlsx, .ods) or another .zip archive, not text; save the sheet as .csv in UTF-8",
    b"\xd0\xcf\x11\xe0": "is a spreadsheet (.xls), not text; save the sheet as .csv in UTF-8",
    b"\x1f\x8b": "is compressed; its name must end in .gz",
}


def is_compressed(path: Path) -> bool:
    """Whether a file is packed, by its name."""
    return path.suffix.lower() in _PACKED


def inner_suffix(path: Path) -> str:
    """The suffix of a file under that of a compression (`COMPRESSIONS`), in lower case."""
    return Path(path.stem if is_compressed(path) else path).suffix.lower()


def _open_zst(path: Path, mode: str) -> IO[bytes]:
    return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path), mode), "zstd"))  # type: ignore[arg-type]


def _open_zip(path: Path, mode: str) -> IO[bytes]:
    """The only file in an archive, besides those that macOS adds."""
    try:
        archive = zipfile.ZipFile(path)
        names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
        if len(names) != 1:
            raise ValueError(f"{path} holds {len(names):,} files; unpack it, and give one of them or their folder")
        return archive.open(names[0])
    except (RuntimeError, UnicodeError) as error:  # a password, what Python does not have, or names that are no text
        raise zipfile.BadZipFile(str(error)) from error


_PACKED: dict[str, Callable[..., Any]] = {
    ".xz": lzma.open,
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".zst": _open_zst,
    ".zip": _open_zip,
}


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """An open file to read from, unpacked if its name says that it is compressed (`COMPRESSIONS`). ValueError if it is
    damaged, or a .zip that does not hold one file."""
    suffix = path.suffix.lower()
    if suffix not in _PACKED:
        with open(path, "rb") as f:
            yield f
        return
    try:
        with _PACKED[suffix](path, "rb") as f:
            yield f
    except (lzma.LZMAError, zlib.error, zipfile.BadZipFile, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the system, not of the content
            raise
        kind = f"{'an' if suffix == '.xz' else 'a'} {suffix} file"
        raise ValueError(f"{path} is truncated or not {kind} ({error}); download it again") from error


def read_whole(path: Path) -> bytes:
    """The whole file, unpacked as by `opened`. ValueError if it is damaged, or too large for memory."""
    chunks, size = [], 0
    with opened(path) as f:
        while chunk := f.read(_CHUNK_BYTES):
            chunks.append(chunk)
            size += len(chunk)
            check_size(path, size)
    return b"".join(chunks)


def max_text_bytes() -> int:
    """Return how many bytes of text may be held at a time: a text is in memory several times while it is split and
    encoded."""
    return int(min(memory(), 2**62)) // 8


def check_size(path: Path, size: int) -> None:
    """Raise ValueError if a text of ``size`` bytes is too large for memory."""
    if size > max_text_bytes():
        raise ValueError(
            f"{path} holds over {max_text_bytes() / 1e9:.1f} GB of text, an eighth of this machine's memory; cut it "
            "into several files"
        )


def marked_encoding(data: bytes) -> str | None:
    """The encoding that a byte order mark says, if there is one."""
    return next((name for mark, name in _ENCODINGS.items() if data.startswith(mark)), None)


def decoded(data: bytes, path: Path) -> str:
    """The text of a file in UTF-8, or in UTF-16 or UTF-32 with a byte order mark, which is left out. ValueError for
    other files, with advice."""
    return "".join(_decoded([data], path))


def read_text(path: Path) -> Iterator[str]:
    """The text of a file in parts of some megabytes, unpacked as by `opened`, with the errors of `decoded`."""
    with opened(path) as f:
        yield from _decoded(iter(partial(f.read, _CHUNK_BYTES), b""), path)


def _decoded(parts: Iterable[bytes], path: Path) -> Iterator[str]:
    decoder: codecs.IncrementalDecoder | None = None
    encoding, read = None, 0  # bytes before the part
    for part in itertools.chain(parts, [b""]):
        if decoder is None:
            encoding = marked_encoding(part)
            for start, fault in _KINDS.items():
                if part.startswith(start) and encoding is None:
                    raise ValueError(f"{path} {fault}")
            decoder = codecs.getincrementaldecoder(encoding or "utf-8")()
        if encoding is None and b"\0" in part:
            odd, even = part[1:1000:2].count(0), part[:1000:2].count(0)
            if max(odd, even) > 4 * min(odd, even) + 10:  # the letters of Latin text have a zero byte each
                kind = "utf-16le" if odd > even else "utf-16be"
                raise ValueError(f"{path} seems UTF-16, not UTF-8; convert it: {_conversion(kind, path.name)}")
            zero = read + part.index(0)
            raise ValueError(f"{path} looks binary (a zero byte at {zero}), not text")
        waiting = len(decoder.getstate()[0])  # bytes of a character that the part before began
        try:
            yield decoder.decode(part, final=not part)
        except UnicodeDecodeError as error:
            start_byte = read - waiting
            if encoding is None:
                raise ValueError(not_utf8(error, str(path), start_byte)) from error
            raise ValueError(
                f"{path} is not valid {encoding.upper()} ({error.reason} at byte {start_byte + error.start})"
            ) from error
        read += len(part)


def not_utf8(error: UnicodeDecodeError, name: str | None, before: int = 0) -> str:
    """Say what to do about a file that is not UTF-8, or if the name is None, about standard input. before: bytes that
    were read before those of the error."""
    windows = any(0x80 <= byte < 0xA0 for byte in error.object[error.start :])  # Latin 1 has no letters for these bytes
    encoding = "cp1252" if windows else "latin1"
    command = f"'iconv -f {encoding} -t utf-8'" if name is None else _conversion(encoding, Path(name).name)
    return (
        f"{name or 'standard input'} is not UTF-8 (byte {before + error.start} is {error.object[error.start]:#04x}); "
        f"convert it, for example with {command}"
    )


def _conversion(encoding: str, name: str) -> str:
    return f"'iconv -f {encoding} -t utf-8 {name} > utf8-{name}'"


# Tables.

#: Modules for files of records, by suffix. ``read(data, path, columns)`` returns a table with a row for each record:
#: its ``text``, and as ``label`` the file's own name.
RECORD_FILES = Registry("kind of file", None, "lagwise.record_files", {})
_TEXT_COLUMNS, _SOUND_COLUMNS = ("text", FOLDER_LABEL, "file"), (FOLDER_LABEL, "sampling_rate", "file", SERIES)
ONE_ROW = (*SOUNDS, ".txt")  # files that are a row each; the name of a folder is its class
TEXT_TABLES = (".csv", ".tsv")
JSON = (".jsonl", ".json")  # objects on lines, or in an array
RECORDS = (*JSON, ".parquet", ".npz", ".ts")  # files whose values have types


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
    """The columns of one file: of .csv and .tsv the header alone is read."""
    text = file_kind(path) in TEXT_TABLES
    return tuple(read_head(path).names if text else read_table(path).column_names)


def read_text_table(path: Path, *, titles: bool = False) -> TextTable:
    """Read a .csv or .tsv file.

    The first line names the columns, after a line such as ``sep=;`` if there is one. Fields are separated by commas,
    semicolons, tabs or bars, those of .tsv by tabs. The text is UTF-8, or what a byte order mark says. Lines at the end
    with nothing but separators are no rows, and columns without a name or any cell no columns. ValueError names the
    file and the line that has more or fewer fields than the header, and the encoding of a file that is not UTF-8.

    titles: every row has a time and numbers. Therefore lines that are no rows can be told from rows: titles may stand
    above the header, and units or a second header below it. They are left out, with a note. A row may lack its last
    fields.
    """
    return text_table(decoded(read_whole(path), path), path, titles)


def read_head(path: Path, rows: int = 0, *, titles: bool = False) -> TextTable:
    """The columns of a file and its first ``rows`` rows. Errors in later rows are not found."""
    limit, table = max(rows, HEAD_LINES), None
    with opened(path) as f:
        data = f.read(HEAD_BYTES)
        whole = not f.read(1)
    if not whole:
        text = codecs.getincrementaldecoder(marked_encoding(data) or "utf-8")("replace").decode(data)
        with suppress(ValueError):  # a header longer than this, or a field in quotes that goes on behind the line break
            table = text_table(text[: text.rindex("\n") + 1], path, titles, limit)
    if table is None:
        table = text_table(decoded(data if whole else read_whole(path), path), path, titles, limit)
    columns = {name: cells[:rows] for name, cells in table.columns.items()}
    return replace(table, columns=columns, lines=table.lines[:rows])


def _of_text(read: Callable[[str, Path], pa.Table]) -> Callable[..., pa.Table]:
    return lambda data, path, columns: read(decoded(data, path), path)


def _text_table(text: str, path: Path) -> pa.Table:
    cells = text_table(text, path).columns
    return pa.table({name: pa.array(column, pa.string()) for name, column in cells.items()})


def read_records(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of a file of JSON, .parquet or another package, each after its position, some in memory at a time.

    fields: those that are read of .parquet and other packages' files, or all if the file lacks the first.
    """
    kind = inner_suffix(path)
    if kind in JSON:
        with opened(path) as f:
            for number, record in _objects(_lines(f, path), path):
                yield f"{path}, line {number}", record
        return
    batches: Any = [read_table(path, fields)] if kind != ".parquet" else ()
    if kind == ".parquet":
        file = open_parquet(path)
        names = file.schema_arrow.names
        batches = file.iter_batches(columns=[name for name in names if name in fields] if fields[0] in names else None)
    for batch in batches:
        yield from ((str(path), record) for record in batch.to_pylist())


def _lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    for line in iter(partial(file.readline, max_text_bytes() + 1), b""):
        check_size(path, len(line))
        if encoding := marked_encoding(line):
            convert = _conversion(encoding, path.name)
            raise ValueError(f"{path} is {encoding.upper()}, not UTF-8; convert it: {convert}")
        yield line


def _objects(lines: Iterable[bytes], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects in the lines that are not empty, and the numbers of these; of a JSON array its objects, and
    their numbers. ValueError names a faulty line."""
    rest, begun = iter(lines), False
    for number, line in enumerate(rest, 1):
        if not line.strip():
            continue
        array = not begun and line.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
        data, begun = b"\n".join([line, *rest]) if array else line, True
        try:
            parsed = json.loads(decoded(data, path).removeprefix("\ufeff"))
        except (json.JSONDecodeError, RecursionError) as error:
            fault = f", line {number}: not a JSON object ({one_line(error)})"
            if array:
                fault = f" is not a JSON array of objects ({one_line(error)}); write one, or an object on each line"
            raise ValueError(f"{path}{fault}") from error
        for place, record in enumerate(parsed, 1) if array else [(number, parsed)]:
            if not isinstance(record, dict):
                where = f": element {place} of the array is not an" if array else f", line {place}: not a JSON"
                raise ValueError(f"{path}{where} object but {type(record).__name__}")
            yield place, record


def _jsonl(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    data = decoded(data, path).encode() if marked_encoding(data) else data
    objects = list(_objects(data.split(b"\n"), path))
    lines, records = [number for number, _ in objects], [record for _, record in objects]
    names = dict.fromkeys(name for record in records for name in record)
    return pa.table(
        {
            name: _json_column(name, [record.get(name) for record in records], lines, path)
            for name in names
            if columns is None or name in columns
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
    by_name = {}
    for name, array in arrays.items():
        try:
            by_name |= {name: array_column(array)} if columns is None or name in columns else {}
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: array {name!r} of {array.dtype} cannot be read ({error})") from error
    return pa.table(by_name)


def _txt(text: str, path: Path) -> pa.Table:
    """Read a text as one row: the text, as label the name of the folder, and the name of the file."""
    values = text.removeprefix("\ufeff"), folder_name(path), path.name
    return pa.table({name: [value] for name, value in zip(_TEXT_COLUMNS, values, strict=True)})


def _sound(data: bytes, path: Path, columns: Sequence[str] | None) -> pa.Table:
    """Read a sound as one row: as label the name of its folder, the sampling rate, the name of the file, and the
    samples."""
    rate, samples = read_sound(data, path)
    values = [folder_name(path)], [rate], [path.name], array_column(samples[None])
    return pa.table(dict(zip(_SOUND_COLUMNS, values, strict=True)))


READERS: dict[str, Callable[[bytes, Path, Sequence[str] | None], pa.Table]] = {
    ".csv": _of_text(_text_table),
    ".tsv": _of_text(_text_table),
    **dict.fromkeys(JSON, _jsonl),
    ".parquet": _parquet,
    ".npz": _npz,
    ".ts": _of_text(ts_table),
    **dict.fromkeys(SOUNDS, _sound),
    ".txt": _of_text(_txt),
}
