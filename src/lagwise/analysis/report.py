"""A run as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagwise.analysis.kernels import learned_kernels
from lagwise.analysis.plots import (
    accuracy_curve,
    close,
    extrapolation_curve,
    kernel_curves,
    kernel_matrices,
    loss_curve,
)
from lagwise.data import RECALL
from lagwise.evaluation import EVALUATION_FILE
from lagwise.files import one_line, read_json
from lagwise.models import load_model
from lagwise.training import load_recipe, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLE_FILE = "sample.txt"
REPORT_FILE = "report.html"

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2rem }
table { border-collapse: collapse } th, td { padding: .25rem .9rem .25rem 0; text-align: right }
th:first-child, td:first-child, .facts td { text-align: left } th { border-bottom: 1px solid #999 }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; white-space: pre-wrap } img { max-width: 100% }
"""


def plot_run(run: Path) -> list[Path]:
    """Draw all pictures of a run into ``RUN/plots`` and gather them in ``RUN/report.html``.

    Extrapolation and compressors, or of a task the accuracy at each length, appear once `lagwise evaluate` has left
    its results. Returns the files written.
    FileNotFoundError if the folder is not a finished run; ValueError if a file in it is damaged.
    """
    try:
        return _plot_run(run)
    except (
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
    ) as error:  # of JSON that is not as it was
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"run.json, metrics.jsonl or {EVALUATION_FILE} in {str(run)!r} is damaged ({what})") from error


def _plot_run(run: Path) -> list[Path]:
    model, _ = load_model(run)
    recipe = load_recipe(str(run / "recipe.yaml"))
    evaluation = read_json(run / EVALUATION_FILE) if (run / EVALUATION_FILE).is_file() else None
    metrics = read_metrics(run)
    kernels = learned_kernels(model, 2048)
    if recipe.data.source == RECALL:
        figures = {"accuracy": accuracy_curve(metrics, chance=2 / recipe.data.vocab_size)}
    else:
        figures = {"loss": loss_curve(metrics, bytes_per_token=_bytes_per_token(metrics))}
    if evaluation and "valid" in evaluation:
        figures["extrapolation"] = extrapolation_curve(evaluation["test"], trained_at=recipe.data.length)
    if kernels:
        figures["kernels"] = kernel_curves(kernels)
        figures["matrices"] = kernel_matrices(kernels)
    (run / "plots").mkdir(exist_ok=True)
    written = []
    for name, figure in figures.items():
        written.append(run / "plots" / f"{name}.png")
        figure.savefig(written[-1], dpi=130)
    sample = run / SAMPLE_FILE
    page = report_page(
        title=recipe.description or run.name,
        facts=_facts(read_json(run / "run.json"), recipe.data.source),
        figures=figures,
        evaluation=evaluation,
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
    evaluation: Mapping[str, Any] | None,
    kernels: Sequence[tuple[int, int, int]],
    sample: str | None,
    recipe: str,
) -> str:
    """The page as HTML text; pictures are inside it."""
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<div class="facts">{_table(("", ""), facts.items())}</div>',
        "<h2>Learning</h2>",
        *(_image(figures[name]) for name in ("loss", "accuracy") if name in figures),
    ]
    if evaluation and "valid" not in evaluation:
        head = ("length", "accuracy", "sequences")
        parts += ["<h2>Accuracy on test sequences</h2>", _table(head, accuracy_rows(evaluation))]
    elif evaluation:
        compared = [(name, f"{value:.3f}") for name, value in comparison_rows(evaluation)]
        parts += ["<h2>Against compressors, on the same test bytes</h2>", _table(("", "bits/byte"), compared)]
        rows = [(s["length"], f"{s['bits_per_byte']:.4f}", f"{s['perplexity']:.3f}") for s in evaluation["test"]]
        parts += ["<h2>Extrapolation</h2>", _image(figures["extrapolation"])]
        parts += [_table(("length", "bits/byte", "perplexity/token"), rows)]
    if "kernels" in figures:
        parts += ["<h2>Learned kernels</h2>", _image(figures["kernels"]), _image(figures["matrices"])]
        parts += [_table(("layer", "lags with half the energy", "with 99 %"), kernels)]
    if sample:
        parts += ["<h2>A sample</h2>", f"<pre>{html.escape(sample)}</pre>"]
    parts += ["<h2>Recipe</h2>", f"<pre>{html.escape(recipe)}</pre>"]
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def comparison_rows(evaluation: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Model and compressors on the same test bytes, as (name, bits per byte), the model first."""
    first = evaluation["test"][0]
    rows = [(f"this model, length {first['length']}", first["bits_per_byte"])]
    return rows + list(evaluation["compressors"].items())


def accuracy_rows(evaluation: Mapping[str, Any]) -> list[tuple[int, str, int]]:
    """Of a task: (length, accuracy, sequences) at each length."""
    return [(s["length"], f"{s['accuracy']:.3f}", s["sequences"]) for s in evaluation["test"]]


def _facts(run: Mapping[str, Any], source: str) -> dict[str, Any]:
    return {
        "data": source,
        "parameters": f"{run['parameters']:,}",
        "machine": f"{run['processor']}, {run['threads']} threads" + (f", {run['gpu']}" if run["gpu"] else ""),
        "versions": f"lagwise {run['lagwise']}, torch {run['torch']}, transformers {run['transformers']}",
    }


def _bytes_per_token(metrics: Sequence[Mapping[str, float]]) -> float:
    """From any validation line, which has the loss in both units."""
    for line in metrics:
        if "eval_bits_per_byte" in line and line["eval_bits_per_byte"] > 0:
            return line["eval_loss"] / 0.6931471805599453 / line["eval_bits_per_byte"]
    return 1.0


def _image(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows]
    top = f"<tr>{''.join(f'<th>{html.escape(h)}</th>' for h in head)}</tr>" if any(head) else ""
    return f"<table>{top}{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
