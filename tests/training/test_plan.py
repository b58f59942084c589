"""The memory that a training will take on each device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.models import LagwiseForCausalLM
from lagwise.training import Recipe, load_recipe, make_task, memory_plan
from lagwise.training.model import model_config
from lagwise.training.plan import _measured_bytes


def planned(recipe: Recipe, processes: int) -> dict[str, int]:
    plan = memory_plan(recipe, processes)
    assert plan[-1] == ("together", sum(size for _, size in plan[:-1]))
    return dict(plan)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["tnn-lm", "tcnca-lm"])
def test_activations_are_those_of_a_training_step(name: str) -> None:
    recipe = load_recipe(name, ["model.hidden_size=32", "model.num_hidden_layers=3", "training.batch_size=1"])
    recipe.data.vocab_size, recipe.data.tokenizer, recipe.data.length = 258, "bytes", 8192
    recipe.training.precision = "float32"
    config = model_config(recipe, make_task(recipe), {"vocab_size": recipe.data.vocab_size})
    expected = _measured_bytes(LagwiseForCausalLM(config), 8192, low=False)
    whole = planned(recipe, 1)
    assert whole["activations"] == pytest.approx(expected, rel=0.1)
    recipe.training.precision = "auto"
    assert planned(recipe, 1)["activations"] < 0.9 * whole["activations"]
    recipe.training.precision = "float32"
    recipe.training.gradient_checkpointing = True
    assert planned(recipe, 1)["activations"] < 0.6 * whole["activations"]


def test_spectra_count_while_they_are_multiplied() -> None:
    """A layer whose products keep only their inputs and outputs takes more than these while it runs."""
    recipe = load_recipe("tnn-lm", ["model.hidden_size=64", "model.num_hidden_layers=1", "training.batch_size=1"])
    recipe.data.vocab_size, recipe.data.tokenizer, recipe.data.length = 258, "bytes", 4096
    recipe.training.precision = "float32"
    model = LagwiseForCausalLM(model_config(recipe, make_task(recipe), {"vocab_size": 258}))
    kept: dict[int, int] = {p.untyped_storage().data_ptr(): 0 for p in model.parameters()}
    held = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor)
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    ids = torch.zeros(1, 4096, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.train()(input_ids=ids, labels=ids, skip_logits=True)
    assert planned(recipe, 1)["activations"] > 1.2 * sum(kept.values())


def test_what_is_divided_between_processes(tiny_recipe: Recipe) -> None:
    tiny_recipe.data.length = 2048  # tokens take more than what gradients of the vocabulary need for a moment
    one = planned(tiny_recipe, 1)
    model = LagwiseForCausalLM(
        model_config(tiny_recipe, make_task(tiny_recipe), {"vocab_size": tiny_recipe.data.vocab_size})
    )
    count = sum(p.numel() for p in model.parameters())
    assert (one["weights"], one["gradients"], one["optimiser"]) == (4 * count, 4 * count, 8 * count)
    tiny_recipe.training.shard = True
    tiny_recipe.training.sequence_parallel = 2
    two = planned(tiny_recipe, 2)
    assert two["weights"] == 4 * -(-count // 2)
    assert two["gathered weights"] == 4 * count  # two layers run and wait
    assert two["activations"] == pytest.approx(one["activations"] / 2, rel=0.2)
    with pytest.raises(ValueError, match="cannot be divided between 3 processes"):
        planned(tiny_recipe, 3)
    assert not torch.distributed.is_initialized()


def test_the_command_prints_a_plan_and_trains_nothing(tmp_path: Path) -> None:
    small = ["model.hidden_size=32", "data.length=256", "training.batch_size=4", "data.tokenizer=bytes"]
    arguments = ["train", "--recipe", "tnn-lm", "--out", str(tmp_path / "run"), "--plan", "2", *small]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.output
    names = [line.split("  ")[0] for line in found.output.splitlines()]
    assert names == ["weights", "gradients", "optimiser", "activations", "together"]
    assert not (tmp_path / "run").exists()
