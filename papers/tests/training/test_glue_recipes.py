"""The recipes of GLUE share one model and its training, and have each task's own metric."""

from __future__ import annotations

from pathlib import Path

import pytest
from glue_files import write_task

from lagwise.training import check_recipe, load_recipe
from lagwise_papers.data.published import LAYOUTS

METRICS = {"cola": "matthews", "mrpc": "f1", "qqp": "f1", "stsb": "pearson"}
TRAINING_ROWS = {
    "cola": 8551,
    "sst2": 67349,
    "mrpc": 4076,
    "rte": 2490,
    "wnli": 635,
    "stsb": 5749,
    "mnli": 392702,
    "qnli": 104743,
    "qqp": 363849,
}


@pytest.mark.parametrize("task", LAYOUTS)
def test_every_task_of_glue_has_a_recipe(task: str, tmp_path: Path) -> None:
    recipe, first = load_recipe(f"glue-{task}"), load_recipe("glue-cola")
    assert recipe.data.format == task
    assert recipe.task["metric"] == METRICS.get(task, "accuracy")
    pooling = {"pooling": "pair"} if isinstance(recipe.task.get("text"), list) else {}
    assert recipe.model == first.model | pooling
    steps = recipe.training.epochs * 0.9 * TRAINING_ROWS[task] / recipe.training.batch_size
    assert recipe.training.warmup_steps == pytest.approx(0.06 * steps, abs=1)
    same = ("batch_size", "learning_rate", "schedule", "weight_decay", "select", "clip")
    assert [getattr(recipe.training, name) for name in same] == [getattr(first.training, name) for name in same]
    recipe.data.source = str(write_task(tmp_path, task))
    assert check_recipe(recipe).open(progress=False).headline.name == recipe.task["metric"]
