"""Recipes and training. Lazy: reading a recipe does not load the Trainer."""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy

if TYPE_CHECKING:
    from lagwise.training.classifier import LagClassifier
    from lagwise.training.first_answer import kept_first_answer, simple_answers
    from lagwise.training.folder import data_unchanged, final_model, load_run, make_task, read_metrics
    from lagwise.training.model import own_fields
    from lagwise.training.plan import memory_plan
    from lagwise.training.recipe import Recipe, load_recipe, recipe_names
    from lagwise.training.run import check_recipe, check_unused, resume, train, train_or_resume

__all__ = [
    "LagClassifier",
    "Recipe",
    "check_recipe",
    "check_unused",
    "data_unchanged",
    "final_model",
    "kept_first_answer",
    "load_recipe",
    "load_run",
    "make_task",
    "memory_plan",
    "own_fields",
    "read_metrics",
    "recipe_names",
    "resume",
    "simple_answers",
    "train",
    "train_or_resume",
]

__getattr__, __dir__ = lazy(
    __name__,
    __all__,
    {
        "LagClassifier": "lagwise.training.classifier",
        "Recipe": "lagwise.training.recipe",
        "load_recipe": "lagwise.training.recipe",
        "recipe_names": "lagwise.training.recipe",
        "check_recipe": "lagwise.training.run",
        "check_unused": "lagwise.training.run",
        "final_model": "lagwise.training.folder",
        "load_run": "lagwise.training.folder",
        "make_task": "lagwise.training.folder",
        "kept_first_answer": "lagwise.training.first_answer",
        "simple_answers": "lagwise.training.first_answer",
        "memory_plan": "lagwise.training.plan",
        "own_fields": "lagwise.training.model",
        "data_unchanged": "lagwise.training.folder",
        "read_metrics": "lagwise.training.folder",
        "resume": "lagwise.training.run",
        "train": "lagwise.training.run",
        "train_or_resume": "lagwise.training.run",
    },
)
