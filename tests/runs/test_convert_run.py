"""Conversion of a run: what it writes and measures."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lagwise.data import load_tokenizer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForTokenClassification
from lagwise.ops import Reduction
from lagwise.runs import convert, convert_run, evaluate_run
from lagwise.runs.convert import layer_figures, tokens_per_second
from lagwise.training import Recipe, load_run, train


@pytest.mark.slow
def test_a_model_of_short_texts_is_converted(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Its speed is measured within its limit, and a new conversion leaves no scores of an earlier one."""
    tiny_recipe.model["max_position_embeddings"] = 42
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    result = convert_run(run, 0.1, tmp_path / "out", progress=False)
    assert result["tokens_per_second"]["after"] > 0
    evaluate_run(tmp_path / "out", progress=False)
    convert_run(run, 0.5, tmp_path / "out", progress=False)
    assert not list((tmp_path / "out").glob("evaluation*"))


@pytest.mark.slow
def test_a_run_is_converted_within_the_tolerance(tiny_run: Path) -> None:
    result = convert_run(tiny_run, progress=False)
    assert result["tokens_per_second"]["after"] > 0
    assert all(each["error"] <= result["tolerance"] == 1e-3 for each in result["layers"])
    out = Path(result["out"])
    assert load_run(out).model["block"] == LagwiseConfig.from_pretrained(out).block != load_run(tiny_run).model["block"]


@pytest.mark.slow
def test_a_kernel_without_an_end_is_cut(tmp_path: Path) -> None:
    kernel = {"name": "rpe", "decay": 1.0, "hidden": 2, "layers": 0}
    block = {"name": "prenorm", "token_mixer": {"name": "gtu", "kernel": kernel, "expansion": 1}}
    inputs = {"name": "values", "features": 1}
    config = LagwiseConfig(hidden_size=2, num_hidden_layers=1, block=block, inputs=inputs)
    LagwiseForTokenClassification(config).save_pretrained(tmp_path / "run")
    for wrong in (0.0, 1.0):
        with pytest.raises(ValueError, match="tolerance must be in"):
            convert_run(tmp_path / "run", wrong)
    result = convert_run(tmp_path / "run", 0.5, progress=False)
    assert [each["taps"] for each in result["layers"]] == [4096]


def test_figures_of_a_layer_are_relative_to_its_gain() -> None:
    numbers = [[0.5, 2.0, 0.0], [0.01, 0.02, 0.0], [0.005, 0.01, 0.0], [0.03, 0.02, 0.0]]
    gain, bound, error, l1_error = torch.tensor(numbers, dtype=torch.float64)
    order: Any = torch.tensor([4, 2, 6])
    modes: Any = None
    figures = layer_figures("0", Reduction(modes, order, gain, bound, error, l1_error, gain, taps=40))
    expected = {"layer": "0", "taps": 40, "order": [2, 4, 6], "bound": 0.02, "error": 0.01, "l1_error": 0.06}
    assert figures == {key: pytest.approx(value) if key != "layer" else value for key, value in expected.items()}


def test_the_speed_is_the_median_of_the_turns_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LagwiseForCausalLM(LagwiseConfig(hidden_size=8, num_hidden_layers=1)).eval()
    times = itertools.chain([100.0], *((0.0, seconds) for seconds in (5.0, 1.0, 4.0, 2.0, 8.0)))
    monkeypatch.setattr(convert, "time", SimpleNamespace(perf_counter=times.__next__))
    assert tokens_per_second({"model": model}, context=5, tokens=8) == {"model": 2.0}
    assert not list(times)


@pytest.mark.slow
def test_a_conversion_keeps_the_runs_own_tokenizer(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """So that it is scored on the run's data wherever the run has gone."""
    load_tokenizer("bytes").save_pretrained(tmp_path / "tokenizer")
    tiny_recipe.data.tokenizer = str(tmp_path / "tokenizer")
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    convert_run(run, 0.1, tmp_path / "out", progress=False)
    shutil.rmtree(run)
    shutil.rmtree(tmp_path / "tokenizer")
    assert evaluate_run(tmp_path / "out", lengths=[8], max_tokens=50, progress=False)["test"]
