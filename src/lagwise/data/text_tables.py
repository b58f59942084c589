"""Tables in text files (.csv, .tsv): encodings, separators, headers, rows that are none, and the numbers in cells."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lagwise.tables import known, shown

HEAD_BYTES = 1 << 18  # bytes that show the first rows of a file
HEAD_LINES = 100  # lines, for the separator, the header and columns without a name
_MARKS = ";\t|,"  # separators; commas last, because numbers and names have them too
_SEPARATOR = re.compile(r'"?sep=(.)"?[,;\t|]*(\r\n?|\n)', re.IGNORECASE)  # the first line for Excel
_UNNAMED = "Unnamed: "  # prefix of the number of a column without a name
_NUMBER = re.compile(r"[+-]?[\d.,' ]*\d[\d.,]*(?:[eE][+-]?\d+)?%?")
_MAX_NOTED_LINES = 3  # lines above the header that are named

Lines = list[tuple[int, list[str]]]  # numbers of lines, and the fields of the rows that begin there
Notes = tuple[str, ...]


@dataclass(frozen=True)
class TextTable:
    """The cells of a table as they are written."""

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]  # the number of the line where each row begins
    separator: str
    notes: Notes = ()  # on lines that are no rows

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    def numbers(self, *names: str) -> np.ndarray:
        """Read columns as float64 ``(rows, columns)``, NaN where a value is missing. ValueError names the line of other
        text, and numbers whose decimal separator is not clear (`decimal_separator`)."""
        try:
            decimal = decimal_separator([self.columns[name] for name in names], usual_decimal(self.separator))
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error
        arrays = []
        for name in names:
            values, wrong = to_floats(self.columns[name], decimal)
            if wrong is not None:
                advice = "; if the line is no row, such as units or a total, remove it"
                raise ValueError(
                    f"{self.path}, line {self.lines[wrong]}: {name!r} is {self.columns[name][wrong]!r}, not a number"
                    f"{advice if wrong in (0, len(values) - 1) else ''}"
                )
            arrays.append(values)
        return np.stack(arrays, axis=1)

    def times(self, name: str) -> np.ndarray:
        """Read a column as times, float64: numbers as they are, and dates in seconds since 1970, in the order of day
        and month in which they increase. ValueError for a cell that is neither, and dates whose order is not clear."""
        known(name, self.names, f"column of {self.path} (`time`)")
        try:
            return self.numbers(name)[:, 0]
        except ValueError as error:
            import pandas as pd

            from lagwise.data.dates import read_dates

            advice = "`time` names a column of numbers, or of dates such as 2024-05-31 23:59:00"
            try:
                readings = list(read_dates(pd.Series(self.columns[name], name=name))[0].values())
            except ValueError as wrong:
                raise ValueError(f"{error}; {advice}") from wrong
            readings = [times for times in readings if times.is_monotonic_increasing] or readings
            utc = [pd.DatetimeIndex(times if times.tz is None else times.tz_convert(None)) for times in readings]
            seconds = [times.to_numpy(dtype="datetime64[ns]").astype(np.int64) / 1e9 for times in utc]
            if any(not np.array_equal(np.diff(each), np.diff(seconds[0])) for each in seconds):  # only steps count
                raise ValueError(f"{self.path}: {name!r} may have the day or the month first; {advice}") from error
            return seconds[0]


def text_table(text: str, path: Path, titles: bool = False, max_rows: int | None = None) -> TextTable:
    """Read the text of a file as `lagwise.data.reading.read_text_table` does, or only its first ``max_rows`` rows."""
    text, first, mark = text.removeprefix("\ufeff"), 1, None
    if match := _SEPARATOR.match(text):
        text, first, mark = text[match.end() :], 2, match[1]
    mark = mark or _separator(text, path, titles)
    rows, notes = _rows(text, path, mark, first, None if max_rows is None else max_rows + 1, titles)
    header = [name.strip() or f"{_UNNAMED}{i}" for i, name in enumerate(rows[0][1])] if rows else []
    if titles:
        header = [name if (n := header[:i].count(name)) == 0 else f"{name}.{n}" for i, name in enumerate(header)]
    if len(set(header)) < len(header) and is_data(header):
        raise ValueError(no_header(path, header))
    check_different(header, path)
    cells = list(zip(*(cells for _, cells in rows[1:]), strict=True)) or [()] * len(header)
    columns = {
        name: list(column)
        for i, (name, column) in enumerate(zip(header, cells, strict=True))
        if not (i and column and name.startswith(_UNNAMED) and not any(map(str.strip, column)))
    }
    return TextTable(path, columns, [line for line, _ in rows[1:]], mark, notes)


def check_different(names: Sequence[str], path: Path) -> None:
    """Raise ValueError if several columns of a file have the same name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{path} has {len(twice)} column name(s) more than once: {', '.join(map(repr, twice))}")


