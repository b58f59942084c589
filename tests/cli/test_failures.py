"""Every failure prints one line and exits with status 2."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer

from lagwise.cli import failures
from lagwise.models.export import EXPORTS, FORMATS

command_line = importlib.import_module("lagwise.cli.main")


class Panic(BaseException):
    """A stand-in for the exception that tokenizers raises on a panic."""


def outcome(app: typer.Typer, *arguments: object) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lagwise", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            failures.run(app)
    return stopped.value.code


def failing(error: BaseException) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def command() -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("`tf32` needs a GPU; leave `out` out", "training.tf32 needs a GPU; leave --out out"),
        ("name it with `label=stars`", "name it with task.label=stars"),
        ("give other data with `source`", "give other data with --data"),
        ("`init_from` and `tokenizer`", "model.init_from and data.tokenizer"),
        ("keep the copy (`copy`)", "keep the copy (`copy`)"),
        ("`length` is less than `stride`", "data.length is less than task.stride"),
        ("choose another `out`, or `folder=a`", "choose another --out, or `folder=a`"),
        ("a two-sided model (`causal=false`)", "a two-sided model (model.causal=false)"),
    ],
)
def test_arguments_in_messages_are_written_as_the_command_takes_them(
    message: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError(message)

    monkeypatch.setattr("lagwise.training.load_recipe", fail)
    assert outcome(command_line.app, "train") == 2
    assert capsys.readouterr().err == f"error: {line}\n"


def test_arguments_of_a_command_without_settings_are_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()

    @app.command()
    def one(look_back: int = 1, texts: Annotated[str, typer.Option("--data")] = "") -> None:
        raise ValueError("give `look_back`, `texts` or `other`")

    @app.command()
    def two() -> None:
        raise ValueError("give `look_back`")

    for command, message in (("one", "give --look-back, --data or `other`"), ("two", "give `look_back`")):
        assert outcome(app, command) == 2
        assert message in capsys.readouterr().err


def decoding_error() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


UNEXPECTED = "(LAGWISE_DEBUG=1 shows the traceback)"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("channels must be 1, got 2"), "channels must be 1, got 2"),
        (ValueError("first\n  second\r\n\tthird\x1b[31m"), "first second third[31m"),
        (ValueError("no folder '[/x] [bold]y'"), "no folder '[/x] [bold]y'"),
        (FileNotFoundError(2, "No such file", "a\nb"), r"[Errno 2] No such file: 'a\nb'"),
        (ImportError("no module; pip install it"), "no module; pip install it"),
        (
            ValueError("it grows: convert it to a state space first"),
            "it grows: convert it to a state space first (lagwise convert RUN)",
        ),
        (EOFError("cut short"), f"unexpected EOFError: cut short {UNEXPECTED}"),
        (MemoryError(), "not enough memory"),
        (RuntimeError("[x] DefaultCPUAllocator: can't allocate memory: 9"), "not enough memory: [x] DefaultCPU"),
        (RuntimeError("CUDA out of memory. Tried"), "not enough memory: CUDA out of memory. Tried"),
        (RuntimeError("unable to open file <a> (5)"), "unable to open file <a> (5)"),
        (RuntimeError("shapes differ"), f"unexpected RuntimeError: shapes differ {UNEXPECTED}"),
        (OverflowError("too large"), f"unexpected OverflowError: too large {UNEXPECTED}"),
        (RecursionError(), f"unexpected RecursionError {UNEXPECTED}"),
        (KeyError("config"), f"unexpected KeyError: 'config' {UNEXPECTED}"),
        (decoding_error(), f"unexpected UnicodeDecodeError: {decoding_error()} {UNEXPECTED}"),
        (json.JSONDecodeError("Expecting value", "", 0), "unexpected JSONDecodeError: Expecting value: line 1"),
        (Panic("capacity overflow"), f"unexpected Panic: capacity overflow {UNEXPECTED}"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_failure_is_one_line(capsys: pytest.CaptureFixture[str], error: BaseException, line: str) -> None:
    assert outcome(failing(error)) == 2
    printed = capsys.readouterr().err.strip("\n")
    assert printed.startswith(f"error: {line}")
    assert len(printed.splitlines()) == 1


def test_long_messages_are_shortened_in_the_middle(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(failing(ValueError("the beginning " + 10**5 * "x " + "the end"))) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: the beginning x")
    assert printed.endswith("the end\n")
    assert len(printed) < 700


def test_the_traceback_is_shown_on_request(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGWISE_DEBUG", "1")
    assert outcome(failing(KeyError("config"))) == 2
    printed = capsys.readouterr().err
    assert "Traceback (most recent call last)" in printed
    assert "raise error" in printed
    assert printed.splitlines()[-1].startswith("error: unexpected KeyError")


def test_an_interruption_is_not_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(failing(KeyboardInterrupt())) == 130
    assert outcome(failing(typer.Exit(3))) == 3
    assert capsys.readouterr().err == ""


RUN = "."
PATHS = [
    *(("train", option, "") for option in ("--data", "--recipe", "--out", "--resume")),
    *(("plot", ""), ("generate", ""), ("convert", ""), ("watch", RUN, "--state", "")),
    *(("convert", RUN, "--out", ""), ("bench", "ops", "--out", "")),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((path, "must not be empty") for path in PATHS),
        (("generate", RUN, "--temperature", "nan"), "'--temperature': must be at least 0, got nan"),
        (("generate", RUN, "--temperature", "inf"), "got inf"),
        (("generate", RUN, "--temperature", "-1"), "got -1.0"),
        (("generate", RUN, "--top-p", "nan"), "'--top-p': must be in (0, 1], got nan"),
        (("generate", RUN, "--top-p", "0"), "got 0.0"),
        (("generate", RUN, "--tokens", "0"), "'--tokens': must be in [1, 1000000000], got 0"),
        (("generate", RUN, "--tokens", "1e3"), "'--tokens'"),
        (("generate", RUN, "--seed", "-1"), "'--seed': must be in [0, 4294967295], got -1"),
        (("generate", RUN, "--seed", 10**30), "4294967295], got 1000"),
        (("generate", RUN, "--stop", "a", "--stop", ""), "'--stop': must not be empty"),
        (("convert", RUN, "--tolerance", "nan"), "'--tolerance': must be in (0, 1), got nan"),
        (("convert", RUN, "--tolerance", "1"), "got 1.0"),
        (("convert", RUN, "--max-order", "0"), "'--max-order': must be at least 1"),
        (("convert", RUN, "--lags", "-1"), "'--lags': must be at least 1, got -1"),
        (("evaluate", RUN, "--tokens", "1"), "'--tokens': must be at least 2, got 1"),
        (("evaluate", RUN, "--lengths", "1,0"), "--lengths are integers of at least 1"),
        (("evaluate", RUN, "--data", " "), "'--data': must not be empty"),
        (("watch", RUN, "--alarms", "1"), "'--alarms': must be in (0, 1), got 1.0"),
        (("watch", RUN, "no.log"), "there is no file 'no.log'"),
        (("bench", "tcn", "8192", "--tokens", "0"), "'--tokens': must be at least 1, got 0"),
        (("bench", "tcn", "1"), "must be at least 2, got 1"),
        (("bench", "toeplitz", "--channels", "-1"), "'--channels': must be at least 1"),
        (("bench", "toeplitz", "--repeats", "1"), "'--repeats': must be at least 2, got 1"),
        (("bench", "generate", "--threads", "100000"), "'--threads': must be in [1, 1024], got 100000"),
        (("generate", RUN, "--tempreture", "1"), "No such option: --tempreture; did you mean --temperature? (see"),
        (("train", "--device", "cuda"), "; a CUDA GPU is used if there is one, and the CPU with CUDA_VISIBLE_DEVICES="),
        (("train", "--batch-size", "4"), "; settings are written without dashes: training.batch_size=... (see"),
        (("train", "--model", "mega"), "; settings are written without dashes: model=... (see"),
        (("serve", RUN, "--model", "y"), "No such option: --model (see"),
        (("generat", RUN), "No such command 'generat'"),
        (("generate",), "Missing argument 'RUN'"),
    ],
    ids=str,
)
def test_options_are_checked_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple, message: str
) -> None:
    monkeypatch.chdir(tmp_path)  # what an empty path would stand for
    assert outcome(command_line.app, *arguments) == 2
    printed = capsys.readouterr().err.strip("\n")
    assert printed.startswith("error: ")
    assert message in printed
    assert "--help')" in printed
    assert len(printed.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("train", "training.step=3"), "did you mean 'steps'"),
    (("train", "--recipe", "clasify"), "unknown recipe: 'clasify'; did you mean 'classify'?"),
    (("recipes", "clasify"), "did you mean 'classify'?"),
    (("train", "--resume", ".", "training.steps=3"), "give no other options"),
    (("train", "--resume", "new"), "there is no folder 'new'"),
    *(((name, "new"), "there is no folder 'new'") for name in ("evaluate", "predict", "export", "serve", "plot")),
    (("generate", "~/new"), "there is no folder '~/new'"),
    (("predict", ".", "--text", "-"), "leave out --data and --text to read lines of standard input"),
    (("export", "."), "an ONNX file needs onnx: install lagwise[export]"),
    (("export", ".", "--format", "tflite"), f"--format': must be {' or '.join(FORMATS)}, got tflite"),
    (("export", ".", "--what", "steps"), f"--what': must be {' or '.join(EXPORTS)}, got steps"),
    (("train", "--data", "stdlib", "--out", "."), "is not empty"),
    (("train", "--data", "stdlib", "--out", "finished"), "holds a finished run"),
    (("train", "--data", "stdlib", "--out", "finished/config.json"), "not a folder"),
]
ASK = """
import json, sys
sys.modules["onnx"] = None
from lagwise.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as stopped:
        assert stopped.code == 2
    print("torch" in sys.modules, file=sys.stderr)
