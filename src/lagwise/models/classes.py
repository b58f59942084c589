"""Table of all model classes, for lazy imports, the Auto classes of transformers, saved folders and loading."""

from __future__ import annotations

from typing import NamedTuple


class ModelClass(NamedTuple):
    """Module of a model class, and the Auto class of transformers that loads it."""

    module: str
    auto: str


#: Classes that `LagwiseConfig` describes, by name.
CLASSES = {
    "LagwiseConfig": ModelClass("configuration", "AutoConfig"),
    "LagwiseModel": ModelClass("modeling", "AutoModel"),
    "LagwiseForCausalLM": ModelClass("causal_lm", "AutoModelForCausalLM"),
    "LagwiseForImageClassification": ModelClass("classification", "AutoModelForImageClassification"),
    "LagwiseForMaskedLM": ModelClass("heads", "AutoModelForMaskedLM"),
    "LagwiseForPrediction": ModelClass("prediction", "AutoModelForTimeSeriesPrediction"),
    "LagwiseForSequenceClassification": ModelClass("classification", "AutoModelForSequenceClassification"),
    "LagwiseForSignalRegression": ModelClass("signal_regression", "AutoModelForTextToWaveform"),
    "LagwiseForTokenClassification": ModelClass("classification", "AutoModelForTokenClassification"),
}
#: The same for the linear models that `LagwiseLinearConfig` describes.
LINEAR_CLASSES = {
    "LagwiseLinearConfig": ModelClass("configuration", "AutoConfig"),
    "LagwiseLinearForImageClassification": ModelClass("linear.modeling", "AutoModelForImageClassification"),
    "LagwiseLinearForSequenceClassification": ModelClass("linear.modeling", "AutoModelForSequenceClassification"),
}
#: Full module name of each class.
HOMES = {name: f"lagwise.models.{each.module}" for name, each in (CLASSES | LINEAR_CLASSES).items()}
