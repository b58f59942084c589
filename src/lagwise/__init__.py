"""Long-sequence models whose token mixing depends on lag.

Importing this package is cheap: torch and transformers are loaded when a name that needs them is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lagwise._lazy import lazy
from lagwise._registration import register
from lagwise._version import __version__

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
        LagwiseForTokenClassification,
        LagwiseModel,
        StreamingCache,
    )
    from lagwise.ops import toeplitz_product

__all__ = [
    "LagForecaster",
    "LagwiseConfig",
    "LagwiseForCausalLM",
    "LagwiseForImageClassification",
    "LagwiseForMaskedLM",
    "LagwiseForMultipleChoice",
    "LagwiseForPrediction",
    "LagwiseForQuestionAnswering",
    "LagwiseForSequenceClassification",
    "LagwiseForTokenClassification",
    "LagwiseModel",
    "StreamingCache",
    "__version__",
    "toeplitz_product",
]


__getattr__, __dir__ = lazy(
    __name__,
    __all__,
    {
        "LagForecaster": "lagwise.forecasting",
        "LagwiseConfig": "lagwise.models",
        "LagwiseForCausalLM": "lagwise.models",
        "LagwiseForImageClassification": "lagwise.models",
        "LagwiseForMaskedLM": "lagwise.models",
        "LagwiseForPrediction": "lagwise.models",
        "LagwiseForMultipleChoice": "lagwise.models",
        "LagwiseForQuestionAnswering": "lagwise.models",
        "LagwiseForSequenceClassification": "lagwise.models",
        "LagwiseForTokenClassification": "lagwise.models",
        "LagwiseModel": "lagwise.models",
        "StreamingCache": "lagwise.models",
        "toeplitz_product": "lagwise.ops",
    },
)

register()
