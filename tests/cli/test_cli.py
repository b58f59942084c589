"""The command line from the user's perspective."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.data import load_tokenizer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.training import Recipe, recipe_names
from lagwise.training.trainer import LagwiseTrainer

runner = CliRunner()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], ["train", "evaluate", "generate", "plot", "bench", "recipes"]),
        (["train"], ["--data", "--recipe", "--resume", "torchrun", "training.steps=5000"]),
        (["evaluate"], ["--lengths", "runs/tnn-lm"]),
        (["generate"], ["--prompt", "--temperature", "--stop", "--prompt-file"]),
        (["plot"], ["report.html"]),
        (["bench", "toeplitz"], ["--peer", "module:factory", "--out"]),
    ],
)
def test_help_shows_examples(command: list[str], words: list[str]) -> None:
    result = runner.invoke(app, [*command, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0
    for word in words:
        assert word in result.output, word


def test_an_interrupted_training_prints_how_to_resume(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    recipe, run = tmp_path / "mine.yaml", tmp_path / "my run"
    recipe.write_text(tiny_recipe.to_yaml())
    monkeypatch.setattr(LagwiseTrainer, "_save_checkpoint", stopped)
    result = runner.invoke(app, ["train", "--recipe", str(recipe), "--out", str(run)])
    assert f"lagwise train --resume '{run}'" in result.output
    unfinished = runner.invoke(app, ["generate", str(run)])
    assert "has not finished" in str(unfinished.exception)


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).output.startswith("lagwise 0.")


def test_recipes_are_listed_and_shown() -> None:
    own, every = (runner.invoke(app, ["recipes", *more]).output.splitlines() for more in ([], ["--all"]))
    listed = [line.split()[0] for line in own if line.partition(" ")[0] in recipe_names()]
    assert len(listed) == 13
    assert {"tnn-lm", "classify"} <= {*listed}
    assert "--all" in own[-1]
    assert [line.split()[0] for line in every] == [*listed, *(each for each in recipe_names() if each not in listed)]
    shown = runner.invoke(app, ["recipes", "tnn-lm"]).output
    assert "learning_rate: 0.004" in shown
    assert "# training.clip: Largest gradient norm" in shown


def test_a_run_is_evaluated_continues_texts_and_is_plotted(tiny_run: Path) -> None:
    for command, options, expected in (
        ("evaluate", ["--lengths", "32,64"], "bits/byte"),
        ("evaluate", ["--lengths", "32", "--tokens", "300", "--learn", "0.01"], "after each score, length 32"),
        ("generate", ["--prompt", "the ", "--tokens", "8", "--seed", "1"], "the "),
        ("plot", [], "report.html"),
    ):
        assert expected in runner.invoke(app, [command, str(tiny_run), *options], catch_exceptions=False).output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    block = {"name": "prenorm", "token_mixer": {"name": "attention"}}
    config = LagwiseConfig(hidden_size=16, num_hidden_layers=1, max_position_embeddings=64, block=block)
    LagwiseForCausalLM(config).save_pretrained(folder)
    load_tokenizer("bytes").save_pretrained(folder)
    return folder


class TestGenerate:
    def test_text_goes_to_stdout_and_speeds_to_stderr(self, run: Path) -> None:
        result = runner.invoke(app, ["generate", str(run), "--prompt", "the ", "--tokens", "9", "--temperature", "0"])
        assert result.exit_code == 0
        assert result.stdout.startswith("the ")
        assert "tokens" not in result.stdout
        assert "prompt: 4 tokens in 0." in result.stderr
        assert "added: 9" in result.stderr
        assert "tokens/s" in result.stderr

    def test_a_prompt_from_a_file_is_not_repeated(self, run: Path, tmp_path: Path) -> None:
        file = tmp_path / "prompt.txt"
        file.write_text("où \n", encoding="utf-8")
        options = ["--tokens", "9", "--temperature", "0"]
        whole = runner.invoke(app, ["generate", str(run), "--prompt", "où \n", *options]).stdout
        for source, given in ((str(file), None), ("-", "où \n")):
            result = runner.invoke(app, ["generate", str(run), "--prompt-file", source, *options], input=given)
            assert "où \n" + result.stdout == whole

    def test_it_stops_before_a_stop_text(self, run: Path) -> None:
        options = ["--tokens", "30", "--seed", "1", "--temperature", "1.5"]
        said = runner.invoke(app, ["generate", str(run), "--prompt", "the ", *options]).stdout
        place = next(i for i in range(8, len(said)) if "\ufffd" not in said[i : i + 2])
        text = said[place : place + 2]
        stops = ["--stop", "nothing of the kind", "--stop", text]
        stopped = runner.invoke(app, ["generate", str(run), "--prompt", "the ", *options, *stops]).stdout
        assert stopped == said[: said.index(text, 4)] + "\n"

    def test_invalid_options(self, run: Path, tmp_path: Path) -> None:
        latin = tmp_path / "latin.txt"
        latin.write_bytes("où".encode("latin-1"))
        for options, message in (
            (["--prompt", "a", "--prompt-file", latin], "not both"),
            (["--prompt-file", latin], "latin.txt is not UTF-8 (byte 1 is 0xf9); convert it"),
            (["--prompt-file", tmp_path / "nothing.txt"], "No such file"),
            (["--prompt", "a" * 60], "the prompt has 60, so at most 4 can be added"),
            (["--stop", ""], "must not be empty"),
        ):
            result = runner.invoke(app, ["generate", str(run), *map(str, options)], env={"COLUMNS": "200"})
            assert result.exit_code != 0
            assert message in result.output + str(result.exception)
            assert "aaa" not in result.stdout


@pytest.mark.slow
def test_a_converted_run_streams_in_constant_memory(tiny_recipe: Recipe, tmp_path: Path) -> None:
    recipe, trained, out = tmp_path / "mine.yaml", tmp_path / "run", tmp_path / "converted"
    recipe.write_text(tiny_recipe.to_yaml())
    decay = "model.block.token_mixer.kernel.decay=0.9"
    runner.invoke(app, ["train", "--recipe", str(recipe), "--out", str(trained), "training.steps=3", decay])
    convert = ["convert", str(trained), "--out", str(out), "--tolerance"]
    result = runner.invoke(app, [*convert, "0.01"], catch_exceptions=False)
    for words in ("states: min / median / max", "Tokens/s", "Written"):
        assert words in result.output
    figures = json.loads((out / "conversion.json").read_text())
    assert all(layer["error"] <= 0.01 for layer in figures["layers"])
    assert runner.invoke(app, [*convert, "0.1"]).exit_code == 0  # an earlier conversion may be replaced
    text = runner.invoke(app, ["generate", str(out), "--tokens", "5", "--seed", "1"], catch_exceptions=False)
    assert text.exit_code == 0
    assert "bits/byte" in runner.invoke(app, ["evaluate", str(out), "--lengths", "32"]).output
    result = runner.invoke(app, ["train", "--resume", str(out)])
    assert "is a conversion, not a run to resume" in str(result.exception)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("not to be lost")
    result = runner.invoke(app, ["convert", str(trained), "--out", str(tmp_path / "mine")])
    assert isinstance(result.exception, FileExistsError)
    assert [f.name for f in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
