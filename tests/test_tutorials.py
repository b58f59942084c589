"""The code of the README and of the documentation runs, on small data and with few steps.

Left out are commands that read benchmark data (`benchmarks/ecg.py`, docs/arena.md) or an electrocardiogram's run.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import wavfile
from test_docs import ROOT, blocks, command_lines

pytestmark = pytest.mark.slow
FEW = {"training.steps": 4, "training.evaluate_every": 4, "model.hidden_size": 32, "model.num_hidden_layers": 1}
TUTORIALS = tuple(f"docs/tutorials/{name}" for name in ("classify", "forecast", "language-model", "stream"))
SHELL = (
    "README",
    "docs/index",
    "docs/tasks",
    "docs/encoders",
    "docs/glue",
    "docs/pictures",
    "docs/signals",
    "docs/export",
)
PYTHON = (
    "README",
    "docs/index",
    "docs/concepts",
    "docs/clients",
    "docs/encoders",
    "docs/forecasting",
    "docs/pictures",
    *TUTORIALS,
    "docs/tutorials/kernel",
    "docs/tutorials/mixer",
)
# What a page takes as given, and packages that it needs beyond those of the tests.
GIVEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "docs/clients": (
        "from transformers import AutoModelForCausalLM\n"
        "draft = AutoModelForCausalLM.from_pretrained('runs/tnn-lm', trust_remote_code=True)",
        ("onnxscript", "onnxruntime"),
    ),
    "docs/encoders": ("", ("sentence_transformers",)),
    "docs/pictures": ("", ("torchvision",)),
    "docs/forecasting": ("import numpy as np\nX = np.random.default_rng(0).normal(size=(2000, 2))\nrow = X[:1]", ()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with the names used by the pages, and runs of the recipes that they continue from."""
    folder = tmp_path_factory.mktemp("reader")
    text = "\n".join(f"def name_{i}(x):\n    return x + {i * i}" for i in range(4000))
    (folder / "my.txt").write_text(text)
    (folder / "book.txt").write_text(text[:3000])
    reviews = [f"{'good' if i % 2 else 'bad'} film number {i},{i % 2}" for i in range(120)]
    rows = "".join(f"{row},{row}\n" for row in reviews)
    (folder / "reviews.csv").write_text("text,label,review,stars\n" + rows)
    (folder / "new.csv").write_text("review\n" + "\n".join(f"film {i}" for i in range(5)) + "\n")
    hours = "".join(f"2024-01-{1 + i // 24:02d} {i % 24:02d}:00,{i % 24},{i % 7}\n" for i in range(31 * 24))
    (folder / "my.csv").write_text("date,a,b\n" + hours)
    write_glue(folder / "glue" / "SST-2")
    write_pictures(folder)
    for name in ("sounds", "recordings", "new-sounds"):
        write_sounds(folder / name)
    lagwise(folder, ["train", "--data", "my.txt"])
    lagwise(folder, ["train", "--recipe", "tnn-mlm", "--data", "my.txt"])
    lagwise(folder, ["train", "--recipe", "classify", "--data", "reviews.csv", "task.text=review", "task.label=stars"])
    lagwise(folder, ["convert", "runs/tnn-lm", "--tolerance", "1e-3"])
    return folder


def write_glue(folder: Path) -> None:
    folder.mkdir(parents=True)
    rows = [f"a {'good' if i % 2 else 'bad'} film, number {i}\t{i % 2}" for i in range(200)]
    (folder / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows[:160]]) + "\n")
    (folder / "dev.tsv").write_text("\n".join(["sentence\tlabel", *rows[160:]]) + "\n")
    (folder / "test.tsv").write_text("index\tsentence\n0\ta film\n1\tanother film\n")


def write_pictures(folder: Path) -> None:
    """Bright and dark noise, in a folder for each."""
    rng = np.random.default_rng(0)
    for name, low in (("bright", 128), ("dark", 0)):
        (folder / "pictures" / name).mkdir(parents=True)
        for i in range(40):
            noise = rng.integers(low, low + 128, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(noise).save(folder / "pictures" / name / f"{i}.png")
    (folder / "new").mkdir()
    for path in (folder / "new" / "a.png", folder / "cat.png"):
        shutil.copy(folder / "pictures" / "dark" / "0.png", path)


def write_sounds(folder: Path) -> None:
    """Two tones, in a folder for each."""
    for name, tone in (("yes", 440.0), ("no", 880.0)):
        (folder / name).mkdir(parents=True)
        for i in range(20):
            wave = np.sin(2 * np.pi * tone * np.arange(800 + 10 * i) / 8000)
            wavfile.write(folder / name / f"{i}.wav", 8000, (wave * 20000).astype(np.int16))


def lagwise(folder: Path, words: list[str]) -> None:
    """Run a command with few steps and a narrow model."""
    if words[0] == "train" and "--resume" not in words:
        value = dict(itertools.pairwise(words))
        shutil.rmtree(folder / value.get("--out", f"runs/{value.get('--recipe', 'tnn-lm')}"), ignore_errors=True)
        given = " ".join(words)
        few = {**FEW, **({"data.vocab_size": 300} if "data.tokenizer=bpe" in words or "-mlm" in given else {})}
        if "init_from" in given:  # the sizes are those of the run
            few = {key: few[key] for key in few if key.startswith("training.")}
        words = [word for word in words if word.partition("=")[0] not in few]
        words += [f"{key}={value}" for key, value in few.items()]
    run([sys.executable, "-m", "lagwise", *words], folder)


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LAGWISE_CACHE": str(folder / "cache")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
    return result.stdout


@contextmanager
def served(folder: Path, words: list[str]) -> Iterator[int]:
    """The port of a server that a command starts, once it answers."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "lagwise", *words, "--port", str(port)]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        while True:
            assert server.poll() is None, (folder / "server.log").read_text()
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        yield port
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("page", [*SHELL, *TUTORIALS])
def test_the_commands_run(folder: Path, page: str) -> None:
    """All commands of a page run in their order; a server answers the page's `curl`."""
    code = "\n".join(blocks(ROOT / f"{page}.md", "sh"))
    if page == "docs/pictures":
        pytest.importorskip("torchvision")
    for words in command_lines(code):
        if words[0] == "export":
            pytest.importorskip("onnxscript")
            pytest.importorskip("onnxruntime")
        if words[0] == "serve":
            with served(folder, words) as port:
                for line in re.findall(r"^curl (?:.*\\\n)*.*$", code, re.MULTILINE):
                    answer = run(shlex.split(line.replace("8000", str(port)).replace("\\\n", " ")), folder)
                    assert json.loads(answer)["choices"][0]["text"]
        elif "runs/ecg" not in words and words[0] != "bench":
            lagwise(folder, [re.sub(r"^100000$", "100", word) for word in words])


@pytest.mark.parametrize("page", PYTHON)
def test_the_python_runs(folder: Path, page: str) -> None:
    """All blocks of a page run one after another in one program, and their imports are installed or skip the test."""
    given, modules = GIVEN.get(page, ("", ()))
    for module in modules:
        pytest.importorskip(module)
    run([sys.executable, "-c", "\n".join([given, *blocks(ROOT / f"{page}.md", "python")])], folder)


def test_openais_client_reads_from_the_server(folder: Path) -> None:
    pytest.importorskip("openai")
    (code,) = blocks(ROOT / "docs/serving.md", "python")
    with served(folder, ["serve", "runs/tnn-lm"]) as port:
        assert run([sys.executable, "-c", code.replace("8000", str(port))], folder)


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
