"""Streamed text and tables on standard output, in full and safe for the terminal."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any

import typer

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_GAP = "  "


def use_utf8() -> None:
    """Read and write UTF-8 in pipes and redirected files on Windows too, where their encoding is otherwise that of the
    country: generated texts have any characters, and lagwise reads files as UTF-8."""
    if sys.platform != "win32":
        return
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding="utf-8")


def plain(text: str) -> str:
    """Remove the control characters of a text except newline and tab: escape sequences could change what a terminal
    shows."""
    return _CONTROL.sub("", text)


def write(text: str) -> None:
    """Write a piece of streamed text at once: as it is into files and pipes, `plain` to a terminal."""
    sys.stdout.write(plain(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def read(file: IO[str]) -> str:
    """Read a text file. ValueError, with advice, if it is not UTF-8."""
    try:
        return file.read()
    except UnicodeDecodeError as error:
        from lagwise.data.reading import not_utf8

        raise ValueError(not_utf8(error, None if file.name == "<stdin>" else file.name)) from error


def print_table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table without a frame and without cutting anything.

    The first column is aligned to the left, the others to the right. If the terminal is too narrow, every row is
    printed as a list of names and values.
    """
    cells = [[" ".join(plain(str(value)).split()) for value in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_GAP.join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))) for row in cells]
    typer.echo()
    typer.secho(plain(title), bold=True)
    if sys.stdout.isatty() and max(map(len, lines)) > shutil.get_terminal_size().columns:
        lines = [line for row in cells[1:] for line in _as_list(cells[0], row)]
    else:
        typer.secho(lines.pop(0).rstrip(), dim=True)
    for line in lines:
        typer.echo(line.rstrip())


def _as_list(head: Sequence[str], row: Sequence[str]) -> list[str]:
    width = max(map(len, head[1:]), default=0)
    first = f"{head[0]} {row[0]}".strip()
    return [first, *(f"{_GAP}{name.ljust(width)}{_GAP}{value}" for name, value in zip(head[1:], row[1:], strict=True))]
