"""Sequence classification: the mean of what the backbone makes of a text's tokens, and a linear layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.modeling import IGNORED, LagwiseModel, LagwisePreTrainedModel
from lagwise.tables import known, whole_number

_PASSED_ON = (*IGNORED, "position_ids")  # packed rows are many texts: there is no one class for them


class LagwiseForSequenceClassification(LagwisePreTrainedModel):
    """Classifies (or regresses, as ``config.problem_type`` says) from the mean over real tokens.

    Bidirectional if ``config.causal`` is false, which is what a text that is there as a whole deserves. Inputs as
    `LagwiseModel`, and labels ``(batch,)`` for the loss; logits are ``(batch, config.num_labels)``. Padding on either
    side changes nothing. ValueError for a row of padding alone.
    """

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.num_labels = whole_number("num_labels", config.num_labels)
        self.model = LagwiseModel(config)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            output_hidden_states=output_hidden_states,
            **{known(name, _PASSED_ON, "argument of forward"): value for name, value in kwargs.items()},
        )
        hidden = out.last_hidden_state
        if attention_mask is None:
            pooled = hidden.mean(dim=1)
        else:
            if attention_mask.shape != hidden.shape[:2]:
                expected = f"(batch, length) = {tuple(hidden.shape[:2])}"
                raise ValueError(f"attention_mask must be {expected}, got {tuple(attention_mask.shape)}")
            real = attention_mask.bool()
            if not real.any(dim=1).all():
                raise ValueError("attention_mask leaves a row without any token; there is nothing to classify")
            total = hidden.masked_fill(~real[:, :, None], 0).sum(dim=1)
            pooled = total / real.sum(dim=1, keepdim=True)
        logits = self.classifier(pooled.to(self.classifier.weight.dtype))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)


AutoModelForSequenceClassification.register(LagwiseConfig, LagwiseForSequenceClassification, exist_ok=True)
