"""Averaged weights, and batches prepared by other processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lagwise.models import load_model
from lagwise.training import Recipe, train
from lagwise.training.averaging import AVERAGES_FILE, AveragedWeights
from lagwise.training.checkpoints import checkpoints, newest_whole_checkpoint


class _State:
    global_step = 0


def test_the_average_equals_its_formula() -> None:
    model = nn.Linear(3, 2)
    average = AveragedWeights(model, 0.5)
    expected, state = model.weight.detach().clone(), _State()
    for step in range(1, 9):
        with torch.no_grad():
            model.weight.add_(torch.randn(2, 3))
        state.global_step = step
        average.on_step_end(None, state, None)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
    last = model.weight.detach().clone()
    with average.in_use():
        torch.testing.assert_close(model.weight.detach(), expected)
    assert torch.equal(model.weight, last)


def test_damaged_averages_are_skipped_with_their_checkpoint(tiny_recipe: Recipe, tmp_path: Path) -> None:
    tiny_recipe.training.average = 0.9
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    first, last = checkpoints(run)
    path, model = last / AVERAGES_FILE, load_model(run)[0]
    average = AveragedWeights(model, 0.9)
    trainer = SimpleNamespace(model=model, optimizer=None, average=average, carried=None, streamed=None)
    assert newest_whole_checkpoint(run, trainer) == last
    whole = load_file(path)
    save_file({name: value * float("nan") for name, value in whole.items()}, path)
    assert newest_whole_checkpoint(run, trainer) == first
    path.write_bytes(path.read_bytes()[:-50])
    assert newest_whole_checkpoint(run, trainer) == first
    path.unlink()
    assert newest_whole_checkpoint(run, trainer) == first