def _separator(text: str, path: Path, titles: bool) -> str:
    """Find the mark, of those in the first line or, if there may be titles, in any, that most lines have equally often
    outside quotes. Of .tsv the tab, if the first line has one or no mark."""
    lines = re.sub(r'"[^"]*"', "", text[:HEAD_BYTES].lstrip()).splitlines()[:HEAD_LINES]
    lines = [line for line in lines if line.strip()]
    marks = [mark for mark in _MARKS if titles or any(mark in line for line in lines[:1])]
    if ".tsv" in map(str.lower, path.suffixes[-2:]) and not titles and ("\t" in marks or not marks):
        return "\t"
    counts = {mark: Counter(filter(None, (line.count(mark) for line in lines))) for mark in marks}
    return max(marks, key=lambda mark: max(counts[mark].values(), default=0), default=",")


def _rows(text: str, path: Path, mark: str, first: int, limit: int | None, titles: bool) -> tuple[Lines, Notes]:
    """The header and rows of as many fields, at most ``limit`` together, and notes."""
    # With tabs tools differ on a quote that begins a field: some treat it as in .csv, some as an ordinary character.
    # Lines that are valid rows as written are rows, with any quotes.
    readings: list[tuple[Lines, Notes]] = []
    quotings = (csv.QUOTE_MINIMAL, csv.QUOTE_NONE) if mark == "\t" and '"' in text else (csv.QUOTE_MINIMAL,)
    for quoting in quotings:
        try:
            dialect = {"delimiter": mark, "quoting": quoting, "skipinitialspace": titles}
            rows, notes = text_rows(text, path, first, limit, **dialect), ()
            if titles:
                rows, notes = _without_titles(rows, path, mark)
            readings.append((_of_one_width(rows, path, mark, titles), notes))
        except ValueError:
            if quoting == quotings[-1] and not readings:
                raise
    same = len({len(row) for rows, _ in readings for _, row in rows[:1]}) < 2
    return readings[0] if same else readings[-1]


def text_rows(text: str, path: Path, first: int = 1, max_rows: int | None = None, **dialect: Any) -> Lines:
    """The lines of a text that are not empty, at most ``max_rows``; their numbers begin with ``first``. ``dialect`` is
    that of `csv.reader`. ValueError for a line with a wrong quote."""
    limit = csv.field_size_limit(max(len(text), 1))  # a setting of the process, restored afterwards
    lines = csv.reader(io.StringIO(text, newline=""), strict=True, **dialect)
    rows, line = [], first
    try:
        for row in lines:
            if row:
                rows.append((line, row))
            if len(rows) == max_rows:
                break
            line = lines.line_num + first
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}: {error}; check the quotes") from error
    finally:
        csv.field_size_limit(limit)
    return rows


def _of_one_width(rows: Lines, path: Path, mark: str, titles: bool) -> Lines:
    """The header and rows without lines of separators at the end. ValueError for a row of more or fewer fields."""
    while len(rows) > 1 and len(rows[-1][1]) > 1 and not any(map(str.strip, rows[-1][1])):
        rows.pop()
    width = len(rows[0][1]) if rows else 0
    if titles:
        rows = [(line, row + [""] * (width - len(row))) for line, row in rows]
    wrong = [(line, len(row)) for line, row in rows if len(row) != width]
    if not wrong:
        return rows
    line, fields = wrong[0]
    advice = f"a field that contains {'a tab' if mark == chr(9) else repr(mark)} or a line break must be quoted"
    if len(wrong) == len(rows) - 1 and len(rows) > 2:
        if width > 1 and {fields for _, fields in wrong} == {width + 1}:
            advice += "; if the first field of each is a name of its row, as R writes them, give it one in the header"
        else:
            advice += f"; if line {rows[0][0]} is a title above the header, remove it"
    elif line == rows[-1][0]:
        advice += "; if it is no row, such as a total, remove it"
    raise ValueError(f"{path}, line {line}: {fields} fields, but the header has {width}; {advice}")


