"""Linear models of fixed features as Hugging Face classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import ImageClassifierOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.embeddings import check_finite
from lagwise.models.inputs import check_vocabulary
from lagwise.models.linear.configuration import LagwiseLinearConfig
from lagwise.models.linear.features import inputs_of, linear_logits, made_features
from lagwise.models.remote_code import LoadedSafely
from lagwise.ops.operation import traced
from lagwise.tables import check_integer, known

_ARGUMENTS = {"tokens": "input_ids", "values": "input_values", "patches": "pixel_values"}
_IGNORED = ("num_items_in_batch", "use_cache", "output_hidden_states", "output_attentions", "position_ids")


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
        self.argument = _ARGUMENTS[known(config.input_name, _ARGUMENTS, "inputs")]
        self.features = made_features(config.input_name, config.inputs, config.vocab_size, config.features)
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
        given = {"input_ids": input_ids, "input_values": input_values, "pixel_values": pixel_values}
        if names := [name for name, value in given.items() if value is not None and name != self.argument]:
            raise ValueError(f"this model reads {self.argument}, got {names[0]}")
        x = given[self.argument]
        if x is None:
            raise ValueError(f"this model reads {self.argument}, which was not given")
        batch = {self.argument: x}
        if attention_mask is not None:
            batch["attention_mask"] = attention_mask
        if token_type_ids is not None:
            batch["token_type_ids"] = token_type_ids
        read = inputs_of(batch)
        self._check(x, read[1] if len(read) > 1 else None)
        logits = linear_logits(self.features(*read), self.classifier)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return type(self).answer(loss=loss, logits=logits)

    def _check(self, x: Tensor, mask: Tensor | None) -> None:
        axes = {"input_ids": 2, "input_values": 3, "pixel_values": 4}[self.argument]
        if x.dim() != axes or 0 in x.shape:
            raise ValueError(f"{self.argument} must have {axes} axes and no empty one, got {tuple(x.shape)}")
        if traced():
            return
        if self.argument == "input_ids":
            check_vocabulary(x, self.config.vocab_size)
        else:
            width = self.config.inputs.get("features" if axes == 3 else "channels")
            if x.shape[2 if axes == 3 else 1] != width:
                raise ValueError(f"{self.argument} must have {width} channels, got {tuple(x.shape)}")
            check_finite(self.argument, x.masked_fill(x.isnan(), 0) if self.config.takes_gaps else x)
        if mask is not None:
            if mask.shape != x.shape[:2]:
                raise ValueError(f"attention_mask must be (batch, length) = {tuple(x.shape[:2])}, got {mask.shape}")
            if not mask.any(dim=1).all():
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
