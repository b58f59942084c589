"""Epochs, the best model, early stopping, starting from another run, and models by preset."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_task import MODEL, recipe
from run_results import assert_same_weights
from safetensors.torch import load_file

from lagwise.models import load_model
from lagwise.models.presets import GRID_PRESETS, PRESETS
from lagwise.runs import evaluate_run, predict_run
from lagwise.training import Recipe, check_recipe, load_recipe, read_metrics, recipe_names, resume, setup, train
from lagwise.training import run as run_module
from lagwise.training.model import build_model, with_start


def _stop(*args: object) -> None:
    raise KeyboardInterrupt


def accuracies(run: Path) -> list[tuple[int, float]]:
    return [(int(line["step"]), line["eval_accuracy"]) for line in read_metrics(run) if "eval_accuracy" in line]


def test_epochs_count_passes_over_the_rows(tmp_path: Path) -> None:
    made = recipe("classes of text", tmp_path / "data")  # 48 rows to train on, batches of 4
    made.training.epochs = 1.5
    run = train(made, tmp_path / "run", progress=False)
    saved = load_recipe(str(run / "recipe.yaml"))
    assert saved.training.steps == 18
    assert read_metrics(run)[-1]["step"] == 18
    assert accuracies(run)[-1][0] == 18


def test_few_rows_are_seen_more_often(tmp_path: Path) -> None:
    """Epochs of few rows would be few steps, most of them warm-up, with a single evaluation to choose the best from."""
    made = recipe("classes of text", tmp_path / "data")
    made.training.epochs, made.training.least_steps, made.training.warmup_steps = 1.0, 30, 50
    made.training.evaluate_every, made.training.save_every = 200, 100
    options = load_recipe(str(train(made, tmp_path / "run", progress=False) / "recipe.yaml")).training
    assert (options.steps, options.warmup_steps, options.evaluate_every) == (30, 3, 5)


def test_every_recipe_of_epochs_has_a_least_number_of_steps() -> None:
    for name in recipe_names():
        options = load_recipe(name).training
        assert (options.epochs is None) == (options.least_steps == 0)
        if options.epochs is not None:
            changed = load_recipe(name, ["training.epochs=1"]).training
            assert (changed.epochs, changed.least_steps) == (1, 0)  # an explicit number is kept


def test_generated_data_have_no_epochs(tmp_path: Path) -> None:
    made = recipe("associative recall", tmp_path / "data")
    made.training.epochs = 1.0
    with pytest.raises(ValueError, match="`epochs` does not apply to data that are generated"):
        train(made, tmp_path / "run", progress=False)


def test_the_run_ends_with_its_best_model(tmp_path: Path) -> None:
    """A learning rate that later ruins the model: the final weights are those of the best evaluation."""
    own = ("task.wide=false", "training.select=best", "training.learning_rate=0.05")
    made = recipe("classes of text", tmp_path / "data", *own)
    made.training.steps, made.training.evaluate_every, made.training.save_every = 40, 5, 20
    run = train(made, tmp_path / "run", progress=False)
    best = max(value for _, value in accuracies(run))
    assert evaluate_run(run, progress=False)["valid"]["accuracy"] == pytest.approx(best)
    assert not (run / "best").exists()


@pytest.mark.parametrize(
    ("options", "step", "every"),
    [
        (("training.select=best", "training.learning_rate=0.05"), 6, 3),
        pytest.param(("training.patience=2", "training.learning_rate=1.0e-12"), 60, 3, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_ends_with_the_same_model(
    options: tuple[str, ...], step: int, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best one; and a training that has stopped early does not continue."""
    made = recipe("classes of text", tmp_path / "data", *options)
    made.training.steps, made.training.evaluate_every = step, every
    whole, half = train(made, tmp_path / "whole", progress=False), tmp_path / "half"
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "finish", _stop)
        with pytest.raises(KeyboardInterrupt):
            train(made, half, progress=False)
    if step == 6:
        shutil.rmtree(half / "checkpoint-6")
    resume(half, progress=False)
    assert accuracies(half) == accuracies(whole)
    assert_same_weights(half, whole)


