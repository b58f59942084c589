"""Evaluate a trained run and leave the figures beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from lagwise.data import RECALL, AssociativeRecall, TokenData, prepare, token_bytes
from lagwise.evaluation.compression import compressor_bits_per_byte
from lagwise.evaluation.perplexity import evaluate, extrapolation
from lagwise.evaluation.recall import recall
from lagwise.files import write_whole
from lagwise.models import LagwiseForCausalLM, load_model
from lagwise.training import Recipe, data_unchanged, load_recipe

EVALUATION_FILE = "evaluation.json"
DEFAULT_LENGTHS = (512, 1024, 2048, 4096, 8192, 14336)
DEFAULT_TOKENS = 16 * 14336 + 1
DEFAULT_SEQUENCES = 1000


def evaluate_run(
    run: Path,
    lengths: Sequence[int] | None = None,
    *,
    source: str | None = None,
    max_tokens: int | None = None,
    overrides: Sequence[str] = (),
    progress: bool = True,
) -> dict[str, Any]:
    """Score a run on its validation text (at the length of validation) and test text (at every length), or the task
    that it was trained on at every length.

    lengths: by default DEFAULT_LENGTHS for text, the trained length for a task. source: other text to test on than the
    run's own data (which must not have changed). max_tokens: of each split, from its start, by default DEFAULT_TOKENS
    (compressors get the same test bytes); of a task at each length, by default those of DEFAULT_SEQUENCES. overrides:
    ``model.key=value`` changes that the weights allow, such as ``model.block.token_mixer.engine=ski``. The result is
    also written to ``RUN/evaluation.json``, or with overrides to ``RUN/evaluation-CHANGES.json``. Errors as
    `load_model`, `prepare`, `evaluate` and `recall`; lengths over the model's limit are left out, ValueError if that
    leaves none.
    """
    if lengths is not None and (not lengths or min(lengths) < 1):
        raise ValueError(f"lengths must be whole numbers of at least 1, got {list(lengths)}")
    if max_tokens is not None and max_tokens < 2:
        raise ValueError(f"max_tokens must be at least 2, got {max_tokens}")
    if wrong := [override for override in overrides if not override.startswith("model.")]:
        raise ValueError(f"only model.key=value can be changed for an evaluation, got {wrong[0]!r}")
    if not (run / "recipe.yaml").is_file():
        load_model(run)  # says why not
    recipe = load_recipe(str(run / "recipe.yaml"), overrides)
    model, tokenizer = load_model(run, **(recipe.model if overrides else {}))
    is_task = recipe.data.source == RECALL
    lengths = lengths or ([recipe.data.length] if is_task else DEFAULT_LENGTHS)
    limit = model.length_limit
    if limit is not None and min(lengths) > limit:
        raise ValueError(f"every length in {list(lengths)} is over the model's limit of {limit} tokens")
    result: dict[str, Any] = {"data": source or recipe.data.source, "trained_at": recipe.data.length}
    if is_task:
        if source is not None:
            raise ValueError(f"{str(run)!r} was trained on {RECALL} and has no words for text, got data {source!r}")
        task = AssociativeRecall(recipe.data.vocab_size)
        counts = {n: DEFAULT_SEQUENCES if max_tokens is None else max(1, max_tokens // n) for n in lengths}
        for length in lengths:
            task.test_examples(length, 1)  # a length that cannot be is found before any is evaluated
        result["test"] = [
            recall(model, task, n, counts[n], progress=progress).to_dict()
            for n in lengths
            if limit is None or n <= limit
        ]
    else:
        data = (
            own_data(run, recipe, tokenizer, progress)
            if source is None
            else prepare(source, str(run), progress=progress)
        )
        result |= _text_scores(model, tokenizer, data, recipe, lengths, max_tokens or DEFAULT_TOKENS, progress)
    if overrides:
        result["overrides"] = list(overrides)
    changes = "".join("-" + re.sub(r"[^\w.=-]+", "_", override.removeprefix("model.")) for override in overrides)
    name = f"{Path(EVALUATION_FILE).stem}{changes}.json"
    write_whole(run / name, json.dumps(result, indent=1) + "\n")
    return result


def _text_scores(
    model: LagwiseForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    data: TokenData,
    recipe: Recipe,
    lengths: Sequence[int],
    max_tokens: int,
    progress: bool,
) -> dict[str, Any]:
    """Validation and test text, and compressors on the same test bytes."""
    test, valid = (data.splits[s][:max_tokens] for s in ("test", "valid"))
    valid_sizes, test_sizes = (token_bytes(tokenizer, data.bytes_per_token(s)) for s in ("valid", "test"))
    text = str(tokenizer.decode(test[1:], skip_special_tokens=True)).encode()
    window = max(1, round(recipe.data.length * data.bytes_per_token("test")))
    valid_at = recipe.data.evaluate_length or recipe.data.length
    return {
        "valid": evaluate(model, valid, min(valid_at, model.length_limit or valid_at), valid_sizes).to_dict(),
        "test": [s.to_dict() for s in extrapolation(model, test, lengths, test_sizes, progress=progress)],
        "compressors": compressor_bits_per_byte(text, window=window),
    }


def own_data(run: Path, recipe: Recipe, tokenizer: PreTrainedTokenizerBase, progress: bool) -> TokenData:
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
