"""The models of the recipes in small sizes."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM, StreamingCache
from lagwise.training.recipe import load_recipe

RECIPES = (
    *("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "megalodon-lm", "tcnca-lm", "associative-recall"),
    *("transformer-alibi-lm", "transformer-learned-lm"),
)
# All kinds of language models, those that hide tokens among them.
CAUSAL = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm", "best-lm", "transformer-alibi-lm")
MASKED = ("tnn-mlm", "fd-tnn-mlm", "ski-tnn-mlm", "mega-mlm", "tcn-mlm", "transformer-mlm")
# Those that are compared on several devices; of other recipes of language models, only the sizes differ.
SHARED = (*CAUSAL, "megalodon-lm", "transformer-learned-lm", *MASKED)
_KERNEL = {"name": "rpe", "layers": 1}
# Blocks that no recipe has (TNN table 7 and §3.3), by the name of a recipe.
VARIANTS: dict[str, dict[str, Any]] = {
    "gtu-only": {"token_mixer": {"name": "gtu", "kernel": _KERNEL}, "channel_mixer": {"name": "none"}},
    "attention-glu": {"token_mixer": {"name": "attention", "heads": 2}},
    "learned-decay": {"token_mixer": {"name": "gtu", "kernel": {**_KERNEL, "learn_decay": True, "inputs": "sincos"}}},
}
# A hybrid of mixers whose states have a fixed shape, or get one.
FAMILY: dict[str, Any] = {
    "name": "chain",
    "blocks": [
        {"name": "prenorm", "token_mixer": {"name": name, **options}, "channel_mixer": {"name": "none"}}
        for name, options in (
            *(("lru", {}), ("s5", {}), ("linear_attention", {"heads": 2}), ("short_conv", {}), ("gss", {})),
            *(("flash", {"chunk": 9, "query_size": 4}), ("relative_attention", {"heads": 2, "memory": 5})),
            ("hyena", {"order": 1, "kernel": {"name": "s4", "modes": 2, "span": 30}}),
        )
    ],
}
# Whatever a recipe says of these, wherever in its block.
_SMALL = {"hidden": 8, "dimension": 4, "query_size": 8, "value_size": 16, "chunk": 11, "filter_size": 4, "depth": 3}
_SMALL |= {"heads": 2, "groups": 8}
LIMIT = 128  # number of learned positions


def tiny(recipe: str, *, sharp: bool = False, **fields: Any) -> LagwiseForCausalLM:
    """The model of a recipe or variant in double precision, with 2 layers of 16 channels. ``sharp``: with larger
    weights, so that each model generates varied tokens; a fresh model only repeats its input."""
    torch.manual_seed(10)
    model = {"block": {"name": "prenorm", **VARIANTS[recipe]}} if recipe in VARIANTS else load_recipe(recipe).model
    model |= {"vocab_size": 258, "hidden_size": 16, "num_hidden_layers": 2, "block": _shrunk(model["block"]), **fields}
    if model.get("max_position_embeddings"):
        model["max_position_embeddings"] = LIMIT
    built = LagwiseForCausalLM(LagwiseConfig(**model)).double().eval()
    with torch.no_grad():
        for module in built.model.layers.modules() if sharp else ():
            if type(module) is torch.nn.Linear:
                module.weight.mul_(20 * 0.02 / built.config.initializer_range)
    return built


# Fields of models that have a step of fixed shapes, by the name of a variant.
_STEPS: dict[str, dict[str, Any]] = {
    "family": {"block": FAMILY},
    "positions": {"position_embedding": "sinusoidal"},
    "context": {"position_embedding": "sinusoidal", "ngram_sizes": [2, 4], "match_sizes": [2, 3]},
}


def tiny_step(kind: str, **fields: Any) -> LagwiseForCausalLM:
    """The model of a recipe, of a variant of `tnn-lm`, or ``converted`` to state spaces, which has a step."""
    if kind == "converted":
        return copy.deepcopy(_converted(str(torch.get_default_device()), tuple(fields.items())))
    return tiny("tnn-lm" if kind in _STEPS else kind, sharp=True, **{**_STEPS.get(kind, {}), **fields})


@functools.cache  # a conversion takes seconds
def _converted(device: str, fields: tuple[tuple[str, Any], ...]) -> LagwiseForCausalLM:
    return tiny("tnn-lm", sharp=True, **dict(fields)).to_recurrent(1e-2, progress=False)


def tiny_head(recipe: str, *, dtype: torch.dtype = torch.float64, **fields: Any) -> Any:
    """The model of a recipe of language models, with few words and little memory for n-grams."""
    torch.manual_seed(10)
    model = {**load_recipe(recipe).model, "ngram_buckets": 64}
    model |= {name: _shrunk(model[name]) for name in ("norm",) if name in model}
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2}
    model |= {**sizes, "block": _shrunk(model.get("block")), **fields}
    if recipe in MASKED:
        return LagwiseForMaskedLM(LagwiseConfig(**{**model, "causal": False})).to(dtype)
    return LagwiseForCausalLM(LagwiseConfig(**model)).to(dtype)


def in_chunks(model: LagwiseForCausalLM, ids: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """The logits of a text that is read in chunks of some sizes."""
    cache, parts = None, []
    for chunk in ids.split(sizes, 1):
        out = model(chunk, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    return torch.cat(parts, 1)


def by_tokens(model: LagwiseForCausalLM, ids: torch.Tensor, start: int) -> tuple[torch.Tensor, StreamingCache]:
    """The logits of all tokens from ``start``, read one by one after a prompt, and the cache after them."""
    cache = model.model.new_cache()
    model(ids[:, :start], past_key_values=cache)
    parts = [model(ids[:, i : i + 1], past_key_values=cache).logits for i in range(start, ids.shape[1])]
    return torch.cat(parts, 1), cache


def _shrunk(spec: Any) -> Any:
    if isinstance(spec, list):
        return [_shrunk(each) for each in spec]
    if not isinstance(spec, dict):
        return spec
    return {key: _SMALL.get(key, _shrunk(value)) for key, value in spec.items()}
