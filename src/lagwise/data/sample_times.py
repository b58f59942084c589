"""Series whose samples have times of their own: the first feature of each sample is the time since the one before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from lagwise.data.text_tables import TextTable
from lagwise.tables import known


def read_times(table: TextTable, name: str) -> np.ndarray:
    """A column of a table as times, float64: numbers as they are, and dates (`lagwise.data.dates.read_dates`) in
    seconds since 1970, in the order of day and month in which they increase. ValueError names a cell that is neither, a
    table without the column, and dates whose order is not clear."""
    known(name, table.names, f"column of {table.path} (`time`)")
    try:
        return table.numbers(name)[:, 0]
    except ValueError as error:
        import pandas as pd

        from lagwise.data.dates import read_dates

        advice = "`time` names a column of numbers, or of dates such as 2024-05-31 23:59:00"
        try:
            found = list(read_dates(pd.Series(table.columns[name], name=name))[0].values())
        except ValueError as wrong:
            raise ValueError(f"{error}; {advice}") from wrong
        found = [times for times in found if times.is_monotonic_increasing] or found
        utc = [pd.DatetimeIndex(times if times.tz is None else times.tz_convert(None)) for times in found]
        seconds = [times.to_numpy(dtype="datetime64[ns]").astype(np.int64) / 1e9 for times in utc]
        if any(not np.array_equal(np.diff(each), np.diff(seconds[0])) for each in seconds):  # only steps count
            raise ValueError(f"{table.path}: {name!r} may have the day or the month first; {advice}") from error
        return seconds[0]


def with_times(values: np.ndarray, times: np.ndarray, where: str) -> np.ndarray:
    """Put the time since the sample before in front of the features of samples ``(samples, features)``, 0 for the first
    sample. ValueError for times that are missing, do not increase, or are not as many; ``where`` names their series."""
    values, times = values.reshape(len(values), -1), np.asarray(times, dtype=np.float64).reshape(-1)
    if len(times) != len(values):
        raise ValueError(f"{where} has {len(values):,} samples and {len(times):,} times")
    since = np.diff(times, prepend=times[:1])
    wrong = np.flatnonzero(~np.isfinite(times) | ~np.isfinite(since) | ((since <= 0) & (np.arange(len(times)) > 0)))
    if len(wrong):
        at = int(wrong[0])
        what = "no time" if not np.isfinite(times[at]) else f"the time {times[at]:g}, which is not after the one before"
        raise ValueError(f"{where}: sample {at + 1} has {what}; sort the samples, and leave out those without a time")
    return np.concatenate([since[:, None], values], axis=1).astype(np.float32)


def typical_time(series: Iterable[np.ndarray]) -> float:
    """The median time between samples of series that have times; 1 if none has two samples."""
    since = np.concatenate([np.zeros(0), *(each[1:, 0] for each in series)])
    return float(np.median(since)) if len(since) else 1.0


def timed_fields(time: str | None) -> dict[str, Any]:
    """Return the input fields of a model of samples with times that are known before the data are read, which is enough
    to find a part that counts samples; none without times."""
    return {} if time is None else {"features": 2, "time": 1.0}
