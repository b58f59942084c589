"""Text from a model, as it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TextStreamer

from lagwise.models.modeling import LagwiseForCausalLM


def generate_text(
    model: LagwiseForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    max_new_tokens: int = 500,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int | None = None,
    write: Callable[[str], None] | None = None,
) -> str:
    """Continue a prompt; ``write`` receives the text piece by piece while it is made.

    temperature 0 is greedy. An empty prompt starts a document. Returns prompt and continuation. ValueError for
    options out of range, or a word that the tokenizer does not know.
    """
    if max_new_tokens < 1 or temperature < 0 or not 0 < top_p <= 1:
        raise ValueError(
            f"max_new_tokens must be at least 1, temperature at least 0 and top_p in (0, 1]; got {max_new_tokens}, "
            f"{temperature} and {top_p}"
        )
    if seed is not None:
        torch.manual_seed(seed)
    ids = _encoded(tokenizer, prompt) if prompt else None
    if ids is None:
        start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        ids = torch.tensor([[start]])  # documents are separated by the end of text, so one begins after it
    limit = model.length_limit
    if limit is not None and ids.shape[1] + max_new_tokens > limit:
        raise ValueError(
            f"this model takes at most {limit} tokens; the prompt has {ids.shape[1]}, so at most "
            f"{max(0, limit - ids.shape[1])} can be added, got max_new_tokens={max_new_tokens}"
        )
    choice: dict[str, Any] = (
        {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
        if temperature > 0
        else {"do_sample": False}
    )
    generate: Any = model.generate
    output = generate(
        ids.to(model.device),
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        streamer=None if write is None else _Writer(tokenizer, write),
        **choice,
    )
    return str(tokenizer.decode(output[0], skip_special_tokens=True))


def _encoded(tokenizer: PreTrainedTokenizerBase, prompt: str) -> torch.Tensor:
    try:
        encoded: Any = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    except Exception as error:  # tokenizers raises nothing narrower
        words = ", ".join(sorted(tokenizer.get_vocab())[:20])
        raise ValueError(f"prompt {prompt!r} cannot be encoded: {error} (the tokenizer knows {words} ...)") from error
    return encoded["input_ids"]


class _Writer(TextStreamer):
    """Hands finished pieces of text on instead of printing them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, write: Callable[[str], None]):
        super().__init__(tokenizer, skip_special_tokens=True)
        self.write = write

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.write(text)
