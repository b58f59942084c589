"""The causal language model."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from lagwise.models.cache import StreamingCache
from lagwise.models.configuration import LagwiseConfig
from lagwise.models.inputs import check_prompt_length, check_prompts, document_numbers
from lagwise.models.modeling import LagwiseModel, LagwisePreTrainedModel
from lagwise.ops import document_starts


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
        if config.input_name != "tokens":
            raise ValueError(f"a language model reads tokens, got inputs={config.inputs!r}; that is for classifiers")
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

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
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
            token_type_ids=token_type_ids,
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
                labels = self._without_starts(labels, seq_idx, kwargs)
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=out.past_key_values, hidden_states=out.hidden_states
        )

    @staticmethod
    def _without_starts(labels: Tensor, seq_idx: Tensor, kwargs: dict[str, Any]) -> Tensor:
        """Labels without those of documents' first tokens, and ``num_items_in_batch`` without them too.

        The Trainer has counted the labels of all micro-batches of a step; the share that is left out is known of this
        one only. With gradient accumulation let the collator leave them out, as `PackingCollator` does.
        """
        left = labels.masked_fill(document_starts(seq_idx), -100)
        if kwargs.get("num_items_in_batch") is not None:
            counted, kept = ((each[:, 1:] != -100).sum() for each in (labels, left))
            kwargs["num_items_in_batch"] = kwargs["num_items_in_batch"] * kept / counted.clamp(min=1)
        return left


AutoModelForCausalLM.register(LagwiseConfig, LagwiseForCausalLM, exist_ok=True)
