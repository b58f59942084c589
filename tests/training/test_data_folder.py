"""Runs that were killed early, and folders that others must be able to read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lagwise.files import LOCK, read_json
from lagwise.models.loading import load_model
from lagwise.training import load_recipe, resume, train
from lagwise.training import run as run_module

_SHORT = ["training.steps=4", "training.save_every=2", "training.evaluate_every=2", "training.batch_size=4"]
_SMALL = [*_SHORT, "model.hidden_size=8", "model.num_hidden_layers=1", "training.report_to=none"]


def _texts(folder: Path) -> list[str]:
    (folder / "book.txt").write_text("".join(f"line {i} of a book\n" for i in range(600)))
    return ["data.length=32", "training.evaluate_tokens=256"]


def _classes_of_texts(folder: Path) -> list[str]:
    for i in range(40):
        file = folder / ["no", "yes"][i % 2] / f"{i}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{'good' if i % 2 else 'bad'} film {i}")
    return ["data.length=16"]


def test_a_run_that_was_killed_early_can_be_resumed_or_says_that_it_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe("classify", [*_classes_of_texts(tmp_path), *_SMALL, "training.first_answer=only"])
    recipe.data.source = str(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "fit_first_answer", killed)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "runs" / "first", progress=False)
    monkeypatch.undo()
    run = resume(tmp_path / "runs" / "first", progress=False)
    assert load_model(run)[0].num_parameters() == read_json(run / "run.json")["parameters"]
    (tmp_path / "runs" / "killed").mkdir()
    (tmp_path / "runs" / "killed" / LOCK).touch()
    with pytest.raises(FileNotFoundError, match="stopped before it saved anything, so start it anew"):
        resume(tmp_path / "runs" / "killed", progress=False)


def test_weights_are_read_by_whom_the_umask_lets_read_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        recipe = load_recipe("tnn-lm", [*_texts(tmp_path), *_SMALL, "data.source=book.txt"])
        recipe.data.source = str(tmp_path / "book.txt")
        run = train(recipe, tmp_path / "run", progress=False)
    finally:
        os.umask(before)
    weights = [*run.rglob("*.safetensors")]
    assert {file.name for file in weights} == {"model.safetensors"}
    assert {file.stat().st_mode & 0o777 for file in weights} == {0o644}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_weights_that_may_not_be_read_are_not_called_missing(tmp_path: Path) -> None:
    recipe = load_recipe("tnn-lm", [*_texts(tmp_path), *_SMALL])
    recipe.data.source = str(tmp_path / "book.txt")
    run = train(recipe, tmp_path / "run", progress=False)
    (run / "model.safetensors").chmod(0)
    with pytest.raises(PermissionError):
        load_model(run)
