"""The base classes of heads, a backbone that reads the inputs and an output layer on its hidden states; one vector for
a whole sequence from these; and the masked language model."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from lagwise.models.configuration import PAIRS, SINGLE, LagwiseConfig
from lagwise.models.modeling import LagwiseModel, LagwiseModelOutput
from lagwise.models.pretrained import LagwisePreTrainedModel
from lagwise.ops.operation import definitions_only, in_graph, surely
from lagwise.ops.packing import row_extents
from lagwise.ops.vocabulary import chunked_cross_entropy
from lagwise.tables import known

_LOGITS_AT_ONCE = 512  # tokens of a chunk on a CPU, so that their logits stay in its cache
_MAX_LOGITS = 1 << 27  # logits of a chunk on a GPU; half a gigabyte in float32
_LARGE_VOCABULARY = 4  # ratio of vocab_size to hidden_size from which logits are computed in chunks


class Head(LagwisePreTrainedModel):
    """A backbone and an output layer, which subclasses add.

    The signature of a subclass's `forward` names the columns of a data set that it reads, because the Trainer removes
    all others; further arguments are passed on to `LagwiseModel`.
    """

    #: whether the output layer reads every token by itself and so accepts shards of sequences (`split_sequences`)
    splits: ClassVar[bool] = False

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.model = LagwiseModel(config)

    def read(self, *inputs: Any, **others: Any) -> LagwiseModelOutput:
        """The output of the backbone for whole sequences, without a cache. Arguments as of `LagwiseModel`."""
        return self.model(*inputs, **{**others, "use_cache": False}, return_dict=True)

    def answered(
        self, kind: Any, out: LagwiseModelOutput, logits: Tensor, labels: Tensor | None, /, **loss: Any
    ) -> Any:
        """The output of a classifier, of a class of outputs; loss: further arguments of transformers' loss function."""
        return kind(
            loss=None if labels is None else self.loss_function(labels=labels, config=self.config, **loss),
            logits=logits,
            hidden_states=out.hidden_states,
        )

    @property
    def length_limit(self) -> int | None:
        """Maximum length of `LagwiseModel.length_limit`."""
        return self.model.length_limit