"""


def test_what_is_refused_at_once_loads_no_pytorch(tmp_path: Path) -> None:
    (tmp_path / "finished").mkdir()
    (tmp_path / "finished" / "config.json").write_text("{}")
    command = [sys.executable, "-c", ASK, json.dumps([arguments for arguments, _ in REFUSED])]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr.splitlines()
    for (arguments, message), line, loaded in zip(REFUSED, printed[::2], printed[1::2], strict=True):
        assert message in line, arguments
        assert loaded == "False", arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--recipe", "classify"), "give a file with --data, such as reviews.csv"),
        (("--data", "a.txt", "data.source=b.txt"), "give --data or data.source, not both"),
        (("--recipe", "forecast-tnn"), "give a table with --data, such as sensors.csv"),
        (("--out", "."), "resume it with --resume, or choose another --out; --resume auto begins or resumes a run"),
    ],
    ids=str,
)
def test_arguments_in_messages_are_written_as_options(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple, message: str
) -> None:
    (tmp_path / "own.txt").write_text("a file of mine")
    monkeypatch.chdir(tmp_path)
    assert outcome(command_line.app, "train", *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [(), ("bench",)])
def test_a_bare_command_shows_its_help(capsys: pytest.CaptureFixture[str], arguments: tuple) -> None:
    assert outcome(command_line.app, *arguments) == 2
    printed = capsys.readouterr()
    assert "Usage: " in printed.out
    assert printed.err == ""
