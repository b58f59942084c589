"""The features of linear models, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lagwise.models.linear.columns import Columns
from lagwise.models.linear.convolutions import Convolutions
from lagwise.models.linear.ngrams import Ngrams
from lagwise.models.linear.patches import Patches
from lagwise.tables import build

#: Feature extractors by name; the first argument is the number of channels, or of token ids.
FEATURES: dict[str, Any] = {
    "columns": Columns,
    "convolutions": Convolutions,
    "ngrams": Ngrams,
    "patches": Patches,
}


def made_features(name: str, inputs: Mapping[str, Any], vocab_size: int, options: Mapping[str, Any]) -> Any:
    """Build a feature extractor from its spec ``options`` (name and options), for the inputs of a model."""
    sizes = {"tokens": vocab_size, "values": inputs.get("features", 1), "patches": inputs.get("channels", 3)}
    context: dict[str, Any] = {each: inputs.get(each) for each in ("mean", "std")}
    return build(FEATURES, options, sizes[name], what="features", **context)
