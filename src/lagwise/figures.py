"""Common setup for all figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def single(*, width: float = 7.0, height: float = 3.6) -> tuple[Figure, Axes]:
    """A figure of one panel with a grid."""
    figure, axes = pyplot().subplots(figsize=(width, height), layout="constrained")
    axes.grid(alpha=0.3)
    return figure, axes


def panels(count: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` small panels, at most four in a row."""
    columns = min(count, 4 if count > 3 else 3)
    rows = -(-count // columns)
    figure, grid = pyplot().subplots(
        rows, columns, figsize=(max(2.4 * columns, 4), height * rows), layout="constrained", squeeze=False
    )
    drawn = list(grid.flat)
    for axes in drawn[count:]:
        axes.axis("off")
    return figure, drawn[:count]


def columns(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Points as the two lists that plotting functions take."""
    points = list(points)
    return [x for x, _ in points], [y for _, y in points]


def close(figure: Figure) -> None:
    """Close a figure that has been written; otherwise matplotlib keeps it in memory."""
    pyplot().close(figure)


def pyplot() -> Any:
    """matplotlib's pyplot, without a display. ImportError says how to install it."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'lagwise[plot]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
