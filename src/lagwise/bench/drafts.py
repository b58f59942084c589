"""Tokens a second of greedy decoding with drafts of a smaller model or of the text itself, beside none."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from lagwise.bench.harness import Timing
from lagwise.models import LagwiseForCausalLM
from lagwise.progress import progress_bar

_TIE = 1e-3  # of two logits: either may be the largest after other roundings


@dataclass(frozen=True)
class Row:
    """One way to draft, and tokens that it proposes at a time: seconds for all prompts; forwards of the model for each
    token; the share of prompts whose text is that without drafts (others part from it at a tie)."""

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
    """Time ``generate`` without drafts, with those of ``draft``, and with prompt lookup, in turn for each prompt
    ``(length,)``. Drafts have ``sizes`` tokens at most; a model's end early where it is unsure, as in transformers.

    ValueError if a text differs from that without drafts where two logits are no tie.
    """
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
    forwards, handle = _counter(model)
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in methods}
    counts = dict.fromkeys(methods, 0)
    equal = dict.fromkeys(methods, 0)
    with torch.inference_mode():
        for turn in progress_bar(range(repeats + 1), desc="drafts", show=progress):  # the first warms up, and checks
            spent = dict.fromkeys(methods, 0.0)
            for prompt in prompts:
                expected = None
                for key, options in methods.items():
                    forwards.clear()
                    start = time.perf_counter()
                    text = generate(prompt[None], **greedy, **options)
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


def _counter(model: LagwiseForCausalLM) -> tuple[list[int], RemovableHandle]:
    """A list that gets an entry for every forward of the model."""
    forwards: list[int] = []
    return forwards, model.model.register_forward_pre_hook(lambda *_: forwards.append(1))


def _check(model: LagwiseForCausalLM, expected: Tensor, text: Tensor, key: tuple[str, int]) -> bool:
    """Whether two texts are equal. ValueError if they differ, and not by a tie."""
    if torch.equal(expected, text):
        return True
    place = int((expected != text)[0].int().argmax())
    logits = model(expected[:, :place]).logits[0, -1]
    gap = float(logits.max() - logits[text[0, place]])
    if gap > _TIE:
        raise ValueError(f"drafts of {key} change the text at token {place}, where logits differ by {gap:.1e}")
    return False


def table_rows(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """(draft, its tokens, tokens/s, times none, forwards a token, equal texts)."""
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
