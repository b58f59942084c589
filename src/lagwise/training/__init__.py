"""Recipes and training. Lazy: reading a recipe does not load the Trainer."""

from typing import TYPE_CHECKING

from lagwise._lazy import lazy_package

if TYPE_CHECKING:
    from lagwise.training.classifier import LagClassifier
    from lagwise.training.dynamic import OnlineLearner, dynamic_score
    from lagwise.training.first_answer import simple_answers
    from lagwise.training.folder import (
        data_unchanged,
        load_run,
        make_task,
        read_metrics,
    )
    from lagwise.training.model import own_fields
    from lagwise.training.recipe import Recipe, load_recipe, recipe_names
    from lagwise.training.run import outcome, resume, train, train_or_resume
    from lagwise.training.setup import check_recipe

__all__, __getattr__, __dir__ = lazy_package(__name__)
