"""Import HyenaDNA models, as their authors saved them for transformers, as equivalent lagwise models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.classification import LagwiseForSequenceClassification
from lagwise.models.configuration import LagwiseConfig
from lagwise.models.heads import Head
from lagwise.models.loading import filled
from lagwise.tables import check_integer, known, shown

_HEADS: dict[str, type[Head]] = {
    "HyenaDNAForCausalLM": LagwiseForCausalLM,
    "HyenaDNAForSequenceClassification": LagwiseForSequenceClassification,
}
# Defaults of the authors' configuration for missing fields.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 12,
    "d_model": 256,
    "max_seq_len": 1024,
    "emb_dim": 3,
    "n_layer": 12,
    "num_inner_mlps": 2,
    "hyena_order": 2,
    "short_filter_order": 3,
    "filter_order": 64,
    "activation_freq": 1,
    "train_freq": True,
    "embed_dropout": 0.1,
    "hyena_dropout": 0.0,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "pad_vocab_size_multiple": 8,
    "pad_token_id": 4,
}
_SIZES = ("vocab_size", "d_model", "max_seq_len", "emb_dim", "n_layer", "filter_order", "pad_vocab_size_multiple")
_FIXED = {"hyena_order": 2, "short_filter_order": 3, "train_freq": True}
_SHIFT, _FAST, _SLOW, _TARGET = 0.05, 0.3, 1.5, 0.01  # the windows' constants, which the configuration does not name
_TOLERANCE = 1e-4  # between tables that are computed here and those that are stored there
SPECIAL = ("[CLS]", "[SEP]", "[BOS]", "[MASK]", "[PAD]", "[RESERVED]", "[UNK]")  # the first ids of its tokenizer
_LINEAR_WEIGHTS = ("weight", "bias")
_OF_MODEL = {
    "hyena.backbone.embeddings.word_embeddings.weight": "model.embed_tokens.weight",
    **{f"hyena.backbone.ln_f.{part}": f"model.norm.{part}" for part in _LINEAR_WEIGHTS},
    "lm_head.weight": "lm_head.weight",
    "score.weight": "classifier.weight",
}
_LINEARS = {
    "norm1": "token_norm",
    "norm2": "channels.norm",
    "mlp.fc1": "channels.mixer.up",
    "mlp.fc2": "channels.mixer.down",
    "mixer.in_proj": "token_mixer.input",
    "mixer.out_proj": "token_mixer.out",
}
_KERNEL = "token_mixer.filters.0.kernel"
_OF_LAYER = {
    **{f"{a}.{part}": f"{b}.{part}" for a, b in _LINEARS.items() for part in _LINEAR_WEIGHTS},
    "mixer.short_filter.weight": "token_mixer.taps",
    "mixer.short_filter.bias": "token_mixer.bias",
    "mixer.filter_fn.bias": f"{_KERNEL}.direct",
}


def from_hyena_dna(values: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Head:
    """Build the lagwise model, in evaluation mode, with the logits of a HyenaDNA model, `HyenaDNAForCausalLM` or
    `HyenaDNAForSequenceClassification`, whose last token is the last real one.

    It takes at most ``max_seq_len`` tokens. Outputs do not depend on padding on the left, as theirs do.

    Args:
        values: Its config.json.
        weights: Its state dict, which is not modified.

    Raises:
        ValueError: For another model, for an order other than 2, for positions or windows that were trained away from
            their formulas, and for weights that do not fit.

    Source: Nguyen et al. 2023, "HyenaDNA"; Poli et al. 2023, "Hyena Hierarchy", as released.
    """
    values = {**_DEFAULTS, **values}
    head = _HEADS[known((values.get("architectures") or [None])[0], _HEADS, "architecture of HyenaDNA")]
    tied = _is_tied(weights)
    config = _config(values, head, tied=tied)
    with torch.device("meta"):
        model = head(config)
    renamed = _renamed(values, weights)
    if head is LagwiseForCausalLM and "model.embed_tokens.weight" in renamed:
        renamed.setdefault("lm_head.weight", renamed["model.embed_tokens.weight"])
    if "classifier.weight" in renamed:  # theirs has no bias
        renamed["classifier.bias"] = (weight := renamed["classifier.weight"]).new_zeros(len(weight))
    return filled(model, renamed)


def _config(values: Mapping[str, Any], head: type[Head], *, tied: bool) -> LagwiseConfig:
    if values.get("model_type") != "hyenadna":
        raise ValueError(f"config.json is of a model of type {shown(values.get('model_type'))}, not 'hyenadna'")
    for name in _SIZES:
        check_integer(name, values[name])
    for name, required in _FIXED.items():
        if values[name] != required:
            raise ValueError(f"{name}={shown(values[name])} cannot be imported; it must be {required}")
    if values["emb_dim"] < 3 or values["emb_dim"] % 2 == 0:
        raise ValueError(f"emb_dim must be odd and at least 3, got {values['emb_dim']}")
    width = values["d_model"]
    kernel = {
        "name": "hyena",
        "span": values["max_seq_len"],
        "hidden": values["filter_order"],
        "layers": check_integer("num_inner_mlps", values["num_inner_mlps"], min=0),
        "bands": values["emb_dim"] // 2,
        "frequency": float(values["activation_freq"]),
        "shift": _SHIFT,
    }
    inner = check_integer("d_inner", values.get("d_inner") or 4 * width)
    block = {
        "name": "prenorm",
        "norm": {"name": "layer", "epsilon": 1e-5},
        "token_mixer": {"name": "hyena", "order": 2, "first_gate": True, "short_bias": True, "kernel": kernel},
        "channel_mixer": {"name": "mlp", "expansion": inner / width, "activation": "gelu_tanh"},
    }
    multiple = values["pad_vocab_size_multiple"]
    labels: dict[str, Any] = {}
    if head is LagwiseForSequenceClassification:
        label_fields = {name: values[name] for name in ("id2label", "label2id", "problem_type") if values.get(name)}
        labels = {"pooling": "last", **label_fields}
    return LagwiseConfig(
        vocab_size=-(-values["vocab_size"] // multiple) * multiple,
        hidden_size=width,
        num_hidden_layers=values["n_layer"],
        block=block,
        norm={"name": "layer", "epsilon": values["layer_norm_epsilon"]},
        max_position_embeddings=values["max_seq_len"],
        embedding_dropout=values["embed_dropout"],
        initializer_range=values["initializer_range"],
        tie_word_embeddings=tied,
        bos_token_id=SPECIAL.index("[BOS]"),
        eos_token_id=SPECIAL.index("[SEP]"),
        pad_token_id=values["pad_token_id"],
        **labels,
    )


def _is_tied(weights: Mapping[str, Tensor]) -> bool:
    """Whether the output layer has the weights of the embeddings, or is left out for that reason."""
    embedding, output = (weights.get(name) for name in (next(iter(_OF_MODEL)), "lm_head.weight"))
    return embedding is None or output is None or torch.equal(embedding, output)


def _renamed(values: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights to lagwise's names and convert them to its layout. ValueError for an unknown name."""
    renamed: dict[str, Tensor] = {}
    for name, value in weights.items():
        if name in _OF_MODEL:
            renamed[_OF_MODEL[name]] = value.clone()
            continue
        _, _, suffix = name.partition("hyena.backbone.layers.")
        number, _, weight_name = suffix.partition(".")
        layer = f"model.layers.{number}.block."
        if weight_name in _OF_LAYER:
            renamed[layer + _OF_LAYER[weight_name]] = _reshaped(weight_name, value, values["d_model"])
        elif weight_name.startswith("mixer.filter_fn.implicit_filter."):
            own_name = _network_weight(weight_name.rpartition("implicit_filter.")[2], values["num_inner_mlps"])
            if own_name is None:
                raise ValueError(f"HyenaDNA has no weight {shown(name)}")
            value = value.flatten() if own_name == "frequency" else value
            renamed[f"{layer}{_KERNEL}.{own_name}"] = value.clone()
        elif weight_name.startswith(("mixer.filter_fn.pos_emb.", "mixer.filter_fn.modulation.")):
            _check_table(name, value, values)
        else:
            raise ValueError(f"HyenaDNA has no weight {shown(name)}")
    return renamed


