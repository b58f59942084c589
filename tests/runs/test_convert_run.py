"""Conversion of a run: what it writes and measures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lagwise.data import load_tokenizer
from lagwise.runs import convert_run, evaluate_run
from lagwise.training import Recipe, train


@pytest.mark.slow
def test_a_model_of_short_texts_is_converted(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Its speed is measured within its limit, and a new conversion leaves no scores of an earlier one."""
    tiny_recipe.model["max_position_embeddings"] = 40
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    result = convert_run(run, 0.1, tmp_path / "out", progress=False)
    assert result["tokens_per_second"]["after"] > 0
    evaluate_run(tmp_path / "out", progress=False)
    convert_run(run, 0.5, tmp_path / "out", progress=False)
    assert not list((tmp_path / "out").glob("evaluation*"))


@pytest.mark.slow
def test_a_conversion_keeps_the_runs_own_tokenizer(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """So that it is scored on the run's data wherever the run has gone."""
    load_tokenizer("bytes").save_pretrained(tmp_path / "tokenizer")
    tiny_recipe.data.tokenizer = str(tmp_path / "tokenizer")
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    convert_run(run, 0.1, tmp_path / "out", progress=False)
    shutil.rmtree(run)
    shutil.rmtree(tmp_path / "tokenizer")
    assert evaluate_run(tmp_path / "out", lengths=[8], max_tokens=50, progress=False)["test"]
