"""Evaluate a trained run and leave the figures beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lagwise.data import prepare, token_bytes
from lagwise.evaluation.compression import compressor_bits_per_byte
from lagwise.evaluation.perplexity import evaluate, extrapolation
from lagwise.models import load_model
from lagwise.training import load_recipe

EVALUATION_FILE = "evaluation.json"
DEFAULT_LENGTHS = (512, 1024, 2048, 4096, 8192, 14336)
DEFAULT_TOKENS = 16 * 14336 + 1


def evaluate_run(
    run: Path,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    *,
    source: str | None = None,
    max_tokens: int = DEFAULT_TOKENS,
    progress: bool = True,
) -> dict[str, Any]:
    """Score a run on its validation text (at the training length) and test text (at every length).

    source: other text to test on than the run's own data. max_tokens: of each split, from its start; compressors get
    the same test bytes. The result is also written to ``RUN/evaluation.json``. Errors as `load_model`, `prepare` and
    `evaluate`; lengths over the model's limit are left out, ValueError if that leaves none.
    """
    if not lengths or min(lengths) < 1:
        raise ValueError(f"lengths must be whole numbers of at least 1, got {list(lengths)}")
    if max_tokens < 2:
        raise ValueError(f"max_tokens must be at least 2, got {max_tokens}")
    model, tokenizer = load_model(run)
    recipe = load_recipe(str(run / "recipe.yaml"))
    # Its own data are found again by their hash; other text needs the tokenizer that the model was trained with.
    own = source is None or recipe.data.tokenizer == "bytes"
    data = prepare(
        source or recipe.data.source,
        recipe.data.tokenizer if own else str(run),
        vocab_size=recipe.data.vocab_size,
        progress=progress,
    )
    sizes = token_bytes(tokenizer)
    limit = model.config.max_position_embeddings
    usable = [n for n in lengths if limit is None or n <= limit]
    if not usable:
        raise ValueError(f"every length in {list(lengths)} is over the model's limit of {limit} tokens")
    test, valid = (data.splits[s][:max_tokens] for s in ("test", "valid"))
    text = str(tokenizer.decode(test[1:], skip_special_tokens=True)).encode()
    result = {
        "data": source or recipe.data.source,
        "trained_at": recipe.data.length,
        "valid": evaluate(model, valid, min(recipe.data.length, limit or recipe.data.length), sizes).to_dict(),
        "test": [s.to_dict() for s in extrapolation(model, test, usable, sizes, progress=progress)],
        "compressors": compressor_bits_per_byte(text, window=recipe.data.length),
    }
    partial = run / f".{EVALUATION_FILE}"
    partial.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(partial, run / EVALUATION_FILE)
    return result
