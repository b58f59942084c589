"""Training: learning, exact resume, complete checkpoints, and clear errors."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from run_results import losses, weights

from lagwise.data import TokenData, load_tokenizer
from lagwise.models import LagwiseForCausalLM, generate_text, load_model
from lagwise.training import Recipe, load_recipe, read_metrics, resume, setup, train
from lagwise.training.folder import checkpoints


def test_a_run_learns_and_writes_all_files(tiny_recipe: Recipe, tmp_path: Path) -> None:
    tiny_recipe.training.steps = 60
    tiny_recipe.training.learning_rate = 0.02
    run = train(tiny_recipe, str(tmp_path / "run"), progress=False)
    found = losses(run)
    assert found[60] < found[1] - 1.0
    names = {f.name for f in run.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "recipe.yaml", "run.json", "metrics.jsonl"} <= names
    assert not {n for n in names if n.startswith(".saving")}
    assert load_recipe(str(run / "recipe.yaml")) == tiny_recipe
    assert json.loads((run / "run.json").read_text())["torch"] == torch.__version__
    evaluated = [line for line in read_metrics(run) if "eval_loss" in line]
    assert evaluated[-1]["eval_bits_per_byte"] < evaluated[0]["eval_bits_per_byte"]
    assert [c.name for c in checkpoints(run)] == ["checkpoint-57", "checkpoint-60"]
    model, tokenizer = load_model(run)
    assert model.config.vocab_size == len(tokenizer)


@pytest.mark.slow
def test_lengths_of_steps_and_of_validation(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    forward = LagwiseForCausalLM.forward

    def noted(self: LagwiseForCausalLM, *args: object, input_ids: torch.Tensor, **kwargs: object) -> object:
        seen[self.training].append((input_ids.shape[0], input_ids.shape[1]))
        return forward(self, *args, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(LagwiseForCausalLM, "forward", noted)
    tiny_recipe.data.lengths, tiny_recipe.data.evaluate_length = [8, 32], 60
    tiny_recipe.training.steps, tiny_recipe.training.accumulate = 12, 2
    train(tiny_recipe, tmp_path / "run", progress=False)
    assert set(seen[True]) == {(2, 8), (2, 32)}
    assert seen[True][::2] == seen[True][1::2]
    assert set(seen[False]) == {(1, 60)}  # 2 * 32 // 60: the memory of a training batch


def test_gradient_accumulation_gives_the_same_step(tiny_recipe: Recipe, tiny_run: Path, tmp_path: Path) -> None:
    tiny_recipe.training.accumulate = 2
    two = weights(train(tiny_recipe, tmp_path / "two", progress=False))
    for name, weight in weights(tiny_run).items():
        torch.testing.assert_close(weight, two[name], rtol=1e-3, atol=2e-5)


def test_a_tokenizer_without_padding_trains(tiny_recipe: Recipe, tmp_path: Path, text_data: TokenData) -> None:
    tokenizer = copy.deepcopy(text_data.tokenizer)
    tokenizer.pad_token = None
    tokenizer.bos_token = None
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    tiny_recipe.data.tokenizer = str(tmp_path / "tokenizer")
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    assert generate_text(*load_model(run), "", max_new_tokens=3, temperature=0) is not None


def test_divergence_stops_with_advice(tiny_recipe: Recipe, tmp_path: Path) -> None:
    tiny_recipe.training.learning_rate = 1e30
    with pytest.raises(FloatingPointError, match=r"smaller `learning_rate`"):
        train(tiny_recipe, tmp_path / "run", progress=False)
    for checkpoint in checkpoints(tmp_path / "run"):
        assert all(w.isfinite().all() for w in weights(checkpoint).values())


SHORT = {"name": "toeplitz", "kernel": {"name": "free", "max_length": 9}}


class TestRefusals:
    """Errors are raised before the first step, and existing files are not changed."""

    def test_a_folder_in_use(self, tiny_recipe: Recipe, tmp_path: Path) -> None:
        (tmp_path / "precious").write_text("kept")
        with pytest.raises(FileExistsError, match="`resume`"):
            train(tiny_recipe, tmp_path, progress=False)
        assert (tmp_path / "precious").read_text() == "kept"

    def test_text_shorter_than_a_sequence(self, tiny_recipe: Recipe, tmp_path: Path) -> None:
        tiny_recipe.data.length = 10**6
        with pytest.raises(ValueError, match="fewer than one sequence of 1000000"):
            train(tiny_recipe, tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ({"hidden": 8}, "did you mean 'hidden_size'"),
            ({"vocab_size": 10}, "less than the tokenizer's 258"),
            ({"max_position_embeddings": 16}, r"`length` 32 is over"),
            ({"max_position_embeddings": 40}, r"`evaluate_length` 50 is over"),
            ({"block": {"name": "prenorm", "token_mixer": {"name": "gtu", "kernel": {"name": "rp"}}}}, "mean 'rpe'"),
            ({"block": {"name": "prenorm", "token_mixer": SHORT}}, r"`length` 32 is over the kernel's max_length 9"),
        ],
    )
    def test_invalid_models(self, tiny_recipe: Recipe, tmp_path: Path, model: dict, message: str) -> None:
        tiny_recipe.model = model
        tiny_recipe.data.evaluate_length = 50
        with pytest.raises(ValueError, match=message):
            train(tiny_recipe, tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()

    def test_models_are_checked_before_the_text_is_read(self, tiny_recipe: Recipe, tmp_path: Path) -> None:
        tiny_recipe.model = {"block": {"name": "prenrm"}}
        tiny_recipe.data.source = str(tmp_path / "missing.txt")
        with pytest.raises(ValueError, match="did you mean 'prenorm'"):
            train(tiny_recipe, tmp_path / "run", progress=False)

    def test_a_batch_that_processes_cannot_divide(
        self, tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tiny_recipe.training.accumulate = 3
        with pytest.raises(ValueError, match="multiple of processes times `accumulate`"):
            train(tiny_recipe, tmp_path / "run", progress=False)

    @pytest.mark.parametrize("split", ["tp", "cp", "sp"])
    def test_processes_that_are_to_share_more_than_the_batch(
        self, split: str, tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As `accelerate launch` tells them."""
        monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
        monkeypatch.setenv(f"PARALLELISM_CONFIG_{split.upper()}_SIZE", "2")
        with pytest.raises(ValueError, match=f"launch without --parallelism_config_{split}_size"):
            train(tiny_recipe, tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()

    def test_resuming_a_folder_that_is_no_run_or_has_other_data(
        self, tiny_recipe: Recipe, tmp_path: Path, text_file: Path
    ) -> None:
        with pytest.raises(FileNotFoundError, match="not a run to resume"):
            resume(tmp_path)
        text = tmp_path / "text.txt"
        text.write_text(text_file.read_text())
        tiny_recipe.data.source = str(text)
        run = train(tiny_recipe, tmp_path / "run", progress=False)
        text.write_text(text_file.read_text().upper())
        (run / "config.json").unlink()  # as if it had not finished
        with pytest.raises(ValueError, match="have changed since it began"):
            resume(run)


def test_a_runs_tokenizer_adds_nothing_to_prompts(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Whatever the given one adds: a text continues, instead of another one beginning after its end."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    given: Any = load_tokenizer("bytes")
    ends = {"special_tokens": [("<|endoftext|>", 256)]}
    given.backend_tokenizer.post_processor = TemplateProcessing(single="<|endoftext|> $A <|endoftext|>", **ends)
    given.save_pretrained(tmp_path / "given")
    assert AutoTokenizer.from_pretrained(tmp_path / "given")("ab")["input_ids"] == [256, 97, 98, 256]
    tiny_recipe.data.tokenizer = str(tmp_path / "given")
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    assert AutoTokenizer.from_pretrained(run)("ab")["input_ids"] == [97, 98]


def test_names_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "get_available_reporting_integrations", lambda: ["tensorboard", "wandb"])
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    assert setup.reporters("none", tmp_path) == []
    assert setup.reporters("wandb", tmp_path) == ["wandb"]
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ
    assert setup.reporters("tensorboard, wandb", tmp_path) == ["tensorboard", "wandb"]
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "tensorboard")
    monkeypatch.setattr(setup, "get_available_reporting_integrations", list)
    assert setup.reporters("tensorboard", tmp_path) == []


def test_an_unknown_program_is_refused_before_training(tiny_recipe: Recipe, tmp_path: Path) -> None:
    tiny_recipe.training.report_to = "tensorbord"
    with pytest.raises(
        ValueError,
        match=r"unknown `report_to` .*'tensorbord'; did you mean 'tensorboard'",
    ):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
