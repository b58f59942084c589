"""Classification and regression of whole sequences."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import PAIRS, LagwiseConfig
from lagwise.models.heads import Head
from lagwise.models.modeling import LagwiseModelOutput
from lagwise.models.pooling import hidden_layers, pool, pool_pairs
from lagwise.models.shares import Shares
from lagwise.models.wide import Wide
from lagwise.ops.operators import exporting
from lagwise.tables import check_integer


class LagwiseForSequenceClassification(Head):
    """Classifies a sequence from its pooled hidden states, or regresses, depending on ``config.problem_type``.

    Bidirectional if ``config.causal`` is false, which suits complete texts. Takes the inputs of `LagwiseModel`, and
    labels ``(batch,)`` for the loss; logits are ``(batch, config.num_labels)``. In packed rows every document has its
    own logits and label, row by row in order: logits are ``(documents, num_labels)``. Padding on either side has no
    effect. ValueError for a row of only padding.

    With ``config.pooling`` ``pair`` or ``signed_pair`` a row holds two texts, with token_type_ids 0 and 1. Each is
    processed as if it were alone, and the classifier gets features of both (`pool_pairs`). ValueError for packed rows,
    or without these ids.

    With ``config.shares`` the classifier also gets fixed features of a series (`Shares`). ValueError for packed rows,
    and for inputs_embeds instead of input_values.

    With ``config.wide`` a linear map of the n-grams of a text, zero at first, adds to the logits (`Wide`). Training
    leaves out the others in a share p = ``classifier_dropout`` of the rows and multiplies them by ``1 / (1 - p)`` in
    the rest; otherwise they count ``1 - p`` times. ValueError for packed rows, and for inputs_embeds instead of input_ids.

    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, num_labels=3, causal=False)
    >>> ids = torch.tensor([list(b"good"), list(b"fine")])
    >>> LagwiseForSequenceClassification(config)(ids, labels=torch.tensor([0, 2])).logits.shape
    torch.Size([2, 3])
    """

    accepts_loss_kwargs = False  # the loss is a mean over the rows of a micro-batch: the Trainer averages these

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.num_labels = check_integer("num_labels", config.num_labels)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.reads_pairs = config.pooling in PAIRS
        self.shares = None if config.shares is None else Shares(config.inputs, config.shares)
        self.hidden, features = hidden_layers(config, 0 if self.shares is None else self.shares.size)
        self.classifier = nn.Linear(features, self.num_labels)
        self.wide = None
        if config.wide is not None:
            self.wide = Wide(config.vocab_size, self.num_labels, config.wide, config.classifier_dropout)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if self.wide is not None and module is self.wide.linear:
            init.zeros_(self.wide.linear.weight)

    def _texts(self, types: Tensor | None, mask: Tensor | None) -> Tensor:
        """The two texts of each row as the documents of a packed one."""
        if types is None:
            wanted = "token_type_ids, 0 at the first text and 1 at the second"
            raise ValueError(f"pooling {self.config.pooling!r} needs {wanted}")
        return types if mask is None else types.masked_fill(mask == 0, -1)

    def _read_apart(
        self, texts: Tensor, ids: Tensor | None, mask: Tensor | None, *inputs: Tensor | None, **others: Any
    ) -> tuple[LagwiseModelOutput, Tensor]:
        """The output of the backbone, and the hidden states of both texts. A graph that is exported cannot cut rows, so
        there each text is read with the other one masked."""
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
        if self.shares is not None:
            if input_values is None or pooled.shape[0] != input_values.shape[0]:
                raise ValueError("shares need input_values with one series in each row, not packed or embedded ones")
            pooled = torch.cat([pooled, self.shares(input_values, attention_mask)], -1)
        logits = self.classifier(self.hidden(self.dropout(pooled).to(self.classifier.weight.dtype)))
        if self.wide is not None:
            if input_ids is None or logits.shape[0] != input_ids.shape[0]:
                raise ValueError("a wide part needs input_ids with one text in each row, not packed or embedded ones")
            # Of some rows the n-grams alone, or the layers would learn rows by heart before n-grams are learned; those
            # that they have not read they know less well than these.
            dropped = self.config.classifier_dropout
            counts = F.dropout(torch.ones_like(logits[:, :1]), dropped) if self.training else 1 - dropped
            logits = logits * counts + self.wide(input_ids, attention_mask, token_type_ids)
        if self.config.problem_type == "regression":
            wide = torch.promote_types(logits.dtype, torch.float32)  # numbers far from 0 have few digits in bfloat16
            logits = logits.to(wide) * self.config.label_std + self.config.label_mean
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)
