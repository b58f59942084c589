"""Classification and regression of whole sequences."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.inputs import document_numbers
from lagwise.models.modeling import LagwiseModel, LagwisePreTrainedModel
from lagwise.models.pooling import pool
from lagwise.tables import whole_number


class LagwiseForSequenceClassification(LagwisePreTrainedModel):
    """Classifies (or regresses, as ``config.problem_type`` says) a sequence from its pooled hidden states.

    Bidirectional if ``config.causal`` is false, which suits a text that is there as a whole. Takes the inputs of
    `LagwiseModel`, and labels ``(batch,)`` for the loss; logits are ``(batch, config.num_labels)``. In packed rows
    every document has logits and a label of its own, row by row in their order: logits are ``(documents, num_labels)``.
    Padding on either side changes nothing. ValueError for a row of padding alone.
    """

    accepts_loss_kwargs = False  # the loss is a mean over the rows of a micro-batch: the Trainer averages these

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.num_labels = whole_number("num_labels", config.num_labels)
        self.model = LagwiseModel(config)
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
        labels: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        given = (each for each in (input_ids, input_values, inputs_embeds) if each is not None)
        tokens = next(given, None)
        if tokens is not None and tokens.dim() >= 2:
            seq_idx = document_numbers(
                *tokens.shape[:2],
                seq_idx=seq_idx,
                cu_seqlens=cu_seqlens,
                cu_seq_lens_q=cu_seq_lens_q,
                cu_seq_lens_k=cu_seq_lens_k,
                position_ids=position_ids,
                attention_mask=attention_mask,
            )
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            input_values=input_values,
            pixel_values=pixel_values,
            seq_idx=seq_idx,
            **{**kwargs, "use_cache": False},
        )
        pooled = pool(out.last_hidden_state, self.config.pooling, mask=attention_mask, seq_idx=seq_idx)
        logits = self.classifier(self.dropout(pooled).to(self.classifier.weight.dtype))
        if self.config.problem_type == "regression":
            logits = logits * self.config.label_std + self.config.label_mean
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)


AutoModelForSequenceClassification.register(LagwiseConfig, LagwiseForSequenceClassification, exist_ok=True)