def is_data(header: Sequence[str]) -> bool:
    """Whether the names of columns look like a row: all or all but one are numbers, other than 0, 1, 2, ... or 1, 2, 3,
    ..., as which tables without names are numbered."""
    names = [name for name in header if not name.startswith(_UNNAMED)]
    numbers = [
        name for name in names if all(map(is_number, name.split()))
    ]  # also several numbers with spaces between them
    if not numbers or len(numbers) < len(names) - 1:
        return False
    counted = [int(name) for name in numbers if name.isdecimal()]
    return len(counted) < len(numbers) or counted != [*range(counted[0], counted[0] + len(counted))] or counted[0] > 1


def no_header(path: Path, header: Sequence[str], example: str = "x0,x1,...,label") -> str:
    """The message about a file whose first line is a row."""
    some = ", ".join(f"{name:.30}" for name in header[:4]) + (", ..." if len(header) > 4 else "")
    return (
        f"the first line of {path} has numbers ({some}); it must have names of columns: put a header above it, such as "
        f"{example}"
    )


def _without_titles(rows: Lines, path: Path, mark: str) -> tuple[Lines, Notes]:
    """The header and the rows, and notes on lines that are neither. The header is the line above the first row with
    most different names. ValueError if there is none."""
    lines = [row for _, row in rows[:HEAD_LINES]]
    first = next((i for i, line in enumerate(lines) if _is_row(line)), None)
    if first is None:
        return rows[next((i for i, line in enumerate(lines) if any(line)), 0) :], ()
    above = [i for i in range(first) if any(lines[i])]
    if not above:
        raise ValueError(no_header(path, lines[first], "date,value"))
    start = max(above, key=lambda i: len({cell for cell in lines[i] if cell.strip()}))
    below = list(itertools.takewhile(lambda i: not re.search(r"\d", lines[i][0]), (i for i in above if i > start)))
    titles = [lines[i] for i in above if i < start][:_MAX_NOTED_LINES]
    notes = [f"the line {shown(mark.join(line))} stands above the header" for line in titles]
    notes += [f"the line {shown(mark.join(lines[i]))} below the header has no number; it is left out" for i in below]
    header = rows[start][0], _names(lines[start], [lines[i] for i in below])
    return [header, *(row for i, row in enumerate(rows) if i > start and i not in below)], tuple(notes)


def _names(header: list[str], below: list[list[str]]) -> list[str]:
    """The names of columns, also if they stand on several lines."""
    if not below:
        return header
    full = [line for line in (header, *below) if len(line) == len(header)]
    # The name of an index stands alone on the last line of a header of several levels.
    alone = [line[0] for line in full[1:] if line[0].strip() and not any(line[1:])]
    names = list(header)
    if len(set(names)) < len(names):
        names = [
            " ".join(dict.fromkeys(cell.strip() for cell in cells if cell.strip())) for cells in zip(*full, strict=True)
        ]
    names[0] = alone[-1] if alone else header[0]
    return header if len(set(names)) < len(names) else names


def _is_row(line: list[str]) -> bool:
    """Whether a line has values: it starts with a time or number, or has one before another number."""
    first, cells = (line or [""])[0], [cell.strip() for cell in line if cell.strip()]
    digits = [cell for cell in cells if re.search(r"\d", cell)]
    numbers = [cell for cell in cells if _NUMBER.fullmatch(cell)]
    if not numbers or len(cells) < 2:
        return False
    starts = bool(re.search(r"\d", first)) and (len(digits) > 1 or any(map(is_missing, cells)))
    return starts or len(digits) > len(numbers)


# Numbers in text: the decimal separator of a table, separators of thousands, and signs of a missing value.

_SIGNS = ("", ".", "..", "...", "-", "--", "–", "—", ":", "?", "*", "#value!", "#div/0!", "#ref!", "#na", "#n/a")
_WORDS = ("na", "n.a.", "n/a", "<na>", "#n/a n/a", "null", "none", "nan", "-nan")
_WINDOWS = ("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan")
#: Texts that stand for a missing value, in lower case: those of pandas, FRED, Eurostat, the World Bank, spreadsheets.
MISSING = frozenset((*_SIGNS, *_WORDS, *_WINDOWS))
_SPACES = re.compile("[\\s\u00a0\u202f'’](?=\\d{3}(\\D|$))")  # between thousands
_WRITTEN = re.compile(r"[+-]?[\d.,]*\d[\d.,]*(?:[eE][+-]?\d+)?")
_DOUBTFUL = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")  # a decimal fraction of three digits, or a thousand
_GROUPED = {mark: re.compile(rf"[+-]?\d{{1,3}}(\{mark}\d{{3}})+(\{other}\d*)?") for mark, other in (".,", ",.")}
_OTHER = {".": ",", ",": "."}