class VocabularyHead(Head):
    """Logits of the tokens of the vocabulary: ``W t(h) + c``. W is the embedding table unless
    ``config.tie_word_embeddings`` is false, t is set by ``config.head_transform``, and c is present if
    ``config.head_bias`` is true. transform, bias: the defaults if the configuration sets neither."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: LagwiseConfig, *, transform: str, bias: bool):
        super().__init__(config)
        self.transform = config.head_transform or transform
        if self.transform != "none":
            self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        if self.transform == "gelu":
            self.dense_norm = nn.LayerNorm(config.hidden_size)
        bias = bias if config.head_bias is None else config.head_bias
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=bias)
        self.post_init()

    def to_logits(self, hidden: Tensor) -> Tensor:
        """Compute logits ``(..., vocab_size)`` of hidden states ``(..., hidden_size)`` of the backbone."""
        return self.lm_head(self._transformed(hidden))

    def _transformed(self, hidden: Tensor) -> Tensor:
        if self.transform == "tanh":
            return self.dense(hidden).tanh()
        if self.transform == "gelu":
            return self.dense_norm(F.gelu(self.dense(hidden)))
        return hidden

    def loss_and_logits(
        self, hidden: Tensor, labels: Tensor | None, targets: Any, counted: Any, *, skip_logits: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """The mean cross-entropy, None without labels, and the logits, None if they can be skipped. targets: the token
        for each hidden state, -100 for none; counted: divisor of the sum of losses, by default their number."""
        if labels is None:
            return None, self.to_logits(hidden)
        if skip_logits and (loss := self.loss_without_logits(hidden, targets, counted)) is not None:
            return loss, None
        logits, size = self.to_logits(hidden), self.config.vocab_size
        shifted = {"labels": labels.contiguous(), "shift_labels": targets.contiguous()}
        return self.loss_function(logits=logits, vocab_size=size, num_items_in_batch=counted, **shifted), logits

    def loss_without_logits(self, hidden: Tensor, labels: Tensor, counted: Any) -> Tensor | None:
        """The mean cross-entropy of labels ``(...,)``, -100 where there is none, from logits that are computed a chunk
        at a time; None where that takes more time or cannot be done. counted: what to divide by, if it is not the
        number of these labels.

        PyTorch's `linear_cross_entropy` is exact in float32; in bfloat16 it would round the loss. In float16 gradients
        are scaled before they are computed, which chunks cannot do."""
        head = self.lm_head
        if (
            not chunks_logits(self.config)
            or type(head) is not nn.Linear
            or type(head.weight) is not nn.Parameter
            or hidden.device != head.weight.device
            or definitions_only()
        ):
            return None
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        if dtype in (torch.float64, torch.float16) or (
            dtype == torch.float32 and not hidden.dtype == head.weight.dtype == dtype
        ):
            return None
        divisor = (labels != -100).sum() if counted is None else counted
        rows, labels = self._transformed(hidden).flatten(0, -2), labels.flatten().to(hidden.device)
        if dtype != torch.float32 or in_graph():
            size = max(_LOGITS_AT_ONCE, 0 if kind == "cpu" else _MAX_LOGITS // self.config.vocab_size)
            loss = chunked_cross_entropy(rows, head.weight, head.bias, labels, size, dtype)
            return loss / divisor
        options: Any = torch.nn.LinearCrossEntropyOptions(
            batch_chunk_size=_LOGITS_AT_ONCE if hidden.device.type == "cpu" else None
        )
        total = F.linear_cross_entropy(
            rows, head.weight, labels, linear_bias=head.bias, reduction="sum", options=options
        )
        return total / divisor


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
        loss, logits = self.loss_and_logits(hidden, labels, labels, num_items_in_batch, skip_logits=skip_logits)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=out.hidden_states)


def chunks_logits(config: LagwiseConfig) -> bool:
    """Whether training computes logits a chunk at a time: with PyTorch 2.13 or later, and a vocabulary so much larger
    than the hidden states that it takes less memory and no more time."""
    return hasattr(F, "linear_cross_entropy") and config.vocab_size >= _LARGE_VOCABULARY * config.hidden_size


def pool(hidden: Tensor, pooling: str, *, mask: Tensor | None = None) -> Tensor:
    """The mean over real tokens, or the first or last real token or both, of each row.

    Args:
        hidden: ``(batch, length, channels)``.
        pooling: ``mean``, ``first``, ``last``, or ``ends`` for the first and the last, concatenated.
        mask: ``(batch, length)``, true where a token is real.

    Returns:
        ``(batch, channels)``; twice as many channels for ``ends``. Sums are in float32 or better.

    Raises:
        ValueError: For another pooling, a mask of another shape, and a row without any token.
    """
    known(pooling, SINGLE, "pooling of single texts")
    if pooling == "ends":
        return torch.cat([pool(hidden, end, mask=mask) for end in ("first", "last")], dim=-1)
    shape = tuple(hidden.shape[:2])
    if mask is not None and mask.shape != shape:
        raise ValueError(f"attention_mask must be (batch, length) = {shape}, got {tuple(mask.shape)}")
    real = torch.ones(shape, dtype=torch.bool, device=hidden.device) if mask is None else mask.bool()
    if mask is not None and surely(lambda: not real.any(dim=1).all()):
        raise ValueError("attention_mask leaves a row without any token; there is nothing to classify")
    if pooling == "mean":
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = hidden.masked_fill(~real[..., None], 0).sum(dim=1, dtype=wide)
        return (total / real.sum(dim=1, keepdim=True)).to(hidden.dtype)
    first, lengths = row_extents(real)
    index = first if pooling == "first" else first + lengths - 1
    return hidden[torch.arange(shape[0], device=hidden.device), index]


def pool_pairs(hidden: Tensor, pooling: str, *, mask: Tensor | None = None, seq_idx: Tensor) -> Tensor:
    """Features of two texts in one row, from the means u and v of their hidden states.

    Formula: ``[u, v, |u - v|, u * v]`` for the pooling ``pair`` (sentence-BERT and other encoders of sentences), and
    ``[u, v, u * v, u - v]`` for ``signed_pair`` (the "NLI" interaction of Long Range Arena's retrieval).

    Shapes as in `pool`; seq_idx is 0 at the first text and 1 at the second. Result ``(batch, 4 * channels)``.

    ValueError for a row that lacks one of the texts.
    """
    real = torch.ones_like(seq_idx, dtype=torch.bool) if mask is None else mask.bool()
    texts = []
    for number in (0, 1):
        own = real & (seq_idx == number)
        if surely(lambda own=own: not own.any(dim=1).all()):
            raise ValueError(f"pooling {pooling!r} needs two texts in every row; one has no token of type {number}")
        texts.append(pool(hidden, "mean", mask=own))
    u, v = texts
    joined = [(u - v).abs(), u * v] if pooling == "pair" else [u * v, u - v]
    return torch.cat([u, v, *joined], dim=-1)


def pooled_size(config: LagwiseConfig) -> int:
    """The number of pooled features of a sequence, or of a pair."""
    return config.hidden_size * (4 if config.pooling in PAIRS else 2 if config.pooling == "ends" else 1)
