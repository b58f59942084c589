"""Tables in files as people export them: encodings, separators, titles above the header, and lines that are no rows."""

from __future__ import annotations

import csv
import io
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lagwise.data.reading import decoded
from lagwise.extras import require
from lagwise.files import one_line
from lagwise.forecasting.numbers import MISSING
from lagwise.tables import shown

if TYPE_CHECKING:
    import pandas as pd

_LOOKED_AT = 100  # lines, for the separator and the header
_SPREADSHEETS = {".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers"}
_NUMBER = re.compile(r"[+-]?[\d.,' ]*\d[\d.,]*(?:[eE][+-]?\d+)?%?")
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)


class Table(NamedTuple):
    """A table as it stands in a file, .csv as text, with the decimal separator that is usual for its separator of
    columns, and notes on lines that are no rows."""

    frame: pd.DataFrame
    decimal: str
    notes: tuple[str, ...] = ()


def read_file(path: Path, *, names_only: bool = False) -> Table:
    """Read a .csv, .tsv or .txt (also compressed) or a .parquet file.

    In text, a first line ``sep=;`` and titles above the header are passed over, and so are lines between the header and
    the first row that have no number (units, a second header) and empty lines.

    ValueError for a file that cannot be read, and for one whose first line has numbers and no names.
    """
    require("forecast", "a table of series", "pandas")
    import pandas as pd

    if not path.is_file():
        raise FileNotFoundError(f"no file {str(path)!r}")
    if path.suffix.lower() in _SPREADSHEETS:
        raise ValueError(f"{str(path)!r} is a spreadsheet; save its sheet as .csv (UTF-8) and give that file")
    try:
        if path.suffix.lower() != ".parquet":
            return _text_table(path, names_only)
        frame = pd.read_parquet(path)
        if isinstance(frame.index, pd.RangeIndex):
            return Table(frame, ".")
        # Times are often the index; whole numbers without a name are the rows that a selection kept.
        left_over = frame.index.name is None and pd.api.types.is_integer_dtype(frame.index)
        return Table(frame.reset_index(drop=left_over), ".")
    except (ValueError, EOFError, OSError, csv.Error) as error:  # parsing errors of the libraries are ValueErrors
        if str(path) in str(error):
            raise
        raise ValueError(f"{str(path)!r} cannot be read as a table: {one_line(error)}") from error


def _text_table(path: Path, names_only: bool) -> Table:
    import pandas as pd
    from pandas.io.common import get_handle

    with get_handle(path, "rb", is_text=False, compression="infer") as opened:
        text = re.sub("\r\n?", "\n", decoded(opened.handle.read(), path).removeprefix("\ufeff"))
    first = text[: text.find("\n") + 1 or len(text)].strip()
    given = _SEPARATOR_LINE.fullmatch(first)
    if given:
        text = text[text.find("\n") + 1 :]
    lines = text.split("\n", _LOOKED_AT)[:_LOOKED_AT]
    mark = given[1] if given else _separator(lines)
    head = list(csv.reader(lines, delimiter=mark, skipinitialspace=True))
    start, names, skipped = _header(head, path)
    frame = pd.read_csv(
        io.StringIO(text),
        sep=mark,
        skiprows=start,
        nrows=0 if names_only else None,
        dtype=str,
        na_values=list(MISSING),
        skipinitialspace=True,
    )
    if not names_only and not isinstance(frame.index, pd.RangeIndex):
        raise ValueError("its rows have more fields than its first line")
    notes = [f"the line {shown(mark.join(line))} stands above the header" for line in head[:start] if any(line)][:3]
    if skipped:
        frame = frame.iloc[len(skipped) :]
        notes += [
            f"the line {shown(mark.join(line))} below the header has no number; it is left out" for line in skipped
        ]
    frame = frame.dropna(how="all").reset_index(drop=True)
    named = frame.columns if names is None else [name or f"Unnamed: {i}" for i, name in enumerate(names)]
    frame.columns = [str(name).strip() for name in named]
    unnamed = [name for name in frame.columns[1:] if name.startswith("Unnamed: ") and frame[name].isna().all()]
    if not names_only:
        frame = frame.drop(columns=unnamed)
    return Table(frame, "," if mark == ";" else ".", tuple(notes))


def _separator(lines: list[str]) -> str:
    """Of semicolons, tabs, bars and commas the first that most lines have; otherwise that of the first line."""
    filled = [line for line in lines if line.strip()]
    for mark in ";\t|,":
        if sum(mark in line for line in filled) > len(filled) / 2:
            return mark
    return max(",;\t", key=(filled[0] if filled else "").count)


def _header(lines: list[list[str]], path: Path) -> tuple[int, list[str] | None, list[list[str]]]:
    """The number of the header's line, the names of columns if they stand on several lines, and the lines below that
    are no rows. The header is the line above the first row with most different names."""
    first = next((i for i, line in enumerate(lines) if _is_row(line)), None)
    if first is None:
        return next((i for i, line in enumerate(lines) if any(line)), 0), None, []
    above = [i for i in range(first) if any(lines[i])]
    if not above:
        raise ValueError(
            f"the first line of {str(path)!r} has numbers, {shown(lines[first])}; it must have names of columns, "
            "such as 'date,value'"
        )
    start = max(above, key=lambda i: len({cell for cell in lines[i] if cell.strip()}))
    below = list(
        itertools.takewhile(lambda line: not re.search(r"\d", line[0]), (lines[i] for i in above if i > start))
    )
    names = None
    if below:
        width = len(lines[start])
        full = [line for line in (lines[start], *below) if len(line) == width]
        # The name of an index stands alone on the last line of a header of several levels.
        alone = [line[0] for line in full[1:] if line[0].strip() and not any(line[1:])]
        names = list(lines[start])
        if len(set(names)) < width:
            names = [
                " ".join(dict.fromkeys(cell.strip() for cell in cells if cell.strip()))
                for cells in zip(*full, strict=True)
            ]
        names[0] = alone[-1] if alone else lines[start][0]
        names = None if len(set(names)) < width else names
    return start, names, below


def _is_row(line: list[str]) -> bool:
    """Whether a line has values: it starts with a time or number, or has one before another number."""
    first, cells = (line or [""])[0], [cell.strip() for cell in line if cell.strip()]
    digits = [cell for cell in cells if re.search(r"\d", cell)]
    numbers = [cell for cell in cells if _NUMBER.fullmatch(cell)]
    if not numbers or len(cells) < 2:
        return False
    starts = bool(re.search(r"\d", first)) and (len(digits) > 1 or any(cell in MISSING for cell in cells))
    return starts or len(digits) > len(numbers)
