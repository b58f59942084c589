"""Associative recall in training: learning, resuming, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lagwise.models import generate_text, load_model
from lagwise.training import Recipe, read_metrics, train
from lagwise_papers.data.associative_recall import AssociativeRecall


@pytest.mark.slow
def test_it_is_learned(recall_recipe: Recipe, tmp_path: Path) -> None:
    run = train(recall_recipe, tmp_path / "run", progress=False)
    found = [line["eval_accuracy"] for line in read_metrics(run) if "eval_accuracy" in line]
    assert found[-1] > 0.95 > found[0]
    assert not any("eval_bits_per_byte" in line for line in read_metrics(run))
    model, tokenizer = load_model(run)
    prompt = "a 1 b 0 c 1 a 1 b 0 a 1 c"
    assert generate_text(model, tokenizer, prompt, max_new_tokens=1, temperature=0) == f"{prompt} 1"
    with pytest.raises(ValueError, match="text 'a zz' cannot be encoded"):
        generate_text(model, tokenizer, "a zz")


def test_the_logged_accuracy_equals_that_of_the_saved_model(recall_recipe: Recipe, tmp_path: Path) -> None:
    """The Trainer's log against logits of the saved model on the same sequences."""
    recall_recipe.training.steps = recall_recipe.training.evaluate_every = 20
    run = train(recall_recipe, tmp_path / "run", progress=False)
    examples = AssociativeRecall(6).validation_examples(64, recall_recipe.training.evaluate_tokens)
    ids = torch.stack([examples[i]["input_ids"] for i in range(len(examples))])
    model, _ = load_model(run)
    right = model(ids).logits[:, -2].argmax(-1) == ids[:, -1]
    logged = next(line["eval_accuracy"] for line in read_metrics(run) if "eval_accuracy" in line)
    assert logged == pytest.approx(right.float().mean().item())
