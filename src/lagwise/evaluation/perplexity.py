"""Scores of language models on a token file: perplexity and bits per byte, of masked ones perplexity and accuracy; and
of general compressors, the baseline that needs no training.

The rules, for every figure that lagwise prints:

- Text is one stream: the documents of a split in order, each followed by one end-of-text token.
- The stream is cut into windows of ``length`` inputs that do not overlap. A window predicts the token after each of its
  inputs, so a token is predicted from 1 to ``length`` tokens of context, and every token except the stream's first is
  scored exactly once, whatever the length. Models keep no state from one window to the next.
- The last window is shorter. Longer windows thus differ only in the context of the tokens, never in the tokens.
- End-of-text tokens are scored like all others. Bits per byte divides the total by the bytes of the text alone: a model
  pays for predicting where documents end, whereas compressors, which see no documents, do not.
- Of a masked model, the same tokens are hidden by the same replacements at every length.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.models.cache import rows_apart
from lagwise.progress import progress_bar

_TOKENS_PER_BATCH = 16384
_LOGIT_ROWS_PER_CHUNK = 4096  # a window of 14336 logits over 50,000 tokens would need 3 GB


@dataclass(frozen=True)
class Score:
    """Score of a language model on a text."""

    length: int  # largest number of tokens of context
    tokens: int  # that are scored
    nats: float  # the sum of their losses
    text_bytes: int  # of the text that they encode

    @property
    def perplexity(self) -> float:
        """Perplexity per token, exp(nats / tokens); infinite if that exceeds floating-point numbers."""
        try:
            return math.exp(self.nats / self.tokens)
        except OverflowError:
            return math.inf

    @property
    def bits_per_byte(self) -> float:
        """Total bits divided by the bytes of text."""
        return self.nats / math.log(2) / self.text_bytes

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "perplexity": self.perplexity, "bits_per_byte": self.bits_per_byte}


@torch.inference_mode()
def evaluate(model: Any, tokens: np.ndarray, length: int, sizes: np.ndarray, *, progress: bool = False) -> Score:
    """Score a causal language model on a stream of tokens, by the rules above.

    Args:
        model: A `LagwiseForCausalLM`.
        tokens: ``(n,)``.
        length: Inputs per window.
        sizes: ``(vocab,)``, bytes of text of each token id, from `token_bytes`.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: If there is nothing to predict, or the length is over the model's limit.
        FloatingPointError: If the model gives NaN.
    """
    if len(tokens) < 2 or length < 1:
        raise ValueError(
            f"evaluation needs at least 2 tokens and a length of at least 1, got {len(tokens)} and {length}"
        )
    stream, device, nats = torch.from_numpy(tokens.astype(np.int64)), next(model.parameters()).device, 0.0
    for x, y in windows(model, length, stream[:-1], stream[1:], progress=progress):
        hidden = model.base_model(input_ids=x.to(device), use_cache=False).last_hidden_state.flatten(0, 1)
        targets = y.to(device).flatten()
        for h, t in zip(hidden.split(_LOGIT_ROWS_PER_CHUNK), targets.split(_LOGIT_ROWS_PER_CHUNK), strict=True):
            nats += F.cross_entropy(model.to_logits(h).float(), t, reduction="sum").item()
    return Score(length, len(tokens) - 1, finite(nats, length), round(sizes[tokens[1:]].sum()))


def windows(model: Any, length: int, *streams: torch.Tensor, progress: bool) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield batches of windows ``(rows, length)`` of streams ``(n,)``, and at the end the shorter last window, for a
    model that is put into evaluation mode. ValueError for windows over its limit."""
    count, limit = len(streams[0]), model.length_limit
    if limit is not None and min(length, count) > limit:
        raise ValueError(f"length {length} is over the model's limit of {limit} tokens")
    model.eval()
    n_full, rows = count // length * length, 1 if rows_apart() else max(1, _TOKENS_PER_BATCH // length)
    full_windows = [each[:n_full].view(-1, length).split(rows) if n_full else () for each in streams]
    last_window = [[each[None, n_full:]] if n_full < count else [] for each in streams]
    desc = f"evaluating at {length}"
    with progress_bar(desc=desc, total=count, unit="token", unit_scale=True, show=progress) as bar:
        for batch in zip(*([*full, *last] for full, last in zip(full_windows, last_window, strict=True)), strict=True):
            yield batch
            bar.update(batch[0].numel())


def finite(nats: float, length: int) -> float:
    """Return the total loss. FloatingPointError if it is infinite or NaN."""
    if not math.isfinite(nats):
        raise FloatingPointError(f"the model's loss at length {length} is {nats}; its weights may be damaged")
    return nats


@torch.inference_mode()
def masked_score(
    model: Any, hidden: Tensor, labels: Tensor, documents: Tensor, length: int, *, progress: bool = False
) -> dict[str, float]:
    """Score a `LagwiseForMaskedLM`, in evaluation mode, on a stream of tokens ``(n,)`` in windows of ``length``:
    ``masked`` hidden tokens, the sum of their losses in ``nats``, how many were ``correct``, and ``loss``,
    ``perplexity`` and ``accuracy`` of one. labels are the tokens that were hidden, otherwise -100; documents the
    document of each. ValueError if no token is hidden; FloatingPointError if the model gives NaN."""
    if not (labels != -100).any():
        raise ValueError(f"none of the {len(hidden)} tokens is hidden; evaluate on more text")
    device = next(model.parameters()).device
    nats, correct, masked = 0.0, 0, 0
    for ids, targets, document_ids in windows(model, length, hidden, labels, documents, progress=progress):
        is_packed = bool((document_ids != document_ids[:, :1]).any())
        is_masked = targets != -100
        out = model(
            input_ids=ids.to(device), seq_idx=document_ids.to(device) if is_packed else None, labels=targets.to(device)
        )
        logits = out.logits if out.logits.dim() == 2 else out.logits[is_masked.to(device)]
        masked_labels = targets[is_masked].to(device)
        nats += F.cross_entropy(logits.float(), masked_labels, reduction="sum").item()
        correct += int((logits.argmax(-1) == masked_labels).sum())
        masked += len(masked_labels)
    loss = finite(nats, length) / masked
    figures = {"loss": loss, "perplexity": math.exp(loss), "accuracy": correct / masked}
    return {"length": length, "masked": masked, "nats": nats, "correct": correct, **figures}


def compressor_bits_per_byte(text: bytes, *, window: int = 512) -> dict[str, float]:
    """Measure bits per byte of gzip, bz2 and xz at their highest level on the whole text, and of gzip on separate
    windows.

    ``gzip, N-byte windows`` compresses each window separately, as a model with that length sees it. Container headers
    count, as users would count them. ValueError for an empty text.

    >>> bits = compressor_bits_per_byte(b"to be or not to be. " * 100)
    >>> bits["gzip"] < 1
    True
    """
    if not text:
        raise ValueError("there is no text to compress")
    windows = [text[i : i + window] for i in range(0, len(text), window)]
    sizes = {
        f"gzip, {window}-byte windows": sum(len(gzip.compress(w, 9, mtime=0)) for w in windows),
        "gzip": len(gzip.compress(text, 9, mtime=0)),
        "bz2": len(bz2.compress(text, 9)),
        "xz": len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)),
    }
    return {name: 8 * size / len(text) for name, size in sizes.items()}
