"""``lagwise bench`` is there where lagwise-papers is installed."""

from __future__ import annotations

from test_without_papers import REMEDY, output
from typer.testing import CliRunner

from lagwise.cli.main import app

NAMES = (
    "tcn",
    "stream-signal",
    "drafts",
    "toeplitz",
    "ops",
    "ema-vs-tcn",
    "generate",
    "forecast",
    "glue",
    "lra",
    "serve",
)


def test_every_command_is_listed() -> None:
    text = CliRunner().invoke(app, ["bench", "--help"]).output
    assert all(f" {name} " in text for name in NAMES)


def test_without_the_package_one_sentence_says_what_to_install() -> None:
    code = "sys.argv[1:] = ['bench', 'tcn', '8']; from lagwise.cli import main; main()"
    assert output(code, hidden=True) == f"error: command 'bench' {REMEDY}, in a clone of lagwise"


def test_an_unknown_command_is_named() -> None:
    result = CliRunner().invoke(app, ["bench", "nothing"])
    assert result.exit_code == 2
    assert "No such command 'nothing'" in result.output
