"""Import MEGA models, as transformers saved them (4.2x to 4.4x, before it dropped MEGA), as equivalent lagwise
models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.classification import LagwiseForSequenceClassification, LagwiseForTokenClassification
from lagwise.models.configuration import LagwiseConfig
from lagwise.models.heads import Head, LagwiseForMaskedLM, VocabularyHead
from lagwise.models.loading import filled
from lagwise.tables import check_integer, known, shown

_HEADS: dict[str, type[Head]] = {
    "MegaForCausalLM": LagwiseForCausalLM,
    "MegaForMaskedLM": LagwiseForMaskedLM,
    "MegaForSequenceClassification": LagwiseForSequenceClassification,
    "MegaForTokenClassification": LagwiseForTokenClassification,
}
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu"}
_FUNCTIONS = {"softmax": "softmax", "laplace": "laplace", "relu2": "relu2"}
_POSITIONS = {"simple": "simple", "rotary": "rotary"}
_NORMS = ("layernorm", "scalenorm", "batchnorm", "syncbatchnorm")
_EPSILON = 1e-5  # transformers' value for all norms
# transformers' defaults for missing configuration fields.
_DEFAULTS: dict[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "bidirectional": True,
    "truncation": None,
    "use_chunking": False,
    "chunk_size": -1,
    "norm_affine": True,
    "normalize_before_mega": True,
    "normalize_before_ffn": True,
    "use_normalized_ffn": True,
    "add_token_type_embeddings": False,
    "add_lm_hidden_dense_layer": True,
    "tie_word_embeddings": True,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "dropout_prob": 0.1,
    "hidden_dropout_prob": 0.1,
    "classifier_dropout": None,
    "activation": "silu",
    "attention_activation": "softmax",
    "relative_positional_bias": "rotary",
    "normalization_type": "scalenorm",
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
# Names of tensors: of the model, and of a layer.
_LINEAR_WEIGHTS = ("weight", "bias")
_OF_MODEL = {
    "mega.embedding_layer.word_embeddings.weight": "model.embed_tokens.weight",
    "mega.embedding_layer.token_type_embeddings.weight": "model.embed_types.weight",
    "dense.weight": "dense.weight",
    "dense.bias": "dense.bias",
    **{f"{head}.{part}": f"lm_head.{part}" for head in ("lm_head", "mlm_head") for part in _LINEAR_WEIGHTS},
}
_OF_HEADS: dict[type[Head], dict[str, str]] = {
    LagwiseForSequenceClassification: {"classifier.dense": "hidden.0", "classifier.out_proj": "classifier"},
    LagwiseForTokenClassification: {"classifier": "classifier"},
}
_NORM_WEIGHTS = {each: each for each in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
_NORM_WEIGHTS["scalar"] = "scale"
_LINEARS, _MLP = {"v_proj": "value", "mx_proj": "gates", "h_proj": "out"}, {"fc1": "up", "fc2": "down"}
_OF_LAYER = {
    "mega_layer.ema_gate.damping_factor": "memory.kernel.delta",
    "mega_layer.ema_gate.decay_factor": "memory.kernel.alpha",
    "mega_layer.ema_gate.ema_expansion_matrix": "memory.kernel.beta",
    "mega_layer.ema_gate.kernel_projection_matrix": "memory.kernel.gamma",
    "mega_layer.ema_gate.residual_weight": "memory.omega",
    "mega_layer.qk_weight": "query_key.scale",
    "mega_layer.qk_bias": "query_key.shift",
    "mega_layer.rel_pos_bias.rel_pos_bias": "attention.lag_table",
    **{f"mega_layer.{a}.{part}": f"{b}.{part}" for a, b in _LINEARS.items() for part in _LINEAR_WEIGHTS},
    **{f"nffn.{a}.{part}": f"channels.mixer.{b}.{part}" for a, b in _MLP.items() for part in _LINEAR_WEIGHTS},
    **{f"mega_layer.norm.norm.{theirs}": f"norm.{ours}" for theirs, ours in _NORM_WEIGHTS.items()},
    **{f"nffn.norm.norm.{theirs}": f"channels.norm.{ours}" for theirs, ours in _NORM_WEIGHTS.items()},
}
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "nffn_hidden_size", "ema_projection_size", "max_positions")
_SIZES += ("shared_representation_size", "intermediate_size")
_BUFFERS = ("_float_tensor", "token_type_ids")  # unused by the model


def from_mega(values: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Head:
    """Build the lagwise model, in evaluation mode, with the logits of a MEGA model with any of its heads:
    `MegaForCausalLM`, `MegaForMaskedLM`, `MegaForSequenceClassification` or `MegaForTokenClassification`.

    Dropout is that of the gated attention (``dropout_prob``) in all blocks. A model that does not cut its input into
    chunks takes at most ``max_positions`` tokens, even where a rotary bias would extrapolate.

    Args:
        values: Its config.json.
        weights: Its state dict, which is not modified.

    Raises:
        ValueError: For another model, for options without an equivalent (norms after instead of before a layer,
            ``rmsnorm``, which transformers left without its division, cross-attention, other activations), and for
            weights that do not fit.
    """
    values = {**_DEFAULTS, **values}
    head = _HEADS[known((values.get("architectures") or [None])[0], _HEADS, "architecture of MEGA")]
    config = _config(values, head)
    with torch.device("meta"):
        model = head(config)
    renamed = _renamed(values, weights, _OF_HEADS.get(head, {}))
    if values["tie_word_embeddings"] and issubclass(head, VocabularyHead):
        embedding = renamed.get("model.embed_tokens.weight", renamed.get("lm_head.weight"))
        if embedding is not None:
            renamed["model.embed_tokens.weight"] = renamed["lm_head.weight"] = embedding
    return filled(model, renamed)


def _config(values: Mapping[str, Any], head: type[Head]) -> LagwiseConfig:
    causal = head is LagwiseForCausalLM
    if values.get("model_type") != "mega":
        raise ValueError(f"config.json is of a model of type {shown(values.get('model_type'))}, not 'mega'")
    for name in _SIZES:
        if name not in values:
            raise ValueError(f"config.json has no {name}")
        check_integer(name, values[name])
    check_integer("chunk_size", values["chunk_size"], -1)
    for name, required in (
        ("is_decoder", causal),
        ("add_cross_attention", False),
        ("normalize_before_mega", True),
        ("normalize_before_ffn", True),
        *([("bidirectional", False)] if causal else []),
    ):
        if values[name] != required:
            theirs = values["architectures"][0]
            raise ValueError(f"{name}={shown(values[name])} cannot be imported; of a {theirs} it must be {required}")
    norm: dict[str, Any] = {"name": {"layernorm": "layer", "scalenorm": "scale"}.get(_norm(values), "batch")}
    norm["epsilon"] = _EPSILON
    if not values["norm_affine"]:
        norm |= {"layer": {"affine": False}, "scale": {"name": "rms"}}.get(norm["name"], {})
    width = _window(values)
    activation = _ACTIVATIONS[known(values["activation"], _ACTIVATIONS, "activation of MEGA")]
    mlp = {"name": "mlp", "expansion": values["nffn_hidden_size"] / values["hidden_size"], "activation": activation}
    block = {
        "name": "mega",
        "memory": {"name": "ema", "dimension": values["ema_projection_size"], "truncation": values["truncation"]},
        "query_size": values["shared_representation_size"],
        "value_size": values["intermediate_size"],
        "chunk": width,
        "function": _FUNCTIONS[known(values["attention_activation"], _FUNCTIONS, "attention activation of MEGA")],
        "position": _POSITIONS[known(values["relative_positional_bias"], _POSITIONS, "positional bias of MEGA")],
        "channel_mixer": mlp if values["use_normalized_ffn"] else {"name": "none"},
        "activation": activation,
        "norm": norm,
        "dropout": values["dropout_prob"],
    }
    copied = ("vocab_size", "hidden_size", "num_hidden_layers", "tie_word_embeddings", "initializer_range")
    copied += ("bos_token_id", "eos_token_id", "pad_token_id")
    return LagwiseConfig(
        **{name: values[name] for name in copied},
        block=block,
        causal=causal,
        norm="none",
        max_position_embeddings=None if values["use_chunking"] else width,
        type_vocab_size=values["type_vocab_size"] if values["add_token_type_embeddings"] else 0,
        **_head_fields(values, head),
    )


def _head_fields(values: Mapping[str, Any], head: type[Head]) -> dict[str, Any]:
    if issubclass(head, VocabularyHead):
        return {"head_transform": "tanh" if values["add_lm_hidden_dense_layer"] else "none", "head_bias": True}
    labels = {name: values[name] for name in ("id2label", "label2id", "problem_type") if values.get(name) is not None}
    dropout = values["classifier_dropout"]
    fields = {"classifier_dropout": values["hidden_dropout_prob"] if dropout is None else dropout}
    if head is LagwiseForSequenceClassification:  # pooled by the first token, through a layer with tanh
        fields |= {"pooling": "first", "classifier_hidden_size": values["hidden_size"], "classifier_activation": "tanh"}
    return fields | labels


def _norm(values: Mapping[str, Any]) -> str:
    if values["normalization_type"] == "rmsnorm":
        raise ValueError("normalization_type='rmsnorm' cannot be imported: transformers multiplied and never divided")
    return known(values["normalization_type"], _NORMS, "norm of MEGA")


def _window(values: Mapping[str, Any]) -> int:
    """Return the attention window: the chunk size, or the maximum length if unchunked."""
    return values["max_positions"] if values["chunk_size"] < 0 else values["chunk_size"]


def _renamed(values: Mapping[str, Any], weights: Mapping[str, Tensor], of_head: Mapping[str, str]) -> dict[str, Tensor]:
    """Rename weights to lagwise's names and convert them to its layout. of_head: names of linear layers. ValueError for
    an unknown name."""
    of_model = _OF_MODEL | {f"{a}.{part}": f"{b}.{part}" for a, b in of_head.items() for part in _LINEAR_WEIGHTS}
    renamed = {}
    for name, value in weights.items():
        if name in of_model:
            renamed[of_model[name]] = value
            continue
        if name.rpartition(".")[2] in _BUFFERS or name.startswith("mega.pooler."):
            continue
        _, _, suffix = name.partition("mega.layers.")
        number, _, weight_name = suffix.partition(".")
        layer = f"model.layers.{number}.block."
        if weight_name == "mega_layer.rel_pos_bias.alpha":
            pair = [value, weights[name.removesuffix("alpha") + "b_param"]]
            renamed[layer + "attention.rotary_pair"] = torch.stack([_interleaved(each) for each in pair])
        elif weight_name in _OF_LAYER:
            renamed[layer + _OF_LAYER[weight_name]] = _reshaped(weight_name, value, values)
        elif weight_name != "mega_layer.rel_pos_bias.b_param":
            raise ValueError(f"MEGA has no weight {shown(name)}")
    return renamed | _neutral_norms(values, renamed)


def _reshaped(weight_name: str, value: Tensor, values: Mapping[str, Any]) -> Tensor:
    """Convert a weight of a layer to lagwise's layout."""
    if weight_name.endswith("rel_pos_bias"):  # lags of keys before queries there, of queries after keys here
        return value[None, : 2 * _window(values) - 1].flip(1)
    if "ema_gate" not in weight_name or weight_name.endswith("residual_weight"):
        return value.clone()
    value = value.reshape(-1, values["hidden_size"], values["ema_projection_size"]).clone()  # lags from 0 up first
    if weight_name.endswith("ema_expansion_matrix"):
        value[..., ::2] -= 1
        value[..., 1::2] += 1
    if not values["bidirectional"] and not values["is_decoder"]:
        value = torch.cat([value, torch.zeros_like(value)])  # an average with weight 0
    return value


def _interleaved(value: Tensor) -> Tensor:
    """Reorder pairs of channels (k, k + d / 2) as (2 k, 2 k + 1)."""
    return value.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def _neutral_norms(values: Mapping[str, Any], renamed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Make the missing weights of a batch norm without affine parameters: ones and zeros."""
    if values["norm_affine"] or values["normalization_type"] not in ("batchnorm", "syncbatchnorm"):
        return {}
    means = {name.removesuffix("running_mean"): t for name, t in renamed.items() if name.endswith("running_mean")}
    return {
        **{f"{name}weight": torch.ones_like(t) for name, t in means.items()},
        **{f"{name}bias": torch.zeros_like(t) for name, t in means.items()},
    }
