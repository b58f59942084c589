"""The folder of a run: its recipe, task, identity, log and checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lagwise.data.tokenizers import copy_tokenizer, tokenizer_folder
from lagwise.files import (
    RECIPE_FILE,
    RUN_FILE,
    TOKENIZER,
    file_digest,
    is_unused,
    one_line,
    read_json,
    saved_whole,
    write_json,
    write_whole,
)
from lagwise.models.conversion import CONVERSION_FILE
from lagwise.tables import build, shown, typed
from lagwise.tasks import TASKS, Task
from lagwise.training.recipe import Recipe, load_recipe, parsed

METRICS_FILE = "metrics.jsonl"
_CONTENT_FILE = "content.json"  # of a checkpoint: a hash of each of its files, and the settings of its training


def load_run(run: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Load the recipe of a run, with overrides. Its tokenizer folder is the run's own copy. Errors as in
    `load_recipe`."""
    run = Path(run)
    recipe = load_recipe(str(run / RECIPE_FILE), overrides)
    if (run / TOKENIZER).is_dir():
        recipe = replace(recipe, data=replace(recipe.data, tokenizer=str(run / TOKENIZER)))
    return recipe


def check_resumable(out: Path) -> None:
    """Raise FileNotFoundError or ValueError for a folder that holds no run that can be resumed."""
    if not (out / RECIPE_FILE).is_file():
        began = out.is_dir() and is_unused(out, RUN_FILE, TOKENIZER)
        why = ", and nothing else: its training was stopped before it saved anything, so start it anew" if began else ""
        raise FileNotFoundError(f"{str(out)!r} is not a run to resume: it has no {RECIPE_FILE}{why}")
    if not (out / RUN_FILE).is_file():
        raise FileNotFoundError(f"{str(out)!r} cannot be resumed: it has no {RUN_FILE}, which identifies its data")
    if (out / CONVERSION_FILE).is_file():
        raise ValueError(f"{str(out)!r} is a conversion, not a run to resume; resume the run that it was made of")


def begin_run(recipe: Recipe, out: Path, identity: dict[str, Any]) -> None:
    """Write the recipe and the identity of a run, which make ``out`` a run that can be resumed."""
    shutil.rmtree(out / TOKENIZER, ignore_errors=True)
    with saved_whole(out, "the recipe", last=RECIPE_FILE) as partial:
        write_json(partial / RUN_FILE, identity)
        if folder := tokenizer_folder(recipe.data.tokenizer):  # it may no longer exist when the run is used
            copy_tokenizer(folder, partial / TOKENIZER)
        (partial / RECIPE_FILE).write_text(recipe.to_yaml(), encoding="utf-8")


def check_begun(out: Path, begun: Any, settings: Any, key: str = "") -> None:
    """Raise ValueError that names the first setting that differs from those with which a run was begun."""
    if isinstance(begun, dict) and isinstance(settings, dict):
        for name in {**begun, **settings}:
            check_begun(out, begun.get(name), settings.get(name), f"{key}.{name}" if key else name)
    elif begun != settings and key != "description":
        raise ValueError(
            f"the run in {str(out)!r} was begun with {key} {shown(begun)}, not {shown(settings)}: start it again with "
            "the settings of its first start, or choose another `out`"
        )


def make_task(recipe: Recipe) -> Task:
    """Build the recipe's task, without its data. ValueError for unknown names and options out of range."""
    data = replace(recipe.data)  # the task fills in its default source
    return build(TASKS, recipe.task, data, what="task", prefix="task.")


def data_unchanged(out: Path, recipe: Recipe) -> bool:
    """Whether the hash of a run's data is the same as when the run started. Nothing is encoded."""
    return make_task(recipe).key() == read_json(out / RUN_FILE).get("data")


def read_metrics(run: Path | str) -> list[dict[str, float]]:
    """Read the log of a run, one mapping per line. FileNotFoundError if it has none."""
    path = Path(run) / METRICS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{str(run)!r} has no {METRICS_FILE}: it is not a training run")
    return logged_lines(path)


def logged_lines(path: Path) -> list[dict[str, float]]:
    """Read the lines of a log, without the last if it is truncated. ValueError if another line is damaged."""
    lines = path.read_bytes().splitlines()
    result = []
    for number, line in enumerate(lines, 1):
        try:
            logged = json.loads(line)
            typed(int, logged["step"], "step")
            result.append(logged)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if number < len(lines):
                raise ValueError(f"{str(path)!r}, line {number}, is damaged ({one_line(error)})") from error
    return result


def rewind_metrics(out: Path, step: int) -> None:
    """Drop the summary and the lines logged after a checkpoint's step: training writes them again."""
    path = out / METRICS_FILE
    if not path.is_file():  # stopped before the first line
        return
    lines = [line for line in logged_lines(path) if line["step"] <= step and "train_loss" not in line]
    write_whole(path, "".join(json.dumps(line) + "\n" for line in lines))


def checkpoints(run: Path) -> list[Path]:
    """List the checkpoint folders of a run, oldest first."""
    folders = (f for f in run.glob("checkpoint-*") if f.is_dir() and f.name.split("-")[1].isdecimal())
    return sorted(folders, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint's name."""
    return int(checkpoint.name.split("-")[1])


def note_content(run: Path, checkpoint: Path) -> None:
    """Write what a complete checkpoint of a run consists of, by which `newest_whole_checkpoint` knows it again."""
    content = {"files": _hashes(checkpoint), "settings": _settings(run)}
    (checkpoint / _CONTENT_FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")


def newest_whole_checkpoint(run: Path) -> Path | None:
    """Find the newest checkpoint whose files are as they were saved (those of lagwise 0.2 are not checked); None if the
    run has none yet. ValueError if the model or training has other settings now, and if no checkpoint is whole."""
    complaints = []
    for checkpoint in reversed(checkpoints(run)):
        if not (checkpoint / _CONTENT_FILE).is_file():
            return checkpoint
        try:
            content = read_json(checkpoint / _CONTENT_FILE)
            files = _hashes(checkpoint)
            damaged = sorted(name for name, digest in content["files"].items() if files.get(name) != digest)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            complaints.append(f"{checkpoint.name}: {one_line(error)}")
            continue
        if not damaged:
            check_begun(run, content["settings"], _settings(run))
            return checkpoint
        complaints.append(f"{checkpoint.name}: {', '.join(damaged)} is missing or damaged")
    if complaints:
        raise ValueError(f"no checkpoint to resume in {str(run)!r}: " + "; ".join(complaints))
    return None


def _hashes(checkpoint: Path) -> dict[str, str]:
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != _CONTENT_FILE)
    return {path.relative_to(checkpoint).as_posix(): file_digest(path).hex() for path in files}


def _settings(run: Path) -> dict[str, Any]:
    """The settings that a checkpoint must be continued with. Those of the data are checked by their key, so that they
    may be moved."""
    values = parsed((run / RECIPE_FILE).read_bytes(), f"{RECIPE_FILE} of {str(run)!r}")
    return {section: values.get(section) for section in ("model", "training")}
