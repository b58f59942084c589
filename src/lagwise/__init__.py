"""Long-sequence models whose token mixing depends on lag.

Importing this package is cheap: torch and transformers are loaded when a name that needs them is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lagwise._lazy import lazy
from lagwise._registration import register
from lagwise._version import __version__
from lagwise.models.classes import CLASSES

if TYPE_CHECKING:
    from lagwise.forecasting import LagForecaster
    from lagwise.models import (
        LagwiseConfig,
        LagwiseForCausalLM,
        LagwiseForImageClassification,
        LagwiseForMaskedLM,
        LagwiseForMultipleChoice,
        LagwiseForPrediction,
        LagwiseForQuestionAnswering,
        LagwiseForSequenceClassification,
        LagwiseForSignalRegression,
        LagwiseForTokenClassification,
        LagwiseModel,
        StreamingCache,
    )
    from lagwise.ops import toeplitz_product
    from lagwise.training import LagClassifier

_HOMES = dict.fromkeys([*CLASSES, "StreamingCache"], "lagwise.models")
_HOMES |= {"LagClassifier": "lagwise.training", "LagForecaster": "lagwise.forecasting"}
_HOMES |= {"toeplitz_product": "lagwise.ops"}
__all__ = sorted([*_HOMES, "__version__"])
__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)

register()
