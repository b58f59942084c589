"""Exporting a run: files either give the model's logits or are removed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from needs import needs_onnx
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.data import load_tokenizer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, export
from lagwise.runs import export_run
from lagwise.training import Recipe
from lagwise.training.recipe import load_recipe

FORMATS = [pytest.param("onnx", marks=needs_onnx), "pt2"]
SLOWLY = [pytest.param("onnx", marks=[needs_onnx, pytest.mark.slow]), "pt2"]


@pytest.fixture
def saved_model(tiny_recipe: Recipe, tmp_path: Path) -> Path:
    return saved(tiny_recipe.model, tmp_path / "run")


def saved(options: dict, run: Path) -> Path:
    """A folder with a fresh model whose kernels reach 175 tokens."""
    kernel = options["block"]["token_mixer"]["kernel"]
    kernel["decay"] = 0.9
    LagwiseForCausalLM(LagwiseConfig(**options)).save_pretrained(run)
    load_tokenizer("bytes").save_pretrained(run)
    return run


@pytest.mark.parametrize("format", FORMATS)
def test_a_step_is_exported(saved_model: Path, format: str) -> None:
    result = CliRunner().invoke(app, ["export", str(saved_model), "--format", format])
    assert result.exit_code == 0, result.output
    out = saved_model.with_name("run-export")
    assert f"Written: {out / 'step'}.{format}" in result.output
    meta = json.loads((out / "export.json").read_text())
    figures = meta[f"step.{format}"]
    assert figures["checked_tokens"] > 175
    assert figures["difference"] < 1e-5
    assert figures["bytes"] == (out / f"step.{format}").stat().st_size
    assert figures["states"]["0.ring"][0] == "float32"
    assert (out / "tokenizer.json").is_file()
    assert meta["eos_token_id"] == 256
    (out / "export.json").write_text(json.dumps({**meta, "weights": "others", "forward.pt2": {}}))
    with pytest.raises(FileExistsError, match=r"has forward\.pt2 of another model"):
        export_run(saved_model, out, format=format)


def test_a_wrong_file_is_not_kept(saved_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(export.StreamingStep):
        def forward(self, tokens, state):
            logits, state = super().forward(tokens, state)
            return logits.roll(1, 1), state

    monkeypatch.setattr(export, "StreamingStep", Wrong)
    with pytest.raises(ValueError, match=r"outputs of the exported file differ"):
        export_run(saved_model, format="pt2")
    assert not saved_model.with_name("run-export").exists()


def test_models_that_cannot_be_exported(
    saved_model: Path, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="format"):
        export_run(saved_model, format="tflite")
    with pytest.raises(ValueError, match="what"):
        export_run(saved_model, what="step-by-step")
    endless = saved(tiny_recipe.model, saved_model.with_name("endless"))
    options = json.loads((endless / "config.json").read_text())
    options["block"]["token_mixer"]["kernel"]["decay"] = 1.0
    (endless / "config.json").write_text(json.dumps(options))
    with pytest.raises(ValueError, match=r"infinite support.*convert it to a state space first"):
        export_run(endless, format="pt2")
    occupied = saved_model.with_name("run-export")
    occupied.mkdir()
    (occupied / "mine.txt").touch()
    with pytest.raises(FileExistsError, match="choose another `out`"):
        export_run(saved_model, format="pt2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"needs onnx, onnxscript and onnxruntime: install lagwise\[export\]"):
        export_run(saved_model)


@pytest.mark.slow
@pytest.mark.parametrize("format", SLOWLY)
def test_a_forward_is_exported_for_any_length(saved_model: Path, format: str) -> None:
    figures = export_run(saved_model, format=format, what="forward")
    assert figures["difference"] < 1e-5
    assert figures["checked_tokens"] > 1000
    export_run(saved_model, format="pt2", what="step")
    meta = json.loads((saved_model.with_name("run-export") / "export.json").read_text())
    assert {f"forward.{format}", "step.pt2", "vocab_size"} <= meta.keys()


_RECIPES = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "megalodon-lm", "tcnca-lm", "converted")
_KERNELS = {"cema": "dimension", "s4d": "modes", "dss": "modes", "s4": "modes"}  # and their option of a size
_MIXERS = ("lru", "s5", "linear_attention", "short_conv", "gss", "hyena", "flash", "relative_attention")


def model_of(kind: str) -> Any:
    """A small model of a recipe, a kernel or a mixer."""
    if kind in _RECIPES:
        fields: dict[str, Any] = {
            **load_recipe("tnn-lm" if kind == "converted" else kind).model,
            "hidden_size": 32,
            "vocab_size": 258,
        }
        model = LagwiseForCausalLM(LagwiseConfig(**{**fields, "num_hidden_layers": 2})).eval()
        return model.to_recurrent() if kind == "converted" else model
    mixer: dict[str, Any] = {"name": kind}
    if kind in _KERNELS:
        mixer = {"name": "gtu", "expansion": 1, "kernel": {"name": kind, _KERNELS[kind]: 4}}
    elif kind == "hyena":
        mixer["kernel"] = {"name": "hyena", "span": 100}
    block = {"name": "prenorm", "token_mixer": mixer}
    return LagwiseForCausalLM(LagwiseConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, block=block)).eval()


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("what", ["step", "forward"])
@pytest.mark.parametrize("kind", [*_RECIPES, *_KERNELS, *_MIXERS])
def test_models_of_every_kind_are_exported_to_onnx(kind: str, what: str, tmp_path: Path) -> None:
    with torch.no_grad():
        difference = export.EXPORTS[what](model_of(kind), tmp_path / "model.onnx")["difference"]
    assert difference < (1e-4 if kind in _RECIPES else 1e-5)


@pytest.mark.slow
def test_a_forward_of_fixed_length_is_refused(tmp_path: Path) -> None:
    model = model_of("long_short")
    with torch.no_grad(), pytest.raises(ValueError, match="the exported file fails for 3 rows of length 131"):
        export.export_forward(model, tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("format", SLOWLY)
def test_a_converted_model_is_exported(saved_model: Path, format: str) -> None:
    """Its complex states are stored as pairs of real numbers."""
    model = LagwiseForCausalLM.from_pretrained(saved_model).to_recurrent(0.01)
    assert isinstance(model, LagwiseForCausalLM)
    with torch.no_grad():
        figures = export.export_step(model.eval(), saved_model / f"step.{format}")
    assert figures["difference"] < 1e-5
    assert figures["states"].keys() == {"0.real", "0.imaginary", "1.real", "1.imaginary"}


@pytest.mark.slow
@needs_onnx
def test_weights_beside_a_large_onnx_file_are_kept(saved_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch writes weights of more than 1.5 GB to a second file."""
    large = "torch.onnx._internal.exporter._onnx_program._LARGE_MODEL_THRESHOLD"
    with monkeypatch.context() as patch:
        patch.setattr(large, 1000)
        result = export_run(saved_model, what="forward")
    path = Path(result["out"])
    beside = path.with_name("forward.onnx.data")
    assert result["bytes"] == path.stat().st_size + beside.stat().st_size
    importlib.import_module("onnxruntime").InferenceSession(str(path))
    assert export_run(saved_model, what="forward")["bytes"] == path.stat().st_size
    assert not beside.exists()