def test_training_stops_without_improvement(tmp_path: Path) -> None:
    made = recipe("classes of text", tmp_path / "data", "training.patience=2", "training.learning_rate=1.0e-12")
    made.training.steps, made.training.evaluate_every = 60, 3
    run = train(made, tmp_path / "run", progress=False)
    assert [step for step, _ in accuracies(run)] == [3, 6, 9]
    assert (run / "config.json").is_file()
    before = read_metrics(run)
    resume(run, progress=False)  # it has ended
    assert read_metrics(run) == before


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a language model."""
    folder = tmp_path_factory.mktemp("start")
    return train(recipe("language modelling", folder / "text"), folder / "run", progress=False)


def test_a_classifier_starts_from_a_language_models_backbone(start: Path, tmp_path: Path) -> None:
    made = recipe("classes of text", tmp_path / "rows", "training.learning_rate=1.0e-12", "training.steps=3")
    made.model = {"init_from": str(start)}
    run = train(made, tmp_path / "run", progress=False)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (run, start))
    name = "model.layers.0.block.token_mixer.out.weight"
    torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)
    model, _ = load_model(run)
    assert model.config.causal  # as it was trained
    assert load_recipe(str(run / "recipe.yaml")).model["hidden_size"] == MODEL["hidden_size"]
    assert len(predict_run(run, [{"text": "good"}], progress=False)) == 1


def test_an_incompatible_start_is_named(start: Path, tmp_path: Path) -> None:
    for task, model, error, message in (
        ("classes of text", {"init_from": str(start), "hidden_size": 16}, ValueError, "has no weights that fit"),
        ("classes of text", {"init_from": str(tmp_path)}, FileNotFoundError, "must be the folder of a trained run"),
        ("classes of series", {"init_from": str(start)}, ValueError, "provides values, but the model reads tokens"),
    ):
        made = recipe(task, tmp_path / task)
        made.model = model
        with pytest.raises(error, match=message):
            train(made, tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()


def test_a_start_is_trained_with_the_recipes_dropout(start: Path) -> None:
    own = load_recipe("classify").model
    fields = with_start(load_recipe("classify", [f"model.init_from={start}", "model.block.dropout=0.2"])).model
    assert fields["block"] == {**load_model(start)[0].config.block, "dropout": 0.2}
    assert fields["classifier_dropout"] == own["classifier_dropout"] > 0
    assert fields["hidden_size"] == MODEL["hidden_size"]
    assert load_recipe("classify", ["model=mega"]).model["block"]["dropout"] == own["block"]["dropout"] > 0


def test_a_model_by_preset(tmp_path: Path) -> None:
    own, rows = load_recipe("classify").model["block"]["dropout"], tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"row {i},{i % 2}\n" for i in range(20)))
    for word, preset in PRESETS.items():
        made = load_recipe("classify", ["model.hidden_size=16", f"model={word}", f"data.source={rows}"])
        assert made.model["hidden_size"] == 16
        assert made.model["block"] == {**preset["block"], "dropout": own}
        check_recipe(made)
        changed = load_recipe("tnn-lm", ["model.block.dropout=0.25", f"model={word}"])
        assert changed.model["block"]["dropout"] == 0.25
    norms = {word: load_recipe("classify", [f"model={word}"]).model.get("norm") for word in ("tnn", "ski-tnn", "mega")}
    assert load_recipe("classify").model["norm"] == "none"
    assert norms == {"tnn": "none", "ski-tnn": "none", "mega": "layer"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("word", PRESETS)
def test_an_image_model_by_preset(word: str) -> None:
    made = load_recipe("tnn-digits", [f"model={word}"])
    assert made.model["block"] == (PRESETS | GRID_PRESETS)[word]["block"]
    logits = build_model(made, check_recipe(made).open(progress=False))(pixel_values=torch.randn(2, 3, 8, 6)).logits
    assert logits.shape == (2, 10)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.size=30"], "images of 30 x 30 cannot be cut into patches of 4: give a `size` of multiples of 4"),
        (["task.channels=1"], "`channels` 1 and the model's `inputs.channels` 3 must be the same"),
        (["model.inputs={name: patches, size: 5}"], "images of 8 x 8 cannot be cut into patches of 5"),
    ],
)
def test_images_that_a_model_does_not_support_are_refused_before_training(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    made = load_recipe("tnn-cifar", ["data.source=digits", "task.augment=[]", *overrides])
    with pytest.raises(ValueError, match=message):
        train(made, tmp_path / "run", progress=False)


def test_steps_override_epochs() -> None:
    assert load_recipe("classify").training.epochs is not None
    made = load_recipe("classify", ["training.steps=5"])
    assert (made.training.steps, made.training.epochs) == (5, None)
    with pytest.raises(ValueError, match=r"either training\.steps or training\.epochs"):
        load_recipe("classify", ["training.steps=5", "training.epochs=2"])


def test_a_start_brings_its_tokenizer_and_may_be_deleted(tmp_path: Path) -> None:
    start = train(
        recipe("language modelling", tmp_path / "text", "data.tokenizer=bpe", "data.vocab_size=300"),
        tmp_path / "start",
        progress=False,
    )
    folder = tmp_path / "rows"
    overrides = [f"model.init_from={start}", f"data.source={folder / 'rows.csv'}"]
    overrides += ["training.steps=4", "training.first_answer=none"]
    recipe("classes of text", folder)
    run = train(load_recipe("classify", [*overrides, "training.save_every=2"]), tmp_path / "run", progress=False)
    assert load_model(run)[1].get_vocab() == load_model(start)[1].get_vocab()
    shutil.rmtree(start)
    for path in (run / "config.json", run / "checkpoint-4"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    resume(run, progress=False)
    assert evaluate_run(run, progress=False)["test"]["rows"] > 0
    for other in ("model=mega", "data.tokenizer=bpe"):
        with pytest.raises(ValueError, match=r"give either model\.init_from or"):
            load_recipe("classify", [*overrides, other])


@pytest.mark.slow
def test_a_start_brings_no_scale_of_its_data(tmp_path: Path) -> None:
    random, runs = np.random.default_rng(0), []
    for scale in (1, 100):
        values = random.normal(size=(40, 12, 1))
        labels = scale * values.mean((1, 2))
        np.savez(tmp_path / f"{scale}.npz", input_values=scale * (values + 5), label=labels)
        made = recipe("classes of series", tmp_path, "task.kind=regression")
        made.data.source = str(tmp_path / f"{scale}.npz")
        if runs:
            made.model = {"init_from": str(runs[0])}
        runs.append(train(made, tmp_path / f"run-{scale}", progress=False))
    before, after = (load_model(run)[0].config for run in runs)
    assert after.label_std == pytest.approx(100 * before.label_std, rel=0.5)
    assert after.inputs["mean"][0] == pytest.approx(100 * before.inputs["mean"][0], rel=0.2)
    made.task["stride"] = 2
    with pytest.raises(ValueError, match="of series the stride and the features"):
        train(made, tmp_path / "other", progress=False)
    assert not (tmp_path / "other").exists()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Recipes whose steps were timed: 2 seconds a step and 3 an evaluation."""
    seen: list[Any] = []
    monkeypatch.setattr(setup, "measured", lambda recipe, data: seen.append(recipe) or (2.0, 3.0))
    return seen


