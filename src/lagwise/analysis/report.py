"""A run as one self-contained HTML file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lagwise.analysis.kernels import kernel_curves, kernel_matrices, learned_kernels
from lagwise.figures import close, inline_svg
from lagwise.files import RECIPE_FILE, RUN_FILE, TOKENIZER, beside, one_line, read_json
from lagwise.models import generate_text, load_model
from lagwise.models.embeddings import patch_side
from lagwise.runs.evaluate import EVALUATION_FILE, open_run
from lagwise.tasks import Table
from lagwise.training import outcome, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_KERNEL_LAGS = 2048
_SAMPLE_TOKENS = 300


def plot_run(run: Path) -> list[Path]:
    """Draw all plots of a run into ``RUN/plots`` and collect them in ``RUN/report.html``.

    Results of `lagwise evaluate` are included if they exist. Returns the files written. FileNotFoundError if the folder
    is not a finished run; ValueError if a file in it is damaged.
    """
    try:
        return _plot_run(run)
    except (KeyError, TypeError, AttributeError, IndexError) as error:  # of changed JSON
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(
            f"{RUN_FILE}, metrics.jsonl or {EVALUATION_FILE} in {str(run)!r} is damaged ({what})"
        ) from error


def _plot_run(folder: Path) -> list[Path]:
    model, tokenizer = load_model(folder)
    (recipe, task), metrics, about = open_run(folder), read_metrics(folder), read_json(folder / RUN_FILE)
    evaluation = read_json(folder / EVALUATION_FILE) if (folder / EVALUATION_FILE).is_file() else None
    size = getattr(task, "size", None)  # only tasks of images have one
    kernels = learned_kernels(model, max(size) // patch_side(model.config) if size else _MAX_KERNEL_LAGS)
    figures = task.figures(metrics, evaluation)
    learning, *results = figures
    name = recipe.task["name"].replace("_", " ")
    summary = {
        "task": name,
        "data": recipe.data.source or "generated",
        "parameters": f"{about['parameters']:,}",
        **training_facts(folder, recipe, task, metrics),
    }
    command = training_command(folder, about.get("processes", 1))
    sections = [
        Section("Summary", [recipe.description], tables=[Table("", ("", ""), [*summary.items()])]),
        Section("Reproduce", code=command),
    ]
    if any("loss" in line for line in metrics):  # false for a run that only fitted a first answer
        sections.append(Section("Learning", plots={learning: figures[learning]()}))
    if evaluation:
        scored, own = evaluation.get("data"), recipe.data.source
        other = evaluation.get("given") or (own is not None and scored not in (None, own))
        notes = [f"Scored on other data than the run's own: {scored}."] if other else ()
        plots = {name: figures[name]() for name in results}
        sections.append(Section("Results", notes, plots=plots, tables=task.tables(evaluation)))
    if kernels:
        rows = [(k.layer, k.energy_within(0.5), k.energy_within(0.99)) for k in kernels]
        plots = {"kernels": kernel_curves(kernels), "matrices": kernel_matrices(kernels)}
        table = Table("Reach", ("layer", "lags with half the energy", "with 99 %"), rows)
        sections.append(Section("Learned kernels", plots=plots, tables=[table]))
    count = min(_SAMPLE_TOKENS, (model.length_limit or _SAMPLE_TOKENS + 1) - 1)  # after the start of a document
    if tokenizer is not None and task.predicts == "bits_per_byte" and count > 0:
        sample = generate_text(model, tokenizer, "", max_new_tokens=count, seed=0)
        sections.append(Section("A sample", code=sample))
    versions = [each for each in ("lagwise", "torch", "transformers", "numpy", "python") if each in about]
    machine = {
        "processor": about["processor"],
        "threads": about["threads"],
        "GPU": about["gpu"] or "none",
        "processes": about.get("processes", 1),
        "versions": ", ".join(f"{each} {about[each]}" for each in versions),
    }
    sections += [
        Section("Recipe", code=recipe.to_yaml(), folded=True),
        Section("Machine and versions", tables=[Table("", ("", ""), [*machine.items()])]),
    ]
    return write_page(folder, f"{folder.resolve().name}: {name}", sections)


def training_facts(folder: Path, recipe: Any, task: Any, metrics: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Say how long a run was trained, with which scores on validation data, and which model it ends with."""

    def curve(metric: str) -> list[tuple[float, float]]:
        return [(line["step"], line[metric]) for line in metrics if metric in line]

    facts = {"steps": f"{max((line['step'] for line in metrics), default=0):,}"}
    if seconds := curve("seconds"):
        facts["seconds"] = f"{seconds[-1][1]:,.0f}"
    name, label, greater_is_better = task.logged_headline(metrics)
    for _, score in curve("first_answer"):
        facts[f"first answer's validation {label}"] = f"{score:.4f}"
    if scores := curve(f"eval_{name}"):
        step, best = (max if greater_is_better else min)(scores, key=lambda point: point[1])
        facts[f"best validation {label}"] = f"{best:.4f} at step {step:,}"
        facts[f"last validation {label}"] = f"{scores[-1][1]:.4f}"
    if ending := outcome(folder, recipe, task, metrics):
        facts["model"], facts[f"its validation {label}"] = ending[0], f"{ending[1][name]:.4f}"
    return facts


def training_command(run: Path, processes: int = 1) -> str:
    """Return the shell command that trains a run's recipe again, ``RUN/recipe.yaml``, into ``RUN-again``."""
    options = ["--recipe", str(run / RECIPE_FILE)]
    if (run / TOKENIZER).is_dir():  # the recipe names the folder from which the run copied it
        options.append(f"data.tokenizer={run / TOKENIZER}")
    start = ["lagwise"] if processes == 1 else ["torchrun", "--nproc-per-node", str(processes), "-m", "lagwise"]
    return shlex.join([*start, "train", *options, "--out", str(beside(run, "-again"))])


# A page of plots and tables as one HTML file, which needs nothing else.

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
