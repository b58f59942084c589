"""The models of recipes of language models, in tiny sizes."""

from __future__ import annotations

from typing import Any

import torch

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM
from lagwise.training.recipe import load_recipe

CAUSAL = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm", "best-lm", "transformer-alibi-lm")
MASKED = ("tnn-mlm", "fd-tnn-mlm", "ski-tnn-mlm", "mega-mlm", "tcn-mlm", "transformer-mlm")
WORDS = 50


def recipe_model(name: str, *, dtype: torch.dtype = torch.float64, **fields: Any) -> Any:
    """hidden_size 16 and two layers, from a fixed seed."""
    model = dict(load_recipe(name).model)
    for option in ("init_from", "dropout"):
        model.pop(option, None)
    model |= {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": WORDS, **fields}
    if model.get("ngram_sizes"):
        model["ngram_buckets"] = 64
    if model.get("max_position_embeddings"):
        model["max_position_embeddings"] = 128
    for block in [model.get("block", {}), *model.get("block", {}).get("blocks", [])]:
        if "chunk" in block:
            block["chunk"] = 16
        for mixer in (block.get("token_mixer") or {}, block.get("memory") or {}):
            if "heads" in mixer:
                mixer["heads"] = 4
    torch.manual_seed(0)
    head = LagwiseForMaskedLM if name in MASKED else LagwiseForCausalLM
    if name in MASKED:
        model |= {"causal": False}
    return head(LagwiseConfig(**model)).to(dtype)
