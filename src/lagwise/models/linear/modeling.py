"""Linear models of fixed features as Hugging Face classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import ImageClassifierOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import LagwiseLinearConfig
from lagwise.models.embeddings import INPUTS
from lagwise.models.linear.convolutions import Convolutions
from lagwise.models.linear.ngrams import Ngrams, Sparse
from lagwise.models.linear.patches import Patches
from lagwise.models.remote_code import LoadedSafely
from lagwise.ops.operation import surely
from lagwise.tables import build, check_integer, known

#: Features by name. Each is constructed with the number of channels, or of token ids, and its options.
FEATURES: dict[str, Any] = {"convolutions": Convolutions, "ngrams": Ngrams, "patches": Patches}
_IGNORED = ("num_items_in_batch", "use_cache", "output_hidden_states", "output_attentions", "position_ids")


def build_features(name: str, inputs: Mapping[str, Any], vocab_size: int, options: Mapping[str, Any]) -> Any:
    """The feature extractor of inputs with a name and options; options: name and options of the features. ValueError
    for other features."""
    sizes = {"tokens": vocab_size, "values": inputs.get("features", 1), "patches": inputs.get("channels", 3)}
    context: dict[str, Any] = {each: inputs.get(each) for each in ("mean", "std")}
    return build(FEATURES, options, sizes[name], what="features", **context)


def inputs_of(batch: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a feature extractor for a batch as models read it: ids, mask and types of texts; values and mask
    of series; or pixels."""
    if "pixel_values" in batch:
        return (batch["pixel_values"],)
    mask = batch.get("attention_mask")
    mask = None if mask is None else mask.bool()
    if "input_values" in batch:
        return batch["input_values"], mask
    return batch["input_ids"], mask, batch.get("token_type_ids")


def linear_logits(features: Tensor | Sparse, linear: nn.Linear) -> Tensor:
    """Compute logits ``(..., labels)`` from features."""
    if isinstance(features, Tensor):
        return linear(features)
    weights = F.embedding(features.numbers, linear.weight.t())
    return (weights * features.values[..., None]).sum(1) + linear.bias


class LinearModel(LoadedSafely, PreTrainedModel):
    """A linear map of fixed features. Weights are fitted in closed form (`lagwise.training.first_answer`).

    Subclasses set `answer`, the class of the output.
    """

    config_class = LagwiseLinearConfig
    config: LagwiseLinearConfig
    base_model_prefix = "features"
    length_limit: int | None = None  #: maximum length of inputs: none
    answer: Callable[..., Any]

    def __init__(self, config: LagwiseLinearConfig):
        super().__init__(config)
        self.num_labels = check_integer("num_labels", config.num_labels)
        self.input_type = INPUTS[known(config.input_name, INPUTS, "inputs")]
        self.features = build_features(config.input_name, config.inputs, config.vocab_size, config.features)
        self.classifier = nn.Linear(self.features.size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        input_values: Tensor | None = None,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """ValueError for another input than the model reads, for padding without any sample, and for packed rows."""
        for name in kwargs:
            known(name, _IGNORED, "argument of a linear model's forward")
        inputs = {"input_ids": input_ids, "input_values": input_values, "pixel_values": pixel_values}
        present, expected = {name: x for name, x in inputs.items() if x is not None}, self.input_type.argument
        if list(present) != [expected]:
            raise ValueError(f"this model reads {expected} alone, got {' and '.join(present) or 'no input'}")
        read = inputs_of({**present, "attention_mask": attention_mask, "token_type_ids": token_type_ids})
        self._check(*read[:2])
        logits = linear_logits(self.features(*read), self.classifier)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return type(self).answer(loss=loss, logits=logits)

    def _check(self, x: Tensor, mask: Tensor | None = None) -> None:
        self.input_type.check(x, self.config)
        if mask is not None and mask.shape != x.shape[:2]:
            raise ValueError(f"attention_mask must be (batch, length) = {tuple(x.shape[:2])}, got {mask.shape}")
        if mask is not None and surely(lambda: not mask.any(dim=1).all()):
            raise ValueError("attention_mask leaves a row without anything to classify")

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            init.zeros_(module.weight)
            init.zeros_(module.bias)


class LagwiseLinearForSequenceClassification(LinearModel):
    """A class, or a number if ``config.problem_type`` is ``regression``, of a text, a pair of texts or a series."""

    answer = SequenceClassifierOutput


class LagwiseLinearForImageClassification(LinearModel):
    """A class of an image: pixel_values ``(batch, channels, height, width)``."""

    main_input_name = "pixel_values"
    answer = ImageClassifierOutput
