"""The benchmark of image classifiers compares models of equal size, and its results become a section and a figure."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from lagwise.models import LagwiseConfig, LagwiseForImageClassification
from lagwise.training import load_recipe


@pytest.fixture
def pictures(benchmark_script: Callable[[str], ModuleType]) -> Any:
    return benchmark_script("pictures")


def parameters(overrides: list[str]) -> int:
    fields = load_recipe("tnn-cifar", overrides).model
    with torch.device("meta"):
        model = LagwiseForImageClassification(LagwiseConfig(**fields, causal=False, num_labels=10))
    return sum(p.numel() for p in model.parameters())


def test_compared_models_have_equal_sizes(pictures: Any) -> None:
    sizes = [parameters(overrides) for data, overrides, _ in pictures.PLAN.values() if data == "cifar"]
    assert max(sizes) < 1.02 * min(sizes)


def finished(run: Path, accuracy: float, sizes: list[int]) -> None:
    """The files of a run of 400 steps in 1,000 seconds."""
    run.mkdir()
    scores = {"loss": 1.0, "accuracy": accuracy}
    evaluation = {"valid": scores, "test": scores, "sizes": [{"size": [n, n], "accuracy": 0.5} for n in sizes]}
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    (run / "config.json").write_text("{}")
    (run / "run.json").write_text(json.dumps({"parameters": 1_310_000}))
    lines = [{"step": n, "seconds": 2.5 * n, "eval_loss": 1.0, "eval_accuracy": n / 1000} for n in (200, 400)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_results_become_a_section_and_a_figure(pictures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs"))
    tables, encoders, figures = map(importlib.import_module, ("tables", "measured.encoders", "figures"))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    monkeypatch.setattr(figures, "FIGURES", tmp_path)
    assert encoders.image_classifiers() == ""
    for name, accuracy in (("vit", 0.7), ("tnn-2d", 0.8), ("fashion-tnn-2d", 0.9)):
        finished(tmp_path / name, accuracy, pictures.PLAN[name][2])
        plan = {"seconds": 2.0, "steps": 400}
        pictures.train(name, [], plan, tmp_path, tmp_path / "pictures-cpu.json")
    text = encoders.image_classifiers()
    rows = re.findall(r"^\| (?:tnn|vit|fashion).*$", text, re.MULTILINE)
    common = "1.31M | 400 | 17 | 51"  # 400 batches of 128 in 1,000 seconds
    grey = "1.31M | 400 | 17 | 26"  # for 64
    assert rows == [
        f"| tnn-2d | CIFAR-10 | {common} | 80.00 % | 50.00 % | 50.00 % |",
        f"| vit | CIFAR-10 | {common} | 70.00 % | 50.00 % | 50.00 % |",
        f"| fashion-tnn-2d | Fashion-MNIST | {grey} | 90.00 % |  |  |",
    ]
    figures.draw_images()
    assert (tmp_path / "pictures.png").stat().st_size
