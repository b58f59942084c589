"""What is planned before a training: steps that fit into some minutes, and a vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lagwise.models.loading import load_model
from lagwise.training import Recipe, load_recipe, planning, resume, train


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Recipes whose steps were timed: 2 seconds a step and 3 an evaluation."""
    seen: list[Any] = []
    monkeypatch.setattr(planning, "_measured", lambda recipe, data: seen.append(recipe) or (2.0, 3.0))
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


@pytest.mark.parametrize(
    ("steps", "text", "vocabulary"), [(10, 1000, 4096), (9, 1000, 258), (10, 10**9, 258)], ids=["long", "short", "text"]
)
def test_long_trainings_on_long_texts_read_byte_pairs(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, text: int, vocabulary: int
) -> None:
    tiny_recipe.data.tokenizer, tiny_recipe.training.steps = "auto", steps
    tokens = tiny_recipe.training.batch_size * tiny_recipe.data.length
    monkeypatch.setattr(planning, "_MIN_TOKENS_READ", 10 * tokens)
    monkeypatch.setattr(planning, "_MIN_TEXT_BYTES", text)
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    assert load_recipe(str(run / "recipe.yaml")).data.tokenizer == ("bpe" if vocabulary == 4096 else "bytes")
    assert len(load_model(run)[1]) <= vocabulary


def test_other_tasks_do_not_choose(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"text {i},{i % 2}\n" for i in range(60)), encoding="utf-8")
    recipe = load_recipe("classify", [f"data.source={rows}", "data.tokenizer=auto"])
    with pytest.raises(ValueError, match="tokenizer must be 'bytes'"):
        train(recipe, tmp_path / "run", progress=False)
