"""The code of the README and of the documentation runs, on small data and with few steps.

Left out are CONTRIBUTING, whose blocks are targets of the Makefile, the page on clusters, whose commands start several
processes (tests/training starts such), a web server's configuration, downloads, benchmarks of published sounds, and
what stands beside ours of other packages.
"""

from __future__ import annotations

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import reader_files
from test_docs import PAGES, ROOT, blocks, commands

pytestmark = pytest.mark.slow
CODE = [page for page in PAGES if page.stem not in ("CONTRIBUTING", "cluster") and blocks(page, "sh", "python")]
# Overrides of every training, and of recipes with a word in their names.
STEPS = {"training.steps": 4, "training.evaluate_every": 4}
FEW = {**STEPS, "model.hidden_size": 32, "model.num_hidden_layers": 1}
FEWER = {"mlm": {"data.vocab_size": 300}, "lra": {"training.batch_size": 4}}
# What makes commands short, and arguments that stand for others or for many rows.
SHORT = {
    "bench glue": "--tasks sst2 --seeds 1 --set training.steps=4 --set training.evaluate_every=4",
    "bench forecast": "--data illness",
    "bench serve": "--clients 2 --repeats 2 --no-batched",
    "data": "--rows 40",
    "watch": "--calibrate yesterday.log",
}
INSTEAD = {"100000": "100", "1e-4": "0.01", "FOLDER": "series", "lra-pathfinder:20000": "lra-pathfinder:40"}
# What the Python of a page takes as given, and the packages of a page beyond those of the tests.
LOADED = """
from transformers import AutoModelForCausalLM, AutoTokenizer
model = draft = AutoModelForCausalLM.from_pretrained("runs/best-lm", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("runs/best-lm", trust_remote_code=True)
"""
SERIES = """
import numpy as np
X = np.random.default_rng(0).normal(size=(2000, 2))
row = X[:1]
sales_north, sales_south = X[:, 0], X[:900, 1]
prices, sizes, other_prices = np.ones((2028, 2, 1)), np.ones((2, 1)), np.ones((28, 2, 1))
"""
DEVICE = """
import torch
class device:
    parts = [torch.randn(n, 2) for n in (0, 7, 1000)]
    def read():
        return device.parts.pop() if device.parts else None
values, days = torch.randn(30, 1), torch.arange(30.0)
"""
GIVEN = {"checking": LOADED, "clients": LOADED, "export": LOADED, "forecasting": SERIES, "signals": DEVICE}
PACKAGES = {
    "README": ["fastapi", "uvicorn", "onnxscript", "onnxruntime"],
    "clients": ["onnxscript", "onnxruntime"],
    "encoders": ["sentence_transformers"],
    "export": ["onnxscript", "onnxruntime", "emx_onnx_cgen"],
    "images": ["torchvision"],
    "serving": ["fastapi", "uvicorn", "openai"],
    "signals": ["wfdb"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with the names used by the pages, runs of the recipes that they continue from, and an installed package."""
    folder = tmp_path_factory.mktemp("reader")
    reader_files.write_files(folder)
    install_my_package(folder)
    for command in (
        "train --data my.txt",
        "train --data my.txt --recipe tnn-lm",
        "train --data my.txt --recipe mega-lm",
        "train --data my.txt --recipe tnn-mlm",
        "train --data my.txt --recipe transformer-mlm",
        "train --data reviews.csv --recipe classify task.text=review task.label=stars",
        "train --data sounds --recipe series",
        "convert runs/best-lm --tolerance 1e-3",
    ):
        lagwise(folder, command.split())
    for name, source in (("encoder", "tnn-mlm"), ("hyena", "best-lm")):  # in place of longer trainings and an import
        shutil.copytree(folder / "runs" / source, folder / "runs" / name)
    return folder


def install_my_package(folder: Path) -> None:
    """The first classes of the tutorials of kernels and mixers, in a package with the entry points of these."""
    info = folder / "my_package-1.0.dist-info"
    for directory in (info, folder / "my_package"):
        directory.mkdir()
    points = ""
    for name in ("kernel", "mixer"):
        page = ROOT / "docs" / "tutorials" / f"{name}.md"
        code = blocks(page, "python")[0].partition(f"register_{name}(")[0].replace(f", register_{name}", "")
        (folder / "my_package" / f"{name}s.py").write_text(code)
        for group, each in tomllib.loads(blocks(page, "toml")[0])["project"]["entry-points"].items():
            points += f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in each.items())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


def lagwise(folder: Path, words: list[str]) -> None:
    run([sys.executable, "-m", "lagwise", *shortened(folder, words)], folder)


def shortened(folder: Path, words: list[str]) -> list[str]:
    """The command with few steps and a narrow model, or with less data."""
    words = [INSTEAD.get(word, word) for word in words]
    options = dict(zip(words, [*words[1:], ""], strict=True))
    if words[0] == "train" and "--resume" not in words:
        recipe = options.get("--recipe", "best-lm")
        shutil.rmtree(folder / options.get("--out", f"runs/{recipe}"), ignore_errors=True)
        if "--data" not in words and recipe.startswith("lra-"):  # else generated, with all rows
            words += ["--data", recipe.removesuffix("-small") + ":40"]
        few = {**FEW, **({"data.vocab_size": 300} if "data.tokenizer=bpe" in words else {})}
        for part, more in FEWER.items():
            few |= more if part in recipe else {}
        if any("init_from" in word for word in words):  # the sizes are those of the run
            few = {key: value for key, value in few.items() if key.startswith("training.")}
        words = [word for word in words if word.partition("=")[0] not in few]
        return [*words, *written(few)]
    return words + next((more.split() for start, more in SHORT.items() if " ".join(words).startswith(start)), [])


def written(overrides: Mapping[str, int]) -> list[str]:
    return [f"{key}={value}" for key, value in overrides.items()]


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LAGWISE_CACHE": str(folder / "cache")}
    with (folder / "today.log").open() as lines:
        result = subprocess.run(
            command, cwd=folder, env=environment, stdin=lines, capture_output=True, text=True, check=False
        )
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


def python(folder: Path, page: Path, port: int = 8000) -> str:
    """What the Python of a page prints, one block after another, in one program."""
    own = [block for block in blocks(page, "python") if not block.startswith("# theirs")]
    code = "\n".join([GIVEN.get(page.stem, ""), *own])
    return run([sys.executable, "-c", code.replace("8000", str(port))], folder)


def requests(folder: Path, page: Path, model: str, port: int) -> None:
    """Send a page's requests for a model to its server, and those of its Python."""
    code = "\n".join(blocks(page, "sh"))
    if f'"{model}"' not in code:
        return
    for line in re.findall(r"^curl (?:.*\\\n)*.*$", code, re.MULTILINE):
        answer = run(shlex.split(line.replace("8000", str(port)).replace("\\\n", " ")), folder)
        assert json.loads(answer)["choices"][0]["text"]
    if "openai" in PACKAGES.get(page.stem, ()):
        assert python(folder, page, port)


def command(folder: Path, page: Path, words: list[str]) -> None:
    """Run one command of a page."""
    match words:
        case ["pip", "wheel", *_]:  # `make wheel-check` makes one
            pass
        case ["pip", "install", what, *_]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert set(what.partition("[")[2].rstrip("]").split(",")) <= {"", *extras}
        case ["lagwise", "serve", *_]:
            with served(folder, words[1:]) as port:
                requests(folder, page, Path(words[2]).name, port)
        case ["lagwise", "import", *_]:  # a download
            pass
        case ["lagwise", "watch", *rest]:  # standard input, as a file is followed until Ctrl-C
            lagwise(folder, ["watch", *(word for word in rest if word != "/var/log/syslog")])
        case ["trl", *_, out]:  # test_clients.py trains so
            shutil.copytree(folder / "runs" / "best-lm", folder / out)
        case ["lagwise", *rest]:
            lagwise(folder, rest)
        case ["python", "benchmarks/denoise.py" | "benchmarks/sound_rates.py", *_]:  # on Debian's packages of sounds
            pass
        case ["python", script, *rest]:
            few = written(STEPS) if rest[0] == "train" else []
            run([sys.executable, str(ROOT / script), *rest, *few], folder)
        case ["curl" | "make", *_]:  # see requests; other tests know the Makefile
            pass
        case _:
            raise AssertionError(f"{page.name}: {words} is not run")


@pytest.mark.parametrize("page", CODE, ids=lambda page: page.stem)
@pytest.mark.timeout(3600)
def test_the_code_of_a_page_runs(folder: Path, page: Path) -> None:
    """All commands in their order, and then all Python, unless it needs a server."""
    for module in PACKAGES.get(page.stem, ()):
        pytest.importorskip(module)
    for words in commands("\n".join(blocks(page, "sh"))):
        command(folder, page, words)
    if "openai" not in PACKAGES.get(page.stem, ()):
        python(folder, page)


def test_every_block_of_code_is_run() -> None:
    """Blocks without a language hold no commands, and there is no other language than those that are run."""
    for page in PAGES:
        for fence, inside in re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(), re.S | re.M):
            assert fence in ("sh", "python", "toml", "nginx", "bibtex", ""), f"{page.name}: {fence}"
            assert fence or not re.search(r"^(lagwise|python|pip|curl|import) ", inside, re.M), f"{page.name}: {inside}"
