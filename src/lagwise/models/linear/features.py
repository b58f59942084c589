"""The features of linear models, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lagwise.models.linear.columns import Columns
from lagwise.models.linear.convolutions import Convolutions
from lagwise.models.linear.ngrams import Ngrams
from lagwise.models.linear.patches import Patches
from lagwise.tables import build

#: Each is constructed with the number of channels, or of token ids, and its options.
FEATURES: dict[str, Any] = {"columns": Columns, "convolutions": Convolutions, "ngrams": Ngrams, "patches": Patches}


def made_features(name: str, inputs: Mapping[str, Any], vocab_size: int, options: Mapping[str, Any]) -> Any:
    """Build the feature extractor of a model's inputs.

    Args:
        name: Name of the inputs.
        inputs: Options of the inputs.
        vocab_size: Number of token ids.
        options: Name and options of the features.
    """
    sizes = {"tokens": vocab_size, "values": inputs.get("features", 1), "patches": inputs.get("channels", 3)}
    context: dict[str, Any] = {each: inputs.get(each) for each in ("mean", "std")}
    return build(FEATURES, options, sizes[name], what="features", **context)
