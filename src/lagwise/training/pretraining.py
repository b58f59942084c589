"""Training on rows without their labels, before the labels: a run of its own in a run's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lagwise.tasks import Task, TaskData
from lagwise.training.folder import make_task
from lagwise.training.recipe import Recipe

PRETRAINED = "pretrained"  # the run's folder, in that of the run that goes on from it


def check_pretraining(recipe: Recipe, task: Task) -> None:
    """ValueError for a task without such a training, and for options that do not go with it."""
    options, other = recipe.training, recipe.task.get("unlabelled")
    if not options.pretrain:
        if other is not None:
            raise ValueError(
                f"task.unlabelled {other!r} is read by training.pretrain only; add training.pretrain=600 (steps)"
            )
        return
    if task.before is None:
        raise ValueError(
            f"training.pretrain {options.pretrain} is for labelled texts and series, not for {type(task).__name__}"
        )
    if options.first_answer == "only":
        raise ValueError(f"training.pretrain {options.pretrain} trains a model, but model=linear trains none")


def pretraining(recipe: Recipe) -> Recipe:
    """The recipe of the steps before the labels."""
    options = recipe.training
    rows = {name: value for name, value in recipe.task.items() if name != "name"}
    before = make_task(recipe).before
    task = {
        "name": before,
        "rows": rows,
        "objective": "next" if recipe.model.get("causal") else "masked",
    }
    training = replace(
        options,
        steps=options.pretrain,
        epochs=None,
        least_steps=0,
        pretrain=0,
        first_answer="none",
        select="last",
        patience=0,
        keep_checkpoints=1,
    )
    return replace(recipe, task=task, training=training)


def with_hidden_token(recipe: Recipe, data: TaskData) -> Recipe:
    """The recipe with an embedding for hidden tokens. data: of `pretraining`."""
    size = data.fields().get("vocab_size")
    return recipe if size is None else replace(recipe, model={"vocab_size": size, **recipe.model})


def start_of(recipe: Recipe, out: Path) -> Recipe:
    """The recipe that goes on from a finished pretraining in the folder of its run."""
    return replace(recipe, model={**recipe.model, "init_from": str((out / PRETRAINED).resolve())})
