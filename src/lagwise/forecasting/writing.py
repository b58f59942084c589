"""Write forecasts as a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from lagwise.figures import close
from lagwise.files import one_line, saved_whole
from lagwise.forecasting.estimator import LagForecaster
from lagwise.forecasting.plotting import forecast_figure
from lagwise.forecasting.tables import SeriesTable
from lagwise.forecasting.times import plain_times


def check_names(names: Sequence[str], quantiles: Sequence[float] = ()) -> None:
    """ValueError if a series has the name that an end of another one's intervals, or one of its quantiles, gets."""
    taken = {f"{name}_{end}": name for name in names for end in ("lower", "upper", *(f"{q:g}" for q in quantiles))}
    if both := next((name for name in names if name in taken), None):
        raise ValueError(f"series {both!r} has the name that intervals of {taken[both]!r} get; rename or omit it")


def write_forecast(
    table: SeriesTable, forecaster: LagForecaster, out: Path, quantiles: Sequence[float] = ()
) -> tuple[pd.DataFrame, Path | str]:
    """Write the forecast of the rows after a table, by a forecaster fitted to its values.

    ``out`` gets the columns NAME, NAME_lower and NAME_upper for each series NAME, at times as year-month-day, and
    NAME_0.1 for a quantile of 0.1. Of a long table it gets the ids, the time and these columns of its target, for each
    series from its own end. A .png file of the same name gets the plot. Returns what was written, and the path of the
    plot or why there is none. ValueError as `check_names`, and for forecasts too large for floating-point numbers.
    """
    names = list(table.frame.columns) if table.ids is None else [table.target]
    check_names(names, quantiles)
    values = forecaster.predict()
    lower, upper = forecaster.predict_interval()
    if not np.isfinite(values).all():
        name = table.frame.columns[int(np.isfinite(values).all(0).argmin())]
        raise ValueError(f"forecasts of series {name!r} exceed floating-point numbers; divide it by its largest value")
    parts = {"": values, "_lower": lower, "_upper": upper}
    if len(quantiles):
        parts |= {f"_{q:g}": each for q, each in zip(quantiles, forecaster.predict_quantiles(quantiles), strict=True)}
    made = _long(table, parts) if table.ids is not None else _wide(table, parts)
    plot = out.with_suffix(".png")
    with saved_whole(out.parent, out.name) as partial:
        made.to_csv(partial / out.name)
    if find_spec("matplotlib") is None:
        return made, "for a plot, pip install 'lagwise[plot]'"
    try:
        with saved_whole(out.parent, plot.name) as partial:
            last = table.ends == len(table.frame)  # series that end earlier are not drawn
            times = table.next_times(len(values))
            drawn = values[:, last], (lower[:, last], upper[:, last])
            figure = forecast_figure(table.frame.loc[:, last], times, *drawn, forecaster.coverage)
            figure.savefig(partial / plot.name, dpi=130)
            close(figure)
    except (OSError, ValueError, OverflowError) as error:  # matplotlib cannot draw the largest numbers
        return made, f"no plot ({one_line(error)})"
    return made, plot


def _wide(table: SeriesTable, parts: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Arrange forecasts with a column for each series and part."""
    times = plain_times(table.next_times(len(parts[""])))
    columns = {f"{name}{end}": x[:, i] for i, name in enumerate(table.frame.columns) for end, x in parts.items()}
    return pd.DataFrame(columns, index=pd.Index(times, name=table.frame.index.name))


def _long(table: SeriesTable, parts: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Arrange forecasts with a row for each series and time, indexed by the ids."""
    assert table.ids is not None
    horizon, series = parts[""].shape
    times = {end: plain_times(table.next_times(horizon, end)) for end in set(table.ends)}
    made = table.ids.loc[np.repeat(np.arange(series), horizon)].reset_index(drop=True)
    made[str(table.frame.index.name)] = [at for end in table.ends for at in times[end]]
    for end, x in parts.items():
        made[f"{table.target}{end}"] = x.T.ravel()
    return made.set_index(list(table.ids.columns))
