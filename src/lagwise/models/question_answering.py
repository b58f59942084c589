"""Extractive question answering: where in a text an answer starts and ends."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import AutoModelForQuestionAnswering
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.heads import Head, head_forward
from lagwise.models.modeling import LagwiseModelOutput


class LagwiseForQuestionAnswering(Head):
    """Scores every position of a question and its text as the first and as the last token of the answer.

    Takes the inputs of `LagwiseModel`, and for the loss start_positions and end_positions ``(batch,)``; as in
    transformers, those beyond the sequence are ignored, and negative ones count as 0. Logits are ``(batch, length)``
    each.
    """

    accepts_loss_kwargs = False  # the loss is a mean over the rows of a micro-batch: the Trainer averages these

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @head_forward
    def forward(
        self,
        out: LagwiseModelOutput,
        *,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
    ) -> QuestionAnsweringModelOutput:
        start_logits, end_logits = self.qa_outputs(out.last_hidden_state).unbind(-1)
        if (start_positions is None) != (end_positions is None):
            raise ValueError("give both of start_positions and end_positions, or neither")
        loss = None
        if start_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions)
        return QuestionAnsweringModelOutput(
            loss=loss, start_logits=start_logits, end_logits=end_logits, hidden_states=out.hidden_states
        )


AutoModelForQuestionAnswering.register(LagwiseConfig, LagwiseForQuestionAnswering, exist_ok=True)
