"""Backbone and heads as Hugging Face classes: thin wrappers around blocks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from lagwise.blocks.prenorm import NORMS, normed
from lagwise.kernels import LagKernel
from lagwise.mixers import Mixer, TimestepNorm
from lagwise.models.cache import CACHE, EitherName, StreamingCache, either
from lagwise.models.configuration import LagwiseConfig
from lagwise.models.embeddings import INPUTS, ValueInput, check_finite, grid_sinusoids, sinusoids
from lagwise.models.inputs import (
    check_ids,
    check_precision,
    check_shard,
    check_whole,
    current_mask,
    document_numbers,
    require_rate,
    require_times,
    set_rate,
    token_positions,
)
from lagwise.models.layer import LagwiseLayer, own_weights, run_streamed
from lagwise.models.ngrams import ContextEmbedding, MatchEmbedding, NgramEmbedding, embed_context
from lagwise.models.pretrained import LagwisePreTrainedModel
from lagwise.models.sharded import require_whole_layers
from lagwise.ops import Layout
from lagwise.ops.operation import device_check, exporting, in_graph, surely, symbolic, traced
from lagwise.ops.packing import tokens_last
from lagwise.ops.shards import Shard
from lagwise.tables import build, known

# Arguments that transformers passes to every model and that have no effect here.
IGNORED = ("cache_position", "num_items_in_batch", "logits_to_keep")
IGNORED += ("max_length_q", "max_length_k")  # implied by cu_seq_lens
IGNORED += ("tokenizer", "assistant_tokenizer")  # `generate` passes on the arguments of its stopping criteria
_BOUNDARIES = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k")  # names of the boundaries of documents
_FINAL_NORMS: dict[str, type[nn.Module]] = {**NORMS, "timestep": TimestepNorm}
_numbers = itertools.count()


class _Own:
    """The part of a model that copies do not share: its number, which caches carry, and its steps by batch size."""

    def __init__(self) -> None:
        self.number, self.steps = next(_numbers), dict[Any, Any]()

    def __deepcopy__(self, memo: Any) -> _Own:
        return _Own()

    def __reduce__(self) -> Any:
        return _Own, ()


@dataclass
class LagwiseModelOutput(EitherName, BaseModelOutputWithPast):
    """Output of `LagwiseModel`, with seq_idx ``(batch, length)``: the documents of packed rows, however they were
    given; and shards, where rows are split between processes."""

    last_hidden_state: Tensor = None  # type: ignore[assignment]
    seq_idx: Tensor | None = None
    shard: Shard | None = None


class LagwiseModel(LagwisePreTrainedModel):
    """Embeddings, blocks, final norm (TNN fig. 2): causal, or a bidirectional encoder if ``config.causal`` is false.

    Inputs: according to ``config.inputs``, input_ids ``(batch, length)``, input_values ``(batch, length, features)``
    (of ``length * stride`` samples, if the input has a stride) or pixel_values ``(batch, channels, height, width)``; or
    inputs_embeds ``(batch, length, hidden_size)``. attention_mask ``(batch, length so far)``, zero at padding, which
    may be anywhere; cache, or past_key_values, a `StreamingCache` to continue from.
    token_type_ids ``(batch, length)`` have an effect if ``config.type_vocab_size`` is positive. Packed rows are given
    by seq_idx
    ``(batch, length)`` or by cu_seqlens ``(documents + 1,)``, the boundaries in a batch of one row; or, as from
    padding-free collators, by cu_seq_lens_q and cu_seq_lens_k, or by position_ids that start again inside a row.
    token_time ``(batch, length)`` is the time of each token since the one before, for models whose parts are all in
    continuous time; input_values may have it (`ValueInput`); or ``(batch, 1)`` is that of all tokens of a row, for
    samples of another rate in each.
    Otherwise position_ids are ignored, but they may leave no token out. A ValueError names what is wrong with an input,
    and refuses shards of sequences that are split between processes.

    Layers process only real tokens where a batch has much padding: hidden states at padding are then zero.

    >>> model = LagwiseModel(LagwiseConfig(hidden_size=8, num_hidden_layers=2)).eval()
    >>> model(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        inputs = {**config.input_options, "name": config.input_name}
        self.embed_tokens = build(INPUTS, inputs, config.hidden_size, what="model.inputs", vocab_size=config.vocab_size)
        self.input_type = type(self.embed_tokens)
        self._by_row = getattr(self.embed_tokens, "by_row", False)
        if self._by_row and config.causal:
            raise ValueError(
                "inputs by_row needs a two-sided model (causal=False): the mean and the deviation of a row depend on "
                "its later samples"
            )
        size, ngrams, matches = config.hidden_size, config.ngram_sizes, config.match_sizes
        positions = config.length_limit if config.position_embedding == "learned" else None
        self.embed_types = nn.Embedding(config.type_vocab_size, size) if config.type_vocab_size else None
        self.embed_ngrams = NgramEmbedding(size, sizes=ngrams, buckets=config.ngram_buckets) if ngrams else None
        self.embed_matches = MatchEmbedding(size, sizes=matches, vocab_size=config.vocab_size) if matches else None
        self.embed_positions = None if positions is None else nn.Embedding(positions, size)
        self.dropout = nn.Dropout(config.embedding_dropout)
        count = config.num_hidden_layers
        self.layers = nn.ModuleList(
            LagwiseLayer(config, config.stochastic_depth * (i + 1) / count) for i in range(count)
        )
        blocks = [cast(Any, layer).block for layer in self.layers]
        self._more = [size * (block.inputs - 1) for block in blocks]  # further channels of each layer's input
        if any(self._more) and config.input_name != "tokens":
            raise ValueError(f"block_embeddings of a chain need inputs 'tokens', got {config.input_name!r}")
        self.embed_blocks = nn.Embedding(config.vocab_size, sum(self._more)) if any(self._more) else None
        norm = {"name": config.norm} if isinstance(config.norm, str) else config.norm
        self.norm: nn.Module = build(_FINAL_NORMS, norm, config.hidden_size, what="norm", causal=config.causal)
        self._norm_weights = own_weights(self.norm)
        self.gradient_checkpointing = False
        self._sequence_group: Any = None
        self._own = _Own()
        if config.rate != 1:
            set_rate(self, config)
        self._timed = isinstance(self.embed_tokens, ValueInput) and self.embed_tokens.timed
        if self._timed:
            require_times(self, config)
        limits = [config.length_limit]
        axes = [module for module in self.modules() if isinstance(module, Mixer) and module.needs_grid]
        apart = {kernel for mixer in axes for kernel in mixer.modules()}  # their limits apply to a row or a column
        parts = [module for module in self.modules() if isinstance(module, LagKernel | Mixer) and module not in apart]
        limits += [part.max_length for part in parts]
        # Longest sequence that the configuration, every mixer and every kernel support; None for any.
        self.length_limit: int | None = min((limit for limit in limits if limit is not None), default=None)
        context = sum(each.state_size for each in self.context_embeddings)
        # Shapes of the states about tokens, for one row, and the number of states beside those of layers.
        self._of_tokens = [()] * (config.position_embedding != "none") + [(context,)] * (context > 0)
        self._beside = isinstance(self.norm, Mixer) + len(self._of_tokens)
        # Whether the model has a state to continue from; otherwise all tokens are computed again for each new one.
        self.has_state = all(part.streams for part in parts if isinstance(part, Mixer))
        self.post_init()

    @property
    def number(self) -> int:
        """Unique number of this model, which its caches carry."""
        return self._own.number

    def init_states(self, batch: int) -> tuple[Any, ...]:
        """The states before the first token, in the order of a cache: of the blocks, of the final norm if it is one
        over time, then, where the model needs them, the number of real tokens so far and what embeddings know of the
        last ones."""
        layers: list[Any] = list(self.layers)
        streamed = [*(layer.block for layer in layers), *([self.norm] if isinstance(self.norm, Mixer) else [])]
        tokens = [(torch.zeros(batch, *shape, dtype=torch.long, device=self.device),) for shape in self._of_tokens]
        return *(part.init_state(batch) for part in streamed), *tokens

    def new_cache(self) -> StreamingCache:
        """Create a cache before the first token."""
        return StreamingCache(len(self.layers) + self._beside)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        input_values: Tensor | None = None,
        pixel_values: Tensor | None = None,
        cache: StreamingCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        seq_idx: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_time: Tensor | None = None,
        *,
        past_key_values: StreamingCache | None = None,
        **kwargs: Any,
    ) -> LagwiseModelOutput:
        cache = either(cache, past_key_values)
        boundaries = {name: kwargs.pop(name, None) for name in _BOUNDARIES}
        for name in kwargs:
            known(name, IGNORED, "argument of forward")
        if not traced():
            check_whole()
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                require_whole_layers(self)
        if output_attentions or (output_attentions is None and self.config.output_attentions):
            raise ValueError("output_attentions=True is not supported: lagwise models keep no attention weights")
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        group = self._sequence_group
        documents = {"seq_idx": seq_idx, **boundaries, "position_ids": position_ids}
        given = {name: value for name, value in documents.items() if value is not None}
        if group is not None:
            check_shard(cache, given)
            use_cache = False
        inputs = {"input_ids": input_ids, "input_values": input_values, "pixel_values": pixel_values}
        h, grid = self._embed({**inputs, "inputs_embeds": inputs_embeds}, attention_mask)
        check_precision(self, h.device)
        batch, length, _ = h.shape
        if token_time is not None and token_time.shape[1:] == (1,) and length > 1:
            require_rate("a rate for each row", self, self.config)
        elif token_time is not None and not self._timed:  # whether all parts support token_time
            require_times(self, self.config)
        elif token_time is None and self._timed and input_values is not None:
            token_time = self.embed_tokens.token_time(input_values)
        if cache is not None:
            given.pop("position_ids", None)
        seq_idx = document_numbers(batch, length, given, attention_mask)
        if self._by_row and seq_idx is not None:
            raise ValueError("inputs by_row needs one series in each row, got packed rows (seq_idx, cu_seqlens)")
        cache = self._cache(cache, use_cache, batch, seq_idx)
        if token_type_ids is not None and self.embed_types is not None:
            if token_type_ids.shape != (batch, length):
                got = tuple(token_type_ids.shape)
                raise ValueError(f"token_type_ids must be (batch, length) = {(batch, length)}, got {got}")
            check_ids("token_type_ids", token_type_ids, self.embed_types.num_embeddings)
        mask = None if attention_mask is None else current_mask(attention_mask, batch, length)
        shard, whole = None, Layout(mask, seq_idx)
        if group is not None:
            shard = Shard(group, batch, length, mask, seq_idx, h.device)
            whole, length = shard.whole, shard.length
            mask, seq_idx = (None if t is None else shard.own(t) for t in (whole.mask, whole.seq_idx))
        self._check_length(batch, length, whole, cache)
        if cache is not None:
            cache.stop()
            cache.record()
            cache.rows, cache.model = batch, self.number
            if mask is not None and surely(mask.all):  # on a GPU, layers would each wait to read this
                mask = None
        layout = Layout(mask, seq_idx, token_time=token_time, grid=grid, shard=shard)
        order = self._padding_first(layout, cache)
        if order is not None:
            layout, h = layout.at(torch.arange(batch, device=h.device)[:, None], order), _in_order(h, order)
            input_ids, token_type_ids = (None if t is None else t.gather(1, order) for t in (input_ids, token_type_ids))
        states = self._read(h, input_ids, token_type_ids, layout, cache, every=bool(output_hidden_states))
        if cache is not None:
            cache.seen += length
        if order is not None:
            back = order.argsort(1)
            states = [_in_order(each, back) for each in states]
        hidden_states = tuple(states) if output_hidden_states else None
        named: dict[str, Any] = {CACHE: cache, "hidden_states": hidden_states, "seq_idx": seq_idx, "shard": shard}
        return LagwiseModelOutput(states[-1], **named)

    def _cache(self, cache: Any, use_cache: bool | None, batch: int, seq_idx: Tensor | None) -> StreamingCache | None:
        """The cache to continue from, or a new one if it is wanted. ValueError if rows cannot continue it."""
        if cache is None:
            if self.gradient_checkpointing and self.training:  # recomputing a block would advance its state twice
                return None
            if use_cache is None:  # packed rows are complete texts, and graphs: nothing follows them
                use_cache = self.config.use_cache and self.has_state and not self.training and seq_idx is None
                use_cache = use_cache and not exporting()
            if not (use_cache and self.config.causal):
                return None
            cache = self.new_cache()
        if seq_idx is not None:
            raise ValueError("packed rows (seq_idx) cannot be streamed; pass use_cache=False")
        blocks = len(self.layers)
        states = blocks + self._beside
        if isinstance(cache, StreamingCache) and cache.rows is None and len(cache.layers) == blocks:
            cache.layers.extend(StreamingCache(states - blocks).layers)  # a cache for the blocks alone
        if not isinstance(cache, StreamingCache) or len(cache.layers) != states:
            got = f"one of {len(cache.layers)}" if isinstance(cache, StreamingCache) else type(cache).__name__
            raise ValueError(f"cache must be a StreamingCache of {states} layers, got {got}")
        cache.require_continues(batch, self.number)
        return cache

    def _padding_first(self, layout: Layout, cache: StreamingCache | None) -> Tensor | None:
        """The order ``(batch, length)`` in which to read rows where padding follows a token, so that all of it comes
        first; None for rows as they are. ValueError if they are split between processes."""
        mask = layout.mask
        if mask is None or layout.grid is not None:
            return None
        if layout.shard is not None:
            if layout.shard.whole.has_holes:
                raise ValueError("rows that are split between processes cannot have padding between tokens of a text")
            return None
        unknown = traced()
        if unknown and cache is not None and cache.seen:
            device_check(mask.all, "padding after the first token of a stream, in a compiled model")
            return None
        if cache is not None:
            return tokens_last(mask) if unknown or (mask[:, 1:] < mask[:, :-1]).any() else None
        if unknown or (mask.device.type != "cpu" and self._layers_are_compiled()):
            layout.require_no_holes()
            return None
        return tokens_last(mask) if layout.has_holes else None

    def _layers_are_compiled(self) -> bool:
        """Whether layers are called through `torch.compile`, so that a batch's number of real tokens would be new to
        them."""
        return any(layer._compiled_call_impl is not None for layer in self.layers)

    def _read(
        self,
        h: Tensor,
        ids: Tensor | None,
        types: Tensor | None,
        layout: Layout,
        cache: StreamingCache | None,
        *,
        every: bool,
    ) -> list[Tensor]:
        """The normalized output of the last layer, and, if `every`, the inputs of all layers before it. Where a batch
        has much padding, layers compute only real tokens, and the rest is zero."""
        batch, length, channels = h.shape
        h = self._with_context(self._with_positions(h, layout, cache), ids, layout, cache)
        if self.embed_types is not None:
            h = h + self.embed_types(h.new_zeros(1, dtype=torch.long) if types is None else types)  # 0 as in BERT
        more = None
        if self.embed_blocks is not None:
            assert ids is not None  # `_embed` has checked it
            more = self.dropout(self._scaled(self.embed_blocks(ids)))
        h, positions, compiled = self.dropout(h), None, self._layers_are_compiled()
        whole = not (self.training and self.config.stochastic_depth)  # which drops whole rows
        if whole and cache is None and not traced() and not compiled and layout.compact is not None:
            positions, layout = layout.compact
            h = h.flatten(0, 1).index_select(0, positions)[None]
            more = None if more is None else more.flatten(0, 1).index_select(0, positions)[None]
        if layout.seq_idx is not None and layout.shard is None and (in_graph() or compiled):
            layout.group_for_graphs()
        of_layers = [None] * len(self.layers) if more is None else more.split(self._more, 2)
        states = []
        for i, layer in enumerate(self.layers):
            if every:
                states.append(h)
            h = h if (own := of_layers[i]) is None else torch.cat([h, own], 2)
            h = layer(h, layout, None if cache is None else cache.layers[i])
        if isinstance(self.norm, Mixer):
            cached: Any = None if cache is None else cache.layers[len(self.layers)]
            states.append(run_streamed(self.norm, h, layout, cached, self._norm_weights))
        else:
            states.append(normed(self.norm, h, layout.mask))
        if positions is None:
            return states
        apart = [h.new_zeros(batch * length, channels).index_copy(0, positions, h[0]) for h in states]
        return [h.unflatten(0, (batch, length)) for h in apart]

    def _embed(self, inputs: dict[str, Tensor | None], mask: Tensor | None) -> tuple[Tensor, tuple[int, int] | None]:
        """Return one vector for each token ``(batch, length, hidden_size)``, and the grid for images."""
        expected, given = self.input_type.argument, [name for name, value in inputs.items() if value is not None]
        if given not in ([expected], ["inputs_embeds"]):
            raise ValueError(f"give exactly one of {expected} and inputs_embeds, got {' and '.join(given) or 'none'}")
        x: Any = inputs[given[0]]
        if given == ["inputs_embeds"]:
            if self.context_embeddings or self.embed_blocks is not None:
                raise ValueError(
                    "n-grams, matches and embeddings of blocks need input_ids (ngram_sizes, match_sizes, "
                    "block_embeddings), not inputs_embeds"
                )
            if x.dim() != 3 or x.shape[2] != self.config.hidden_size:
                raise ValueError(
                    f"inputs_embeds must be (batch, length, {self.config.hidden_size}), got {tuple(x.shape)}"
                )
            check_finite("inputs_embeds", x)
            return x, None
        # Not of the embedding, which adapters may replace by a module that has only its weight.
        self.input_type.check(x, self.config)
        h = self._scaled(self.embed_tokens(x, mask) if self._by_row else self.embed_tokens(x))
        return h, self.embed_tokens.grid(x) if expected == "pixel_values" else None

    def _scaled(self, h: Tensor) -> Tensor:
        return h * self.config.hidden_size**0.5 if self.config.scale_embeddings else h

    def _with_positions(self, h: Tensor, layout: Layout, cache: StreamingCache | None) -> Tensor:
        if self.config.position_embedding == "none":
            return h
        if self.config.position_embedding == "sinusoidal_2d":
            inputs = self.embed_tokens.weight[0].numel()
            return h + grid_sinusoids(layout, h, rms=self.config.initializer_range * inputs**0.5)
        whole, length = (layout, h.shape[1]) if layout.shard is None else (layout.shard.whole, layout.shard.length)
        counted: Any = None if cache is None else cache.layers[-len(self._of_tokens)]
        before = None if counted is None or counted.state is None else counted.state[0]
        positions, count = token_positions(h.shape[0], length, whole, h.device, before)
        if counted is not None:
            counted.state = (count,)
        positions = positions if layout.shard is None else layout.shard.own(positions)
        if self.embed_positions is not None:
            return h + self.embed_positions(positions)
        return h + sinusoids(positions, h.shape[2], h.dtype)

    @property
    def context_embeddings(self) -> list[ContextEmbedding]:
        """The embeddings of tokens together with earlier ones."""
        return [each for each in (self.embed_ngrams, self.embed_matches) if each is not None]

    def _with_context(
        self, h: Tensor, input_ids: Tensor | None, layout: Layout, cache: StreamingCache | None
    ) -> Tensor:
        if not (embeddings := self.context_embeddings):
            return h
        assert input_ids is not None  # `_embed` has checked it
        if cache is None:
            return h + self._scaled(embed_context(embeddings, input_ids, layout, None)[0])
        recent = cache.layers[-1]
        new = torch.zeros(h.shape[0], *self._of_tokens[-1], dtype=torch.long, device=h.device)
        (earlier,) = (new,) if recent.state is None else recent.state
        context, later = embed_context(embeddings, input_ids, layout, earlier)
        recent.state = (later,)
        return h + self._scaled(context)

    def _check_length(self, batch: int, length: int, whole: Layout, cache: StreamingCache | None) -> None:
        limit = self.length_limit
        if limit is None or symbolic(length):
            return
        total = length + (0 if cache is None else cache.seen)
        if whole.seq_idx is not None:  # documents have individual lengths
            total = int(token_positions(batch, length, whole, whole.seq_idx.device)[0].max()) + 1
        if total > limit:
            raise ValueError(f"this model takes at most {limit} tokens, got {total}")


def _in_order(h: Tensor, order: Tensor) -> Tensor:
    """The tokens ``(batch, length, channels)`` of each row at these positions ``(batch, length)``."""
    return h.take_along_dim(order[..., None], 1)
