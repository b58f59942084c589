"""Training on rows without their labels before the labels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from every_task import recipe
from safetensors.torch import load_file

import lagwise.training.run as run_module
from lagwise.data.masking import hidden_steps
from lagwise.runs import predict_run
from lagwise.tasks.row_modelling import squared_error
from lagwise.training import load_recipe, make_task, read_metrics, resume, train
from lagwise.training.pretraining import PRETRAINED, pretraining

CASES = ("classes of text", "numbers of pairs", "classes of series")


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


@pytest.mark.parametrize("name", CASES)
def test_a_model_goes_on_from_what_it_learned_without_labels(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, torch.Tensor]] = []
    plain = run_module.saved_when_stopped

    def remembered(trainer: Any) -> Any:
        started.append({name: value.detach().clone() for name, value in trainer.model.model.state_dict().items()})
        return plain(trainer)

    monkeypatch.setattr(run_module, "saved_when_stopped", remembered)
    run = train(recipe(name, tmp_path / "data", "training.pretrain=4"), tmp_path / "run", progress=False)
    before = weights(run / PRETRAINED)
    assert [line["step"] for line in read_metrics(run / PRETRAINED) if "loss" in line] == [1, 2, 3, 4]
    assert [line["step"] for line in read_metrics(run) if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert len(started) == 2
    for part, value in started[1].items():
        assert torch.equal(value.cpu(), before[f"model.{part}"])


def test_a_stop_before_the_labels_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe("classes of text", tmp_path / "data", "training.pretrain=4", "training.save_every=2")
    whole = train(made, tmp_path / "whole", progress=False)
    stopped = tmp_path / "stopped"
    plain = run_module.LagwiseTrainer.training_step

    def stop(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if trainer.state.global_step == 3:
            raise KeyboardInterrupt
        return plain(trainer, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(run_module.LagwiseTrainer, "training_step", stop)
        with pytest.raises(KeyboardInterrupt):
            train(made, stopped, progress=False)
    assert (stopped / PRETRAINED / "checkpoint-2").is_dir()
    assert not (stopped / "config.json").exists()
    resume(stopped, progress=False)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(stopped)[name])


def test_rows_without_labels_are_read_too(tmp_path: Path) -> None:
    made = recipe("classes of text", tmp_path / "data", "training.pretrain=3")
    other = tmp_path / "more.csv"
    other.write_text("text\n" + "".join(f"never seen {i}\n" for i in range(25)))
    made.task["unlabelled"] = str(other)
    run = train(made, tmp_path / "run", progress=False)
    task = make_task(pretraining(load_recipe(str(run / "recipe.yaml"))))
    data = task.open(progress=False)
    assert "from " + str(other) in data.notes()[0]
    assert data.steps_per_epoch(1) == task.rows.open(progress=False).steps_per_epoch(1) + 25
    shutil.rmtree(tmp_path / "data")  # neither run needs its data to predict
    assert "predicted" in predict_run(run, [{"text": "good"}], progress=False)[0]
    assert predict_run(run / PRETRAINED, [{"text": "good"}], progress=False)[0]["loss"] > 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.pretrain=5", "training.first_answer=only"], "model=linear trains none"),
        (["task.unlabelled=rows.csv"], "add training.pretrain=600"),
        (["training.pretrain=5", "task.unlabelled=nowhere.csv"], "nowhere.csv"),
        (["training.pretrain=-1"], "training.pretrain must be at least 0"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_a_run_begins(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(recipe("classes of text", tmp_path / "data", *overrides), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_columns_of_rows_without_labels_are_checked_first(tmp_path: Path) -> None:
    made = recipe("classes of text", tmp_path / "data", "training.pretrain=3")
    (tmp_path / "more.jsonl").write_text(json.dumps({"review": "good"}) + "\n")
    made.task["unlabelled"] = str(tmp_path / "more.jsonl")
    with pytest.raises(ValueError, match=r"task\.unlabelled .*more\.jsonl.* no 'text' .*review"):
        train(made, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_tasks_without_labelled_texts_or_series_have_none(tmp_path: Path) -> None:
    made = recipe("classes of images", tmp_path / "data", "training.pretrain=3")
    with pytest.raises(ValueError, match="labelled texts and series"):
        train(made, tmp_path / "run", progress=False)


@pytest.mark.parametrize("causal", [False, True])
def test_parts_of_series_are_predicted_from_others(causal: bool, tmp_path: Path) -> None:
    made = recipe("classes of series", tmp_path / "data", "task.stride=3", "training.pretrain=1")
    made.model = {**made.model, "causal": causal}
    data = make_task(pretraining(made)).open(progress=False)
    row = data.train[0]
    values = torch.tensor(row["input_values"])
    hidden = data.hidden({"input_values": values}, np.random.default_rng(0))
    scaled = (values - torch.from_numpy(data.mean)) / torch.from_numpy(data.std)
    labels = hidden["labels"]
    assert labels.shape == (7, 6)  # 20 samples of 2 features in steps of 3
    assert (labels[-1, 4:] == -100).all()  # beyond the end
    if causal:
        assert torch.equal(hidden["input_values"], values)
        assert torch.equal(labels[:5].reshape(-1, 2), scaled[3:18])
        assert (labels[-1] == -100).all()
    else:
        chosen = labels[:, 0] != -100
        assert 0 < chosen.sum() < 7
        assert torch.equal(labels[:6][chosen[:6]].reshape(-1, 2), scaled[:18].reshape(6, 6)[chosen[:6]].reshape(-1, 2))
        changed = (hidden["input_values"] != values).any(1)
        assert torch.equal(changed, chosen.repeat_interleave(3)[:20])


def test_a_share_of_steps_is_hidden_in_spans() -> None:
    random = np.random.default_rng(0)
    masks = [hidden_steps(200, random) for _ in range(50)]
    assert 0.3 <= np.mean(masks) < 0.33
    begun = np.mean([np.diff(mask.astype(int), prepend=0).clip(0).sum() for mask in masks])
    assert 3 < 200 * np.mean(masks) / begun < 5  # spans may touch
    assert hidden_steps(1, random).all()


def test_only_hidden_values_count() -> None:
    labels = torch.tensor([[[1.0, -100.0]], [[-100.0, 3.0]]])
    outputs = SimpleNamespace(logits=torch.zeros(2, 1, 2))
    assert squared_error(outputs, labels) == 5
    assert squared_error(outputs, labels, num_items_in_batch=10) == 1
    assert squared_error(outputs, torch.full_like(labels, -100)) == 0
