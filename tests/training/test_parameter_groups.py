"""Which parameters have weight decay, for every entry of every table."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from lagwise.blocks import BLOCKS
from lagwise.kernels import KERNELS
from lagwise.mixers import MIXERS
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.training.optimizer import parameter_groups

# Last names of the parameters that decay, of entries with others than the weights of layers.
DECAYED: dict[str, set[str]] = {
    "kernel warped": {"values", "filter"},
    "kernel ema": {"beta", "gamma"},
    "kernel modal": {"amplitude"},
    "kernel cema": {"gamma"},
    "kernel s4d": {"amplitude"},
    "kernel dss": {"amplitude"},
    "kernel s4": {"output"},
    "kernel hyena": set(),
    "mixer ema": {"beta", "gamma"},
    "mixer tcn": {"taps"},
    "mixer hyena": {"weight", "taps"},
    "mixer short_conv": {"weight", "taps"},
    "mixer lru": {"input", "output"},
    "mixer s5": {"input", "output"},
    "mixer caracal": {"weight", "taps"},
    "mixer gss": {"weight", "amplitude"},
    "mixer gmlp": {"weight", "mixing"},
    "mixer synthesizer": {"weight", "scores"},
    "mixer fnet": set(),
    "mixer gfnet": {"filter"},
    "mixer afno": {"first", "second"},
    "mixer afno2d": {"first", "second"},
    "block mega": {"weight", "beta", "gamma"},
    "block megalodon": {"weight", "gamma"},
}
UNDECAYED = ("delta", "alpha", "scale", "shift", "rotary_pair", "rate", "angle")
ENTRIES = [
    (f"{kind} {name}", part, options, causal)
    for kind, table in (("kernel", KERNELS), ("mixer", MIXERS), ("block", BLOCKS))
    for name, part in table.items()
    for options in (
        [{"position": p} for p in ("rope", "simple", "rotary")] if name in ("chunked_attention", "mega") else [{}]
    )
    for causal in getattr(part, "directions", (True, False))
]


def decayed_names(module: nn.Module) -> set[str]:
    decayed = {id(p) for group in parameter_groups(module, 0.1) if group["weight_decay"] for p in group["params"]}
    return {name for name, p in module.named_parameters() if id(p) in decayed}


@pytest.mark.parametrize(("entry", "part", "options", "causal"), ENTRIES, ids=str)
def test_weight_decay_of_every_entry(entry: str, part: Any, options: dict[str, Any], causal: bool) -> None:
    if entry == "block chain":
        options = {"blocks": [{"name": "prenorm"}]}
    if entry == "block mega":
        options = {**options, "query_size": 4}
    module = part(16, causal=causal, **options)
    names = decayed_names(module)
    assert {name.rpartition(".")[2] for name in names} == DECAYED.get(entry, {"weight"})
    assert decayed_names(copy.deepcopy(module)) == names
    for each in module.modules():
        for name in getattr(each, "undecayed", ()):
            assert name in dict(each.named_parameters(recurse=False)) or getattr(each, name) is None


@pytest.mark.parametrize(
    "block",
    [
        {"name": "mega", "query_size": 4, "chunk": 8, "position": "rotary"},
        {"name": "prenorm", "token_mixer": {"name": "gtu", "kernel": {"name": "modal"}}},
    ],
    ids=lambda block: block["name"],
)
def test_a_loaded_model_has_the_weight_decay_of_the_saved_one(block: dict[str, Any], tmp_path: Path) -> None:
    model = LagwiseForCausalLM(LagwiseConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1, block=block))
    model.save_pretrained(tmp_path)
    names = decayed_names(model)
    assert names
    assert not any(name.rpartition(".")[2] in UNDECAYED for name in names)
    assert not any("embed" in name for name in names)
    assert decayed_names(LagwiseForCausalLM.from_pretrained(tmp_path)) == names
