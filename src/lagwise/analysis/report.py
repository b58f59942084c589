"""A run as one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

from lagwise.analysis.kernels import kernel_curves, kernel_matrices, learned_kernels
from lagwise.analysis.page import Section, write_page
from lagwise.analysis.recorded import recorded_run, training_command, undamaged
from lagwise.models import generate_text, load_model
from lagwise.models.embeddings import patch_side
from lagwise.tasks import Table

_MAX_KERNEL_LAGS = 2048
_SAMPLE_TOKENS = 300


def plot_run(run: Path) -> list[Path]:
    """Draw all plots of a run into ``RUN/plots`` and collect them in ``RUN/report.html``.

    Results of `lagwise evaluate` are included if they exist. Returns the files written. FileNotFoundError if the folder
    is not a finished run; ValueError if a file in it is damaged.
    """
    return undamaged(run, lambda: _plot_run(run))


def _plot_run(folder: Path) -> list[Path]:
    model, tokenizer = load_model(folder)
    run = recorded_run(folder)
    size = getattr(run.task, "size", None)  # only tasks of images have one
    kernels = learned_kernels(model, max(size) // patch_side(model.config) if size else _MAX_KERNEL_LAGS)
    figures = run.task.figures(run.metrics, run.evaluation)
    learning, *results = figures
    sections = [
        Section("Summary", [run.recipe.description], tables=[Table("", ("", ""), list(run.facts().items()))]),
        Section("Reproduce", code=training_command(folder, run.processes)),
    ]
    if any("loss" in line for line in run.metrics):  # false for a run that only fitted a first answer
        sections.append(Section("Learning", plots={learning: figures[learning]()}))
    if run.tables:
        notes = [f"Scored on other data than the run's own: {run.other_data}."] if run.other_data else ()
        sections.append(Section("Results", notes, plots={name: figures[name]() for name in results}, tables=run.tables))
    if kernels:
        rows = [(k.layer, k.energy_within(0.5), k.energy_within(0.99)) for k in kernels]
        plots = {"kernels": kernel_curves(kernels), "matrices": kernel_matrices(kernels)}
        table = Table("Reach", ("layer", "lags with half the energy", "with 99 %"), rows)
        sections.append(Section("Learned kernels", plots=plots, tables=[table]))
    count = min(_SAMPLE_TOKENS, (model.length_limit or _SAMPLE_TOKENS + 1) - 1)  # after the start of a document
    if tokenizer is not None and run.task.predicts == "bits_per_byte" and count > 0:
        sample = generate_text(model, tokenizer, "", max_new_tokens=count, seed=0)
        sections.append(Section("A sample", code=sample))
    sections += [
        Section("Recipe", code=run.recipe.to_yaml(), folded=True),
        Section("Machine and versions", tables=[Table("", ("", ""), list(run.machine().items()))]),
    ]
    return write_page(folder, f"{folder.resolve().name}: {run.facts()['task']}", sections)