def is_missing(cell: str) -> bool:
    """Whether a cell of a table stands for a missing value."""
    return cell.strip().lower() in MISSING


def usual_decimal(separator: str) -> str | None:
    """The decimal separator that is usual in files with this separator of columns; None if there is no usual one."""
    return {";": ",", ",": "."}.get(separator)


def decimal_separator(columns: Iterable[Sequence[str]], usual: str | None) -> str:
    """The decimal separator of columns of text, "." or ",", by the numbers that can be read in one way alone. Where all
    numbers with a separator have three digits after it, it separates thousands if the numbers without one are below
    1000, as in 987, 1.013; otherwise it is the ``usual`` one of such files, or a point. ValueError if it is the other
    one."""
    votes: dict[str, str] = {}
    doubtful: dict[str, str] = {}
    thousands: set[str] = set()
    small = True
    for cells in columns:
        if usual != "," and not any("," in cell for cell in cells):
            continue
        texts = [text for cell in cells if _WRITTEN.fullmatch(text := _SPACES.sub("", cell.strip()))]
        whole = [abs(float(text)) for text in texts if "." not in text and "," not in text]
        small = small and max(whole, default=0) < 1000
        grows = bool(whole) and (usual is not None or max(whole) >= 100)
        for text in texts:
            last = max(text.rfind("."), text.rfind(","))
            if last < 0:
                continue
            mark = text[last]
            if text.count(".") + text.count(",") > 1:
                votes.setdefault(mark if _OTHER[mark] in text else _OTHER[mark], text)
            elif not _DOUBTFUL.fullmatch(text):
                votes.setdefault(mark, text)
            else:
                doubtful.setdefault(mark, text)
                thousands |= {mark} if grows else set()
    if len(votes) > 1:
        raise ValueError(
            f"numbers have decimal points and decimal commas, such as {votes['.']!r} and {votes[',']!r}; write all "
            "with one of them"
        )
    if votes:
        return next(iter(votes))
    if len(doubtful) != 1:
        return usual or "."
    mark, text = next(iter(doubtful.items()))
    if mark in thousands and small:  # 987, 1.013
        return _OTHER[mark]
    if mark != (usual or "."):
        raise ValueError(
            f"numbers such as {text!r} may be thousands or have three decimals; write them without a separator "
            "between thousands"
        )
    return mark


def to_floats(cells: Sequence[str], decimal: str) -> tuple[np.ndarray, int | None]:
    """The numbers of cells as float64, NaN where one is missing, and the index of the first that is no number, if any.

    The other one of "." and ",", spaces and apostrophes may separate thousands.
    """
    if decimal == ".":
        try:  # most files have plain numbers
            return np.fromiter(map(_float, cells), np.float64, len(cells)), None
        except ValueError:
            pass
    values = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        try:
            if not is_missing(cell):
                values[i] = _float(_plain(cell, decimal))
        except ValueError:
            return values, i
    return values, None


def with_points(cells: list[str], usual: str | None) -> list[str]:
    """Write decimal points instead of decimal commas, if all cells are numbers; otherwise return the cells as they
    are."""
    if usual == "." or not any("," in cell for cell in cells) or to_floats(cells, ",")[1] is not None:
        return cells
    try:
        decimal = decimal_separator([cells], usual)
    except ValueError:  # commas may separate thousands
        return cells
    return [cell if is_missing(cell) else _plain(cell, decimal) for cell in cells]


def are_numbers(cells: Sequence[str]) -> bool:
    """Whether all cells are numbers or missing, with one decimal separator or the other."""
    return any(to_floats(cells, decimal)[1] is None for decimal in ".,")


def _plain(cell: str, decimal: str) -> str:
    """A number with a decimal point and nothing between thousands."""
    text, other = _SPACES.sub("", cell.strip().replace("\u2212", "-")), _OTHER[decimal]
    if other in text:
        if not _GROUPED[other].fullmatch(text):
            raise ValueError
        text = text.replace(other, "")
    return text.replace(decimal, ".")


def _float(cell: str) -> float:
    if "_" in cell:  # Python reads 1_000, other programs do not
        raise ValueError
    return float(cell)


def count_up(cells: Sequence[str]) -> bool:
    """Whether cells count from 0 or 1, as pandas and R number rows."""
    return cells[:1] in (["0"], ["1"]) and [*cells] == [str(i + int(cells[0])) for i in range(len(cells))]


def is_number(text: str) -> bool:
    """Whether a text is a number with a decimal point."""
    try:
        _float(text)
    except ValueError:
        return False
    return True
