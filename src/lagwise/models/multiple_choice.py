"""Multiple choice: which of several texts, such as a question with each answer, fits best."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import MultipleChoiceModelOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import PAIRS, LagwiseConfig
from lagwise.models.heads import Head
from lagwise.models.pooling import hidden_layers, pool


class LagwiseForMultipleChoice(Head):
    """Scores each of several choices from its pooled hidden states, as `LagwiseForSequenceClassification` would with
    one label.

    Takes input_ids, attention_mask and token_type_ids ``(batch, choices, length)``, or inputs_embeds with one more
    axis, and labels ``(batch,)``, the number of the right choice, for the loss. Logits are ``(batch, choices)``.
    ValueError for inputs of another shape, packed rows, and a pooling of pairs.

    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, causal=False)
    >>> LagwiseForMultipleChoice(config)(torch.randint(256, (2, 4, 20))).logits.shape  # four choices
    torch.Size([2, 4])
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
        for name in ("seq_idx", "cu_seqlens"):
            if kwargs.get(name) is not None:
                raise ValueError(f"multiple choice does not apply to packed rows ({name})")
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        given = {name: value for name, value in (given | {"inputs_embeds": inputs_embeds}).items() if value is not None}
        for name, value in given.items():
            axes = "(batch, choices, length, channels)" if name == "inputs_embeds" else "(batch, choices, length)"
            if value.dim() != axes.count(",") + 1:
                raise ValueError(f"{name} of multiple choice must be {axes}, got {tuple(value.shape)}")
        rows = {name: value.flatten(0, 1) for name, value in given.items()}
        out = self.read(**rows, **kwargs)
        pooled = pool(out.last_hidden_state, self.config.pooling, mask=rows.get("attention_mask"))
        scores = self.classifier(self.hidden(self.dropout(pooled).to(self.classifier.weight.dtype)))
        logits = scores.unflatten(0, next(iter(given.values())).shape[:2])[..., 0]
        loss = None if labels is None else F.cross_entropy(logits.float(), labels)
        return MultipleChoiceModelOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)
