"""Multiple choice: which of several texts, such as a question with each answer, fits best."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import MultipleChoiceModelOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import PAIRS, LagwiseConfig
from lagwise.models.heads import Head
from lagwise.models.modeling import LagwiseModelOutput
from lagwise.models.pooling import hidden_layers, pool


class LagwiseForMultipleChoice(Head):
    """Scores each of several choices from its pooled hidden states, as `LagwiseForSequenceClassification` would with
    one label.

    Takes input_ids, attention_mask and token_type_ids ``(batch, choices, length)``, or inputs_embeds with one more
    axis, and labels ``(batch,)``, the number of the right choice, for the loss. Logits are ``(batch, choices)``.
    ValueError for inputs of another shape, packed rows, and a pooling of pairs.
    """

    accepts_loss_kwargs = False  # the loss is a mean over the rows of a micro-batch: the Trainer averages these

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        if config.pooling in PAIRS:
            raise ValueError(f"multiple choice pools single texts, got pooling {config.pooling!r}")
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.hidden, features = hidden_layers(config)
        self.classifier = nn.Linear(features, 1)
        self.post_init()

    def read(self, **inputs: Any) -> LagwiseModelOutput:
        for name in ("seq_idx", "cu_seqlens"):
            if inputs.get(name) is not None:
                raise ValueError(f"multiple choice does not apply to packed rows ({name})")
        for name in ("input_ids", "attention_mask", "token_type_ids", "inputs_embeds"):
            given, axes = inputs.get(name), 4 if name == "inputs_embeds" else 3
            if given is None:
                continue
            if given.dim() != axes:
                shape = "(batch, choices, length" + (", channels)" if axes == 4 else ")")
                raise ValueError(f"{name} of multiple choice must be {shape}, got {tuple(given.shape)}")
            inputs = {**inputs, name: given.flatten(0, 1)}
        return super().read(**inputs)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MultipleChoiceModelOutput:
        out = self.read(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
        given = input_ids if input_ids is not None else inputs_embeds
        assert given is not None
        mask = None if attention_mask is None else attention_mask.flatten(0, 1)
        pooled = pool(out.last_hidden_state, self.config.pooling, mask=mask)
        scores = self.classifier(self.hidden(self.dropout(pooled).to(self.classifier.weight.dtype)))
        logits = scores.unflatten(0, given.shape[:2])[..., 0]
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return MultipleChoiceModelOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)
