"""How much trained layers count beside a first answer, by held-out rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from every_task import recipe

from lagwise.models import load_model
from lagwise.runs import evaluate_run
from lagwise.tasks.labelled import LabelledRows
from lagwise.training import read_metrics, train
from lagwise.training.first_answer import FOLDER, best_share, mixed, read_first_answer

RANDOM = np.random.default_rng(0)


class Rows:
    """Labelled rows with the loss of a training."""

    loss = LabelledRows.loss
    task = SimpleNamespace(label_smoothing=0.0)
    label_variance = 2500.0

    def __init__(self, label_names: tuple[str, ...] | None, *, several: bool = False, weights: Any = None):
        self.label_names, self.several, self.weights = label_names, several, weights


CLASSES, SEVERAL, NUMBERS = Rows(("a", "b", "c")), Rows(("a", "b", "c"), several=True), Rows(None)


def rows_of(data: Any, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Labels, what a fair first answer says of them, what as good and independent layers say, and noise."""
    if data is NUMBERS:
        labels = RANDOM.normal(size=count) * 50 + 1000
        first, layers = (labels[:, None] + 20 * RANDOM.normal(size=(count, 1)) for _ in "ab")
        return labels, first, layers, 1000 + 50 * RANDOM.normal(size=(count, 1))
    if data is SEVERAL:
        labels = RANDOM.integers(0, 2, (count, 3))
        true = 2.0 * labels - 1
    else:
        labels = RANDOM.integers(0, 3, count)
        true = 2.0 * np.eye(3)[labels]
    first, layers = (true + 1.5 * RANDOM.normal(size=true.shape) for _ in "ab")
    return labels, first, layers, 3 * RANDOM.normal(size=true.shape)


@pytest.mark.parametrize("data", [CLASSES, SEVERAL, NUMBERS])
def test_layers_count_as_much_as_they_help(data: Any) -> None:
    labels, first, layers, noise = rows_of(data, 2000)
    fair, none = best_share(data, first, layers, labels), best_share(data, first, noise, labels)
    assert fair > 0.35
    assert none < 0.1
    shares = np.linspace(0, 1.5, 151)
    losses = [loss(data, mixed(data, first, layers, share), labels) for share in shares]
    assert abs(fair - shares[np.argmin(losses)]) < 0.03  # many rows


def loss(data: Any, logits: np.ndarray, labels: np.ndarray) -> float:
    given, true = torch.from_numpy(logits), torch.from_numpy(labels)
    if data is NUMBERS:
        return float(F.mse_loss(given[:, 0], true))
    return float(
        F.binary_cross_entropy_with_logits(given, true.double()) if data is SEVERAL else F.cross_entropy(given, true)
    )


@pytest.mark.parametrize("data", [CLASSES, SEVERAL, NUMBERS])
def test_a_few_rows_change_the_share_little(data: Any) -> None:
    for count in (1, 2, 3):
        found = []
        for _ in range(100):
            labels, first, layers, noise = rows_of(data, count)
            found += [best_share(data, first, other, labels) for other in (layers, noise)]
        assert min(found) >= 0
        assert max(found) < 0.75
    labels, first, *_ = rows_of(data, 3)
    assert best_share(data, first, first.copy() if data is NUMBERS else 0 * first, labels) == pytest.approx(
        0.3, abs=1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classes of text", "numbers of pairs", "classes of series", "classes of images"])
def test_a_run_ends_with_the_first_answer_and_a_share_of_its_layers(name: str, tmp_path: Path) -> None:
    own = ("task.wide=true", "training.first_answer=none", "training.select=last")
    apart, both = tmp_path / "layers", tmp_path / "both"
    train(
        recipe(name, tmp_path, "training.first_answer=none", "training.select=last", "task.wide=false"),
        apart,
        progress=False,
    )
    train(recipe(name, tmp_path, *own), both, progress=False)
    about = read_first_answer(both)
    assert about is not None
    assert about["kept"] is False
    (layers, _), (first, _), (model, _) = (load_model(each) for each in (apart, both / FOLDER, both))
    assert model.config.wide == first.config.features
    share = float((model.classifier.weight / layers.classifier.weight).detach().median())
    assert share == pytest.approx(about["share"], abs=1e-3)
    scores = evaluate_run(both, progress=False)
    assert "valid" not in scores  # the first answer was fitted to them
    assert scores["test"]
    assert any("first_answer" in line for line in read_metrics(both))
