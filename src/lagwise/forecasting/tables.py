"""Tables of series with a column of times, read and checked before anything is fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.extras import require
from lagwise.files import one_line
from lagwise.forecasting.times import regular_times
from lagwise.tables import known, shown

if TYPE_CHECKING:
    import pandas as pd


_UNNAMED = "Unnamed: 0"  # pandas' name for a first column without a name: the index of a table that pandas wrote


@dataclass(frozen=True)
class SeriesTable:
    """Series at regular times: a DataFrame of numbers, NaN where missing, indexed by time, and notes on how it was
    read."""

    frame: pd.DataFrame
    notes: tuple[str, ...]

    def next_times(self, count: int) -> Any:
        """The times of the next rows."""
        import pandas as pd

        index = self.frame.index
        if isinstance(index, pd.DatetimeIndex):
            return pd.date_range(index[-1], periods=count + 1, freq=index.freq)[1:]
        return index[-1] + (index[-1] - index[-2]) * np.arange(1, count + 1)


def read_series(path: str | Path, time: str | None = None, columns: Sequence[str] | None = None) -> SeriesTable:
    """Read a table with a column of times and columns of numbers.

    Rows are sorted by time, as `lagwise.forecasting.times.regular_times` reads it. Times that are missing from a
    regular grid become rows of missing values, with a note.

    Args:
        path: A .csv (also compressed; commas, tabs, or semicolons with decimal commas or points) or .parquet.
        time: The name of the column of times, dates or evenly spaced numbers; by default the first column.
        columns: The series; by default all other columns.

    Raises:
        ValueError: For a table without rows or series, times that cannot be used, and text or infinity in a column of
            numbers.
    """
    path = Path(path)
    frame = _read(path)
    if frame.empty or frame.shape[1] < (1 if time is None else 2):
        raise ValueError(f"{str(path)!r} has no rows, or no column besides the times")
    names = [str(name) for name in frame.columns]
    if all(_is_number(name) for name in names[1:]) and (_is_number(names[0]) or _is_time(names[0])):
        raise ValueError(f"the first row of {str(path)!r} has numbers, {shown(names)}; it must have names of columns")
    frame.columns = names
    if names[0] == _UNNAMED and time in (None, _UNNAMED):
        frame = frame.rename(columns={_UNNAMED: "time"})
    elif names[0] == _UNNAMED:  # the row number
        frame = frame.drop(columns=_UNNAMED)
    names = list(frame.columns)
    time = names[0] if time in (None, _UNNAMED) else known(time, names, "column of times")
    chosen = [known(name, names, "column") for name in columns or () if name != time]
    if columns is None:
        chosen = [name for name in names if name != time]
    if not chosen:
        raise ValueError(f"{str(path)!r} has no column besides the times in {time!r}")
    times, grid, notes = regular_times(frame[time])
    values = type(frame)({name: _numbers(frame[name], name) for name in chosen})
    full, more = _regular(values, times, grid)
    return SeriesTable(full, (*notes, *more))


def table_columns(path: str | Path) -> list[str] | None:
    """The names of the columns of a .csv, .tsv or .txt (also compressed) or .parquet; None for other files."""
    suffixes = {suffix.lower() for suffix in Path(path).suffixes}
    if Path(path).is_file() and {".csv", ".tsv", ".txt", ".parquet"} & suffixes:
        return [str(name) for name in _read(Path(path), rows=0).columns]
    return None


def _read(path: Path, rows: int | None = None) -> pd.DataFrame:
    require("forecast", "a table of series", "pandas")
    import pandas as pd

    if not path.is_file():
        raise FileNotFoundError(f"no file {str(path)!r}")
    try:
        if path.suffix.lower() != ".parquet":
            head = ",".join(map(str, pd.read_csv(path, nrows=0).columns))
            mark = max(",;\t", key=head.count)
            frame = pd.read_csv(path, sep=mark, decimal="," if mark == ";" else ".", nrows=rows)
            if rows is None and not isinstance(frame.index, pd.RangeIndex):
                raise ValueError("its rows have more fields than its first line")
            return frame
        frame = pd.read_parquet(path)
        if isinstance(frame.index, pd.RangeIndex):
            return frame
        # Times are often the index; whole numbers without a name are the rows that a selection kept.
        left_over = frame.index.name is None and pd.api.types.is_integer_dtype(frame.index)
        return frame.reset_index(drop=left_over)
    except (ValueError, EOFError, OSError) as error:  # parsing errors of the libraries are ValueErrors
        raise ValueError(f"{str(path)!r} cannot be read as a table: {one_line(error)}") from error


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_time(text: str) -> bool:
    import pandas as pd

    return not pd.isna(pd.to_datetime(text, errors="coerce", format="ISO8601"))


def _numbers(column: pd.Series, name: str) -> np.ndarray:
    import pandas as pd

    if column.dtype.kind in "mM":  # pandas would count nanoseconds
        raise ValueError(
            f"column {name!r} has times, not numbers; choose columns with --columns, or name the times with --time"
        )
    numbers = pd.to_numeric(column, errors="coerce").astype(np.float64)
    wrong = numbers.isna() & column.notna() | np.isinf(numbers)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"column {name!r} has {shown(str(column.iloc[row]))} in row {row + 1}, which is not a number; leave "
            "it empty if it is missing, choose columns with --columns, or name the times with --time"
        )
    if numbers.isna().all():
        raise ValueError(f"column {name!r} has no value at all; choose columns with --columns")
    return numbers.to_numpy()


def _regular(frame: pd.DataFrame, times: pd.Index, grid: pd.Index) -> tuple[pd.DataFrame, list[str]]:
    """The rows at their positions on the grid, missing values between them, and notes."""
    import pandas as pd

    places = times.argsort() if len(grid) == len(times) else None
    if places is not None:
        values = frame.to_numpy()[places]
    else:  # numbers of a grid may differ from those of the table by rounding
        values = np.full((len(grid), frame.shape[1]), np.nan)
        values[grid.get_indexer(times, method="nearest")] = frame.to_numpy()
    full = pd.DataFrame(values, index=grid, columns=frame.columns)
    notes = []
    if len(full) > len(frame):
        notes.append(f"{len(full) - len(frame):,} times are missing from the grid; they count as rows without values")
    if missing := int(full.isna().to_numpy().sum()):
        notes.append(
            f"{missing:,} of {full.size:,} values are missing; as inputs, the last value before each stands in for it"
        )
    for name in full.columns[(full.max() == full.min()).to_numpy()]:
        notes.append(f"series {name!r} is constant")
    return full, notes
