"""The features of linear models, by name."""

from __future__ import annotations

from typing import Any

from lagwise.models.linear.columns import Columns
from lagwise.models.linear.convolutions import Convolutions
from lagwise.models.linear.ngrams import Ngrams
from lagwise.models.linear.patches import Patches

#: Each is constructed with the number of channels, or of token ids, and its options.
FEATURES: dict[str, Any] = {
    "columns": Columns,
    "convolutions": Convolutions,
    "ngrams": Ngrams,
    "patches": Patches,
}
