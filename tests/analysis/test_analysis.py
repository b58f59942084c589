"""Kernels as numbers, pictures and a page."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from lagwise.analysis import LayerKernel, learned_kernels
from lagwise.analysis.plots import kernel_curves, kernel_matrices
from lagwise.analysis.report import plot_run
from lagwise.mixers import ToeplitzMixer
from lagwise.runs import evaluate_run
from lagwise.tasks.figures import accuracy_curve, length_curve, loss_curve
from lagwise.training import Recipe, load_recipe, train


def test_learned_kernels_are_the_mixers_taps() -> None:
    model = torch.nn.Sequential(ToeplitzMixer(3), ToeplitzMixer(2, causal=False))
    one, two = learned_kernels(model, 50)
    np.testing.assert_allclose(one.taps, model[0].kernel.taps(50).detach(), rtol=1e-6)
    np.testing.assert_allclose(two.taps, model[1].kernel.taps(50).detach(), rtol=1e-6)
    assert (one.origin, two.origin) == (0, 49)


@pytest.mark.covers("TNN fig. 3")
def test_energy_and_matrix() -> None:
    kernel = LayerKernel("0", np.array([[3.0, 0.0, -4.0, 0.0]]))
    assert kernel.energy_within(0.3) == 1
    assert kernel.energy_within(0.5) == 3
    assert kernel.matrix(3).tolist() == [[3, 0, 0], [0, 3, 0], [4, 0, 3]]
    assert kernel.matrix(6)[5].tolist() == [0, 0, 0, 4, 0, 3]


@pytest.mark.covers("TNN fig. 1 and 3")
def test_curves_show_the_numbers() -> None:
    scores = [{"length": n, "bits_per_byte": b} for n, b in ((512, 2.0), (1024, 1.9))]
    line = length_curve(scores, "bits_per_byte", "bits per byte", trained_at=512).axes[0].lines[0]
    assert line.get_xydata().tolist() == [[512, 2.0], [1024, 1.9]]
    metrics = [{"step": 1, "loss": math.log(2)}, {"step": 1, "eval_bits_per_byte": 1.5}]
    train_line, valid_line = loss_curve(metrics, bytes_per_token=2.0).axes[0].lines
    assert train_line.get_xydata().tolist() == [[1, 0.5]]
    assert valid_line.get_xydata().tolist() == [[1, 1.5]]
    metrics = [{"step": 5, "eval_loss": 1.0, "eval_accuracy": 0.3}, {"step": 5, "loss": 2.0}]
    right, chance = accuracy_curve(metrics, chance=0.2).axes[0].lines
    assert right.get_xydata().tolist() == [[5, 0.3]]
    assert chance.get_ydata() == [0.2, 0.2]
    kernel = LayerKernel("0", np.array([[3.0, 0.0, -4.0, 0.0]]))
    assert kernel_curves([kernel]).axes[0].lines[-2].get_ydata().tolist() == [3, 0, 4, 0]
    assert (
        kernel_matrices([kernel], size=3).axes[0].images[0].get_array().filled(0).tolist() == kernel.matrix(3).tolist()
    )


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.links = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "img":
            self.sources.append(values["src"] or "")
        self.links += tag in ("link", "script") or bool(values.get("href"))


@pytest.mark.parametrize("transformer", [False, True])
def test_the_report_needs_nothing_else(tiny_recipe: Recipe, tmp_path: Path, transformer: bool) -> None:
    if transformer:
        tiny_recipe.model = {
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "block": {"name": "prenorm", "token_mixer": {"name": "attention", "heads": 2}},
        }
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    assert len(plot_run(run)) == (2 if transformer else 4)  # without an evaluation: no extrapolation
    evaluate_run(run, [32, 64], progress=False)
    (run / "sample.txt").write_text("if a < b & c:")
    written = plot_run(run)
    assert [p.name for p in written if p.suffix == ".png"][:2] == ["loss.png", "extrapolation.png"]
    text = written[-1].read_text()
    page = _Page()
    page.feed(text)
    assert len(page.sources) == (2 if transformer else 4)
    assert all(s.startswith("data:image/png;base64,") for s in page.sources)
    assert page.links == 0
    assert "if a &lt; b &amp; c:" in text
    assert "gzip" in text


def test_the_report_of_a_task(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Accuracy, over steps and at lengths; nothing of bytes."""
    recall = load_recipe("associative-recall", ["data.length=8"])
    tiny_recipe.data, tiny_recipe.task = recall.data, recall.task
    block = {"name": "prenorm", "token_mixer": {"name": "attention", "heads": 2}}
    tiny_recipe.model = {**tiny_recipe.model, "block": block}
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    assert [p.name for p in plot_run(run)] == ["accuracy.png", "report.html"]
    evaluate_run(run, [8, 16], max_tokens=160, progress=False)
    text = plot_run(run)[-1].read_text()
    assert "<th>accuracy</th>" in text
    assert "<td>20</td>" in text
    assert "<td>10</td>" in text
    assert "byte" not in text.split("<h2>Recipe</h2>")[0]