def test_steps_fit_into_what_evaluations_leave(tiny_recipe: Recipe, tmp_path: Path, measured: list[Any]) -> None:
    tiny_recipe.training.minutes, tiny_recipe.training.warmup_steps = 0.6, 50
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    options = load_recipe(str(run / "recipe.yaml")).training
    assert (options.steps, options.evaluate_every, options.save_every, options.warmup_steps) == (10, 2, 2, 1)
    assert (run / "checkpoint-10").is_dir()
    (run / "config.json").unlink()
    resume(run, progress=False)  # as planned
    assert len(measured) == 1


def test_too_few_minutes_are_refused(tiny_recipe: Recipe, tmp_path: Path, measured: list[Any]) -> None:
    tiny_recipe.training.minutes = 0.25
    with pytest.raises(ValueError, match=r"`minutes` 0.25 are too few: a step takes 2 s here, and 5 evaluations 15 s"):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_real_steps_are_timed(tiny_recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    tiny_recipe.training.minutes = 0.02
    run = train(tiny_recipe, tmp_path / "run")
    steps = load_recipe(str(run / "recipe.yaml")).training.steps
    assert f"0.02 minutes: {steps:,} steps of" in capsys.readouterr().err


@pytest.mark.parametrize("length", ["steps=5", "epochs=2"])
def test_one_length_is_given(length: str) -> None:
    with pytest.raises(ValueError, match=r"give either training.\w+ or training.minutes: both set how long to train"):
        load_recipe("best-lm", ["training.minutes=2", f"training.{length}"])
    assert load_recipe("best-lm", [f"training.{length}"]).training.minutes is None
