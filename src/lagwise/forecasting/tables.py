"""Tables of series with a column of times: read, and checked before anything is fitted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.files import one_line
from lagwise.tables import known, shown

if TYPE_CHECKING:
    import pandas as pd

_MOST_ADDED = 10  # rows filled in for each row that is there; more means that the step is not the table's own


@dataclass(frozen=True)
class SeriesTable:
    """Series at regular times: a DataFrame of numbers, NaN where missing, indexed by time; notes on what was done."""

    frame: pd.DataFrame
    notes: tuple[str, ...]

    def next_times(self, count: int) -> Any:
        """The times of the rows that follow."""
        index = self.frame.index
        if getattr(index, "freq", None) is not None:
            return index[-1] + index.freq * np.arange(1, count + 1)
        step = index[-1] - index[-2]
        return index[-1] + step * np.arange(1, count + 1)


def read_series(path: str | Path, time: str | None = None, columns: Sequence[str] | None = None) -> SeriesTable:
    """Read a .csv (also compressed) or .parquet with a column of times and columns of numbers.

    time: the name of the column of times, dates or evenly spaced numbers; by default the first column. columns: the
    series; by default all other columns.

    Rows are sorted by time. Times that are missing from a regular grid become rows of missing values, with a note.
    ValueError for a table without rows or series, times that cannot be read, occur twice or lie on no regular grid
    (which also says where), and for text or infinity in a column of numbers.
    """
    path = Path(path)
    frame = _read(path)
    if frame.empty or frame.shape[1] < (1 if time is None else 2):
        raise ValueError(f"{str(path)!r} has no rows, or no column beside the times")
    names = [str(name) for name in frame.columns]
    frame.columns = names
    time = names[0] if time is None else known(time, names, "column of times")
    chosen = [known(name, names, "column") for name in columns or () if name != time]
    if columns is None:
        chosen = [name for name in names if name != time]
    if not chosen:
        raise ValueError(f"{str(path)!r} has no column beside the times in {time!r}")
    index = _times(frame[time], time)
    values = {name: _numbers(frame[name], name) for name in chosen}
    made = type(frame)(values).set_axis(index, axis=0).sort_index()
    if (again := made.index.duplicated()).any():
        raise ValueError(
            f"column {time!r} has {made.index[again][0]} more than once; keep one row for each time, or give one file "
            "for each series"
        )
    return _regular(made, time)


def _read(path: Path) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("tables of series need pandas: pip install 'lagwise[forecast]'") from error
    if not path.is_file():
        raise FileNotFoundError(f"no file {str(path)!r}")
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (ValueError, EOFError, OSError) as error:  # the libraries' own errors of parsing are ValueErrors
        raise ValueError(f"{str(path)!r} cannot be read as a table: {one_line(error)}") from error


def _times(column: pd.Series, name: str) -> Any:
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        times = column
    else:
        times = pd.to_datetime(column, errors="coerce", format=None)
        if times.isna().all():  # several formats in a column, or time zones
            times = pd.to_datetime(column, errors="coerce", format="mixed", utc=True)
    if times.isna().any():
        row = int(np.flatnonzero(times.isna())[0])
        raise ValueError(
            f"column {name!r} has {shown(str(column.iloc[row]))} in row {row + 1}, which is no time; name the "
            "column of times with --time"
        )
    return pd.Index(times, name=name)


def _numbers(column: pd.Series, name: str) -> np.ndarray:
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce").astype(np.float64)
    wrong = numbers.isna() & column.notna() | np.isinf(numbers)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"column {name!r} has {shown(str(column.iloc[row]))} in row {row + 1}, which is no number; leave "
            "it empty if it is missing, or choose columns with --columns"
        )
    if numbers.isna().all():
        raise ValueError(f"column {name!r} has no value at all; choose columns with --columns")
    return numbers.to_numpy()


def _regular(frame: pd.DataFrame, time: str) -> SeriesTable:
    """The table on a regular grid of times, rows added where they are missing."""
    import pandas as pd

    rows, index = len(frame), frame.index
    if rows < 3:
        raise ValueError(f"at least 3 rows are needed, got {rows}")
    frequency = None
    if isinstance(index, pd.DatetimeIndex):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that pandas will return another type, which does as well here
            frequency = pd.infer_freq(index)
    if frequency is not None:
        full = frame.asfreq(frequency)
    elif isinstance(index, pd.DatetimeIndex) and index.day.nunique() == 1 and (np.diff(index) >= _DAYS_28).all():
        full = frame.asfreq(pd.offsets.DateOffset(months=1))  # months, some of them missing
        if not index.isin(full.index).all():
            _irregular(frame, time, np.flatnonzero(~index.isin(full.index))[0])
    else:
        steps = np.diff(index)
        found, counts = np.unique(steps, return_counts=True)
        step = found[counts.argmax()]
        multiples = steps / step
        off = np.abs(multiples - np.round(multiples)) > 1e-6
        if off.any():
            _irregular(frame, time, int(np.flatnonzero(off)[0]) + 1, step)
        places = np.concatenate([[0], np.round(multiples).cumsum()]).astype(int)
        if places[-1] + 1 > _MOST_ADDED * rows:
            _irregular(frame, time, int(np.argmax(multiples)) + 1, step)
        grid = index[0] + step * np.arange(places[-1] + 1)
        values = np.full((len(grid), frame.shape[1]), np.nan)
        values[places] = frame.to_numpy()
        full = pd.DataFrame(values, index=pd.Index(grid, name=time), columns=frame.columns)
    notes = []
    if len(full) > rows:
        notes.append(f"{len(full) - rows:,} times are missing from the grid; they count as rows without values")
    if missing := int(full.isna().to_numpy().sum()):
        notes.append(f"{missing:,} of {full.size:,} values are missing; the last value before each stands in for it")
    for name in full.columns[(full.max() == full.min()).to_numpy()]:
        notes.append(f"series {name!r} is constant")
    return SeriesTable(full, tuple(notes))


_DAYS_28 = np.timedelta64(28, "D")


def _irregular(frame: pd.DataFrame, time: str, row: int, step: Any = None) -> None:
    expected = "" if step is None else f" (most rows are {step} apart)"
    if isinstance(step, np.timedelta64):
        import pandas as pd

        expected = f" (most rows are {pd.Timedelta(step)} apart)"
    raise ValueError(
        f"the times in column {time!r} are irregular: {frame.index[row]} follows {frame.index[row - 1]}{expected}; "
        "resample the data to regular times"
    )
