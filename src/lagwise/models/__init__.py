"""Hugging Face model classes, imported lazily, so that reading a configuration does not load the model code."""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy

if TYPE_CHECKING:
    from lagwise.models.cache import StreamingCache
    from lagwise.models.causal_lm import LagwiseForCausalLM
    from lagwise.models.classification import LagwiseForSequenceClassification
    from lagwise.models.configuration import LagwiseConfig
    from lagwise.models.conversion import recurrent_form
    from lagwise.models.generation import generate_text
    from lagwise.models.image_classification import LagwiseForImageClassification
    from lagwise.models.linear.configuration import LagwiseLinearConfig
    from lagwise.models.linear.modeling import (
        LagwiseLinearForImageClassification,
        LagwiseLinearForSequenceClassification,
    )
    from lagwise.models.loading import load_model
    from lagwise.models.masked_lm import LagwiseForMaskedLM
    from lagwise.models.modeling import LagwiseModel
    from lagwise.models.multiple_choice import LagwiseForMultipleChoice
    from lagwise.models.prediction import LagwiseForPrediction
    from lagwise.models.question_answering import LagwiseForQuestionAnswering
    from lagwise.models.session import StreamingSession
    from lagwise.models.streaming_classifier import StreamingClassifier
    from lagwise.models.token_classification import LagwiseForTokenClassification

__all__ = [
    "LagwiseConfig",
    "LagwiseForCausalLM",
    "LagwiseForImageClassification",
    "LagwiseForMaskedLM",
    "LagwiseForMultipleChoice",
    "LagwiseForPrediction",
    "LagwiseForQuestionAnswering",
    "LagwiseForSequenceClassification",
    "LagwiseForTokenClassification",
    "LagwiseLinearConfig",
    "LagwiseLinearForImageClassification",
    "LagwiseLinearForSequenceClassification",
    "LagwiseModel",
    "StreamingCache",
    "StreamingClassifier",
    "StreamingSession",
    "generate_text",
    "load_model",
    "recurrent_form",
]

__getattr__, __dir__ = lazy(
    __name__,
    __all__,
    {
        "LagwiseConfig": "lagwise.models.configuration",
        "LagwiseForCausalLM": "lagwise.models.causal_lm",
        "LagwiseForImageClassification": "lagwise.models.image_classification",
        "LagwiseForMaskedLM": "lagwise.models.masked_lm",
        "LagwiseForPrediction": "lagwise.models.prediction",
        "LagwiseForMultipleChoice": "lagwise.models.multiple_choice",
        "LagwiseForQuestionAnswering": "lagwise.models.question_answering",
        "LagwiseForSequenceClassification": "lagwise.models.classification",
        "LagwiseForTokenClassification": "lagwise.models.token_classification",
        "LagwiseLinearConfig": "lagwise.models.linear.configuration",
        "LagwiseLinearForImageClassification": "lagwise.models.linear.modeling",
        "LagwiseLinearForSequenceClassification": "lagwise.models.linear.modeling",
        "LagwiseModel": "lagwise.models.modeling",
        "StreamingCache": "lagwise.models.cache",
        "StreamingClassifier": "lagwise.models.streaming_classifier",
        "StreamingSession": "lagwise.models.session",
        "generate_text": "lagwise.models.generation",
        "load_model": "lagwise.models.loading",
        "recurrent_form": "lagwise.models.conversion",
    },
)
