"""Plots of forecasts after the series they continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lagwise.figures import panels

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_MOST = 8  # series to draw
_HISTORY = 3  # horizons of history to show


def forecast_figure(history: pd.DataFrame, times: Any, forecast: np.ndarray, interval: Any, coverage: float) -> Figure:
    """The end of each series, its forecast and interval, for at most 8 series.

    Shapes: forecast ``(horizon, series)`` at ``times``; interval: lower and upper ends, like forecast.
    """
    count = min(_MOST, history.shape[1])
    shown = history.iloc[-max(_HISTORY * len(times), 20) :]
    figure, drawn = panels(count, height=2.4)
    figure.set_size_inches(max(3.6 * min(count, 2 if count < 5 else 3), 7.5), figure.get_size_inches()[1])
    for i, axes in enumerate(drawn):
        name = history.columns[i]
        axes.grid(alpha=0.3)
        axes.plot(shown.index, shown[name], color="0.35", linewidth=1, label="observed")
        axes.plot(times, forecast[:, i], color="C0", linewidth=1.5, label="forecast")
        lower, upper = (bound[:, i] for bound in interval)
        axes.fill_between(times, lower, upper, color="C0", alpha=0.2, linewidth=0, label=f"{coverage:.0%} interval")
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.tick_params(axis="x", rotation=30)
    handles, labels = drawn[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    return figure
