"""Tokens per second of greedy decoding with speculative decoding, prompt lookup, and neither."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lagwise.data import prepare
from lagwise.models import LagwiseForCausalLM
from lagwise.progress import progress_bar
from lagwise.training import load_run
from lagwise_papers.bench.timing import Timing

_TIE = 1e-3  # difference of two logits below which rounding may decide which is larger


@dataclass(frozen=True)
class Row:
    """Results of one drafting method and draft size.

    Args:
        method: ``none``, ``model`` or ``lookup``.
        draft_tokens: Tokens proposed at a time.
        seconds: Time for all prompts.
        forwards_per_token: Forward passes of the model per token.
        equal: Share of prompts whose text equals the text without drafts (others differ from a tie of logits on).
        tokens: Tokens generated in all.
    """

    method: str
    draft_tokens: int
    seconds: Timing
    forwards_per_token: float
    equal: float
    tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds.median


def time_drafts(
    model: LagwiseForCausalLM,
    draft: LagwiseForCausalLM,
    prompts: Sequence[Tensor],
    *,
    sizes: Sequence[int] = (2, 4, 8),
    new_tokens: int = 128,
    repeats: int = 5,
    progress: bool = True,
) -> list[Row]:
    """Time ``generate`` without drafts, with drafts of a smaller model, and with prompt lookup, in turn per prompt.

    Args:
        model: The model to decode with.
        draft: A smaller model with the same tokenizer. It ends drafts early where it is unsure, as in transformers.
        prompts: Token ids, each ``(length,)``.
        sizes: Maximum numbers of tokens per draft.
        new_tokens: Tokens to add to each prompt.
        repeats: Timed repeats.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: If a text differs from the text without drafts at a token that is not a tie of logits.
    """
    prompts = [prompt[None].to(model.device) for prompt in prompts]
    methods: dict[tuple[str, int], dict[str, Any]] = {("none", 0): {}}
    for size in sizes:
        assistant = copy.copy(draft)
        assistant.generation_config = copy.deepcopy(draft.generation_config)
        assistant.generation_config.num_assistant_tokens = size
        assistant.generation_config.num_assistant_tokens_schedule = "constant"
        methods["model", size] = {"assistant_model": assistant}
        methods["lookup", size] = {"prompt_lookup_num_tokens": size}
    greedy = {"do_sample": False, "max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
    generate: Any = model.generate
    forwards: list[int] = []  # one entry for each forward pass
    handle = model.model.register_forward_pre_hook(lambda *_: forwards.append(1))
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in methods}
    counts = dict.fromkeys(methods, 0)
    equal = dict.fromkeys(methods, 0)
    with torch.no_grad():
        for turn in progress_bar(range(repeats + 1), desc="drafts", show=progress):  # the first warms up and checks
            spent = dict.fromkeys(methods, 0.0)
            for prompt in prompts:
                expected = None
                for key, options in methods.items():
                    forwards.clear()
                    start = time.perf_counter()
                    text = generate(prompt, **greedy, **options)
                    spent[key] += time.perf_counter() - start
                    if turn == 0:
                        counts[key] += len(forwards)
                        expected = text if expected is None else expected
                        equal[key] += _check(model, expected, text, key)
            if turn:
                for key, each in spent.items():
                    seconds[key].append(each)
    handle.remove()
    tokens = new_tokens * len(prompts)
    return [
        Row(*key, Timing.of(seconds[key]), counts[key] / tokens, equal[key] / len(prompts), tokens) for key in methods
    ]


def _check(model: LagwiseForCausalLM, expected: Tensor, text: Tensor, key: tuple[str, int]) -> bool:
    """Whether two texts are equal; ValueError if they differ at a token that is not a tie of logits."""
    if torch.equal(expected, text):
        return True
    place = int((expected != text)[0].int().argmax())
    logits = model(expected[:, :place]).logits[0, -1]
    gap = float(logits.max() - logits[text[0, place]])
    if gap > _TIE:
        raise ValueError(f"drafts of {key} change the text at token {place}, where logits differ by {gap:.1e}")
    return False


def run_prompts(run: Path, count: int, length: int) -> list[Tensor]:
    """Token ids ``(length,)`` from evenly spaced positions in the test text of a run."""
    options = load_run(run).data
    text = prepare(options.source or "stdlib", options.tokenizer, vocab_size=options.vocab_size).splits["test"]
    starts = torch.linspace(0, len(text) - length, count).long().tolist()
    return [torch.tensor(text[start : start + length].astype("int64")) for start in starts]


def table_rows(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Rows of (draft, its tokens, tokens/s, speedup, forwards per token, equal texts)."""
    plain = rows[0].tokens_per_second
    return [
        (
            row.method,
            row.draft_tokens or "",
            f"{row.tokens_per_second:,.0f}",
            f"{row.tokens_per_second / plain:.2f}x",
            f"{row.forwards_per_token:.2f}",
            f"{row.equal:.0%}",
        )
        for row in rows
    ]
