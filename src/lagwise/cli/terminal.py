"""The options that typer does not parse or check itself, all of which are checked before anything is loaded; and the
streamed text and tables on standard output, in full and safe for the terminal."""

from __future__ import annotations

import io
import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import typer

from lagwise.files import expanded

T = TypeVar("T", str, list[str], None)
N = TypeVar("N", int, float, None)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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
    """Print a table without a frame and without cutting anything, the first column aligned to the left, the others to
    the right."""
    cells = [[" ".join(plain(str(value)).split()) for value in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))) for row in cells]
    typer.echo()
    typer.secho(plain(title), bold=True)
    typer.secho(lines.pop(0).rstrip(), dim=True)
    for line in lines:
        typer.echo(line.rstrip())


# Options.


def integers(text: str, option: str) -> list[int]:
    """Parse ``1,2,3`` as integers of at least 1."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise typer.BadParameter(f"{option} are integers of at least 1, separated by commas, got {text!r}")
    return numbers


def at_least(low: float) -> Callable[[N], N]:
    """Make a callback that refuses smaller numbers, infinity and NaN."""
    return _checked(lambda value: low <= value < math.inf, f"at least {low}")


def within(low: float, high: float, *, brackets: str) -> Callable[[N], N]:
    """Make a callback that refuses numbers out of an interval, and NaN; brackets as in ``(]``."""
    lower = operator.le if brackets[0] == "[" else operator.lt
    upper = operator.le if brackets[1] == "]" else operator.lt
    interval = f"in {brackets[0]}{low}, {high}{brackets[1]}"
    return _checked(lambda value: lower(low, value) and upper(value, high), interval)


def one_of(*words: str) -> Callable[[T], T]:
    """Make a callback that refuses other words."""
    return _checked(lambda value: value in words, " or ".join(words))


def _checked(allowed: Callable[[Any], bool], condition: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value is not None and not allowed(value):
            raise typer.BadParameter(f"must be {condition}, got {value}")
        return value

    return check


def not_empty(value: T) -> T:
    """A callback that refuses an empty text, or one in a list."""
    texts = [value.strip()] if isinstance(value, str) else value or []
    if not all(texts):
        raise typer.BadParameter("must not be empty")
    return value


def path(text: str | Path) -> Path:
    """A parser that refuses the empty text, which `Path` interprets as the current folder."""
    if not str(text).strip():
        raise typer.BadParameter("must not be empty")
    return Path(text)


def existing_folder(text: str | Path) -> Path:
    """A parser that refuses a folder that does not exist."""
    if not expanded(path(text)).is_dir():
        raise typer.BadParameter(f"there is no folder {str(text)!r}")
    return Path(text)


def existing_file(text: str | Path) -> Path:
    """A parser that refuses a file that does not exist."""
    if not expanded(path(text)).is_file():
        raise typer.BadParameter(f"there is no file {str(text)!r}")
    return expanded(text)


def folder_or(word: str) -> Callable[[str | Path], Path]:
    """`existing_folder`, or a word."""
    return lambda text: Path(word) if str(text) == word else existing_folder(text)


def text_option(help: str, *names: str, **settings: Any) -> Any:
    """Declare an option that is a text, or several, and not empty."""
    return typer.Option(*names, callback=not_empty, help=help, **settings)


def number_option(help: str, check: Callable[[Any], Any], *names: str, **settings: Any) -> Any:
    """Declare an option that is a number, with `at_least` or `within`."""
    return typer.Option(*names, callback=check, help=help, **settings)


def path_option(help: str, *names: str, **settings: Any) -> Any:
    """Declare an option that is a file or folder."""
    return typer.Option(*names, parser=path, help=help, **settings)


def run_argument(help: str) -> Any:
    """Declare the argument for the folder of a run or model."""
    return typer.Argument(metavar="RUN", parser=existing_folder, help=help)
