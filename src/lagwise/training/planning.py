"""What the text, the machine and the minutes decide about a training: its vocabulary and its steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from transformers import TrainerCallback

from lagwise.data.options import AUTO
from lagwise.models.loading import quiet
from lagwise.tasks import LanguageModelling, TaskData
from lagwise.training.processes import of_first_process
from lagwise.training.recipe import MAX_STEPS, Recipe
from lagwise.training.setup import check_recipe, completed, make_trainer, open_data, training_arguments

_SLOW_STEPS, _TIMED_STEPS = 3, 9  # the first fill memory and caches
_EVALUATIONS = 5
_BYTE_PAIRS = {"tokenizer": "bpe", "vocab_size": 4096}
_MIN_TOKENS_READ, _MIN_TEXT_BYTES = 2_000_000, 8_000_000


def planned(recipe: Recipe, progress: bool) -> tuple[Recipe, TaskData]:
    """Open the data of a recipe, and fill in what they, this machine and its minutes determine.

    A language model whose tokenizer is `AUTO` reads bytes, or a BPE of 4,096 tokens of the text if the training reads
    at least two million bytes of a text of at least eight million: what is best at equal minutes on one thread
    (benchmarks/vocabularies.py). A short training sees too little of each token of a BPE, and so does any of a short
    text.

    Raises:
        ValueError: If the recipe, the data and this machine do not fit together, or the minutes are too few.
    """
    options = recipe.training
    is_open = recipe.data.tokenizer == AUTO
    recipe, data = completed(recipe, open_data(check_recipe(recipe), progress))
    if options.minutes is not None and options.first_answer != "only":
        recipe = planned_for_minutes(recipe, data, progress)
    if not (is_open and isinstance(data.task, LanguageModelling) and _suits_byte_pairs(recipe, data)):
        return recipe, data
    if progress:
        print(f"a training of this length reads a BPE of {_BYTE_PAIRS['vocab_size']:,} tokens", file=sys.stderr)
    return planned(replace(recipe, data=replace(recipe.data, **_BYTE_PAIRS)), progress)


def _suits_byte_pairs(recipe: Recipe, data: Any) -> bool:
    """Whether a training on bytes would be better on a BPE."""
    options = recipe.training
    read = options.steps * options.batch_size * data.sizes(options.batch_size).tokens
    text = len(data.text.splits["train"])
    return read >= _MIN_TOKENS_READ and text >= _MIN_TEXT_BYTES


def planned_for_minutes(recipe: Recipe, data: TaskData, progress: bool) -> Recipe:
    """Replace the steps of a recipe by as many as fit into its minutes, with five evaluations and checkpoints.

    Some steps and an evaluation of a model that is then thrown away are timed. Minutes exclude this, reading the data
    and what follows the last step.

    Raises:
        ValueError: If the evaluations alone take longer.
    """
    options = recipe.training
    assert options.minutes is not None
    seconds, evaluation = measured(recipe, data)
    evaluations = _EVALUATIONS * evaluation
    left = 60 * options.minutes - evaluations
    if left < seconds:
        raise ValueError(
            f"`minutes` {options.minutes:g} are too few: a step takes {seconds:.2g} s here, and {_EVALUATIONS} "
            f"evaluations {evaluations:.2g} s; raise `minutes` or lower `evaluate_tokens`"
        )
    steps = min(MAX_STEPS, int(left / seconds))
    every = -(-steps // _EVALUATIONS)
    if progress:
        print(f"{options.minutes:g} minutes: {steps:,} steps of {seconds:.2g} s on this machine", file=sys.stderr)
    warmup = min(options.warmup_steps, steps // 10)
    options = replace(options, steps=steps, warmup_steps=warmup, evaluate_every=every, save_every=every)
    return replace(recipe, training=options)


def measured(recipe: Recipe, data: TaskData, clock: Callable[[], float] = time.perf_counter) -> tuple[float, float]:
    """Seconds of a step and of an evaluation by a clock; those of the first process in all."""
    count = _SLOW_STEPS + _TIMED_STEPS
    options = replace(recipe.training, steps=count, evaluate_every=count + 1, save_every=count + 1, report_to="none")
    recipe = replace(recipe, training=options)
    with TemporaryDirectory() as folder, quiet():
        trainer = make_trainer(recipe, data, training_arguments(recipe, Path(folder)), progress=False)
        steps = _StepClock(clock)
        trainer.add_callback(steps)
        trainer.train()
        begun = clock()
        trainer.evaluate()
        evaluation = clock() - begun
    return of_first_process(fmean(steps.seconds[_SLOW_STEPS:])), of_first_process(evaluation)


class _StepClock(TrainerCallback):
    """Seconds from the end of a step to that of the next, which include reading the batch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds: list[float] = []
        self._clock, self._last = clock, clock()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        now = self._clock()
        self.seconds.append(now - self._last)
        self._last = now
