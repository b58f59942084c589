"""Evaluate a trained run and leave the figures beside it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from lagwise.data import TokenData, prepare, token_bytes
from lagwise.evaluation.compression import compressor_bits_per_byte
from lagwise.evaluation.perplexity import evaluate, extrapolation
from lagwise.models import load_model
from lagwise.training import Recipe, data_unchanged, load_recipe

EVALUATION_FILE = "evaluation.json"
DEFAULT_LENGTHS = (512, 1024, 2048, 4096, 8192, 14336)
DEFAULT_TOKENS = 16 * 14336 + 1


def evaluate_run(
    run: Path,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    *,
    source: str | None = None,
    max_tokens: int = DEFAULT_TOKENS,
    overrides: Sequence[str] = (),
    progress: bool = True,
) -> dict[str, Any]:
    """Score a run on its validation text (at the training length) and test text (at every length).

    source: other text to test on than the run's own data (which must not have changed). max_tokens: of each split,
    from its start; compressors get the same test bytes. overrides: ``model.key=value`` changes that the weights allow,
    such as ``model.block.token_mixer.engine=ski``. The result is also written to ``RUN/evaluation.json``, or with
    overrides to ``RUN/evaluation-CHANGES.json``. Errors as `load_model`, `prepare` and `evaluate`; lengths over the
    model's limit are left out, ValueError if that leaves none.
    """
    if not lengths or min(lengths) < 1:
        raise ValueError(f"lengths must be whole numbers of at least 1, got {list(lengths)}")
    if max_tokens < 2:
        raise ValueError(f"max_tokens must be at least 2, got {max_tokens}")
    if wrong := [override for override in overrides if not override.startswith("model.")]:
        raise ValueError(f"only model.key=value can be changed for an evaluation, got {wrong[0]!r}")
    if not (run / "recipe.yaml").is_file():
        load_model(run)  # says why not
    recipe = load_recipe(str(run / "recipe.yaml"), overrides)
    model, tokenizer = load_model(run, **(recipe.model if overrides else {}))
    data = (
        _own_data(run, recipe, tokenizer, progress) if source is None else prepare(source, str(run), progress=progress)
    )
    limit = model.length_limit
    if limit is not None and min(lengths) > limit:
        raise ValueError(f"every length in {list(lengths)} is over the model's limit of {limit} tokens")
    trained_at = recipe.data.length
    test, valid = (data.splits[s][:max_tokens] for s in ("test", "valid"))
    valid_sizes, test_sizes = (token_bytes(tokenizer, data.bytes_per_token(s)) for s in ("valid", "test"))
    text = str(tokenizer.decode(test[1:], skip_special_tokens=True)).encode()
    window = max(1, round(trained_at * data.bytes_per_token("test")))
    result: dict[str, Any] = {
        "data": source or recipe.data.source,
        "trained_at": trained_at,
        "valid": evaluate(model, valid, min(trained_at, limit or trained_at), valid_sizes).to_dict(),
        "test": [s.to_dict() for s in extrapolation(model, test, lengths, test_sizes, progress=progress)],
        "compressors": compressor_bits_per_byte(text, window=window),
    }
    if overrides:
        result["overrides"] = list(overrides)
    changes = "".join("-" + re.sub(r"[^\w.=-]+", "_", override.removeprefix("model.")) for override in overrides)
    name = f"{Path(EVALUATION_FILE).stem}{changes}.json"
    partial = run / f".{name}"
    partial.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(partial, run / name)
    return result


def _own_data(run: Path, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, progress: bool) -> TokenData:
    """The run's training data, found by its hash, encoded as then. ValueError if the text has changed since."""
    options = recipe.data
    if not data_unchanged(run, recipe):
        raise ValueError(
            f"{options.source!r} has changed since {str(run)!r} was trained on it: its test text may have been seen in "
            "training. To evaluate on it all the same, give it with --data"
        )
    data = prepare(options.source, options.tokenizer, vocab_size=options.vocab_size, progress=progress)
    return (
        data
        if data.tokenizer.get_vocab() == tokenizer.get_vocab()
        else prepare(options.source, str(run), progress=progress)
    )
