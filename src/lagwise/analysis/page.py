"""A page of plots and tables as one HTML file, which needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING

from lagwise.figures import close, inline_svg
from lagwise.tasks import Table

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

REPORT_FILE = "report.html"


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        title: the heading, and the entry in the contents.
        notes: paragraphs.
        code: text as it is, which is ``folded`` away until the reader asks for it.
        plots: figures by name.

    A table without column names lists facts.
    """

    title: str
    notes: Sequence[str] = ()
    code: str = ""
    folded: bool = False
    plots: Mapping[str, Figure] = field(default_factory=dict)
    tables: Sequence[Table] = ()


def write_page(folder: Path, title: str, sections: Sequence[Section]) -> list[Path]:
    """Write the sections into ``report.html``, and their plots also as images into ``plots``; close the plots.

    Returns:
        The files written, the page last.
    """
    from jinja2 import Environment

    text = (resources.files("lagwise.analysis") / "report.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    files, contexts = [], []
    for section in sections:
        plots = {}
        for name, figure in section.plots.items():
            files.append(folder / "plots" / f"{name}.png")
            figure.savefig(files[-1], dpi=130)
            plots[name] = inline_svg(figure, name)
            close(figure)
        anchor = section.title.lower().replace(" ", "-")
        contexts.append({**vars(section), "anchor": anchor, "plots": plots})
    page = folder / REPORT_FILE
    page.write_text(template.render(title=title, sections=contexts), encoding="utf-8")
    return [*files, page]
