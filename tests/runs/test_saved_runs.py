"""Runs saved by earlier versions load and give the same outputs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from lagwise.models import load_model
from lagwise.models.configuration import LagwiseConfig
from lagwise.runs import evaluate_run
from lagwise.training import load_recipe, make_task, resume

SAVED = Path(__file__).parent / "saved-by-0.1"


@pytest.mark.parametrize("name", ["text", "recall"])
def test_logits_equal_those_of_earlier_versions(name: str) -> None:
    model, tokenizer = load_model(SAVED / name)
    expected = json.loads((SAVED / name / "expected.json").read_text())
    logits = model(torch.tensor(expected["ids"])).logits[0, -1]
    torch.testing.assert_close(logits, torch.tensor(expected["last"]), rtol=1e-4, atol=1e-5)
    assert len(tokenizer) <= model.config.vocab_size


def test_recipes_of_earlier_versions_without_a_task_load(tmp_path: Path) -> None:
    text, recall = (make_task(load_recipe(str(SAVED / name / "recipe.yaml"))) for name in ("text", "recall"))
    assert type(text).__name__ == "LanguageModelling"
    assert type(recall).__name__ == "AssociativeRecallTask"
    assert recall.key() == json.loads((SAVED / "recall" / "run.json").read_text())["data"]
    run = tmp_path / "recall"
    shutil.copytree(SAVED / "recall", run)
    assert evaluate_run(run, max_tokens=160, progress=False)["test"][0]["sequences"] == 10
    own = tmp_path / "mine.yaml"
    own.write_text("data: {source: associative-recall, vocab_size: 8, length: 16, loss: last}\n")
    task = load_recipe(str(own)).task
    assert task == {"name": "associative_recall", "loss": "last"}


def test_a_text_run_evaluates_on_other_text(tmp_path: Path, text_file: Path) -> None:
    run = tmp_path / "text"
    shutil.copytree(SAVED / "text", run)
    result = evaluate_run(run, [32], source=str(text_file), max_tokens=500, progress=False)
    assert 0 < result["test"][0]["bits_per_byte"] < 20
    with pytest.raises((ValueError, FileNotFoundError), match=r"words\.txt"):
        evaluate_run(run, [32], progress=False)
    assert resume(run) == run  # finished, and left as it is


def test_the_feed_forward_layer_of_a_saved_mega_keeps_its_activation() -> None:
    """The default was GELU and is now SiLU, as published. A configuration without one means the old default."""
    saved = {"model_type": "lagwise", "hidden_size": 8, "block": {"name": "mega"}}
    assert LagwiseConfig.from_dict(saved).block["channel_mixer"]["activation"] == "gelu"
    chain = {**saved, "block": {"name": "chain", "blocks": [{"name": "mega"}, {"name": "prenorm"}]}}
    assert LagwiseConfig.from_dict(chain).block["blocks"][0]["channel_mixer"]["activation"] == "gelu"
    today = LagwiseConfig(hidden_size=8, block={"name": "mega"})
    assert LagwiseConfig.from_dict(today.to_diff_dict()).block == {"name": "mega"}
