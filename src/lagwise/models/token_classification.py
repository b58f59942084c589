"""A class for every token of a text, or for every step of a series."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import AutoModelForTokenClassification
from transformers.modeling_outputs import TokenClassifierOutput

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.heads import Head, head_forward
from lagwise.models.modeling import LagwiseModelOutput
from lagwise.tables import whole_number


class LagwiseForTokenClassification(Head):
    """Classifies every position of a sequence: tokens of a text, or steps of a series.

    Bidirectional if ``config.causal`` is false; a causal model classifies a series as it arrives. Takes the inputs of
    `LagwiseModel`, and labels ``(batch, length)`` for the loss, -100 at positions that do not count. Logits are
    ``(batch, length, config.num_labels)``.
    """

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.num_labels = whole_number("num_labels", config.num_labels)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    @head_forward
    def forward(
        self,
        out: LagwiseModelOutput,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> TokenClassifierOutput:
        logits = self.classifier(self.dropout(out.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, config=self.config, num_items_in_batch=num_items_in_batch
            )
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)


AutoModelForTokenClassification.register(LagwiseConfig, LagwiseForTokenClassification, exist_ok=True)
