"""The comparison of language models is one of equal sizes, over lags that are trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from language import FAMILY, LENGTH, PLANS, Model, fields, fitted, recipe

from best_lm import BASELINES, CANDIDATES
from best_lm import recipe as best_recipe
from lagwise.kernels.sgconv import SGConvKernel
from lagwise.mixers.toeplitz import ToeplitzMixer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.training import load_recipe
from lagwise_papers.bench.run_queue import costs, planned

_QUICK = ("tnn", "sgconv", "without-rpe", "gtu-only")
MODELS = [
    pytest.param(model, id=f"{plan}-{name}", marks=() if name in _QUICK else pytest.mark.slow)
    for plan, models in PLANS.items()
    for name, model in models.items()
]


@pytest.mark.parametrize("model", MODELS)
def test_models_have_equal_sizes_and_train_all_their_taps(model: Model) -> None:
    width, size = fitted(model)
    assert abs(size / 2_500_000 - 1) < 0.08 or model is PLANS["ablations"]["without-rpe"]  # whose taps are weights
    with torch.device("meta"):
        made = LagwiseForCausalLM(LagwiseConfig(vocab_size=8, **fields(model, width)))
    for mixer in made.modules():
        if isinstance(mixer, ToeplitzMixer) and isinstance(mixer.kernel, SGConvKernel):
            assert mixer.kernel.support == LENGTH


def test_a_recipe_is_written_that_trains(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some words " * 3000)
    path, about = recipe("tnn", FAMILY["tnn"], tmp_path / "text.txt", tmp_path)
    assert load_recipe(str(path)).model["hidden_size"] == about["width"] == 256


def test_steps_are_planned_for_what_evaluations_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def measured(command: Any, **_: Any) -> Any:
        asked.append(json.loads(command[-1]))
        costs_of_jobs = [{"seconds": 0.5, "evaluation_seconds": 10.0} for _ in asked[-1]]
        return type("Done", (), {"stdout": "noise\n" + json.dumps(costs_of_jobs)})

    monkeypatch.setattr("lagwise_papers.bench.run_queue.subprocess.run", measured)
    jobs = {"one": ("tnn-lm", ["training.learning_rate=0.1"]), "two": ("tnn-lm", ["model.hidden_size=64"])}
    plan = planned(jobs, 3, tmp_path / "costs.json", 12)
    assert {name: each["steps"] for name, each in plan.items()} == {"one": 120, "two": 120}
    assert planned(jobs, 30, tmp_path / "costs.json", 12)["one"]["steps"] == 3360
    jobs["one"] = ("tnn-lm", ["training.learning_rate=0.2"])  # costs as much
    jobs["three"] = ("tnn-lm", ["training.batch_size=2"])
    planned(jobs, 3, tmp_path / "costs.json", 12)
    assert [len(each) for each in asked] == [2, 1]
    with pytest.raises(ValueError, match="18 evaluations of one alone take more than 3 minutes"):
        planned(jobs, 3, tmp_path / "costs.json", 18)


@pytest.mark.slow
def test_costs_are_measured_with_micro_batches() -> None:
    small = ["model.hidden_size=8", "model.num_hidden_layers=1", "training.batch_size=4"]
    measured = costs([("tnn-digits", small), ("tnn-digits", [*small, "training.accumulate=2"])])
    assert all(each["seconds"] > 0 and each["evaluation_seconds"] > 0 for each in measured)


def test_the_recipe_is_the_best_candidate(tmp_path: Path) -> None:
    best = load_recipe(str(best_recipe("conv-fd-local-input+4@3.6", 0.004, "stdlib", tmp_path)))
    shipped = load_recipe("best-lm")
    best.model["block"]["block_embeddings"] = True  # which came after the candidates
    assert shipped.model == best.model == load_recipe("demo").model
    assert shipped.training.batch_size == best.training.batch_size


def test_candidates_for_the_best_language_model_can_be_built(tmp_path: Path) -> None:
    for name in (*BASELINES, *CANDIDATES):
        best = load_recipe(str(best_recipe(name, 0.004, "stdlib", tmp_path)))
        with torch.device("meta"):
            made = LagwiseForCausalLM(LagwiseConfig(vocab_size=8, **best.model))
        assert 4e5 < sum(parameter.numel() for parameter in made.parameters()) < 4e6, name
        assert made.model.has_state, name
