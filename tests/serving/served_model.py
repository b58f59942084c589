"""A small model whose tokens are words, so that equal texts are equal tokens."""

from __future__ import annotations

from typing import Any

import torch

from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.training.recipe import load_recipe

WORDS = [f"w{number}" for number in range(48)]
PROMPT = "w1 w2 w3"


def make_model(recipe: str = "mega-lm", **fields: Any) -> LagwiseForCausalLM:
    torch.manual_seed(3)
    sizes = {"vocab_size": len(WORDS) + 2, "hidden_size": 24, "num_hidden_layers": 2, "eos_token_id": len(WORDS)}
    model = LagwiseForCausalLM(LagwiseConfig(**{**load_recipe(recipe).model, **sizes, **fields})).eval().double()
    with torch.no_grad():  # sharpened, so that it says different things
        for module in model.modules():
            if type(module) is torch.nn.Linear:
                module.weight.mul_(30)
    return model
