"""Every model class: importing this module registers them all with the Auto classes of transformers."""

from transformers import AutoModel

from lagwise.models import (
    causal_lm,
    classification,
    image_classification,
    masked_lm,
    prediction,
    question_answering,
    token_classification,
)
from lagwise.models.configuration import LagwiseConfig
from lagwise.models.linear import modeling as linear
from lagwise.models.modeling import LagwiseModel

AutoModel.register(LagwiseConfig, LagwiseModel, exist_ok=True)

__all__ = [
    "causal_lm",
    "classification",
    "image_classification",
    "linear",
    "masked_lm",
    "prediction",
    "question_answering",
    "token_classification",
]
