"""Interpretation of a model's inputs: documents of packed rows, padding, prompts, times and rates of samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.kernels import LagKernel
from lagwise.mixers import ChunkedAttention, Mixer
from lagwise.models.cache import CACHE, StreamingCache
from lagwise.ops import Layout
from lagwise.ops.host import on_device, on_host
from lagwise.ops.operation import traced
from lagwise.ops.packing import document_starts, seq_idx_from_cu_seqlens

_CONTEXT_PARALLEL = "torch.distributed.tensor.experimental._context_parallel._attention"

_SPLIT = (
    "A sequence that is split between processes (context or sequence parallelism) is not supported this way: mixers "
    "need all earlier tokens. Call model.split_sequences(group), train with training.sequence_parallel, or split the "
    "batch instead (data parallelism)"
)


def check_whole() -> None:
    """Raise ValueError within torch's ``context_parallel``, where a process has a shard of each sequence."""
    if getattr(F.scaled_dot_product_attention, "__module__", None) == _CONTEXT_PARALLEL:
        raise ValueError(f"this model was called within context_parallel. {_SPLIT}")


def check_precision(model: nn.Module, device: torch.device) -> None:
    """Raise ValueError if a part of a model needs float64 and the device has none."""
    if device.type == "mps":
        for name, part in model.named_modules():
            if getattr(part, "needs_float64", False):
                raise ValueError(
                    f"{type(part).__name__} ({name}) computes in float64, which Apple's GPUs do not have; use the CPU, "
                    "with model.to('cpu')"
                )


def check_shard(cache: Any, given: Collection[str]) -> None:
    """Raise ValueError for a cache, and for documents that are not given by seq_idx, with shards of sequences."""
    if cache is not None:
        raise ValueError("sequences that are split between processes cannot be streamed; pass no cache")
    if not {*given} <= {"seq_idx"}:
        raise ValueError(
            "give the documents of sequences that are split between processes by seq_idx, not by cu_seqlens or "
            "position_ids"
        )


def document_numbers(
    batch: int, length: int, given: Mapping[str, Tensor], attention_mask: Tensor | None = None
) -> Tensor | None:
    """The document of each token of packed rows, ``(batch, length)``; None if rows are single texts.

    The first argument that is given counts: seq_idx, then cu_seqlens ``(documents + 1,)``, cu_seq_lens_q and
    cu_seq_lens_k, as transformers' collators name them, then position_ids. These separate documents where they do not
    increase from one real token to the next. They may not begin later than 0, or leave any out: such a row is a shard
    of a sequence. ValueError for that, and for boundaries that differ or do not fit one row.
    """
    if {"seq_idx", "cu_seqlens"} <= given.keys():
        raise ValueError("give exactly one of seq_idx and cu_seqlens")
    numbers = {}
    for name, value in given.items():
        if name.startswith("cu_"):
            if batch != 1:
                raise ValueError(f"{name} is for a batch of one packed row, got {batch} rows; give seq_idx instead")
            numbers[name] = seq_idx_from_cu_seqlens(value.long(), length)
        elif name == "seq_idx":
            numbers[name] = value
    if not numbers:
        return _from_positions(given.get("position_ids"), attention_mask)
    (first, chosen), *others = numbers.items()
    for name, other in others:
        if not torch.equal(document_starts(chosen).cpu(), document_starts(other).cpu()):
            raise ValueError(
                f"{first} and {name} put the boundaries of documents in different places; give one of them"
            )
    return chosen


