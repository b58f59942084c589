"""A class for every token of a text, or for every step of a series."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.heads import Head
from lagwise.tables import check_integer


class LagwiseForTokenClassification(Head):
    """Classifies every position of a sequence: tokens of a text, or steps of a series.

    Bidirectional if ``config.causal`` is false; a causal model classifies a series as it arrives. Takes the inputs of
    `LagwiseModel`, and labels ``(batch, length)`` for the loss, -100 at positions that do not count. Logits are
    ``(batch, length, config.num_labels)``.

    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, num_labels=3)
    >>> LagwiseForTokenClassification(config)(torch.tensor([list(b"good")])).logits.shape
    torch.Size([1, 4, 3])
    """

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.num_labels = check_integer("num_labels", config.num_labels)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        input_values: Tensor | None = None,
        pixel_values: Tensor | None = None,
        seq_idx: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        inputs = input_ids, attention_mask, token_type_ids, inputs_embeds, input_values, pixel_values
        out = self.read(*inputs, seq_idx=seq_idx, position_ids=position_ids, **kwargs)
        logits = self.classifier(self.dropout(out.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, config=self.config, num_items_in_batch=num_items_in_batch
            )
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)
