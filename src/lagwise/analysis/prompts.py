"""Prompts for benchmarks of language models."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from lagwise.data import prepare
from lagwise.training import load_run


def run_prompts(run: Path, count: int, length: int) -> list[Tensor]:
    """Token ids ``(length,)`` from evenly spaced positions in the test text of a run."""
    options = load_run(run).data
    text = prepare(options.source or "stdlib", options.tokenizer, vocab_size=options.vocab_size).splits["test"]
    starts = torch.linspace(0, len(text) - length, count).long().tolist()
    return [torch.tensor(text[start : start + length].astype("int64")) for start in starts]
