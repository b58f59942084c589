"""The settings of runs: what differs between them, and the command that trains a run again."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lagwise.files import RECIPE_FILE, beside
from lagwise.training import Recipe
from lagwise.training.folder import TOKENIZER


def settings(recipe: Recipe) -> dict[str, Any]:
    """The values of a recipe by the keys that overrides use, such as ``training.steps``."""
    values = dataclasses.asdict(recipe)
    del values["words"]  # of other models
    return _flat(values, "")


def _flat(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    found = {}
    for key, value in values.items():
        is_section = isinstance(value, Mapping) and value
        found |= _flat(value, f"{prefix}{key}.") if is_section else {f"{prefix}{key}": value}
    return found


def different_settings(recipes: Mapping[str, Recipe]) -> list[tuple[str, ...]]:
    """One row for each setting that is not the same in all recipes: its key, and the value in each recipe as YAML, or
    ``-`` where there is none."""
    values = [settings(recipe) for recipe in recipes.values()]
    keys = dict.fromkeys(key for each in values for key in each)
    rows = [(key, *(_yaml(each[key]) if key in each else "-" for each in values)) for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]


def training_command(run: Path, processes: int = 1) -> str:
    """The shell command that trains a run's recipe again, ``RUN/recipe.yaml``, into ``RUN-again``."""
    options = ["--recipe", str(run / RECIPE_FILE)]
    if (run / TOKENIZER).is_dir():  # the recipe names the folder from which the run copied it
        options.append(f"data.tokenizer={run / TOKENIZER}")
    start = ["lagwise"] if processes == 1 else ["torchrun", "--nproc-per-node", str(processes), "-m", "lagwise"]
    return shlex.join([*start, "train", *options, "--out", str(beside(run, "-again"))])


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("...\n").strip()
