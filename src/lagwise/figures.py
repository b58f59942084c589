"""Shared setup of all figures."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lagwise.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def single(*, width: float = 7.0, height: float = 3.6) -> tuple[Figure, Axes]:
    """Make a figure of one panel with a grid."""
    figure, axes = pyplot().subplots(figsize=(width, height), layout="constrained")
    axes.grid(alpha=0.3)
    return figure, axes


def panels(count: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """Make a figure of ``count`` small panels, at most four in a row."""
    columns = min(count, 4 if count > 3 else 3)
    rows = -(-count // columns)
    figure, grid = pyplot().subplots(
        rows, columns, figsize=(max(2.4 * columns, 4), height * rows), layout="constrained", squeeze=False
    )
    axes_list = list(grid.flat)
    for axes in axes_list[count:]:
        axes.axis("off")
    return figure, axes_list[:count]


def columns(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Split points into the two lists that plotting functions take."""
    points = list(points)
    return [x for x, _ in points], [y for _, y in points]


def inline_svg(figure: Figure, name: str) -> str:
    """Write a figure as an ``<svg>`` element for a page, in the page's colours. Identifiers contain ``name``, because
    those of all figures of a page must differ."""
    from matplotlib import rc_context
    from matplotlib.legend import Legend

    for legend in figure.findobj(Legend):
        legend.get_frame().set_facecolor(_PAPER)
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "path.simplify_threshold": 0.5}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = re.sub(r' d="[^"]*"', lambda path: _DIGITS.sub(r"\1", path[0]), _NOT_INLINE.sub("", buffer.getvalue()))
    svg = svg.replace("#000000", "currentColor").replace(_PAPER, "var(--paper)")
    return svg[svg.index("<svg") :].replace("<svg", '<svg role="img" fill="currentColor"', 1)


_PAPER = "#fdfdfe"  # a colour that no plot uses
_DIGITS = re.compile(r"(\.\d\d)\d+")
#: identifiers of groups and images, which may be the same in other figures and which nothing refers to, and
#: namespaces, which HTML defines itself
_NOT_INLINE = re.compile(r' (id="([\w.]+_\d+|image[0-9a-f]+)"|xmlns(:xlink)?="[^"]*")')


def close(figure: Figure) -> None:
    """Close a figure that has been written; otherwise matplotlib keeps it in memory."""
    pyplot().close(figure)


def pyplot() -> Any:
    """Import matplotlib's pyplot without a display. ImportError says how to install it."""
    require("plot", "a plot", "matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
