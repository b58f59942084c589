"""Plots of speed over length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lagwise.figures import pyplot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def speed_over_length(panels: Mapping[str, Mapping[str, Sequence[tuple[int, float, int]]]]) -> Figure:
    """Plot speed over length, one panel per setting and one line per method, with marker size for memory (SKI-TNN fig.
    1).

    panels: by title and method, points (length, speed relative to a base, bytes of memory or 0).
    """
    figure = _lines_over_length(panels, width=6.4)
    largest = max((point[2] for lines in panels.values() for line in lines.values() for point in line), default=0)
    for axes, lines in zip(figure.axes, panels.values(), strict=True):
        for line, points in zip(axes.get_lines(), lines.values(), strict=True):
            line.set(marker="", linewidth=1)
            lengths, speeds, memory = zip(*points, strict=True)
            areas = [20 + 280 * m / max(largest, 1) for m in memory]
            axes.scatter(lengths, speeds, s=areas, color=line.get_color(), alpha=0.6)
        axes.axhline(1, color="0.7", linewidth=0.8)
        axes.set_yticks(ticks := [0.1, 0.2, 0.5, 1, 2, 5, 10], [f"{t:g}" for t in ticks])
    _add_key(figure, loc="outside lower center", ncols=max(map(len, panels.values())))
    figure.axes[0].set_ylabel("training steps, relative to tnn")
    figure.suptitle("One layer's training step; the area of a marker is its memory")
    return figure


def times_over_length(panels: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]) -> Figure:
    """Plot milliseconds over length, one panel per setting and one line per method (TCNCA fig. 2 and 7).

    panels: by title and method, points (length, milliseconds).
    """
    figure = _lines_over_length(panels, width=4.6)
    figure.axes[0].set_ylabel("milliseconds")
    _add_key(figure, loc="outside right center")
    return figure


def _lines_over_length(panels: Mapping[str, Mapping[str, Sequence[tuple[Any, ...]]]], *, width: float) -> Figure:
    figure, grid = pyplot().subplots(
        1, len(panels), figsize=(width * len(panels), 4.2), layout="constrained", squeeze=False, sharey=True
    )
    methods = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    for axes, (title, lines) in zip(grid.flat, panels.items(), strict=True):
        for name, points in lines.items():
            number = methods.index(name)
            style = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--"}  # there are ten colours
            lengths, values, *_ = zip(*points, strict=True)
            axes.plot(lengths, values, marker="o", markersize=4, label=name, **style)
        ticks = sorted({point[0] for points in lines.values() for point in points})
        axes.set(xscale="log", yscale="log", xlabel="length (tokens)", title=title)
        axes.set_xticks(ticks, [str(n) for n in ticks], rotation=45)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    return figure


def _add_key(figure: Figure, **options: Any) -> None:
    """Add one legend for all panels, with each line once."""
    shown = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    figure.legend(shown.values(), shown.keys(), fontsize=8, **options)
