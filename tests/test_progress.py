"""Progress is shown as a bar in a terminal and as a few lines in a file."""

from __future__ import annotations

import io
import sys

import pytest

from lagwise import progress
from lagwise.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A fake clock for tqdm."""
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


def test_a_file_gets_occasional_lines(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    monkeypatch.setenv("COLUMNS", "20")
    with progress_bar(desc="training", total=1000, unit="step", show=True) as bar:
        for _ in range(1000):
            clock[0] += 0.1
            bar.update()
            bar.set_postfix({"loss": "1.234"}, refresh=False)
    written = file.getvalue()
    assert "\r" not in written
    assert "\x1b" not in written
    assert written.endswith("\n")
    lines = written.splitlines()
    assert 9 <= len(lines) <= 1 + 100 / progress.LINE_SECONDS
    assert all(line.startswith("training: ") and line.endswith("loss=1.234]") for line in lines[1:])
    assert "1000/1000" in lines[-1]


def test_a_short_job_gets_one_line_and_a_terminal_a_bar(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    for stderr in (file := io.StringIO(), terminal := Terminal()):
        monkeypatch.setattr(sys, "stderr", stderr)
        assert list(progress_bar([1, 2, 3], desc="lengths", show=True)) == [1, 2, 3]
    assert len(file.getvalue().splitlines()) == 1
    assert "3/3" in file.getvalue()
    assert terminal.getvalue().startswith("\rlengths:   0%|")


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_progress_can_be_disabled(kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", file := kind())
    assert list(progress_bar([1, 2, 3], show=False)) == [1, 2, 3]
    with progress_bar(total=3, show=False) as bar:
        bar.update(3)
    assert file.getvalue() == ""


def test_only_the_progress_module_uses_tqdm(request: pytest.FixtureRequest) -> None:
    package = request.config.rootpath / "src" / "lagwise"
    users = [path.name for path in package.rglob("*.py") if "import tqdm" in path.read_text()]
    assert users == ["progress.py"]
