"""Hugging Face model classes, imported lazily, so that reading a configuration does not load the model code."""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy_package

if TYPE_CHECKING:
    from lagwise.models.cache import StreamingCache
    from lagwise.models.causal_lm import LagwiseForCausalLM
    from lagwise.models.classification import (
        LagwiseForImageClassification,
        LagwiseForSequenceClassification,
        LagwiseForTokenClassification,
    )
    from lagwise.models.configuration import LagwiseConfig, LagwiseLinearConfig
    from lagwise.models.conversion import recurrent_form
    from lagwise.models.generation import generate_text
    from lagwise.models.heads import LagwiseForMaskedLM
    from lagwise.models.linear.modeling import (
        LagwiseLinearForImageClassification,
        LagwiseLinearForSequenceClassification,
    )
    from lagwise.models.loading import load_model
    from lagwise.models.modeling import LagwiseModel
    from lagwise.models.prediction import LagwiseForPrediction
    from lagwise.models.session import StreamingSession
    from lagwise.models.signal_regression import LagwiseForSignalRegression
    from lagwise.models.signal_stream import StreamingClassifier, StreamingRegressor

__all__, __getattr__, __dir__ = lazy_package(__name__)
