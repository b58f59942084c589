"""``lagwise bench`` has a user's tools everywhere, and comparisons with other methods in a clone of lagwise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lagwise.cli.bench import bench

ROOT = Path(__file__).parents[2]
OWN = ("tcn", "stream-signal", "drafts")
OTHERS = ("toeplitz", "ops", "ema-vs-tcn", "generate", "forecast", "glue", "lra", "serve")


def test_a_clone_has_all_commands() -> None:
    text = CliRunner().invoke(bench, ["--help"]).output
    assert all(f" {name} " in text for name in (*OWN, *OTHERS))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with lagwise alone, as a wheel installs it."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT / "src" / "lagwise", folder / "lagwise", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def lagwise(packages: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    command = [sys.executable, "-m", "lagwise", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_outside_a_clone_one_sentence_says_where_benchmarks_are(installed: Path, tmp_path: Path) -> None:
    text = lagwise(installed, tmp_path, "bench", "--help").stdout
    assert all(f" {name} " in text for name in OWN)
    assert " toeplitz " not in text
    result = lagwise(installed, tmp_path, "bench", "toeplitz", "--lengths", "8")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "lagwise bench toeplitz: benchmarks against other methods come with a clone of lagwise" in result.stderr


def test_an_installed_package_finds_the_clone_it_is_used_in(installed: Path) -> None:
    assert "--peer" in lagwise(installed, ROOT, "bench", "toeplitz", "--help").stdout


def test_an_unknown_command_of_a_clone_is_named() -> None:
    result = CliRunner().invoke(bench, ["nothing"])
    assert result.exit_code == 2
    assert "No such command 'nothing'" in result.output
