"""The masked language model."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.heads import VocabularyHead


class LagwiseForMaskedLM(VocabularyHead):
    """Predicts the tokens behind masks from both sides (BERT; TNN §4.1), with decoder weights tied to the embeddings.

    Formula: ``logits = E norm(gelu(W h + b)) + c`` with the embedding table E, and layer norm with weight and bias;
    ``config.head_transform`` may select another transform than this one of BERT.

    Takes the inputs of `LagwiseModel`, and labels ``(batch, length)`` for the loss, -100 where there is nothing to
    predict. Logits are ``(batch, length, vocab_size)``. With ``config.sparse_prediction`` and labels they are computed
    only at labels, ``(labels, vocab_size)`` in reading order, at 15 % of the decoder's cost. With skip_logits and
    labels the logits are None where the loss can be computed without them.

    It takes shards of sequences (`split_sequences`).

    ValueError for a causal configuration, and for inputs other than tokens.

    >>> config = LagwiseConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1, causal=False)
    >>> LagwiseForMaskedLM(config)(torch.tensor([[1, 9, 3]])).logits.shape  # 9 is the mask
    torch.Size([1, 3, 10])
    """

    splits = True

    def __init__(self, config: LagwiseConfig):
        if config.causal:
            raise ValueError("a masked language model sees both sides of a mask, got causal=True; give causal=False")
        if config.input_name != "tokens":
            raise ValueError(f"a masked language model reads tokens, got inputs={config.inputs!r}")
        super().__init__(config, transform="gelu", bias=True)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        seq_idx: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool = False,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        inputs = input_ids, attention_mask, token_type_ids, inputs_embeds
        out = self.read(*inputs, seq_idx=seq_idx, position_ids=position_ids, **kwargs)
        hidden = out.last_hidden_state
        if labels is not None and num_items_in_batch is None and out.shard is not None:
            num_items_in_batch = out.shard.sum((labels != -100).sum())
        if labels is not None and self.config.sparse_prediction:
            hidden, labels = hidden[labels != -100], labels[labels != -100]
        loss, logits = self.loss_and_logits(hidden, labels, num_items_in_batch, skip_logits=skip_logits)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)
