"""Plot forecasts after the series they continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.figures import pyplot

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.dates import AutoDateLocator
    from matplotlib.figure import Figure

_MAX_SERIES = 8
_HISTORY_HORIZONS = 3


def forecast_figure(history: pd.DataFrame, times: Any, forecast: np.ndarray, interval: Any, coverage: float) -> Figure:
    """Plot the end of each series, its forecast and interval, for at most 8 series: one under the other up to four,
    then in two columns.

    Shapes: forecast ``(horizon, series)`` at ``times``; interval: lower and upper ends, like forecast.
    """
    from matplotlib.dates import ConciseDateFormatter

    count = min(_MAX_SERIES, history.shape[1])
    shown = history.iloc[-max(_HISTORY_HORIZONS * len(times), 20) :]
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
