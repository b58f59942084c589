"""Numbers in text: the decimal separator of a table, separators of thousands, and signs of a missing value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

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
    """The decimal separator of columns of text, "." or ",", by the numbers that can be read in one way alone: 0,5 and
    1.234,5 have a comma, 1.234.567 a point between thousands.

    Where all numbers with a separator have three digits after it, it separates thousands if the numbers without one are
    below 1000, as in 987, 1.013; otherwise it is the ``usual`` decimal separator of such files. Without a usual one,
    which is then a point, the numbers must come near 1000. ValueError if it is the other one.
    """
    votes: dict[str, str] = {}
    doubtful: dict[str, str] = {}
    thousands: set[str] = set()
    small = True
    for cells in columns:
        if usual != "," and not any("," in cell for cell in cells):
            continue
        texts = [_SPACES.sub("", cell.strip()) for cell in cells]
        texts = [text for text in texts if _WRITTEN.fullmatch(text)]
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
