"""The causal language model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from lagwise.models.cache import APART, CACHE, EitherName, StreamingCache, either, rows_apart
from lagwise.models.configuration import LagwiseConfig
from lagwise.models.heads import VocabularyHead
from lagwise.models.inputs import check_prompt_length, check_prompts, current_mask, require_no_padding_after
from lagwise.ops.operation import traced
from lagwise.ops.packing import document_starts, row_extents
from lagwise.tables import check_integer

_LOSS_ELSEWHERE = (
    "packed rows are trained without labels: whatever computes a loss from these logits (label_smoothing_factor or "
    "compute_loss_func of the Trainer) must leave out the first token of every document. Set its label to -100, as "
    "DataCollatorWithFlattening does"
)
_MAX_READ_AGAIN = 32  # tokens to read again with a draft; more are processed by a separate forward pass


class CausalLMOutput(EitherName, CausalLMOutputWithPast):
    """Output of `LagwiseForCausalLM`: loss, logits, cache and hidden_states."""


class LagwiseForCausalLM(VocabularyHead, GenerationMixin):
    """Causal language model with tied embeddings.

    Takes the inputs of `LagwiseModel`, labels ``(batch, length)`` for the loss (shifted internally; -100 is ignored,
    and so is the first token of every packed document), and logits_to_keep, to compute only the last logits: 1 is those
    of every row's last real token. With
    skip_logits and labels the logits are None where the loss can be computed without them, which takes less memory
    (`VocabularyHead.loss_without_logits`). `generate` uses a `StreamingCache`.

    >>> model = LagwiseForCausalLM(LagwiseConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1)).eval()
    >>> ids = torch.tensor([[1, 2, 3]])
    >>> model(ids).logits.shape, model(ids, labels=ids).loss.shape
    (torch.Size([1, 3, 10]), torch.Size([]))
    >>> model.generate(ids, max_new_tokens=2, do_sample=False, pad_token_id=0).shape
    torch.Size([1, 5])
    """

    splits = True

    def __init__(self, config: LagwiseConfig):
        if not config.causal:
            raise ValueError(
                "a language model must be causal, got causal=False; that is for LagwiseModel and classifiers"
            )
        if config.input_name != "tokens":
            raise ValueError(f"a language model reads tokens, got inputs={config.inputs!r}; that is for classifiers")
        super().__init__(config, transform="none", bias=False)

    def compile_step(
        self, batch_size: int | None = 1, *, cached: bool = False, report: Callable[[str], None] | None = None
    ) -> bool:
        """Compile the forward pass of one token for every row of a batch, or on a GPU prepare it as a CUDA graph.

        `generate`, `StreamingSession` and all other code that continues a `StreamingCache` token by token, without
        gradients, then use it. It gives the same logits, up to rounding, several times as fast. Weights
        must not change while a stream is running; a stream started later uses the current weights, however they have
        been trained since (but not changes through a parameter's ``.data``, which PyTorch does not count).

        Args:
            batch_size: Rows of the batch; None: any number of them. A CUDA graph is then made anew for each.
            cached: Only load the step from the cache folder, where models of the same configuration share it. CUDA
                graphs need no compiler and are always made, at the start of every stream.
            report: Receives a line before and after the compilation, which takes 15 seconds to some minutes.

        Returns:
            Whether there is a compiled step.

        Raises:
            ValueError: For a model that is neither on the CPU nor on a CUDA device, or with attention over the whole
                text.
            FileNotFoundError: Without a C++ compiler.
            RuntimeError: If the compilation fails.
        """
        from lagwise.models.compiled import compiled_step, graph_step

        rows = None if batch_size is None else check_integer("batch_size", batch_size)
        on_cpu = self.device.type == "cpu"
        step: Any = compiled_step(self, rows, cached=cached, report=report) if on_cpu else graph_step(self, rows)
        if step is not None:
            self._steps[batch_size] = step
        return step is not None

    @property
    def _steps(self) -> dict[Any, Any]:
        """Compiled steps by batch size, None for any."""
        return self.model._own.steps

    def next_logits(self, input_ids: Tensor, cache: StreamingCache) -> Tensor:
        """Compute logits ``(batch, vocab_size)`` of the next token after input_ids ``(batch, length)``, which follow
        the tokens that a cache has seen. Uses the compiled step if there is one, with less overhead than `forward`."""
        step = None if rows_apart() else self._steps.get(len(input_ids), self._steps.get(None))
        logits = None if step is None else step.follow(self, input_ids, cache)
        if logits is None:
            logits = self(input_ids, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        return logits

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def generate(self, *args: Any, cache: Any = None, past_key_values: Any = None, **kwargs: Any) -> Any:
        """Generate as in transformers; the cache is accepted by either name. ValueError for a cache_implementation."""
        if (cache := either(cache, past_key_values)) is not None:
            kwargs[CACHE] = cache
        parent: Any = super()
        return parent.generate(*args, **kwargs)

    def _validate_generated_length(self, generation_config: Any, input_ids_length: int, *args: Any) -> None:
        check_prompt_length(self.length_limit, input_ids_length, generation_config.max_length - input_ids_length)
        parent: Any = super()
        parent._validate_generated_length(generation_config, input_ids_length, *args)

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict, *args: Any) -> None:
        name = generation_config.cache_implementation
        if name not in (None, "dynamic", "dynamic_full"):  # the last: of drafts in transformers before 5.10
            raise ValueError(
                f"cache_implementation={name!r} is not supported: a lagwise model generates with a StreamingCache; "
                "leave it out, and call model.compile_step() first for compiled code of fixed shapes"
            )
        check_prompts(self.length_limit, generation_config, model_kwargs)
        if not self.model.has_state:  # every token is computed with all tokens before it
            generation_config.use_cache = model_kwargs["use_cache"] = False
        if model_kwargs.get(CACHE) is None and generation_config.use_cache is not False:
            cache = model_kwargs[CACHE] = self.model.new_cache()
            if getattr(generation_config, "is_assistant", False):  # its drafts may be rejected
                cache.activate_past_recording()

    def _assisted_decoding(self, input_ids: Tensor, *args: Any, generation_config: Any, **kwargs: Any) -> Any:
        if generation_config.return_dict_in_generate and generation_config.output_hidden_states:
            raise ValueError("output_hidden_states=True is not supported by assisted decoding of a lagwise model")
        require_no_padding_after(kwargs.get("attention_mask"), "continued with drafts")
        if kwargs.get("inputs_embeds") is not None:
            raise ValueError("inputs_embeds is not supported by assisted decoding; give input_ids")
        cache, mask = kwargs.get(CACHE), kwargs.get("attention_mask")
        if isinstance(cache, StreamingCache):
            self._read_before(cache, input_ids, input_ids.shape[1] - 1, mask)  # speculative rollback never crosses it
            cache.activate_past_recording()
        parent: Any = super()
        try:
            return parent._assisted_decoding(input_ids, *args, generation_config=generation_config, **kwargs)
        finally:
            if isinstance(cache, StreamingCache):
                cache.past = None

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Prepare inputs as in transformers, but give a cache that was rolled back for a rejected draft all tokens that
        it lacks: accepted ones are read again with the next draft."""
        cache = either(cache, past_key_values)
        if getattr(cache, "past", None) is not None:
            sure = 0 if next_sequence_length is None else input_ids.shape[1] - next_sequence_length
            if sure - cache.seen >= _MAX_READ_AGAIN:
                self._read_before(cache, input_ids, sure, kwargs.get("attention_mask"))
            next_sequence_length = input_ids.shape[1] - cache.seen
        parent: Any = super()
        return parent.prepare_inputs_for_generation(
            input_ids, next_sequence_length, inputs_embeds=inputs_embeds, **{CACHE: cache}, **kwargs
        )

    def _read_before(self, cache: StreamingCache, input_ids: Tensor, end: int, mask: Tensor | None) -> None:
        """Permanently process the tokens of a text before ``end`` that the cache has not seen."""
        ids = input_ids[:, cache.seen : end]
        if ids.shape[1]:
            # Not the backbone alone: the weights of a sharded model are gathered where its head is called.
            seen = None if mask is None else mask[:, :end]
            self(ids, attention_mask=seen, cache=cache, use_cache=True, logits_to_keep=1)
            cache.crop(0)

    @staticmethod
    def _several(inputs: dict[str, Any]) -> bool:
        """Whether inputs are not just a row without padding."""
        rows = next((each for each in (inputs["input_ids"], inputs["inputs_embeds"]) if each is not None), ())
        apart = isinstance(inputs["cache"], StreamingCache) and inputs["cache"].parts is not None
        return apart or len(rows) > 1 or inputs["attention_mask"] is not None

    def _apart(self, inputs: dict[str, Any], keep: Any) -> CausalLMOutput:
        """`forward` for each row by itself, without its padding. Matrix products and vector loops round differently in
        batches of other sizes, so a row then has the same bits in each batch as alone. Logits at padding are zero.
        ValueError where rows cannot be computed apart."""
        if traced() or self.model._sequence_group is not None or inputs.get("output_hidden_states"):
            raise ValueError(f"{APART}=1 is not for compiled models, split sequences or output_hidden_states")
        if not isinstance(keep, int):
            raise ValueError(f"{APART}=1 needs a number as logits_to_keep, got {keep!r:.80}")
        tokens, mask, cache = inputs["input_ids"], inputs["attention_mask"], inputs["cache"]
        batch, length = (inputs["inputs_embeds"] if tokens is None else tokens).shape[:2]
        mask = torch.ones(batch, length, dtype=torch.bool) if mask is None else current_mask(mask, batch, length)
        cache = self.model._cache(cache, inputs["use_cache"], batch, inputs["seq_idx"])
        parts = [None] * batch if cache is None else cache.of_single_rows(batch, self.model.number)
        shown = []
        for row, (real, part) in enumerate(zip(mask, parts, strict=True)):
            own = {**inputs, "attention_mask": None, "use_cache": part is not None, "cache": part}
            for name, value in own.items():
                if isinstance(value, Tensor) and value.dim() > 1:
                    value = value[row : row + 1] if len(value) == batch else value
                    own[name] = value[:, real] if value.shape[1] == length else value
            scored = real.any()[None] if keep == 1 else real[-keep:]
            count = int(scored.sum())
            logits = torch.zeros(len(scored), self.config.vocab_size, dtype=self.dtype, device=self.device)
            if real.any():
                new = self(**own, logits_to_keep=max(1, count) if keep else 0).logits[0, -count or len(real) :]
                logits = logits.index_put((scored.nonzero()[:, 0],), new.to(self.dtype))  # autocast has another type
            shown.append(logits)
        if cache is not None:
            cache.seen += length
        return CausalLMOutput(logits=torch.stack(shown), **{CACHE: cache})

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        skip_logits: bool = False,
        *,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        cache = either(cache, past_key_values)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        inputs |= {"inputs_embeds": inputs_embeds, "cache": cache, "use_cache": use_cache}
        inputs |= {"seq_idx": seq_idx, "cu_seqlens": cu_seqlens, "position_ids": position_ids, **kwargs}
        if rows_apart() and self._several(inputs) and (labels is None or cache is not None):
            return self._apart(inputs, logits_to_keep)
        steps = self._steps
        if input_ids is not None and steps and (step := steps.get(len(input_ids), steps.get(None))) is not None:
            logits = step.answer(self, {**inputs, "labels": labels, "logits_to_keep": logits_to_keep})
            if logits is not None:
                return CausalLMOutput(logits=logits, **{CACHE: cache})
        complete = use_cache is None and labels is not None  # a loss is computed over whole sequences
        out = self.read(**inputs) if complete else self.model(**inputs, return_dict=True)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        hidden, shard, targets = out.last_hidden_state, out.shard, None
        if attention_mask is not None and hidden.shape[1] > 1 and isinstance(keep, slice) and logits_to_keep == 1:
            first, lengths = row_extents(attention_mask[:, -hidden.shape[1] :].bool())
            hidden = hidden.take_along_dim((first + lengths - 1)[:, None, None], 1)
        else:
            hidden = hidden[:, keep]
        seq_idx = out.seq_idx if shard is None else shard.whole.seq_idx
        if labels is not None:
            labels = labels if shard is None else shard.gathered(labels)
            if seq_idx is not None:  # a document's first token does not follow another document
                labels, num_items_in_batch = _without_starts(labels, seq_idx, num_items_in_batch)
            targets = F.pad(labels, (0, 1), value=-100)[:, 1:]
            if shard is not None:
                num_items_in_batch = (targets != -100).sum() if num_items_in_batch is None else num_items_in_batch
                targets = shard.own(targets)
        elif seq_idx is not None and self.training and torch.is_grad_enabled():
            warnings.warn(_LOSS_ELSEWHERE, stacklevel=2)
        loss, logits = self.loss_and_logits(hidden, labels, targets, num_items_in_batch, skip_logits=skip_logits)
        return CausalLMOutput(loss=loss, logits=logits, hidden_states=out.hidden_states, **{CACHE: getattr(out, CACHE)})


def _without_starts(labels: Tensor, seq_idx: Tensor, counted: Any) -> tuple[Tensor, Any]:
    """Set the labels of documents' first tokens to -100, and subtract them from the number of labels. ValueError if
    that number counts other rows too, such as all micro-batches of a step: the difference is then unknown."""
    left = labels.masked_fill(document_starts(seq_idx), -100)
    if counted is None:
        return left, None
    before, after = (int((each[:, 1:] != -100).sum()) for each in (labels, left))
    if before == after:
        return left, counted
    if int(counted) != before:
        raise ValueError(
            f"{before - after} documents of these packed rows begin with a label, which is not predicted but was "
            f"counted: num_items_in_batch is {int(counted)}, and these rows have {before} labels. With gradient "
            "accumulation or several processes, set labels to -100 at the first token of every document, as "
            "DataCollatorWithFlattening does"
        )
    return left, after
