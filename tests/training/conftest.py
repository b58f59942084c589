"""Fixtures of the training tests."""

from __future__ import annotations

import pytest

from lagwise.training.recipe import Recipe, load_recipe


@pytest.fixture
def recall_recipe() -> Recipe:
    """Associative recall that is learned within seconds."""
    recipe = load_recipe(
        "associative-recall",
        [
            *("data.length=64", "data.vocab_size=6", "training.steps=300", "training.batch_size=8"),
            *("training.learning_rate=0.004", "training.evaluate_every=50", "training.save_every=200"),
            *("training.evaluate_tokens=8192", "training.precision=float32"),
        ],
    )
    recipe.model = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "initializer_range": 0.1,
        "block": {"name": "prenorm", "token_mixer": {"name": "attention", "heads": 4}},
    }
    return recipe
