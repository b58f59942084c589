"""Training of a recipe on rows in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lagwise.data.arrays import list_column
from lagwise.data.splits import random_rows
from lagwise.models.loading import load_model
from lagwise.tables import shown
from lagwise.tasks.classes import class_names
from lagwise.training.recipe import load_recipe
from lagwise.training.run import train

_RECIPES = {"texts": "classify", "series": "signal"}


class TrainedModel(NamedTuple):
    """A model with its tokenizer, and the tokens or samples at which it cuts a row."""

    model: Any
    tokenizer: Any
    length: int


def train_on_rows(
    kind: str, rows: Sequence[Any], ids: np.ndarray, word: str, settings: Sequence[str], seed: int, *, balanced: bool
) -> TrainedModel:
    """Train the recipe for texts, or for series ``(length, channels)``, on rows of the classes ``ids``, from 0.

    The run is made in a temporary folder; a tenth of each class's rows is held out to choose the best step. ValueError
    for settings of the data, rows that are too short, and if no class has two rows.

    Args:
        word: the kind of model.
        settings: changes to the recipe, as ``lagwise train`` takes them.
        balanced: whether rare classes weigh more.
    """
    if taken := [each for each in settings if each.startswith(("data.source", "data.format", "task.", "model="))]:
        raise ValueError(f"`settings` are those of the model and its training; {shown(taken[0])} is given by X and y")
    least, what = (1, "texts that are not empty") if kind == "texts" else (2, "series of at least 2 samples")
    if short := [i for i, row in enumerate(rows) if len(row) < least]:
        raise ValueError(f"a model is trained on {what}, but row {short[0]} is shorter ({len(short):,} such rows)")
    held = random_rows(ids, np.random.default_rng(seed), least=1)
    if not held.any():
        raise ValueError("a model is trained on at least two rows of a class, one of which is held out")
    with tempfile.TemporaryDirectory(prefix="lagwise-") as folder:
        own = [f"model={word}", f"training.seed={seed}", "task.kind=classification"]
        if balanced:
            own.append("task.class_weights=balanced")
        recipe = load_recipe(_RECIPES[kind], [*own, *settings])
        recipe.data.source = str(_written(Path(folder, "data"), kind, rows, ids, held))
        model, tokenizer = load_model(train(recipe, Path(folder, "run"), progress=False))
    assert [int(name[1:]) for name in class_names(model.config)] == list(range(ids.max() + 1))
    return TrainedModel(model, tokenizer, recipe.data.length)


def _written(folder: Path, kind: str, rows: Sequence[Any], ids: np.ndarray, held: np.ndarray) -> Path:
    """Files of the splits. There is nothing to test on: its file repeats the held-out rows."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    for split, places in (("train", ~held), ("valid", held), ("test", held)):
        own = [rows[i] for i in np.flatnonzero(places).tolist()]
        if kind == "texts":
            columns: dict[str, Any] = {"text": own}
        else:
            vectors = pa.list_(pa.list_(pa.float32(), own[0].shape[1]))
            columns = {"input_values": list_column(own, vectors)}
        names = [f"c{label:09}" for label in ids[places]]
        parquet.write_table(pa.table({**columns, "label": names}), folder / f"{split}.parquet")
    return folder
