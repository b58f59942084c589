"""Recipes and training. Lazy: reading a recipe does not load the Trainer."""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy

if TYPE_CHECKING:
    from lagwise.training.first_answer import simple_answers
    from lagwise.training.model import own_fields
    from lagwise.training.recipe import Recipe, load_recipe, recipe_names
    from lagwise.training.run import check_recipe, data_unchanged, load_run, make_task, read_metrics, resume, train

__all__ = [
    "Recipe",
    "check_recipe",
    "data_unchanged",
    "load_recipe",
    "load_run",
    "make_task",
    "own_fields",
    "read_metrics",
    "recipe_names",
    "resume",
    "simple_answers",
    "train",
]

__getattr__, __dir__ = lazy(
    __name__,
    __all__,
    {
        "Recipe": "lagwise.training.recipe",
        "load_recipe": "lagwise.training.recipe",
        "recipe_names": "lagwise.training.recipe",
        "check_recipe": "lagwise.training.run",
        "load_run": "lagwise.training.run",
        "make_task": "lagwise.training.run",
        "simple_answers": "lagwise.training.first_answer",
        "own_fields": "lagwise.training.model",
        "data_unchanged": "lagwise.training.run",
        "read_metrics": "lagwise.training.run",
        "resume": "lagwise.training.run",
        "train": "lagwise.training.run",
    },
)
