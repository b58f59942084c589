"""Backbone and heads as Hugging Face classes: thin shells around blocks."""

from __future__ import annotations

import itertools
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from lagwise.blocks import BLOCKS, QueryKey
from lagwise.blocks.norm import make_norm
from lagwise.kernels import KernelLinear, LagKernel
from lagwise.mixers import ChunkedAttention, Mixer
from lagwise.models.cache import StateLayer, StreamingCache
from lagwise.models.configuration import LagwiseConfig
from lagwise.models.inputs import (
    check_prompt_length,
    check_prompts,
    check_vocabulary,
    current_mask,
    document_numbers,
    token_positions,
)
from lagwise.ops import document_starts
from lagwise.tables import build, known

# Arguments that transformers passes to every model and that mean nothing to this one.
IGNORED = ("cache_position", "output_attentions", "return_dict", "num_items_in_batch", "logits_to_keep")
IGNORED += ("max_length_q", "max_length_k")  # what cu_seq_lens say already
IGNORED += ("tokenizer", "assistant_tokenizer")  # `generate` hands on what its stopping criteria were made with
_numbers = itertools.count()


class LagwiseLayer(GradientCheckpointingLayer):
    """A block and its place in the cache."""

    def __init__(self, config: LagwiseConfig):
        super().__init__()
        assert config.block is not None
        self.block = build(BLOCKS, config.block, config.hidden_size, what="block", causal=config.causal)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cached: StateLayer | None = None,
    ) -> Tensor:
        if cached is None:
            return self.block(x, mask=mask, seq_idx=seq_idx)
        state = self.block.init_state(x.shape[0]) if cached.state is None else cached.state
        if x.shape[1] == 1 and mask is None:
            y, state = self.block.step(x[:, 0], state)
            y = y[:, None]
        else:
            y, state = self.block.prefill(x, state, mask=mask)
        cached.advance(state, x.shape[1])
        return y


