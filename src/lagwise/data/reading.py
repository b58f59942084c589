"""Reading files that may be compressed, damaged, in another encoding, or far larger when unpacked."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import itertools
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import lagwise.data.arrow as pa
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
    archive = zipfile.ZipFile(path)
    names = [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]
    if len(names) != 1:
        raise ValueError(f"{path} holds {len(names):,} files; unpack it, and give one of them or their folder")
    try:
        return archive.open(names[0])
    except RuntimeError as error:  # a password, or a compression that Python does not have
        raise zipfile.BadZipFile(str(error)) from error


def _open_gz(path: Path, mode: str) -> Any:
    """The content of a .gz file, also of one that was compressed twice."""
    file: Any = gzip.GzipFile(path, mode)
    while file.peek(2)[:2] == b"\x1f\x8b":
        file = gzip.GzipFile(fileobj=file, mode=mode)
    return file


_PACKED: dict[str, Callable[..., Any]] = {
    ".xz": lzma.open,
    ".gz": _open_gz,
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
    pieces, size = [], 0
    with opened(path) as f:
        while piece := f.read(_CHUNK_BYTES):
            pieces.append(piece)
            size += len(piece)
            check_size(path, size)
    return b"".join(pieces)


def most_text() -> int:
    """Return how many bytes of text may be held at a time: a text is in memory several times while it is split and
    encoded."""
    return int(min(memory(), 2**62)) // 8


def check_size(path: Path, size: int) -> None:
    """ValueError if a text of ``size`` bytes is too large for memory."""
    if size > most_text():
        raise ValueError(
            f"{path} holds over {most_text() / 1e9:.1f} GB of text, an eighth of this machine's memory; cut it into "
            "several files"
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
            for start, what in _KINDS.items():
                if part.startswith(start) and encoding is None:
                    raise ValueError(f"{path} {what}")
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
            place = read - waiting
            if encoding is None:
                raise ValueError(not_utf8(error, str(path), place)) from error
            raise ValueError(
                f"{path} is not valid {encoding.upper()} ({error.reason} at byte {place + error.start})"
            ) from error
        read += len(part)


def not_utf8_mark(path: Path, encoding: str) -> str:
    """Say what to do about a file that is read by lines, and has the mark of another encoding."""
    return f"{path} is {encoding.upper()}, not UTF-8; convert it: {_conversion(encoding, path.name)}"


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
