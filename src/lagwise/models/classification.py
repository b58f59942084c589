"""Sequence classification: the mean of what the backbone makes of a text's tokens, and a linear layer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.modeling import LagwiseModel, LagwisePreTrainedModel


class LagwiseForSequenceClassification(LagwisePreTrainedModel):
    """Classifies (or regresses, as ``config.problem_type`` says) from the mean over real tokens.

    Bidirectional if ``config.causal`` is false, which is what a text that is there as a whole deserves. Inputs as
    `LagwiseModel`, and labels ``(batch,)`` for the loss; logits are ``(batch, config.num_labels)``. Padding on either
    side changes nothing. ValueError for a row of padding alone.
    """

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.num_labels = config.num_labels or 2
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
            **{name: value for name, value in kwargs.items() if name != "use_cache"},
        )
        hidden = out.last_hidden_state
        if attention_mask is None:
            pooled = hidden.mean(dim=1)
        else:
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
