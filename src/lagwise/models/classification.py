"""Classification and regression of whole sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import PAIRS, LagwiseConfig
from lagwise.models.modeling import LagwiseModelOutput
from lagwise.models.pooling import pool, pool_pairs
from lagwise.models.wide import WideHead
from lagwise.ops.operation import exporting


class LagwiseForSequenceClassification(WideHead):
    """Classifies a sequence from its pooled hidden states, or regresses, depending on ``config.problem_type``.

    Bidirectional if ``config.causal`` is false, which suits complete texts. Takes the inputs of `LagwiseModel`, and
    labels ``(batch,)`` for the loss; logits are ``(batch, config.num_labels)``. In packed rows every document has its
    own logits and label, row by row in order: logits are ``(documents, num_labels)``. Padding on either side has no
    effect. ValueError for a row of only padding.

    With ``config.pooling`` ``pair`` or ``signed_pair`` a row holds two texts, with token_type_ids 0 and 1. Each is
    processed as if it were alone, and the classifier gets features of both (`pool_pairs`). ValueError for packed rows,
    or without these ids.

    With ``config.wide`` a linear map of the n-grams of a text, or of random convolutions of a series, adds to the
    logits (`Wide`, `WideHead.answer`). ValueError for packed rows, and for inputs_embeds.

    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, num_labels=3, causal=False)
    >>> ids = torch.tensor([list(b"good"), list(b"fine")])
    >>> LagwiseForSequenceClassification(config)(ids, labels=torch.tensor([0, 2])).logits.shape
    torch.Size([2, 3])
    """

    accepts_loss_kwargs = False  # the loss is a mean over the rows of a micro-batch: the Trainer averages these

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.reads_pairs = config.pooling in PAIRS
        if self.wide is not None and config.input_name == "patches":
            raise ValueError("a wide part of images needs LagwiseForImageClassification")

    def _texts(self, types: Tensor | None, mask: Tensor | None) -> Tensor:
        """Document numbers that separate the two texts of each row, -1 at padding."""
        if types is None:
            raise ValueError(
                f"pooling {self.config.pooling!r} needs token_type_ids, 0 at the first text and 1 at the second"
            )
        return types if mask is None else types.masked_fill(mask == 0, -1)

    def _read_apart(
        self, texts: Tensor, ids: Tensor | None, mask: Tensor | None, *inputs: Tensor | None, **others: Any
    ) -> tuple[LagwiseModelOutput, Tensor]:
        """Output of the backbone, and the hidden states of both texts. An exported graph cannot cut rows, so it reads
        each text with the other one masked."""
        if not exporting():
            out = self.read(ids, mask, *inputs, seq_idx=texts, **others)
            return out, out.last_hidden_state
        first, second = (self.read(ids, (texts == number).long(), *inputs) for number in (0, 1))
        return first, torch.where((texts == 0)[..., None], first.last_hidden_state, second.last_hidden_state)

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
        cu_seqlens: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        inputs = input_ids, attention_mask, token_type_ids, inputs_embeds, input_values, pixel_values
        if self.reads_pairs:
            if seq_idx is not None or cu_seqlens is not None:
                raise ValueError(f"pooling {self.config.pooling!r} does not apply to packed rows (seq_idx, cu_seqlens)")
            texts = self._texts(token_type_ids, attention_mask)
            out, hidden = self._read_apart(texts, *inputs, position_ids=position_ids, **kwargs)
            pooled = pool_pairs(hidden, self.config.pooling, mask=attention_mask, seq_idx=texts)
        else:
            out = self.read(*inputs, seq_idx=seq_idx, cu_seqlens=cu_seqlens, position_ids=position_ids, **kwargs)
            pooled = pool(out.last_hidden_state, self.config.pooling, mask=attention_mask, seq_idx=out.seq_idx)
        packed = out.seq_idx is not None and not self.reads_pairs
        given = None if packed else input_ids if input_values is None else input_values
        logits = self.answer(pooled, self.beside(given, pooled, attention_mask, token_type_ids))
        if self.config.problem_type == "regression":
            wide = torch.promote_types(logits.dtype, torch.float32)  # numbers far from 0 have few digits in bfloat16
            logits = logits.to(wide) * self.config.label_std + self.config.label_mean
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)
