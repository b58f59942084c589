"""Steps of signal models as C code, in float32 and in 8-bit integers, are the models' streams."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import needs_chip, needs_compiler
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.compiler import find_compiler
from lagwise.models import (
    LagwiseConfig,
    LagwiseForSequenceClassification,
    LagwiseForSignalRegression,
    LagwiseForTokenClassification,
    load_model,
)
from lagwise.models.signal_stream import SignalStep, outputs_of_steps
from lagwise.runs import convert_run, export_run

MIXERS: list[dict[str, Any]] = [
    {"name": "tcn", "kernel_size": 3, "dilation": 2, "depth": 2, "norm": "rms"},
    {"name": "ema", "dimension": 2},
    {"name": "gtu", "expansion": 1, "kernel": {"name": "rpe", "layers": 1, "hidden": 4, "decay": 0.5}},
]
INPUTS = {"name": "values", "features": 2, "stride": 3, "mean": [1.0, -2.0], "std": [0.5, 3.0]}
HEADS: dict[str, tuple[type, dict[str, Any]]] = {
    "labels": (LagwiseForTokenClassification, {"num_labels": 3}),
    "mean": (LagwiseForSequenceClassification, {"num_labels": 3, "pooling": "mean"}),
    "ends": (LagwiseForSequenceClassification, {"num_labels": 3, "pooling": "ends"}),
    "first": (LagwiseForSequenceClassification, {"num_labels": 3, "pooling": "first"}),
    "last": (LagwiseForSequenceClassification, {"num_labels": 3, "problem_type": "multi_label_classification"}),
    "signal": (LagwiseForSignalRegression, {"outputs": {"features": 1, "delay": 4, "window": 16}}),
    "numbers": (LagwiseForSignalRegression, {"outputs": {"features": 2}}),
}


def model_of(head: str, mixers: list[dict[str, Any]] = MIXERS, **changes: Any) -> Any:
    """A small model in evaluation mode, with weights large enough for an answer that depends on the inputs."""
    kind, options = HEADS[head]
    pooling = {"pooling": "last"} if head == "last" else {}
    blocks = [{"name": "prenorm", "norm": "layer", "token_mixer": mixer} for mixer in mixers]
    torch.manual_seed(0)
    options = {"block": {"name": "chain", "blocks": blocks}, "inputs": INPUTS, **options, **pooling, **changes}
    model = kind(LagwiseConfig(hidden_size=8, num_hidden_layers=1, initializer_range=0.3, **options))
    if head in ("signal", "numbers"):
        torch.nn.init.normal_(model.outputs.direct.weight)
    return model.eval()


def recording(model: Any, steps: int) -> torch.Tensor:
    x = torch.randn(3 * steps, 2, generator=torch.Generator().manual_seed(1)) * 2
    return x.masked_fill(torch.rand(x.shape) < 0.1, float("nan")) if isinstance(model, HEADS["signal"][0]) else x


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_steps_of_fixed_shapes_are_the_stream(head: str) -> None:
    model = model_of(head)
    x, step = recording(model, 40), SignalStep(model)
    state, made = step.start(1), []
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
    for samples in x.split(3):
        outputs, state = step(samples, state)
        made.append(outputs)
        assert {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()} == shapes
    expected = outputs_of_steps(model, x).reshape(40, *step.shape)
    torch.testing.assert_close(torch.stack(made), expected, rtol=1e-5, atol=1e-6)


@needs_chip
@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("head", ["labels", "mean", "signal"])
def test_the_c_code_streams_as_the_model_does(head: str, tmp_path: Path) -> None:
    """A converted model's code, compiled with all warnings as errors and with sanitizers, over a whole recording."""
    model_of(head).save_pretrained(tmp_path / "run")
    certificate = convert_run(tmp_path / "run", 0.01, progress=False)["layers"][0]
    figures = export_run(tmp_path / "run-recurrent", tmp_path / "c", format="c")
    assert figures["difference"] < 1e-5
    assert figures["flash_bytes"] > figures["constant_bytes"] > 0
    assert figures["multiplications"] > 1000
    header = (tmp_path / "c" / "step.h").read_text()
    assert f"bound {certificate['bound']:.1e}, measured error {certificate['error']:.1e}" in header
    compiled(tmp_path / "c")
    model, _ = load_model(tmp_path / "run-recurrent")
    x = recording(model, 700)
    expected = outputs_of_steps(model, x).numpy()
    raw = subprocess.run([tmp_path / "c" / "check", "-"], input=x.numpy().tobytes(), capture_output=True, check=True)
    np.testing.assert_allclose(np.frombuffer(raw.stdout, np.float32).reshape(expected.shape), expected, atol=1e-5)
    text = (tmp_path / "c" / "main.c").read_text()
    (tmp_path / "c" / "main.c").write_text(re.sub(r"(expected\[.*\n)\S+,", r"\g<1>0x1.8p+9f,", text))
    compiled(tmp_path / "c", status=1)


