"""Trainings of some minutes: as many steps as fit into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lagwise.training import Recipe, load_recipe, resume, train
from lagwise.training import minutes as minutes_module


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Recipes whose steps were timed: 2 seconds a step and 3 an evaluation."""
    seen: list[Any] = []
    monkeypatch.setattr(minutes_module, "_measured", lambda recipe, data: seen.append(recipe) or (2.0, 3.0))
    return seen


def test_steps_fit_into_what_evaluations_leave(tiny_recipe: Recipe, tmp_path: Path, measured: list[Any]) -> None:
    tiny_recipe.training.minutes, tiny_recipe.training.warmup_steps = 0.6, 50
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    options = load_recipe(str(run / "recipe.yaml")).training
    assert (options.steps, options.evaluate_every, options.save_every, options.warmup_steps) == (10, 2, 2, 1)
    assert (run / "checkpoint-10").is_dir()
    (run / "config.json").unlink()
    resume(run, progress=False)  # as planned
    assert len(measured) == 1


def test_too_few_minutes_are_refused(tiny_recipe: Recipe, tmp_path: Path, measured: list[Any]) -> None:
    tiny_recipe.training.minutes = 0.25
    with pytest.raises(ValueError, match=r"`minutes` 0.25 are too few: a step takes 2 s here, and 5 evaluations 15 s"):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_real_steps_are_timed(tiny_recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tiny_recipe.training.minutes = 0.02
    run = train(tiny_recipe, tmp_path / "run")
    steps = load_recipe(str(run / "recipe.yaml")).training.steps
    assert f"0.02 minutes: {steps:,} steps of" in capsys.readouterr().err


@pytest.mark.parametrize("length", ["steps=5", "epochs=2"])
def test_one_length_is_given(length: str) -> None:
    with pytest.raises(ValueError, match=r"give either training.\w+ or training.minutes: both set how long to train"):
        load_recipe("best-lm", ["training.minutes=2", f"training.{length}"])
    assert load_recipe("best-lm", [f"training.{length}"]).training.minutes is None
