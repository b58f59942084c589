"""Recipes and training. Lazy: reading a recipe does not load the Trainer."""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy

if TYPE_CHECKING:
    from lagwise.training.recipe import Recipe, load_recipe, recipe_names
    from lagwise.training.run import check_model, data_unchanged, read_metrics, resume, train

__all__ = ["Recipe", "check_model", "data_unchanged", "load_recipe", "read_metrics", "recipe_names", "resume", "train"]

__getattr__ = lazy(
    __name__,
    {
        "Recipe": "lagwise.training.recipe",
        "load_recipe": "lagwise.training.recipe",
        "recipe_names": "lagwise.training.recipe",
        "check_model": "lagwise.training.run",
        "data_unchanged": "lagwise.training.run",
        "read_metrics": "lagwise.training.run",
        "resume": "lagwise.training.run",
        "train": "lagwise.training.run",
    },
)