class LagwisePreTrainedModel(PreTrainedModel):
    config_class = LagwiseConfig
    config: LagwiseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LagwiseLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _keep_in_fp32_modules_strict = ["rate", "angle", "amplitude", "direct"]  # of `ModalKernel`
    _is_stateful = True  # a state cannot be rolled back: refuses assisted decoding

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, but weights are only ever read from safetensors: a pickle can run code."""
        kwargs.setdefault("use_safetensors", True)
        return super().from_pretrained(*args, **kwargs)

    def to_recurrent(self, tolerance: float = 1e-3, **options: Any) -> Self:
        """A copy that streams in constant memory: kernels as state spaces. See `recurrent_form`, also for options."""
        from lagwise.models.conversion import recurrent_form

        return recurrent_form(self, tolerance, **options)[0]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, LagKernel | KernelLinear | Mixer | ChunkedAttention | QueryKey):
            module.reset_parameters()
        elif isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, std=self.config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)


class LagwiseModel(LagwisePreTrainedModel):
    """Embeddings, blocks, final norm (TNN fig. 2): causal, or a bidirectional encoder if ``config.causal`` is false.

    Inputs: input_ids ``(batch, length)`` or inputs_embeds ``(batch, length, hidden_size)``; attention_mask
    ``(batch, length so far)``, zero at padding on either side; past_key_values, a `StreamingCache` to continue from
    (after padding on the left only). Packed rows are told by one of seq_idx ``(batch, length)`` and cu_seqlens
    ``(documents + 1,)``, the boundaries in a batch of one row; or, as padding-free collators do, by cu_seq_lens_q and
    cu_seq_lens_k, or position_ids that start again inside a row. Other positions are the model's own affair.
    ValueError names what is wrong with an input.
    """

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = None
        if config.position_embedding == "learned":
            assert config.max_position_embeddings is not None
            self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(LagwiseLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = make_norm(config.norm, config.hidden_size)
        self.gradient_checkpointing = False
        self._number = next(_numbers)  # by which a cache knows whose it is
        limits = [config.max_position_embeddings]
        limits += [module.max_length for module in self.modules() if isinstance(module, LagKernel)]
        # Longest sequence that the configuration and every kernel can serve; None for any.
        self.length_limit: int | None = min((limit for limit in limits if limit is not None), default=None)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: StreamingCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        for name in kwargs:
            known(name, IGNORED, "argument of forward")
        h = self._embed(input_ids, inputs_embeds)
        batch, length, _ = h.shape
        seq_idx = document_numbers(
            batch,
            length,
            seq_idx=seq_idx,
            cu_seqlens=cu_seqlens,
            cu_seq_lens_q=cu_seq_lens_q,
            cu_seq_lens_k=cu_seq_lens_k,
            position_ids=position_ids if past_key_values is None else None,
            attention_mask=attention_mask,
        )
        if use_cache is None:  # packed rows are whole texts: nothing follows them
            use_cache = self.config.use_cache and not self.training and seq_idx is None
        if self.gradient_checkpointing and self.training:
            use_cache = False  # recomputing a block would advance its state twice
        if not self.config.causal:
            use_cache = False
        if past_key_values is None and use_cache:
            past_key_values = StreamingCache(len(self.layers))
        mask = None if attention_mask is None else current_mask(attention_mask, batch, length)
        self._check_length(batch, length, mask, past_key_values, seq_idx)
        if past_key_values is not None:
            self._check_cache(past_key_values, batch, seq_idx)
            past_key_values.note_padding(mask)
        if self.embed_positions is not None:
            h = h + self.embed_positions(token_positions(batch, length, mask, past_key_values, seq_idx, h.device))
        states = []
        for i, layer in enumerate(self.layers):
            states.append(h)
            h = layer(h, mask, seq_idx, None if past_key_values is None else past_key_values.layers[i])
        h = self.norm(h)
        return BaseModelOutputWithPast(
            last_hidden_state=h,
            past_key_values=past_key_values,
            hidden_states=(*states, h) if output_hidden_states else None,
        )

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if inputs_embeds is not None:
            if not torch.compiler.is_compiling() and not inputs_embeds.isfinite().all():
                raise ValueError("inputs_embeds has NaN or infinite values; one would spread over its whole row")
            return inputs_embeds
        assert input_ids is not None
        if input_ids.dim() != 2 or 0 in input_ids.shape:
            raise ValueError(
                f"input_ids must be (batch >= 1, length >= 1), got {tuple(input_ids.shape)}; an empty prompt is begun "
                "with the end-of-text token"
            )
        if input_ids.device.type == "cpu" and not torch.compiler.is_compiling():
            check_vocabulary(input_ids, self.config.vocab_size)
        return self.embed_tokens(input_ids)

    def _check_cache(self, cache: StreamingCache, batch: int, seq_idx: Tensor | None) -> None:
        if seq_idx is not None:
            raise ValueError("packed rows (seq_idx) cannot be streamed; pass use_cache=False")
        if not isinstance(cache, StreamingCache) or len(cache.layers) != len(self.layers):
            got = f"one of {len(cache.layers)}" if isinstance(cache, StreamingCache) else type(cache).__name__
            raise ValueError(f"past_key_values must be a StreamingCache of {len(self.layers)} layers, got {got}")
        if cache.rows not in (None, batch):
            raise ValueError(f"past_key_values holds a batch of {cache.rows}, the input is a batch of {batch}")
        if cache.model not in (None, self._number):
            raise ValueError("past_key_values was filled by another model; begin a new cache")
        cache.rows, cache.model = batch, self._number

    def _check_length(
        self, batch: int, length: int, mask: Tensor | None, cache: StreamingCache | None, seq_idx: Tensor | None
    ) -> None:
        limit = self.length_limit
        if limit is None:
            return
        total = length + (0 if cache is None else cache.seen)
        if seq_idx is not None:  # it is documents that have a length
            total = int(token_positions(batch, length, mask, None, seq_idx, seq_idx.device).max()) + 1
        if total > limit:
            raise ValueError(f"this model takes at most {limit} tokens, got {total}")


class LagwiseForCausalLM(LagwisePreTrainedModel, GenerationMixin):
    """Causal language model with tied embeddings.

    Inputs as `LagwiseModel`, and labels ``(batch, length)`` for the loss (shifted inside; -100 is ignored, and so is
    the first token of every packed document),
    logits_to_keep to compute only the last logits. Generates through `generate` with a `StreamingCache`.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        if not config.causal:
            raise ValueError(
                "a language model must be causal, got causal=False; that is for LagwiseModel and classifiers"
            )
        self.model = LagwiseModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def length_limit(self) -> int | None:
        """As `LagwiseModel.length_limit`."""
        return self.model.length_limit

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _validate_generated_length(self, generation_config: Any, input_ids_length: int, *args: Any) -> None:
        check_prompt_length(self.length_limit, input_ids_length, generation_config.max_length - input_ids_length)
        parent: Any = super()
        parent._validate_generated_length(generation_config, input_ids_length, *args)

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict, *args: Any) -> None:
        check_prompts(self.length_limit, generation_config, model_kwargs)
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = StreamingCache(self.config.num_hidden_layers)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: StreamingCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        tokens = input_ids if inputs_embeds is None else inputs_embeds
        if tokens is not None:
            seq_idx = document_numbers(
                *tokens.shape[:2],
                seq_idx=seq_idx,
                cu_seqlens=cu_seqlens,
                cu_seq_lens_q=cu_seq_lens_q,
                cu_seq_lens_k=cu_seq_lens_k,
                position_ids=position_ids if past_key_values is None else None,
                attention_mask=attention_mask,
            )
        if labels is not None and use_cache is None:
            use_cache = False  # a loss is taken over whole sequences; nothing is streamed after it
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            seq_idx=seq_idx,
            **{name: value for name, value in kwargs.items() if name not in ("num_items_in_batch", "shift_labels")},
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(out.last_hidden_state[:, keep])
        loss = None
        if labels is not None:
            if seq_idx is not None:  # the first token of a document is not the next of the one before
                labels = labels.masked_fill(document_starts(seq_idx), -100)
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=out.past_key_values, hidden_states=out.hidden_states
        )


AutoModel.register(LagwiseConfig, LagwiseModel, exist_ok=True)
AutoModelForCausalLM.register(LagwiseConfig, LagwiseForCausalLM, exist_ok=True)

# The other heads register themselves too. Last, because they are made of what is above.
import lagwise.models.classification  # noqa: E402, F401
