"""Tables are printed in full to any output, and escape sequences do not reach a terminal."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.cli.terminal import plain, print_table, write

HEAD = ("length", "method", "milliseconds", "quartiles", "times ours", "step memory")
ROWS = [(512, "lagwise", "12.3", "12.1-12.9", "1.00x", "120 MB"), (8192, "literal", 123.4, "0-9", "7.25x", "1,120 MB")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table("Forward [/x] and backward", HEAD, ROWS)
    assert capsys.readouterr().out == (
        "\nForward [/x] and backward\n"
        "length   method  milliseconds  quartiles  times ours  step memory\n"
        "512     lagwise          12.3  12.1-12.9       1.00x       120 MB\n"
        "8192    literal         123.4        0-9       7.25x     1,120 MB\n"
    )


def test_cells_stay_in_their_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("T", ("name", ""), [("a\nb\x1b[2Jc", "\u009b1mx"), ("", "é")])
    assert capsys.readouterr().out == "\nT\nname\na b[2Jc  1mx\n           é\n"


def test_paths_are_printed_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some printers interpret square brackets as markup."""
    speeds = {"before": 1.0, "after": 2.0}
    result = {"modes": 1, "tolerance": 0.1, "layers": [], "tokens_per_second": speeds, "out": "runs/[/x][bold]y"}
    monkeypatch.setattr("lagwise.runs.convert.convert_run", lambda *_, **__: result)
    assert "Written: runs/[/x][bold]y\n" in CliRunner().invoke(app, ["convert", str(tmp_path)]).output


def test_escape_sequences_do_not_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    for piece in ("a\x1b", "[31mred\x1b]0;title\x07", "\r\b\x7f\x85\x9b2J", "tab\tline\nnà€"):
        write(piece)
    assert terminal.getvalue() == "a[31mred]0;title2Jtab\tline\nnà€"


def test_escape_sequences_reach_a_file_and_other_characters_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    write("a\x1b[31m\r\n")
    assert capsys.readouterr().out == "a\x1b[31m\r\n"
    kept = [chr(i) for i in range(0x300) if plain(chr(i))]
    assert kept == ["\t", "\n", *map(chr, range(0x20, 0x7F)), *map(chr, range(0xA0, 0x300))]