def _from_positions(position_ids: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
    if position_ids is None or position_ids.dim() != 2:
        return None
    if position_ids.device.type != "cpu" and not traced():
        masked = attention_mask is not None and attention_mask.shape == position_ids.shape
        here = _from_positions(*on_host(position_ids, attention_mask if masked else None))
        if here is None:
            return None
        return on_device([here], position_ids.device)[0]
    steps = torch.diff(position_ids, prepend=position_ids.new_full((position_ids.shape[0], 1), -1))
    starts = steps[:, 1:] <= 0  # equal: the previous document had one token
    missing = steps > 1
    if attention_mask is not None and attention_mask.shape == position_ids.shape:
        real = attention_mask.bool()
        starts = starts & real[:, 1:] & real[:, :-1]  # padding repeats positions too
        missing &= real & F.pad(real[:, :-1], (1, 0), value=True)  # and positions may count padding
    packed, is_shard = torch.stack([starts.any(), missing.any()]).tolist()
    if is_shard:
        row, token = missing.nonzero()[0].tolist()
        raise ValueError(
            f"position_ids of row {row} have {int(position_ids[row, token])} at token {token}, so tokens before it are "
            f"missing. {_SPLIT}"
        )
    if not packed:
        return None
    return F.pad(starts.long().cumsum(1), (1, 0))


def token_positions(
    batch: int, length: int, layout: Layout, device: torch.device, before: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Positions ``(batch, length)`` among the real tokens of a text, after ``before (batch,)`` of them, or of each
    document of a packed row, and the number of real tokens so far. Padding has the position of the token before it, or
    0."""
    if layout.mask is None:
        positions = torch.arange(length, device=device).expand(batch, length)
    else:
        positions = layout.mask.long().cumsum(dim=1) - 1
    positions = positions if before is None else positions + before[:, None]
    count, positions = positions[:, -1] + 1, positions.clamp(min=0)
    if layout.seq_idx is not None:
        positions = positions - torch.where(document_starts(layout.seq_idx), positions, 0).cummax(dim=1).values
    return positions, count


def current_mask(attention_mask: Tensor, batch: int, length: int) -> Tensor:
    """The part of a mask of all tokens so far that covers the tokens processed now. ValueError for a wrong shape."""
    if attention_mask.dim() != 2 or attention_mask.shape[0] != batch or attention_mask.shape[1] < length:
        raise ValueError(
            f"attention_mask must be (batch={batch}, at least {length}), got {tuple(attention_mask.shape)}"
        )
    return attention_mask[:, -length:].bool()


def check_ids(name: str, ids: Tensor, count: int) -> None:
    """Raise ValueError if any of at least one id is outside ``[0, count)``. On a GPU the host would wait for them."""
    if ids.device.type == "cpu" and not traced():
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= count:
            advice = "; was the text encoded with another tokenizer?" if name == "input_ids" else ""
            raise ValueError(f"{name} must be in [0, {count}), got {low} to {high}{advice}")


def check_prompt_length(limit: int | None, prompt: int, new: int) -> None:
    """Raise ValueError if a prompt with the tokens to add is longer than a model's limit."""
    if limit is not None and prompt + max(new, 1) > limit:
        room = max(0, limit - prompt)
        remedy = f"; ask for fewer than {new}" if room else "; shorten it"
        raise ValueError(
            f"this model takes at most {limit} tokens; the prompt has {prompt}, so at most {room} can be added{remedy}"
        )


def require_no_padding_after(mask: Tensor | None, prompts: str) -> None:
    """Raise ValueError if rows of a mask end in padding, which prompts of this kind may not."""
    if mask is not None and not mask[:, -1].all():
        raise ValueError(f"attention_mask pads prompts on the right; those {prompts} must be padded on the left")


def check_prompts(limit: int | None, generation_config: Any, model_kwargs: Mapping[str, Any]) -> None:
    """Check prompts before any work, where `generate` knows the mask of the whole text.

    ValueError if text and tokens to add are longer than the limit, a row is all padding, or is padded on the right and
    read in chunks, or a cache has nothing left to process.
    """
    mask, cache = model_kwargs.get("attention_mask"), model_kwargs.get(CACHE)
    # `generate` drops a mask of ones and keeps its length.
    prompt = getattr(generation_config, "_mask_length", None) if mask is None else mask.shape[1]
    if prompt is not None and generation_config.max_new_tokens is not None:
        check_prompt_length(limit, prompt, generation_config.max_new_tokens)
    if mask is not None and mask.dim() == 2 and mask.shape[1] > 0:
        empty = (~mask.bool().any(dim=1)).nonzero().flatten().tolist()
        if empty:
            raise ValueError(
                f"row {empty[0]} of attention_mask is all padding; begin an empty prompt with the end-of-text token"
            )
        if getattr(generation_config, "prefill_chunk_size", None):
            require_no_padding_after(mask, "read in chunks (prefill_chunk_size)")
    if isinstance(cache, StreamingCache) and prompt is not None and 0 < prompt <= cache.seen:
        raise ValueError(
            f"the cache holds {cache.seen} tokens already, and input and mask have {prompt}; give the whole text "
            "so far and at least one token more"
        )


def set_rate(model: Any, config: Any) -> None:
    """Scale the steps of all parts of a backbone to ``config.rate``. ValueError names a part that counts tokens."""
    require_rate(f"rate {config.rate:g}", model, config)
    for part in model.modules():
        if isinstance(part, Mixer | LagKernel):
            part.token_time = 1 / config.rate


def require_rate(who: str, model: Any, config: Any) -> None:
    """Raise ValueError, about ``who``, if a backbone or a part of it counts samples, so that it has one rate."""
    if config.input_name != "values":
        raise ValueError(f"{who} needs inputs 'values', as a rate is that of samples, got {config.inputs!r}")
    stride = model.embed_tokens.stride
    if model.embed_tokens.timed:
        raise ValueError(f"{who} is not for a model of samples with times, which tell their rate")
    if stride != 1:
        raise ValueError(
            f"{who} needs a model with a stride of 1: this one reads {stride} samples at once, by filters for the "
            "rate of training; resample its inputs"
        )
    _require_continuous(who, model, config, lambda part: part.any_rate)


def require_times(model: Any, config: Any) -> None:
    """Raise ValueError if a part of a backbone counts tokens, which then have no times of their own."""
    _require_continuous("a time for every token", model, config, lambda part: True)
    for part in model.modules():
        if isinstance(part, Mixer):
            part.require_times()


def _require_continuous(who: str, model: Any, config: Any, continuous: Callable[[Any], bool]) -> None:
    if (kind := config.position_embedding) != "none":
        raise ValueError(f"{who} needs position_embedding 'none', as others count samples, got {kind!r}")
    if config.wide is not None:
        raise ValueError(
            f"{who} is not for a model with a map of convolutions beside its layers, which count samples; train "
            "without the map (task.wide=false)"
        )
    for name, part in model.named_modules():
        if isinstance(part, ChunkedAttention) or (isinstance(part, Mixer | LagKernel) and not continuous(part)):
            raise ValueError(
                f"{who} needs mixers and kernels in continuous time, such as s4d, dss, s5, lru, cema and ema, but "
                f"{name} is a {type(part).__name__}, which counts samples; resample its inputs"
            )
