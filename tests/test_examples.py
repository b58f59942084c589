"""The examples for exported steps generate the model's text, and those of the gallery draw their figures."""

from __future__ import annotations

import html
import os
import re
import runpy
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from browser import needs_chromium, opened, served
from needs import needs_chip, needs_compiler, needs_onnx
from test_docs import script

from lagwise.data import load_tokenizer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, generate_text
from lagwise.models.loading import load_language_model
from lagwise.runs import export_run
from lagwise.training.recipe import load_recipe

EXAMPLES = Path(__file__).parent.parent / "examples"
# Where `npm install onnxruntime-web` has put it.
ONNXRUNTIME_WEB = Path(os.environ.get("LAGWISE_ONNXRUNTIME_WEB", EXAMPLES / "vendor"))
PROMPT, TOKENS = "the où ", 60


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an exported step."""
    run = tmp_path_factory.mktemp("runs") / "run"
    config = LagwiseConfig(**{**load_recipe("mega-lm").model, "hidden_size": 32, "num_hidden_layers": 2})
    torch.manual_seed(0)
    LagwiseForCausalLM(config).save_pretrained(run)
    load_tokenizer("bytes").save_pretrained(run)
    export_run(run)
    return run


@pytest.fixture(scope="module")
def expected(run: Path) -> str:
    return generate_text(*load_language_model(run), PROMPT, max_new_tokens=TOKENS, temperature=0)


gallery = script("gallery")


def examples() -> list[Any]:
    """The scripts of the gallery, of which the quickest on real data runs by default."""
    marks = {"neuron_on_a_chip": [needs_chip, needs_compiler, pytest.mark.slow], "watch_log": []}
    return [
        pytest.param(path, marks=marks.get(path.stem, pytest.mark.slow), id=path.stem) for path in gallery.scripts()
    ]


@pytest.mark.parametrize("example", examples())
def test_an_example_draws_its_figure(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with plt.rc_context({"backend": "Agg"}):
        runpy.run_path(str(example), run_name="__main__")
    drawn = plt.imread(f"{example.stem}.png")
    committed = plt.imread(EXAMPLES.parent / "docs" / "figures" / f"{example.stem}.png")
    assert drawn.shape == committed.shape
    assert drawn[..., :3].std() > 0.05  # not blank


def test_the_gallery_shows_every_example() -> None:
    assert gallery.PAGE.read_text() == gallery.page(), "run `make docs`"
    assert len(gallery.scripts()) >= 3
    for path in EXAMPLES.glob("*.py"):
        assert path.name in gallery.page()


@pytest.mark.slow
@needs_onnx
def test_python_streams_without_torch(run: Path, expected: str) -> None:
    arguments = [str(EXAMPLES / "stream_onnx.py"), f"{run}-export", "--prompt", PROMPT, "--tokens", str(TOKENS)]
    code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0]); assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code, *arguments, "--temperature", "0"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.rstrip("\n") == expected.rstrip("\N{REPLACEMENT CHARACTER}")


@needs_onnx
@pytest.mark.slow
@needs_chromium
@pytest.mark.skipif(not (ONNXRUNTIME_WEB / "ort.wasm.min.js").is_file(), reason="onnxruntime-web is not installed")
def test_a_browser_streams(run: Path, expected: str, tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "stream_onnx.html", tmp_path)
    (tmp_path / "vendor").symlink_to(ONNXRUNTIME_WEB)
    (tmp_path / "model").symlink_to(f"{run}-export")
    query = urllib.parse.urlencode({"prompt": PROMPT, "tokens": TOKENS, "temperature": 0})
    with served(tmp_path) as address:
        page, console = opened(f"{address}stream_onnx.html?{query}", tmp_path / "profile", seconds=60)
    status, text = (re.search(rf'id="{name}">(.*?)</', page, re.S) for name in ("status", "text"))
    assert status is not None, console
    assert text is not None
    assert re.fullmatch(r"(\d+|Infinity) tokens/s", status[1]), status[1]  # in virtual time the clock may stand still
    assert html.unescape(text[1]) == expected.rstrip("\N{REPLACEMENT CHARACTER}")
