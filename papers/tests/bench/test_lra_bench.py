"""The benchmark of Long Range Arena's shapes checks every model before timing."""

from __future__ import annotations

import re

import pytest
import torch

from lagwise.models.presets import GRID_PRESETS, PRESETS
from lagwise_papers.bench import arena
from lagwise_papers.bench.arena import batch_of, check, network, table_rows, time_models


@pytest.mark.parametrize("word", PRESETS)
@pytest.mark.parametrize("task", ["listops", "retrieval", "image"])
def test_every_model_supports_every_kind_of_task(task: str, word: str) -> None:
    model = network(task, word)
    check(model, task)
    assert model(**batch_of(task, 2, 64)).logits.shape == (2, arena.SHAPES[task].classes)
    if task == "image" and word in GRID_PRESETS:
        check(network(task, word, two_dimensions=True), task)


def test_wrong_results_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("listops", "tnn")
    right = model.forward

    def wrong(**inputs):
        found = right(**inputs)
        found.logits = found.logits + (found.logits.dtype == torch.float32)
        return found

    monkeypatch.setattr(model, "forward", wrong)
    with pytest.raises(RuntimeError, match="wrong results are not timed"):
        check(model, "listops")


def test_ratios_are_relative_to_the_transformer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arena, "SHAPES", {"text": arena.Shape(64, 2, 258), "image": arena.Shape(64, 10, 0)})
    speeds = time_models(
        ["text", "image"], ["transformer", "tnn", "tnn-2d"], rows=2, repeats=2, threads=1, memory=False, progress=True
    )
    assert re.search(r"measuring: 100%.* 35/35 .*task=image", capsys.readouterr().err)
    assert [(s.task, s.model) for s in speeds] == [
        ("text", "transformer"),
        ("text", "tnn"),
        ("image", "transformer"),
        ("image", "tnn"),
        ("image", "tnn-2d"),
    ]
    rows = table_rows(speeds)
    assert rows[0][5] == rows[2][7] == "1.00x"
    assert rows[1][7] == f"{speeds[0].step.median / speeds[1].step.median:.2f}x"
