"""MEGA models saved by transformers 4.41 give the same logits as lagwise models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from lagwise import LagwiseForCausalLM, LagwiseForMaskedLM
from lagwise.cli.main import app
from lagwise.data import load_tokenizer
from lagwise.models import load_model
from lagwise.models.mega_import import from_mega
from lagwise.runs import import_run

SAVED = Path(__file__).parent / "mega"
NAMES = ("masked", "masked-laplace", "masked-one-sided", "causal", "causal-chunks")
every_model = pytest.mark.parametrize("name", NAMES)


def values(name: str = "masked") -> dict[str, Any]:
    return json.loads((SAVED / name / "config.json").read_text())


def expected(folder: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    inputs = {name: torch.tensor(value) for name, value in json.loads((folder / "expected.json").read_text()).items()}
    return inputs, inputs.pop("logits")


def compare(model: Any, folder: Path) -> None:
    inputs, logits = expected(folder)
    with torch.no_grad():
        found = model(**inputs).logits
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[real], logits[real], rtol=1e-5, atol=1e-5)


@pytest.mark.covers("MEGA §3.2, 3.3 and 3.4")
@every_model
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    result = import_run(SAVED / name, tmp_path / "run")
    assert "no_tokenizer" in result
    model = from_mega(values(name), load_file(SAVED / name / "model.safetensors"))
    assert type(model) is (LagwiseForCausalLM if name.startswith("causal") else LagwiseForMaskedLM)
    assert result == {"model": type(model).__name__, "parameters": model.num_parameters(), **result}
    compare(model, SAVED / name)
    loaded = type(model).from_pretrained(tmp_path / "run")
    compare(loaded, SAVED / name)
    tied = loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert tied == values(name).get("tie_word_embeddings", True)


@pytest.mark.parametrize("name", ["causal", "causal-chunks"])
def test_a_causal_model_streams(name: str) -> None:
    model: Any = from_mega(values(name), load_file(SAVED / name / "model.safetensors"))
    inputs, logits = expected(SAVED / name)
    ids, cache = inputs["input_ids"], None
    for start, end in ((0, 5), (5, 6), (6, 16)):
        out = model(ids[:, start:end], past_key_values=cache)
        cache = out.past_key_values
        torch.testing.assert_close(out.logits, logits[:, start:end], rtol=1e-5, atol=1e-5)
    assert model.generate(ids[:, :3], max_new_tokens=5, min_new_tokens=5, do_sample=False).shape == (2, 8)


def test_the_command_line(tmp_path: Path) -> None:
    """It also copies the model's tokenizer."""
    shutil.copytree(SAVED / "masked", tmp_path / "mega")
    load_tokenizer("bytes").save_pretrained(tmp_path / "mega")
    out = tmp_path / "run"
    result = CliRunner().invoke(app, ["import", str(tmp_path / "mega"), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "LagwiseForMaskedLM" in result.output
    model, tokenizer = load_model(out)
    compare(model, SAVED / "masked")
    assert tokenizer is not None
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 24
    with pytest.raises(FileExistsError, match="not empty"):
        import_run(SAVED / "masked", out)
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        import_run(tmp_path, tmp_path / "b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MegaModel"]}, "unknown architecture of MEGA: 'MegaModel'"),
        ({"architectures": None}, "unknown architecture of MEGA: None"),
        ({"model_type": "bert"}, "model of type 'bert', not 'mega'"),
        ({"normalize_before_mega": False}, "normalize_before_mega=False cannot be imported"),
        ({"is_decoder": True}, "is_decoder=True cannot be imported; of a MegaForMaskedLM it must be False"),
        ({"add_cross_attention": True}, "add_cross_attention=True cannot be imported"),
        ({"normalization_type": "rmsnorm"}, "multiplied and never divided"),
        ({"hidden_size": None}, "hidden_size must be a whole number of at least 1, got None"),
        ({"chunk_size": None}, "chunk_size must be a whole number"),
        ({"activation": "linear"}, "unknown activation of MEGA: 'linear'"),
        ({"num_hidden_layers": 3}, "do not fit config.json: .*layers.2"),
        ({"max_positions": 20, "relative_positional_bias": "simple"}, "do not fit config.json: .*lag_table"),
    ],
)
def test_models_that_cannot_be_imported(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_mega({**values(), **changes}, load_file(SAVED / "masked" / "model.safetensors"))


def test_a_causal_model_that_depends_on_later_tokens_is_refused() -> None:
    weights = load_file(SAVED / "causal" / "model.safetensors")
    with pytest.raises(ValueError, match="bidirectional=True cannot be imported; of a MegaForCausalLM"):
        from_mega({**values("causal"), "bidirectional": True}, weights)
    with pytest.raises(ValueError, match=r"MEGA has no weight 'mega\.layers\.0\.extra'"):
        from_mega(values("causal"), {**weights, "mega.layers.0.extra": torch.zeros(1)})


@pytest.mark.slow
@pytest.mark.skipif(
    "LAGWISE_MEGA_PYTHON" not in os.environ, reason="names no Python with transformers 4.41 to make them"
)
def test_models_newly_made_by_transformers(tmp_path: Path) -> None:
    subprocess.run([os.environ["LAGWISE_MEGA_PYTHON"], SAVED / "make.py", tmp_path], check=True)
    for name in NAMES:
        compare(from_mega(values(name), load_file(tmp_path / name / "model.safetensors")), tmp_path / name)
