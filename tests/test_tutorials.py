"""The code of the tutorials and first pages runs, on small data and with few steps."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from test_docs import ROOT, blocks, command_lines

pytestmark = pytest.mark.slow
FEW = {"training.steps": 4, "training.evaluate_every": 4, "model.hidden_size": 32, "model.num_hidden_layers": 1}
TUTORIALS = ("classify", "forecast", "kernel", "language-model", "mixer", "stream")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with the names used by the pages, and runs of the recipes that they continue from."""
    folder = tmp_path_factory.mktemp("reader")
    text = "\n".join(f"def name_{i}(x):\n    return x + {i * i}" for i in range(4000))
    (folder / "my.txt").write_text(text)
    (folder / "book.txt").write_text(text[:3000])
    rows = "".join(f"{'good' if i % 2 else 'bad'} film number {i},{i % 2}\n" for i in range(120))
    (folder / "reviews.csv").write_text("review,stars\n" + rows)
    (folder / "new.csv").write_text("review\n" + "\n".join(f"film {i}" for i in range(5)) + "\n")
    hours = "".join(f"2024-01-{1 + i // 24:02d} {i % 24:02d}:00,{i % 24},{i % 7}\n" for i in range(31 * 24))
    (folder / "my.csv").write_text("date,a,b\n" + hours)
    lagwise(folder, ["train", "--data", "my.txt"])
    lagwise(folder, ["train", "--recipe", "classify", "--data", "reviews.csv", "task.text=review", "task.label=stars"])
    lagwise(folder, ["convert", "runs/tnn-lm", "--tolerance", "1e-3"])
    return folder


def lagwise(folder: Path, words: list[str]) -> None:
    """Run a command with few steps and a narrow model."""
    if words[0] == "train" and "--resume" not in words:
        value = dict(itertools.pairwise(words))
        shutil.rmtree(folder / value.get("--out", f"runs/{value.get('--recipe', 'tnn-lm')}"), ignore_errors=True)
        few = {**FEW, **({"data.vocab_size": 300} if "data.tokenizer=bpe" in words else {})}
        words = [word for word in words if word.partition("=")[0] not in few]
        words += [f"{key}={value}" for key, value in few.items()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LAGWISE_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "lagwise", *words]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"lagwise {' '.join(words)}\n{result.stdout[-2000:]}{result.stderr[-2000:]}"


@pytest.mark.parametrize("name", ["classify", "forecast", "language-model"])
def test_the_commands_run(folder: Path, name: str) -> None:
    for code in blocks(ROOT / "docs" / "tutorials" / f"{name}.md", "sh"):
        for words in command_lines(code):
            lagwise(folder, words)


@pytest.mark.parametrize("page", ["README", "docs/index", "docs/concepts", *(f"docs/tutorials/{t}" for t in TUTORIALS)])
def test_the_python_runs(folder: Path, page: str) -> None:
    """All blocks of a page run one after another in one program."""
    code = "\n".join(blocks(ROOT / f"{page}.md", "python"))
    command, environment = [sys.executable, "-c", code], {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]


def test_the_command_line_finds_the_kernel_of_a_package(folder: Path) -> None:
    """The kernel tutorial's class, in a package with the tutorial's entry point."""
    page = ROOT / "docs" / "tutorials" / "kernel.md"
    kernel = blocks(page, "python")[0].partition("register_kernel(")[0].replace(", register_kernel", "")
    groups = tomllib.loads(blocks(page, "toml")[0])["project"]["entry-points"]
    points = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in each.items()) for group, each in groups.items()]
    files = {
        "my_package/__init__.py": "",
        "my_package/kernels.py": kernel,
        "my_package-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n",
        "my_package-1.0.dist-info/entry_points.txt": "\n".join(points),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for code in blocks(page, "sh"):
        for words in command_lines(code):
            lagwise(folder, words)
