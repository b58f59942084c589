"""Programs that follow a training."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lagwise.training import Recipe, setup, train


def test_names_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "get_available_reporting_integrations", lambda: ["tensorboard", "wandb"])
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    assert setup.reporters("none", tmp_path) == []
    assert setup.reporters("wandb", tmp_path) == ["wandb"]
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ
    assert setup.reporters("tensorboard, wandb", tmp_path) == ["tensorboard", "wandb"]
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "tensorboard")
    monkeypatch.setattr(setup, "get_available_reporting_integrations", list)
    assert setup.reporters("tensorboard", tmp_path) == []


def test_an_unknown_program_is_refused_before_training(tiny_recipe: Recipe, tmp_path: Path) -> None:
    tiny_recipe.training.report_to = "tensorbord"
    with pytest.raises(ValueError, match=r"`report_to` 'tensorbord' is unknown, or its package is not installed"):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
