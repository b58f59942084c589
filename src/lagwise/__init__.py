"""Long-sequence models whose token mixing depends on lag.

Importing this package is cheap: torch and transformers are loaded when a name that needs them is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lagwise._lazy import lazy_package
from lagwise._registration import register
from lagwise._version import __version__

if TYPE_CHECKING:
    from lagwise.forecasting import LagForecaster
    from lagwise.models import (
        LagwiseConfig,
        LagwiseForCausalLM,
        LagwiseForImageClassification,
        LagwiseForMaskedLM,
        LagwiseForPrediction,
        LagwiseForSequenceClassification,
        LagwiseForSignalRegression,
        LagwiseForTokenClassification,
        LagwiseModel,
        StreamingCache,
    )
    from lagwise.ops import toeplitz_product
    from lagwise.runs.vectors import embed
    from lagwise.training import LagClassifier

__all__, __getattr__, __dir__ = lazy_package(__name__)
__all__ += ["__version__"]

register()
