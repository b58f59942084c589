"""The vocabulary that a training and its text suit."""

from __future__ import annotations

from pathlib import Path

import pytest

from lagwise.models.loading import load_model
from lagwise.training import Recipe, load_recipe, setup, train


@pytest.mark.parametrize(
    ("steps", "text", "vocabulary"),
    [(12, 1000, 300), (10, 1000, 280), (9, 1000, 258), (12, 10**9, 258)],
    ids=["long", "shorter", "short", "text"],
)
def test_long_trainings_on_long_texts_read_byte_pairs(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, text: int, vocabulary: int
) -> None:
    tiny_recipe.data.tokenizer, tiny_recipe.training.steps = "auto", steps
    tokens = tiny_recipe.training.batch_size * tiny_recipe.data.length
    monkeypatch.setattr(setup, "_VOCABULARIES", {300: 12 * tokens, 280: 10 * tokens})
    monkeypatch.setattr(setup, "_MIN_TEXT_BYTES", text)
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    assert load_recipe(str(run / "recipe.yaml")).data.tokenizer == ("bytes" if vocabulary == 258 else "bpe")
    assert len(load_model(run)[1]) == vocabulary


def test_other_tasks_do_not_choose(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"text {i},{i % 2}\n" for i in range(60)), encoding="utf-8")
    recipe = load_recipe("classify", [f"data.source={rows}", "data.tokenizer=auto"])
    with pytest.raises(ValueError, match="tokenizer must be 'bytes'"):
        train(recipe, tmp_path / "run", progress=False)
