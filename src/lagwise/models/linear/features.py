"""The features of linear models, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.models.linear.convolutions import Convolutions
from lagwise.models.linear.ngrams import Ngrams, Sparse
from lagwise.models.linear.patches import Patches
from lagwise.tables import build

#: Each is constructed with the number of channels, or of token ids, and its options.
FEATURES: dict[str, Any] = {"convolutions": Convolutions, "ngrams": Ngrams, "patches": Patches}


def made_features(name: str, inputs: Mapping[str, Any], vocab_size: int, options: Mapping[str, Any]) -> Any:
    """Build the feature extractor of a model's inputs.

    Args:
        name: Name of the inputs.
        inputs: Options of the inputs.
        vocab_size: Number of token ids.
        options: Name and options of the features.

    Raises:
        ValueError: For other features, and for the ``columns`` of tables of earlier versions.
    """
    if options["name"] == "columns":
        raise ValueError(
            "this model reads the columns of a table, as first answers of version 0.3 did; fit "
            "sklearn.ensemble.HistGradientBoostingClassifier() to the table instead"
        )
    sizes = {"tokens": vocab_size, "values": inputs.get("features", 1), "patches": inputs.get("channels", 3)}
    context: dict[str, Any] = {each: inputs.get(each) for each in ("mean", "std")}
    return build(FEATURES, options, sizes[name], what="features", **context)


def inputs_of(batch: Mapping[str, Tensor]) -> tuple[Tensor | None, ...]:
    """Return the arguments of a feature extractor for a batch as models read it: ids, mask and types of texts; values
    and mask of series; or pixels."""
    if "pixel_values" in batch:
        return (batch["pixel_values"],)
    mask = batch.get("attention_mask")
    mask = None if mask is None else mask.bool()
    if "input_values" in batch:
        return batch["input_values"], mask
    return batch["input_ids"], mask, batch.get("token_type_ids")


def linear_logits(features: Tensor | Sparse, linear: nn.Linear) -> Tensor:
    """Compute logits ``(..., labels)`` from features."""
    if isinstance(features, Tensor):
        return linear(features)
    weights = F.embedding(features.numbers, linear.weight.t())
    return (weights * features.values[..., None]).sum(1) + linear.bias
