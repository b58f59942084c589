"""Run folders after damage to checkpoints, concurrent use, kills and full disks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from every_task import recipe
from safetensors.torch import load_file, save_file

from lagwise.files import LOCK, locked, read_json
from lagwise.models.loading import load_model
from lagwise.training import Recipe, read_metrics, resume, train
from lagwise.training import load_recipe as read_recipe
from lagwise.training import run as run_module
from lagwise.training.folder import checkpoints, note_content


@pytest.fixture
def half(tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was killed after the first of two checkpoints."""
    out = tmp_path / "half"
    monkeypatch.setattr(run_module, "finish", lambda trainer, recipe, data, out, progress: out)
    train(tiny_recipe, out, progress=False)
    monkeypatch.undo()
    shutil.rmtree(out / "checkpoint-6")
    return out


def test_a_run_goes_on_with_its_own_settings(half: Path) -> None:
    """Also where only the data have moved; what the log has is kept."""
    recipe, before = half / "recipe.yaml", (half / "metrics.jsonl").read_bytes()
    written = recipe.read_text()
    recipe.write_text(written.replace("beta2: 0.98", "beta2: 0.5"))
    with pytest.raises(ValueError, match=r"was begun with training\.beta2 0\.98, not 0\.5"):
        resume(half, progress=False)
    assert (half / "metrics.jsonl").read_bytes() == before
    source = Path(str(read_recipe(str(recipe)).data.source))
    (half.parent / "moved").mkdir()
    moved = shutil.copyfile(source, half.parent / "moved" / source.name)
    recipe.write_text(written.replace(str(source), str(moved)))
    resume(half, progress=False)


def test_weights_of_another_version_are_refused(half: Path) -> None:
    checkpoint = half / "checkpoint-3"
    weights = load_file(checkpoint / "model.safetensors")
    weights.popitem()
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    note_content(half, checkpoint)
    with pytest.raises(ValueError, match="do not fit the model"):
        resume(half, progress=False)


def test_only_one_process_can_use_a_run(tiny_recipe: Recipe, half: Path, tmp_path: Path) -> None:
    metrics = (half / "metrics.jsonl").read_bytes()
    with locked(half, "training"), pytest.raises(BlockingIOError, match="another process is training in"):
        resume(half, progress=False)
    with locked(tmp_path / "new", "training"), pytest.raises(BlockingIOError, match="another process is training in"):
        train(tiny_recipe, tmp_path / "new", progress=False)
    assert (half / "metrics.jsonl").read_bytes() == metrics
    train(tiny_recipe, tmp_path / "new", progress=False)


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    code = "import sys, pathlib, lagwise.files as f\nwith f.locked(pathlib.Path(sys.argv[1]), ''): print(1); input()"
    process = subprocess.Popen(
        [sys.executable, "-uc", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(BlockingIOError), locked(tmp_path, "testing"):
        pass
    (tmp_path / ".saving-dead").mkdir()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with locked(tmp_path, "testing"):
        assert not (tmp_path / ".saving-dead").exists()


def test_two_trainings_of_one_folder(tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds the folder empty, but the first finishes before the second begins."""
    original = run_module.make_trainer

    def overtaken(*args: object) -> object:
        monkeypatch.undo()
        train(tiny_recipe, tmp_path / "run", progress=False)
        return original(*args)

    monkeypatch.setattr(run_module, "make_trainer", overtaken)
    with pytest.raises(FileExistsError, match=r"holds a finished run: .*`init_from="):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert len({line["step"] for line in read_metrics(tmp_path / "run") if "loss" in line}) == 6


def test_a_folder_that_cannot_be_written_is_refused_before_the_data_are_read(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "open_data", lambda *_: pytest.fail("the data were read"))
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "a" / "run"):
        with pytest.raises(ValueError, match=r"`out` cannot be '.*': '.*file' is not a folder that can be written to"):
            train(tiny_recipe, out, progress=False)


def test_a_finished_run_without_checkpoints_is_left_unchanged(tiny_run: Path) -> None:
    for checkpoint in checkpoints(tiny_run):  # as a user does who needs the space
        shutil.rmtree(checkpoint)
    before = {f.name: f.read_bytes() for f in tiny_run.iterdir() if f.is_file()}
    resume(tiny_run, progress=False)
    assert {f.name: f.read_bytes() for f in tiny_run.iterdir() if f.is_file()} == before
    assert not checkpoints(tiny_run)


def test_a_run_that_was_killed_early_can_be_resumed_or_says_that_it_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "fit_first_answer", killed)
    with pytest.raises(KeyboardInterrupt):
        train(recipe("classes of text", tmp_path, "training.first_answer=only"), tmp_path / "first", progress=False)
    monkeypatch.undo()
    run = resume(tmp_path / "first", progress=False)
    assert load_model(run)[0].num_parameters() == read_json(run / "run.json")["parameters"]
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / LOCK).touch()
    with pytest.raises(FileNotFoundError, match="stopped before it saved anything, so start it anew"):
        resume(tmp_path / "killed", progress=False)


def test_weights_are_read_by_whom_the_umask_lets_read_them(tiny_recipe: Recipe, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run = train(tiny_recipe, tmp_path / "run", progress=False)
    finally:
        os.umask(before)
    weights = [*run.rglob("*.safetensors")]
    assert {file.name for file in weights} == {"model.safetensors"}
    assert {file.stat().st_mode & 0o777 for file in weights} == {0o644}
    if os.name == "posix" and os.geteuid() != 0:  # permissions bind this user
        (run / "model.safetensors").chmod(0)
        with pytest.raises(PermissionError):  # they are not called missing
            load_model(run)
