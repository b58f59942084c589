"""Classification: of sequences, which may also be regressed, of tokens, and of images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import ImageClassifierOutput, SequenceClassifierOutput, TokenClassifierOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import PAIRS, LagwiseConfig
from lagwise.models.heads import Head
from lagwise.models.modeling import LagwiseModelOutput
from lagwise.models.pooling import pool, pool_pairs
from lagwise.models.wide import WideHead
from lagwise.ops.operation import exporting, traced
from lagwise.tables import check_integer


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


class LagwiseForImageClassification(WideHead):
    """Classifies an image from the pooled hidden states of its patches (TNN §4.2, table 6).

    Takes pixel_values ``(batch, channels, height, width)`` with sides that are multiples of the patch, and labels
    ``(batch,)`` for the loss; logits are ``(batch, config.num_labels)``. Kernels along the sides extrapolate, so
    images may have other sizes than in training. There is no class token, because it would not fit into a grid:
    pooling is the mean over patches unless ``config.pooling`` says otherwise.

    With ``config.wide`` a linear map of how much an image's patches are like those of others adds to the logits
    (`Wide`, `WideHead.answer`). ValueError for padding.

    ValueError for a configuration whose inputs are not ``patches``, or whose pooling is for pairs of texts.

    >>> inputs = {"name": "patches", "channels": 3, "size": 4}
    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, num_labels=10, inputs=inputs, causal=False)
    >>> LagwiseForImageClassification(config)(torch.randn(2, 3, 32, 32)).logits.shape
    torch.Size([2, 10])
    """

    main_input_name = "pixel_values"
    accepts_loss_kwargs = False  # the loss is a mean over the rows of a micro-batch: the Trainer averages these

    def __init__(self, config: LagwiseConfig):
        if config.input_name != "patches":
            raise ValueError(f"a classifier of images reads patches, got inputs={config.inputs!r}")
        if config.pooling in PAIRS:
            raise ValueError(f"pooling {config.pooling!r} is for pairs of texts, not for images")
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> ImageClassifierOutput:
        out = self.read(pixel_values=pixel_values, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)
        pooled = pool(out.last_hidden_state, self.config.pooling, mask=attention_mask)
        if self.wide is not None and attention_mask is not None and not traced() and not attention_mask.all():
            raise ValueError("a wide part reads whole images, got an attention_mask with padding")
        logits = self.answer(pooled, self.beside(pixel_values, pooled))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return ImageClassifierOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)
