"""Tables in text files (.csv, .tsv): encodings, separators, headers, rows that are none, and the numbers in cells."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lagwise.data.reading import decoded, inner_suffix, marked_encoding, opened, read_whole

_HEAD = 1 << 18  # bytes that show the first rows of a file
_MARKS = ",;\t|"  # separators, the likelier first
_SEPARATOR = re.compile(r'"?sep=(.)"?[,;\t|]*\r?\n', re.IGNORECASE)  # the first line for Excel
_COMMAS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")  # numbers with commas between thousands
_POINTS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")  # whole numbers with points between thousands
#: What stands for a missing number, in lower case.
MISSING = frozenset(("", ".", "-", "--", "na", "n/a", "#n/a", "nan", "null", "none", "?"))


@dataclass(frozen=True)
class TextTable:
    """The cells of a table as they are written. lines: the number of the line where each row begins."""

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]
    separator: str

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    def numbers(self, name: str) -> np.ndarray:
        """A column as float64, NaN where a cell has one of `MISSING`. ValueError names the line of other text.

        A comma is the decimal mark, unless all numbers of the column that have one have groups of three digits (1,013)
        and fields are not separated by semicolons; between other marks than commas 1,013 is a ValueError if nothing
        shows which it is. A point is the decimal mark, unless the numbers have commas, or
        fields are separated by semicolons and the column shows that points separate thousands (987 beside 1.013).
        """
        cells = self.columns[name]
        if self.separator != ";":
            with suppress(ValueError):  # most files have plain numbers
                return np.fromiter(map(_float, cells), np.float64, len(cells))
        try:
            cells = _plain([cell.strip() for cell in cells], self.separator)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error} in column {name!r}; write numbers with decimal points") from error
        values = np.empty(len(cells))
        for i, cell in enumerate(cells):
            try:
                values[i] = np.nan if cell.lower() in MISSING else _float(cell)
            except ValueError as error:
                advice = "; if the line is no row, such as units or a total, remove it"
                raise ValueError(
                    f"{self.path}, line {self.lines[i]}: {name!r} is {self.columns[name][i]!r}, not a number"
                    f"{advice if i in (0, len(cells) - 1) else ''}"
                ) from error
        return values


def read_text_table(path: Path) -> TextTable:
    """Read a .csv or .tsv file. The first line names the columns, after a line such as ``sep=;`` if there is one.

    Fields are separated by the commas, semicolons, tabs or bars of the header, of .tsv by tabs. The text is UTF-8, or
    what a byte order mark says. Lines at the end with nothing but separators are no rows. ValueError names the file and
    the line that has more or fewer fields than the header, and the encoding of a file that is not UTF-8.
    """
    return parse_text_table(read_whole(path), path)


def parse_text_table(data: bytes, path: Path) -> TextTable:
    """As `read_text_table`, of the content of a file."""
    return _table(decoded(data, path), path)


def read_head(path: Path, rows: int = 0) -> TextTable:
    """The columns of a file and its first ``rows`` rows. Errors in later rows are not found."""
    with opened(path) as f:
        data = f.read(_HEAD)
        whole = not f.read(1)
    if not whole:
        text = codecs.getincrementaldecoder(marked_encoding(data) or "utf-8")("replace").decode(data)
        with suppress(ValueError):  # a header longer than this, or a field in quotes that goes on behind the line break
            return _table(text[: text.rindex("\n") + 1], path, rows + 1)
        data = read_whole(path)
    return _table(decoded(data, path), path, rows + 1)


def _table(text: str, path: Path, most: int | None = None) -> TextTable:
    rows, lines, mark = _rows(text, path, most)
    header = [name.strip() or f"Unnamed: {i}" for i, name in enumerate(rows[0])] if rows else []
    if len(set(header)) < len(header):
        if is_data(header):
            raise ValueError(no_header(path, header))
        twice = [name for name, count in Counter(header).items() if count > 1]
        raise ValueError(f"{path} has {len(twice)} column name(s) more than once: {', '.join(map(repr, twice))}")
    columns = list(zip(*rows[1:], strict=True)) or [()] * len(header)
    return TextTable(path, dict(zip(header, map(list, columns), strict=True)), lines[1:], mark)


def is_data(header: Sequence[str]) -> bool:
    """Whether the names of columns look like a row: all or all but one are numbers, other than 0, 1, 2, ... or 1, 2, 3,
    ..., as which tables without names are numbered."""
    names = [name for name in header if not name.startswith("Unnamed: ")]
    numbers = [name for name in names if all(map(_is_number, name.split()))]  # also with spaces between them
    if not numbers or len(numbers) < len(names) - 1:
        return False
    counted = [int(name) for name in numbers if name.isdecimal()]
    return len(counted) < len(numbers) or counted != [*range(counted[0], counted[0] + len(counted))] or counted[0] > 1


def no_header(path: Path, header: Sequence[str]) -> str:
    """The message about a file whose first line is a row."""
    shown = ", ".join(f"{name:.30}" for name in header[:4]) + (", ..." if len(header) > 4 else "")
    return (
        f"the first line of {path} is taken for the names of columns, but it has numbers ({shown}); put a header above "
        "it, such as x0,x1,...,label"
    )


def _rows(text: str, path: Path, most: int | None) -> tuple[list[list[str]], list[int], str]:
    """The header and rows of as many fields, at most ``most`` together, the line of each, and the separator."""
    text, first, mark = text.removeprefix("\ufeff"), 1, None
    if found := _SEPARATOR.match(text):
        text, first, mark = text[found.end() :], 2, found[1]
    if inner_suffix(path) == ".tsv":
        return *_tab_rows(text, path, first, most), "\t"
    mark = mark or _separator(text)
    return *_fields(text, path, mark, csv.QUOTE_MINIMAL, first, most), mark


def _separator(text: str) -> str:
    """The mark that the first line has most often outside quotes."""
    line = re.sub(r'"[^"]*"', "", text.lstrip("\r\n").partition("\n")[0])
    return max(_MARKS, key=line.count)


def _tab_rows(text: str, path: Path, first: int, most: int | None) -> tuple[list[list[str]], list[int]]:
    """Rows with tabs. Tools differ on a quote that begins a field: some treat it as in .csv, some as an ordinary
    character. Lines that are valid rows as written are rows, with any quotes."""
    if '"' not in text:
        return _fields(text, path, "\t", csv.QUOTE_MINIMAL, first, most)
    found = []
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
        try:
            found.append(_fields(text, path, "\t", quoting, first, most))
        except ValueError:
            if quoting == csv.QUOTE_NONE and not found:
                raise
    return found[0] if len(found[0][0]) == len(found[-1][0]) else found[-1]


def _fields(
    text: str, path: Path, mark: str, quoting: Any, first: int, most: int | None
) -> tuple[list[list[str]], list[int]]:
    limit = csv.field_size_limit(max(len(text), 1))  # a setting of the process, restored afterwards
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, quoting=quoting, strict=True)
    rows, lines, line = [], [], first
    try:
        for row in reader:
            if row:
                rows.append(row)
                lines.append(line)
            if len(rows) == most:
                break
            line = reader.line_num + first
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}: {error}; check the quotes") from error
    finally:
        csv.field_size_limit(limit)
    while len(rows) > 1 and len(rows[-1]) > 1 and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    width = len(rows[0]) if rows else 0
    wrong = [i for i, row in enumerate(rows) if len(row) != width]
    if not wrong:
        return rows, lines[: len(rows)]
    i = wrong[0]
    advice = f"a field that contains {'a tab' if mark == chr(9) else repr(mark)} or a line break must be quoted"
    if len(wrong) == len(rows) - 1 and len(rows) > 2:
        if width > 1 and {len(row) for row in rows[1:]} == {width + 1}:
            advice += "; if the first field of each is a name of its row, as R writes them, give it one in the header"
        else:
            advice += f"; if line {lines[0]} is a title above the header, remove it"
    elif i == len(rows) - 1:
        advice += "; if it is no row, such as a total, remove it"
    raise ValueError(f"{path}, line {lines[i]}: {len(rows[i])} fields, but the header has {width}; {advice}")


def _plain(cells: list[str], separator: str) -> list[str]:
    """Numbers with points as decimal marks, and nothing between thousands."""
    commas = [cell for cell in cells if "," in cell]
    if commas and separator != ";" and all(map(_COMMAS.fullmatch, commas)):
        if separator != "," and not any("." in cell or cell.count(",") > 1 for cell in commas):
            raise ValueError(f"{commas[0]!r} can be {commas[0].replace(',', '.')} or {commas[0].replace(',', '')}")
        return [cell.replace(",", "") for cell in cells]
    if commas:
        return [cell.replace(".", "").replace(",", ".") if "," in cell or _grouped(cell) else cell for cell in cells]
    points = [cell for cell in cells if "." in cell and cell not in MISSING]
    whole = any(cell.lstrip("+-").isdecimal() for cell in cells)
    if separator == ";" and points and whole and all(map(_grouped, points)):
        return [cell.replace(".", "") if "." in cell and cell not in MISSING else cell for cell in cells]
    return cells


def _grouped(cell: str) -> bool:
    """Whether points can separate thousands in a whole number: 1.013, but not 0.013."""
    return bool(_POINTS.fullmatch(cell))


def _float(cell: str) -> float:
    if "_" in cell:  # Python reads 1_000, other programs do not
        raise ValueError
    return float(cell)


def _is_number(text: str) -> bool:
    try:
        _float(text)
    except ValueError:
        return False
    return True
