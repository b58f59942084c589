"""Evaluation of a trained run, whose result is saved in its folder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lagwise._version import __version__
from lagwise.data.options import DataOptions
from lagwise.files import RECIPE_FILE, RUN_FILE, read_json, write_json
from lagwise.models import LagwiseForCausalLM
from lagwise.models.configuration import field_types
from lagwise.models.loading import default_device, load_model
from lagwise.tables import known
from lagwise.tasks import Task
from lagwise.tasks.language_modelling import LanguageModelling
from lagwise.training import Recipe, data_unchanged, load_run, make_task, own_fields, simple_answers
from lagwise.training.dynamic import dynamic_score

EVALUATION_FILE = "evaluation.json"
_MAX_NAME_BYTES = 200  # of changes in a file's name


def evaluate_run(
    run: Path | str,
    lengths: Sequence[int] | None = None,
    *,
    source: str | None = None,
    max_tokens: int | None = None,
    overrides: Sequence[str] = (),
    baseline: bool = False,
    learn: float | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Score a run on held-out data, as its task does (`TaskData.evaluate`).

    Args:
        lengths, max_tokens: as the task defines them.
        source: test data other than the run's own (which must not have changed).
        overrides: ``model.key=value`` changes that the weights allow, such as ``model.block.token_mixer.engine=ski``.
        baseline: whether to score simple answers on the same rows too (`lagwise.training.simple_answers`), which needs
            the run's own data.
        learn: learning rate at which a language model is also scored by dynamic evaluation
            (`lagwise.training.dynamic.dynamic_score`); the run is not changed.

    The result is also written to ``RUN/evaluation.json``, or with overrides to ``RUN/evaluation-CHANGES.json`` (a hash,
    if there are many). ``left_out`` of the result: lengths that are over the model's limit. Errors as `load_model` and
    the task's `open` and `evaluate`.
    """
    if lengths is not None and (not lengths or min(lengths) < 1):
        raise ValueError(f"lengths must be integers of at least 1, got {list(lengths)}")
    if max_tokens is not None and max_tokens < 2:
        raise ValueError(f"max_tokens must be at least 2, got {max_tokens}")
    if wrong := [override for override in overrides if not override.startswith("model.")]:
        raise ValueError(f"an evaluation changes only fields of the model (model.key=value), got {wrong[0]!r}")
    for override in overrides:
        name = override.removeprefix("model.").partition("=")[0].partition(".")[0]
        known(name, field_types(), "key in model that an evaluation can change")
    run = Path(run)
    recipe, task = open_run(run, overrides, plain=not overrides)
    if learn is not None and not isinstance(task, LanguageModelling):
        raise ValueError("`learn` is for language models, which learn from the text that they have scored")
    is_run = (run / RECIPE_FILE).is_file()
    trained_at = recipe.data.length if is_run else None
    if source is None and not is_run:
        raise ValueError(f"{str(run)!r} is a model folder, which has no data of its own; give other data with `source`")
    model, _ = load_model(run, device=default_device(), **(own_fields(recipe) if overrides else {}))
    result: dict[str, Any] = {"data": source or task.data.source or task.key(), "trained_at": trained_at}
    if source is not None:
        result["given"] = True
    if source is None or baseline:
        require_unchanged(run, recipe)
    simple = list(simple_answers(run, task.open(run=run, progress=progress), recipe.training.seed)) if baseline else []
    data = task.open(run=run, source=source, progress=progress)
    options: dict[str, Any] = {} if learn is None else {"learning": partial(dynamic_score, rate=learn)}
    result |= data.evaluate(model, lengths=lengths, max_tokens=max_tokens, progress=progress, **options)
    limit = model.length_limit if task.inputs == "tokens" else None
    if left_out := [length for length in lengths or () if limit is not None and length > limit]:
        result["left_out"] = left_out
    if baseline:
        result["baselines"] = {name: data.evaluate(each, progress=False)["test"] for name, each in simple}
    if overrides:
        result["overrides"] = list(overrides)
    changes = "".join("-" + re.sub(r"[^\w.=-]+", "_", override.removeprefix("model.")) for override in overrides)
    if len(changes.encode()) > _MAX_NAME_BYTES:
        changes = f"-{hashlib.sha256(changes.encode()).hexdigest()[:16]}"
    file = run / f"{Path(EVALUATION_FILE).stem}{changes}.json"
    write_json(file, result)
    return result


def open_run(run: Path, overrides: Sequence[str] = (), *, plain: bool = False) -> tuple[Recipe, Task]:
    """Read a run's recipe and build its task; with `plain`, also of a folder that has a language model alone, as other
    programs save it. FileNotFoundError if the folder is not a finished run."""
    if not (run / RECIPE_FILE).is_file():
        model, _ = load_model(run)  # says why not
        if plain and isinstance(model, LagwiseForCausalLM):
            recipe = Recipe(data=DataOptions(tokenizer=str(run)))
            return recipe, make_task(recipe)
        raise FileNotFoundError(f"{str(run)!r} is a model folder, not a run: it has no recipe.yaml")
    recipe = load_run(run, overrides)
    return recipe, make_task(recipe)


def require_unchanged(run: Path, recipe: Recipe) -> None:
    """ValueError if a run's data have changed since it was trained, or are split otherwise than by its version."""
    if not data_unchanged(run, recipe):
        version = read_json(run / RUN_FILE).get("lagwise")
        other = "" if version == __version__ else f", or lagwise {version} split such data otherwise"
        raise ValueError(
            f"{recipe.data.source!r} has changed since {str(run)!r} was trained on it{other}: its test part may have "
            "been seen in training. To evaluate on other data, pass them with `source`; of a table without splits, all "
            "rows are scored"
        )
