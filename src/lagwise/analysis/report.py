"""A run as one self-contained HTML file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagwise.analysis.kernels import learned_kernels
from lagwise.analysis.plots import kernel_curves, kernel_matrices
from lagwise.figures import close
from lagwise.files import one_line, read_json
from lagwise.models import load_model
from lagwise.runs.evaluate import EVALUATION_FILE, open_run
from lagwise.tasks import Table
from lagwise.training import read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLE_FILE = "sample.txt"
REPORT_FILE = "report.html"

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2rem } h3 { font-size: 1rem; margin-bottom: .3rem }
table { border-collapse: collapse } th, td { padding: .25rem .9rem .25rem 0; text-align: right }
th:first-child, td:first-child, .facts td { text-align: left } th { border-bottom: 1px solid #999 }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; white-space: pre-wrap } img { max-width: 100% }
"""


def plot_run(run: Path) -> list[Path]:
    """Draw all plots of a run into ``RUN/plots`` and collect them in ``RUN/report.html``.

    Results of `lagwise evaluate` are included if they exist. Returns the files written. FileNotFoundError if the folder
    is not a finished run; ValueError if a file in it is damaged.
    """
    try:
        return _plot_run(run)
    except (KeyError, TypeError, AttributeError, IndexError) as error:  # from JSON that has been changed
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"run.json, metrics.jsonl or {EVALUATION_FILE} in {str(run)!r} is damaged ({what})") from error


def _plot_run(run: Path) -> list[Path]:
    model, _ = load_model(run)
    recipe, task = open_run(run)
    evaluation = read_json(run / EVALUATION_FILE) if (run / EVALUATION_FILE).is_file() else None
    metrics = read_metrics(run)
    kernels = learned_kernels(model, task.kernel_length(model.config))
    drawn = task.figures(metrics, evaluation)
    if kernels:
        drawn |= {"kernels": lambda: kernel_curves(kernels), "matrices": lambda: kernel_matrices(kernels)}
    figures = {name: draw() for name, draw in drawn.items()}
    (run / "plots").mkdir(exist_ok=True)
    written = []
    for name, figure in figures.items():
        written.append(run / "plots" / f"{name}.png")
        figure.savefig(written[-1], dpi=130)
    sample = run / SAMPLE_FILE
    page = report_page(
        title=recipe.description or run.name,
        facts=_facts(read_json(run / "run.json"), recipe.data.source or recipe.task["name"]),
        figures=figures,
        tables=task.tables(evaluation) if evaluation else (),
        kernels=[(k.layer, k.energy_within(0.5), k.energy_within(0.99)) for k in kernels],
        sample=sample.read_text() if sample.is_file() else None,
        recipe=recipe.to_yaml(),
    )
    (run / REPORT_FILE).write_text(page)
    for figure in figures.values():
        close(figure)
    return [*written, run / REPORT_FILE]


def report_page(
    *,
    title: str,
    facts: Mapping[str, Any],
    figures: Mapping[str, Figure],
    tables: Sequence[Table],
    kernels: Sequence[tuple[str, int, int]],
    sample: str | None,
    recipe: str,
) -> str:
    """The page as HTML text, with the plots inside. The first figure shows the learning, the others the results."""
    first, *others = [figure for name, figure in figures.items() if name not in ("kernels", "matrices")]
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<div class="facts">{_table(("", ""), facts.items())}</div>',
        "<h2>Learning</h2>",
        _image(first, "learning"),
    ]
    if tables:
        parts += ["<h2>Results</h2>", *(_image(figure, "results") for figure in others)]
    for table in tables:
        parts += [f"<h3>{html.escape(table.title)}</h3>", _table(table.head, table.rows)]
    if "kernels" in figures:
        parts += [
            "<h2>Learned kernels</h2>",
            _image(figures["kernels"], "kernels"),
            _image(figures["matrices"], "matrices"),
        ]
        parts += [_table(("layer", "lags with half the energy", "with 99 %"), kernels)]
    if sample:
        parts += ["<h2>A sample</h2>", f"<pre>{html.escape(sample)}</pre>"]
    parts += ["<h2>Recipe</h2>", f"<pre>{html.escape(recipe)}</pre>"]
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _facts(run: Mapping[str, Any], source: str) -> dict[str, Any]:
    return {
        "data": source,
        "parameters": f"{run['parameters']:,}",
        "machine": f"{run['processor']}, {run['threads']} threads" + (f", {run['gpu']}" if run["gpu"] else ""),
        "versions": f"lagwise {run['lagwise']}, torch {run['torch']}, transformers {run['transformers']}",
    }


def _image(figure: Figure, what: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return f'<img alt="{what}" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows]
    top = f"<tr>{''.join(f'<th>{html.escape(h)}</th>' for h in head)}</tr>" if any(head) else ""
    return f"<table>{top}{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