def compiled(folder: Path, status: int = 0) -> None:
    """Compile the folder's code as `check`, and run it: it compares a test vector."""
    compiler = find_compiler()
    assert compiler is not None
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([*compiler, *flags, "step.c", "main.c", "-lm", "-o", "check"], cwd=folder, check=True)
    assert subprocess.run([folder / "check"], capture_output=True).returncode == status


@needs_chip
@needs_compiler
@pytest.mark.slow
def test_movements_are_recognised_in_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the page on exports: an accelerometer and a gyroscope, from files to code of 8-bit integers."""
    sktime = pytest.importorskip("sktime")
    monkeypatch.chdir(tmp_path)
    data = Path(sktime.__file__).parent / "datasets" / "data" / "BasicMotions"
    trained = ["train", "--recipe", "chip", "--data", str(data), "--out", "runs/chip", "training.least_steps=200"]
    for command in (trained, ["export", "runs/chip", "--format", "c", "--quantize", "int8"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    printed = re.search(r"accuracy: ([\d.]+) in 8-bit integers, ([\d.]+) in float32", result.output)
    assert printed is not None, result.output
    assert float(printed[2]) >= 0.8
    assert abs(float(printed[1]) - float(printed[2])) <= 0.1
    assert json.loads(Path("runs/chip/run.json").read_text())["parameters"] <= 20_000
    figures = json.loads(Path("runs/chip-export/export.json").read_text())["step.c"]
    assert figures["constant_bytes"] < 40_000  # of 16,000 parameters
    compiled(Path("runs/chip-export").resolve())


@pytest.mark.slow
def test_executorch_streams_as_the_model_does(tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    model_of("labels").save_pretrained(tmp_path / "run")
    assert export_run(tmp_path / "run", format="executorch")["difference"] < 1e-5


def refusal(head: str, folder: Path, mixers: list[dict[str, Any]] = MIXERS, **changes: Any) -> str:
    model_of(head, mixers, **changes).save_pretrained(folder)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        export_run(folder, format="pt2", what="step")
    return str(error.value)


def test_models_without_a_step_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "causal" in refusal("mean", tmp_path / "two-sided", [MIXERS[0]], causal=False)
    attention = [{"name": "attention"}]
    assert "grows with the text" in refusal("labels", tmp_path / "attention", attention)
    timed = {"inputs": {"name": "values", "features": 2, "time": 1.0}}
    assert "equally spaced" in refusal("labels", tmp_path / "timed", [MIXERS[1]], **timed)
    run = tmp_path / "two-sided"
    with pytest.raises(ValueError, match="a forward pass has no fixed shapes"):
        export_run(run, format="pt2", what="forward", quantize="int8")
    with pytest.raises(ValueError, match="int8 is for the steps of signals as onnx or c"):
        export_run(run, format="pt2", quantize="int8")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if "cgen" in name or "exec" in name else found(name)
    )
    with pytest.raises(ImportError, match=r"C code needs emx-onnx-cgen: install lagwise\[chip\]"):
        export_run(run, format="c")
    with pytest.raises(ImportError, match=r"ExecuTorch needs executorch: install lagwise\[executorch\]"):
        export_run(run, format="executorch")
