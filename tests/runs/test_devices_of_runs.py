"""Commands run models on the GPU, if there is one, with the same results as on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_task import CASES, recipe
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.models import loading
from lagwise.runs import convert, convert_run, evaluate, evaluate_run, predict, predict_run
from lagwise.training import load_recipe, train


@pytest.fixture
def there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Call it to let commands find the device of the tests; it returns the moves of modules there since then."""
    name, used = request.config.getoption("--device"), list[str]()
    to = torch.nn.Module.to

    def moved(self: torch.nn.Module, *args: Any, **options: Any) -> torch.nn.Module:
        used.extend(type(self).__name__ for each in (*args, options.get("device")) if each == torch.device(name))
        return to(self, *args, **options)

    def begin() -> list[str]:
        for module in (loading, evaluate, predict, convert):
            monkeypatch.setattr(module, "default_device", lambda: torch.device(name))
        monkeypatch.setattr(torch.nn.Module, "to", moved)
        return used

    with ExitStack() as stack:
        if name == "pretended":
            from second_device import SecondDevice

            stack.enter_context(SecondDevice())
        yield begin


def test_language_models(tiny_run: Path, there: Callable[[], list[str]]) -> None:
    run = tiny_run
    asked = ["generate", str(run), "--prompt", "the lag", "--tokens", "20", "--temperature", "0"]
    scores, text = evaluate_run(run, [32, 64], max_tokens=500, progress=False), CliRunner().invoke(app, asked).stdout
    used = there()
    assert_close(evaluate_run(run, [32, 64], max_tokens=500, progress=False), scores)
    assert used
    used.clear()
    result = CliRunner().invoke(app, asked)
    assert result.stdout == text, result.output
    assert used
    used.clear()
    assert convert_run(run, 0.1, progress=False)["tokens_per_second"]["after"] > 0
    assert used


@pytest.mark.parametrize("name", CASES)
def test_tasks(name: str, tmp_path: Path, there: Callable[[], list[str]]) -> None:
    run, rows = train(recipe(name, tmp_path / "data"), tmp_path / "run", progress=False), CASES[name].rows
    expected = evaluate_run(run, progress=False), predict_run(run, rows, progress=False)
    used = there()
    assert_close(evaluate_run(run, progress=False), expected[0])
    assert used
    used.clear()
    assert_close(predict_run(run, rows, progress=False), expected[1])
    assert used


def test_classifiers(tmp_path: Path, there: Callable[[], list[str]]) -> None:
    rows = [{"text": word * n, "label": word} for word in ("up ", "down ") for n in range(1, 21)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    small = ["model.hidden_size=16", "model.num_hidden_layers=1", "training.steps=4", "training.warmup_steps=1"]
    recipe = load_recipe("classify", [f"data.source={tmp_path / 'rows.jsonl'}", "training.batch_size=4", *small])
    run = train(recipe, tmp_path / "run", progress=False)
    expected = predict_run(run, rows[:4], progress=False)
    used = there()
    assert_close(predict_run(run, rows[:4], progress=False), expected)
    assert used


def assert_close(ours: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert ours.keys() == expected.keys()
        ours, expected = list(ours.values()), list(expected.values())
    if isinstance(expected, np.ndarray):
        ours, expected = ours.tolist(), expected.tolist()
    if isinstance(expected, str) and expected.startswith("["):  # numbers in a cell of a table
        ours, expected = json.loads(ours), json.loads(expected)
    if isinstance(expected, list | tuple):
        for each, other in zip(ours, expected, strict=True):
            assert_close(each, other)
    else:
        assert ours == (pytest.approx(expected, rel=1e-4, nan_ok=True) if isinstance(expected, float) else expected)
