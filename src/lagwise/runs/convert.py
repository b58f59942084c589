"""Convert a run to constant memory per token, and measure the effect."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lagwise.data.tokenizers import copy_tokenizer
from lagwise.files import RECIPE_FILE, RUN_FILE, TOKENIZER, beside, is_unused, saved_whole, write_json
from lagwise.models import LagwiseForCausalLM, recurrent_form
from lagwise.models.conversion import CONVERSION_FILE
from lagwise.models.loading import default_device, load_model, quiet, save_tokenizer
from lagwise.ops import Reduction
from lagwise.training import load_run

_TIMED_TURNS, _TOKENS_PER_TURN = 5, 64  # of a stream, after a turn that warms up


def convert_run(
    run: Path | str,
    tolerance: float = 1e-3,
    out: Path | str | None = None,
    *,
    lags: int = 4096,
    max_order: int | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Write a run's model with its kernels as state spaces (`recurrent_form`) to ``out``, by default ``RUN-recurrent``.

    The result, also in ``out/conversion.json``: by layer, taps, the smallest, median and largest order, the largest
    bound and error of a channel relative to its gain; tokens a second of both models after a prompt of the trained
    length. The folder evaluates, generates or streams like any run. Speed is measured of language models only.
    ValueError as `recurrent_form`, before anything is written; FileExistsError if ``out`` holds anything but an earlier
    conversion.
    """
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be in (0, 1), got {tolerance}")
    out, run = Path(out or beside(Path(run), "-recurrent")), Path(run).resolve()
    if not is_unused(out) and not (out / CONVERSION_FILE).is_file():
        raise FileExistsError(f"{str(out)!r} exists and is not an earlier conversion; choose another `out`")
    model, tokenizer = load_model(run)
    language = isinstance(model, LagwiseForCausalLM)
    converted, reductions = recurrent_form(model, tolerance, lags=lags, max_order=max_order, progress=progress)
    result: dict[str, Any] = {
        "run": str(run),
        "out": str(out),
        "tolerance": tolerance,
        "modes": max(r.modes.poles.shape[1] for r in reductions.values()),
        "layers": [layer_figures(name, reduction) for name, reduction in reductions.items()],
    }
    length = 512
    recipe = load_run(run) if (run / RECIPE_FILE).is_file() else None
    if recipe is not None:
        length = recipe.data.length
        recipe.model["block"] = converted.config.block
    # Written now, with the model, and again below with the figures, because measuring may be interrupted.
    with quiet(), saved_whole(out, "the conversion", last="config.json") as partial:
        write_json(partial / CONVERSION_FILE, result)
        converted.save_pretrained(partial)
        if tokenizer is not None:
            save_tokenizer(tokenizer, partial, converted.length_limit)
        if recipe is not None:
            (partial / RECIPE_FILE).write_text(recipe.to_yaml(), encoding="utf-8")
            if (run / TOKENIZER).is_dir():  # the run's own folder may be moved
                copy_tokenizer(run / TOKENIZER, partial / TOKENIZER)
            if (run / RUN_FILE).is_file():
                shutil.copyfile(run / RUN_FILE, partial / RUN_FILE)
        written = {file.name for file in partial.iterdir()}
    others = [out / name for name in (RECIPE_FILE, RUN_FILE, TOKENIZER) if name not in written]
    for stale in (*out.glob("evaluation*.json"), *others):  # left by an earlier conversion
        shutil.rmtree(stale) if stale.is_dir() else stale.unlink(missing_ok=True)
    if not language:
        return result
    for each in (model, converted):
        torch.nn.Module.to(each, default_device())
    limit = model.length_limit
    turn = _TOKENS_PER_TURN if limit is None else min(_TOKENS_PER_TURN, (limit - 1) // (_TIMED_TURNS + 1))
    if turn:
        context = length if limit is None else min(length, limit - turn * (_TIMED_TURNS + 1))
        result["tokens_per_second"] = tokens_per_second({"before": model, "after": converted}, context, turn)
    write_json(out / CONVERSION_FILE, result)
    return result


def layer_figures(name: str, reduction: Reduction) -> dict[str, Any]:
    """Summarise a layer's reduction: its order (minimum, median, maximum), and its largest errors relative to the
    gain."""
    gain = reduction.gain.clamp(min=1e-300)
    order = reduction.order
    return {
        "layer": name,
        "taps": reduction.taps,
        "order": [int(order.min()), int(order.median()), int(order.max())],
        "bound": float((reduction.bound / gain).max()),
        "error": float((reduction.error / gain).max()),
        "l1_error": float((reduction.l1_error / gain).max()),
    }


@torch.inference_mode()
def tokens_per_second(
    models: Mapping[str, LagwiseForCausalLM], context: int, tokens: int = _TOKENS_PER_TURN
) -> dict[str, float]:
    """Measure greedy decoding of one stream after a random prompt of ``context`` tokens, in tokens per second: the
    median over turns of ``tokens`` tokens, in which the models alternate."""
    streams = {}
    for name, model in models.items():
        cache = model.model.new_cache()
        prompt = torch.randint(model.config.vocab_size, (1, context), device=model.device)
        token = model(prompt, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
        streams[name] = (model, cache, token)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(_TIMED_TURNS + 1):  # the first warms up
        for name, (model, cache, token) in streams.items():
            start = time.perf_counter()
            for _ in range(tokens):
                token = model(token, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
            _ = token.tolist()  # waits for a GPU
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: tokens / sorted(each)[len(each) // 2] for name, each in seconds.items()}
