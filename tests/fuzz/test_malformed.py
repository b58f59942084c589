"""Malformed input of every kind raises a ValueError or an OSError with a one-line message, and never crashes or hangs.

The normal suite takes a sample of the corpus, the slow tests all of it.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from malformed import Case, corpus

from lagwise.training import load_recipe, train

SAMPLE = 120
LONGEST = 400  # characters of a message


@pytest.fixture(scope="session")
def trained(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, and its only checkpoint."""
    small = "{name: prenorm, token_mixer: {name: gtu, expansion: 1, kernel: {name: rpe, hidden: 8, layers: 1}}}"
    recipe = load_recipe(
        "tnn-lm",
        [
            f"data.source={text_file}",
            *("model.hidden_size=16", "model.num_hidden_layers=2", f"model.block={small}"),
            *("data.length=16", "training.steps=2", "training.batch_size=2", "training.warmup_steps=1"),
            *("training.evaluate_tokens=64", "training.precision=float32", "training.log_every=1"),
        ],
    )
    run = train(recipe, tmp_path_factory.mktemp("malformed") / "run", progress=False)
    shutil.copyfile(run / "metrics.jsonl", run / "metrics.copy")
    return run


def check(case: Case, folder: Path, run: Path) -> None:
    with pytest.raises((ValueError, OSError)) as caught:
        case[1](folder, run)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert len(message) <= LONGEST


@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("count", [SAMPLE, pytest.param(None, marks=pytest.mark.slow)])
def test_malformed_input_is_one_line(count: int | None, trained: Path, tmp_path: Path) -> None:
    """In one test: thousands would take time from every run, also from those that leave them out."""
    cases, wrong = corpus(), {}
    for case in cases if count is None else random.Random(0).sample(cases, count):
        (tmp_path / "case").mkdir()
        try:
            check(case, tmp_path / "case", trained)
        except (Exception, pytest.fail.Exception) as error:
            wrong[case[0]] = error
        shutil.rmtree(tmp_path / "case")
    assert not wrong
