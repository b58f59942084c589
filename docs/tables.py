"""What the generated pages share: results files, tables, and paragraphs."""

from __future__ import annotations

import json
import posixpath
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def has_results(name: str) -> bool:
    """Whether a results file exists; sections of trainings that are still to be run are left out."""
    return (RESULTS / name).is_file()


def results(name: str) -> dict[str, Any]:
    """A results file."""
    return json.loads((RESULTS / name).read_text())


def made_by(name: str) -> str:
    """The command and the machine that made a results file."""
    content = results(name)
    threads = "1 thread" if content["threads"] == 1 else f"{content['threads']} threads"
    machine = f"{content['processor']}, {threads}, torch {content['torch']}".replace("(R)", "")
    return f"`{name}`: `{content['command']}` ({machine})"


def table(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Rows under their columns."""
    lines = [f"| {' | '.join(map(str, columns))} |", f"|{'---|' * len(columns)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def measured_table(name: str, columns: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Rows of a results file, and where they come from."""
    return f"{table(columns, rows)}\n\n{made_by(name)}"


def ratio(slow: dict[str, Any], fast: dict[str, Any]) -> float:
    """How many times as fast one timing is as another, by their medians."""
    return slow["median"] / fast["median"]


def mebibytes(count: float) -> str:
    """A number of bytes as a table shows it."""
    return f"{count / 2**20:,.0f}"


def wrapped(text: str) -> str:
    """A page with its paragraphs wrapped, and tables, headings, images and lists as they are."""
    parts = text.strip().split("\n\n")
    return "\n\n".join(part if part.startswith(("|", "#", "!", "- ")) else paragraph(part) for part in parts) + "\n"


def linked_from(page: Path, text: str) -> str:
    """Rewrite links that are relative to docs/ for a page elsewhere."""
    here = posixpath.relpath(ROOT / "docs", page.parent)
    return re.sub(
        r"\]\((?!https?:|#)([^)\s]+)\)", lambda found: f"]({posixpath.normpath(posixpath.join(here, found[1]))})", text
    )


def paragraph(text: str) -> str:
    """Prose wrapped at 120 columns; code in it may be wrapped too."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)
