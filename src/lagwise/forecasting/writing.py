"""Write forecasts as a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lagwise.figures import close, pyplot
from lagwise.files import one_line, saved_whole
from lagwise.forecasting.estimator import LagForecaster
from lagwise.forecasting.tables import SeriesTable
from lagwise.forecasting.times import plain_times

if TYPE_CHECKING:
    from matplotlib.dates import AutoDateLocator
    from matplotlib.figure import Figure

_MAX_PLOTTED_SERIES = 8
_PLOTTED_HISTORY_HORIZONS = 3


def check_names(names: Sequence[str]) -> None:
    """Raise ValueError if a series has the name that an end of another one's intervals gets."""
    interval_of = {f"{name}_{end}": name for name in names for end in ("lower", "upper")}
    if both := next((name for name in names if name in interval_of), None):
        raise ValueError(f"series {both!r} has the name that intervals of {interval_of[both]!r} get; rename or omit it")


def write_forecast(table: SeriesTable, forecaster: LagForecaster, out: Path) -> tuple[pd.DataFrame, Path | str]:
    """Write the forecast of the rows after a table, by a forecaster fitted to its values.

    ``out`` gets the columns NAME, NAME_lower and NAME_upper for each series NAME, at times as year-month-day. Of a long
    table it gets the ids, the time and these columns of its target, for each series from its own end. A .png file of
    the same name gets the plot. Returns what was written, and the path of the plot or why there is none. ValueError as
    `check_names`, and for forecasts too large for floating-point numbers.
    """
    names = list(table.frame.columns) if table.ids is None else [table.target]
    check_names(names)
    values = forecaster.predict()
    lower, upper = forecaster.predict_interval()
    if not np.isfinite(values).all():
        name = table.frame.columns[int(np.isfinite(values).all(0).argmin())]
        raise ValueError(f"forecasts of series {name!r} exceed floating-point numbers; divide it by its largest value")
    by_suffix = {"": values, "_lower": lower, "_upper": upper}
    written = _long(table, by_suffix) if table.ids is not None else _wide(table, by_suffix)
    plot = out.with_suffix(".png")
    with saved_whole(out.parent, out.name) as partial:
        written.to_csv(partial / out.name)
    if find_spec("matplotlib") is None:
        return written, "for a plot, pip install 'lagwise[plot]'"
    try:
        with saved_whole(out.parent, plot.name) as partial:
            last = table.ends == len(table.frame)  # series that end earlier are not plotted
            times = table.next_times(len(values))
            plotted = values[:, last], (lower[:, last], upper[:, last])
            figure = forecast_figure(table.frame.loc[:, last], times, *plotted, forecaster.coverage)
            figure.savefig(partial / plot.name, dpi=130)
            close(figure)
    except (OSError, ValueError, OverflowError) as error:  # matplotlib cannot draw the largest numbers
        return written, f"no plot ({one_line(error)})"
    return written, plot


def _wide(table: SeriesTable, by_suffix: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Arrange forecasts with a column for each series and suffix."""
    times = plain_times(table.next_times(len(by_suffix[""])))
    names = enumerate(table.frame.columns)
    columns = {f"{name}{suffix}": x[:, i] for i, name in names for suffix, x in by_suffix.items()}
    return pd.DataFrame(columns, index=pd.Index(times, name=table.frame.index.name))


def _long(table: SeriesTable, by_suffix: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Arrange forecasts with a row for each series and time, indexed by the ids."""
    assert table.ids is not None
    horizon, series = by_suffix[""].shape
    times = {end: plain_times(table.next_times(horizon, end)) for end in set(table.ends)}
    forecasts = table.ids.loc[np.repeat(np.arange(series), horizon)].reset_index(drop=True)
    forecasts[str(table.frame.index.name)] = [at for end in table.ends for at in times[end]]
    for suffix, x in by_suffix.items():
        forecasts[f"{table.target}{suffix}"] = x.T.ravel()
    return forecasts.set_index(list(table.ids.columns))


def forecast_figure(history: pd.DataFrame, times: Any, forecast: np.ndarray, interval: Any, coverage: float) -> Figure:
    """Plot the end of each series, its forecast and interval, for at most 8 series: one under the other up to four,
    then in two columns.

    Shapes: forecast ``(horizon, series)`` at ``times``; interval: lower and upper ends, like forecast.
    """
    from matplotlib.dates import ConciseDateFormatter

    count = min(_MAX_PLOTTED_SERIES, history.shape[1])
    shown = history.iloc[-max(_PLOTTED_HISTORY_HORIZONS * len(times), 20) :]
    columns = 1 if count <= 4 else 2
    rows = -(-count // columns)
    figure, grid = pyplot().subplots(
        rows, columns, figsize=(8 * columns**0.5, 3.4 if rows == 1 else 2.3 * rows), layout="constrained", squeeze=False
    )
    for axes in grid.flat[count:]:
        axes.axis("off")
    for i, axes in enumerate(grid.flat[:count]):
        name = history.columns[i]
        observed = shown[name].dropna().iloc[-1:]  # joined to the forecast, so that no gap looks like a missing row
        joined = [*observed.index, *times], [*observed, *forecast[:, i]]
        axes.grid(alpha=0.3)
        axes.plot(shown.index, shown[name], color="0.35", linewidth=1, marker=".", markersize=3, label="observed")
        axes.plot(*joined, color="C0", linewidth=1.5, label="forecast")
        lower, upper = (bound[:, i] for bound in interval)
        axes.fill_between(times, lower, upper, color="C0", alpha=0.2, linewidth=0, label=f"{coverage:.0%} interval")
        axes.set_title(name, fontsize=10, loc="left")
        axes.tick_params(labelsize=8)
        axes.margins(x=0.01)
        if hasattr(times, "strftime"):
            locator = date_locator(columns)
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def date_locator(columns: int) -> AutoDateLocator:
    """Place dates on the axis of a plot in one of so many columns.

    With matplotlib's default of at least 5 ticks, a span of 4 days would need more ticks than fit, one every 12 hours,
    and warn. Every span has a unit and an interval within these limits.
    """
    from matplotlib.dates import AutoDateLocator

    return AutoDateLocator(minticks=3, maxticks=9) if columns == 1 else AutoDateLocator(minticks=2, maxticks=6)