def _reshaped(weight_name: str, value: Tensor, width: int) -> Tensor:
    """Convert a weight of a layer to lagwise's layout: the input of the long convolution first, then its gates in
    order, and taps from lag 0 on."""
    if weight_name.startswith(("mixer.in_proj.", "mixer.short_filter.")) and len(value) == 3 * width:
        value = torch.cat(value.split(width)[::-1])
    return value.flip(2)[:, 0].clone() if weight_name == "mixer.short_filter.weight" else value.clone()


def _network_weight(name: str, layers: int) -> str | None:
    """Return our name of a weight of the kernel's network, a sequence of linear layers with sines, of one frequency,
    between them. None for an unknown one."""
    number, _, kind = name.partition(".")
    if not number.isdecimal():
        return None
    index, sine = divmod(int(number), 2)
    if sine:
        return "frequency" if kind == "freq" and index <= layers else None
    if index == layers + 1:
        return "last" if kind == "weight" else None
    if kind not in _LINEAR_WEIGHTS or index > layers:
        return None
    return f"first.{kind}" if index == 0 else f"hidden.{index - 1}.{kind}"


def _check_table(name: str, value: Tensor, values: Mapping[str, Any]) -> None:
    """Raise ValueError for positions or rates of windows that differ from the formulas that the kernel computes."""
    length, table = values["max_seq_len"], name.rpartition(".")[2]
    t = torch.linspace(0, 1, length, dtype=torch.float64, device="cpu")
    if table == "t":
        expected = t
    elif table == "z":
        bands = values["emb_dim"] // 2
        turns = 2 * math.pi / length * torch.arange(length, dtype=torch.float64, device="cpu")
        phase = turns[:, None] * torch.linspace(1e-4, bands - 1, bands, dtype=torch.float64, device="cpu")
        expected = torch.cat([t[:, None], phase.cos(), -phase.sin()], 1)
    elif table == "deltas":
        slow, fast = (math.log(_TARGET) / share for share in (_SLOW, _FAST))
        expected = torch.linspace(slow, fast, values["d_model"], dtype=torch.float64, device="cpu")
    else:
        raise ValueError(f"HyenaDNA has no weight {shown(name)}")
    if value.numel() != expected.numel():
        raise ValueError(f"the weights do not fit config.json: {name} has {value.numel()} numbers")
    off = float((value.cpu().double().flatten() - expected.flatten()).abs().max())
    if not off < _TOLERANCE * max(1.0, float(expected.abs().max())):
        raise ValueError(f"{name} is not that of its formula, but off by up to {off:.2g}, and cannot be imported")
