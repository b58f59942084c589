"""Extractive question answering: where in a text an answer starts and ends."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.heads import Head


class LagwiseForQuestionAnswering(Head):
    """Scores every position of a question and its text as the first and as the last token of the answer.

    Takes the inputs of `LagwiseModel`, and for the loss start_positions and end_positions ``(batch,)``; as in
    transformers, those beyond the sequence are ignored, and negative ones count as 0. Logits are ``(batch, length)``
    each.

    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, causal=False)
    >>> LagwiseForQuestionAnswering(config)(torch.randint(256, (2, 20))).start_logits.shape
    torch.Size([2, 20])
    """

    accepts_loss_kwargs = False  # the loss is a mean over the rows of a micro-batch: the Trainer averages these

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
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
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        inputs = input_ids, attention_mask, token_type_ids, inputs_embeds, input_values, pixel_values
        out = self.read(*inputs, seq_idx=seq_idx, position_ids=position_ids, **kwargs)
        start_logits, end_logits = self.qa_outputs(out.last_hidden_state).unbind(-1)
        if (start_positions is None) != (end_positions is None):
            raise ValueError("give both of start_positions and end_positions, or neither")
        loss = None
        if start_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions)
        return QuestionAnsweringModelOutput(
            loss=loss, start_logits=start_logits, end_logits=end_logits, hidden_states=out.hidden_states
        )
