"""MEGA models saved by transformers 4.41 give the same logits as lagwise models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F
from typer.testing import CliRunner

import lagwise
from lagwise import (
    LagwiseForCausalLM,
    LagwiseForMaskedLM,
    LagwiseForSequenceClassification,
    LagwiseForTokenClassification,
)
from lagwise.cli.main import app
from lagwise.data import load_tokenizer
from lagwise.models import load_model
from lagwise.runs import predict_run
from lagwise_papers.imports import import_run
from lagwise_papers.imports.mega import from_mega

SAVED = Path(__file__).parent / "mega"
LANGUAGE = ("masked", "masked-laplace", "masked-one-sided", "causal", "causal-chunks")
HEADS: dict[str, type] = {
    "sequences": LagwiseForSequenceClassification,
    "tokens": LagwiseForTokenClassification,
    **{name: LagwiseForCausalLM if name.startswith("causal") else LagwiseForMaskedLM for name in LANGUAGE},
}
NAMES = tuple(HEADS)
every_model = pytest.mark.parametrize("name", NAMES)


def values(name: str = "masked") -> dict[str, Any]:
    return json.loads((SAVED / name / "config.json").read_text())


def expected(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    values = {name: torch.tensor(value) for name, value in json.loads((folder / "expected.json").read_text()).items()}
    outputs = {name: values.pop(name) for name in list(values) if name.endswith("logits")}
    return values, outputs


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """On the default device, where the inputs are."""
    return {
        name: value.to(torch.get_default_device()) for name, value in load_file(folder / "model.safetensors").items()
    }


def compare(model: Any, folder: Path) -> None:
    inputs, outputs = expected(folder)
    with torch.no_grad():
        found = model(**inputs)
    real = inputs["attention_mask"].bool()
    assert outputs
    for name, logits in outputs.items():
        of_tokens = logits.shape[: real.dim()] == real.shape  # at padding they have no meaning
        a, b = (t[real] if of_tokens else t for t in (found[name], logits))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.covers("MEGA §3.2, 3.3 and 3.4")
@every_model
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    result = import_run(SAVED / name, tmp_path / "run")
    assert "no_tokenizer" in result
    model = from_mega(values(name), weights(SAVED / name))
    assert type(model) is HEADS[name]
    assert result == {"model": type(model).__name__, "parameters": model.num_parameters(), **result}
    compare(model, SAVED / name)
    loaded = type(model).from_pretrained(tmp_path / "run")
    compare(loaded, SAVED / name)
    if name in LANGUAGE:
        tied = loaded.lm_head.weight is loaded.model.embed_tokens.weight
        assert tied == values(name).get("tie_word_embeddings", True)


def test_the_command_line(tmp_path: Path, device: torch.device) -> None:
    """It also copies the model's tokenizer."""
    shutil.copytree(SAVED / "masked", tmp_path / "mega")
    load_tokenizer("bytes").save_pretrained(tmp_path / "mega")
    out = tmp_path / "run"
    result = CliRunner().invoke(app, ["import", str(tmp_path / "mega"), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "LagwiseForMaskedLM" in result.output
    model, tokenizer = load_model(out, device=device)
    compare(model, SAVED / "masked")
    assert tokenizer is not None
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 24
    ids = torch.arange(40)[None].to(device) % model.config.vocab_size  # a vector of more tokens than it takes
    with torch.no_grad():
        parts = [model.base_model(ids[:, start : start + 24])[0][0] for start in (0, 12, 24)]
    mean = torch.cat([parts[0][:18], parts[1][6:18], parts[2][6:]]).mean(0)
    torch.testing.assert_close(lagwise.embed(model, tokenizer, [ids[0].tolist()])[0], F.normalize(mean, dim=0).cpu())
    with pytest.raises(FileExistsError, match="not empty"):
        import_run(SAVED / "masked", out)
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        import_run(tmp_path, tmp_path / "b")


LETTERS = ("<cls>", "<pad>", "<eos>", "<unk>", "<sep>", *"CGTANRY-")


def test_a_classifier_with_a_vocabulary_of_letters_is_a_run(tmp_path: Path, device: torch.device) -> None:
    """Small letters count as capitals, unknown ones as <unk>; several columns are joined by <sep>."""
    shutil.copytree(SAVED / "sequences", tmp_path / "mega")
    (tmp_path / "mega" / "vocab.txt").write_text("\n".join(LETTERS))
    columns = {"one": "acGt", "two": "NNX", "three": "T"}
    names = ["human", "swine", "avian"]
    result = import_run(tmp_path / "mega", tmp_path / "run", text=list(columns), labels=names)
    assert "no_tokenizer" not in result
    model, tokenizer = load_model(tmp_path / "run", device=device)
    assert tokenizer is not None
    assert (tokenizer.pad_token, tokenizer.eos_token, tokenizer.sep_token) == ("<pad>", "<eos>", "<sep>")
    ids = [8, 5, 6, 7, 4, 9, 9, 3, 4, 7]
    assert tokenizer("acGtNNX")["input_ids"] == [8, 5, 6, 7, 9, 9, 3]
    assert tokenizer.decode(ids[:4]) == "ACGT"
    with torch.no_grad():
        shares = model(torch.tensor([ids])).logits[0].softmax(0).tolist()
    found = predict_run(tmp_path / "run", [columns | {"host": "?"}], progress=False)[0]
    assert [found[f"p({name})"] for name in names] == pytest.approx(shares, abs=1e-5)
    with pytest.raises(ValueError, match="labels must be 3 different names"):
        import_run(tmp_path / "mega", tmp_path / "other", labels=["a", "b"])
    with pytest.raises(ValueError, match="text names columns of a classifier"):
        import_run(SAVED / "masked", tmp_path / "other", text=["seq"])
    (tmp_path / "mega" / "vocab.txt").write_text("\n".join([*LETTERS, *"abdefhijklmnop"]))
    assert "more than the model's 20" in import_run(tmp_path / "mega", tmp_path / "large")["no_tokenizer"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MegaModel"]}, "unknown architecture of MEGA: 'MegaModel'"),
        ({"model_type": "bert"}, "model of type 'bert', not 'mega'"),
        ({"normalize_before_mega": False}, "normalize_before_mega=False cannot be imported"),
        ({"is_decoder": True}, "is_decoder=True cannot be imported; of a MegaForMaskedLM it must be False"),
        ({"normalization_type": "rmsnorm"}, "multiplied and never divided"),
        ({"hidden_size": None}, "hidden_size must be an integer of at least 1, got None"),
        ({"activation": "linear"}, "unknown activation of MEGA: 'linear'"),
        ({"num_hidden_layers": 3}, "do not fit config.json: .*layers.2"),
        ({"max_positions": 20, "relative_positional_bias": "simple"}, "do not fit config.json: .*lag_table"),
    ],
)
def test_models_that_cannot_be_imported(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_mega({**values(), **changes}, weights(SAVED / "masked"))


def test_a_causal_model_that_depends_on_later_tokens_is_refused() -> None:
    given = weights(SAVED / "causal")
    with pytest.raises(ValueError, match="bidirectional=True cannot be imported; of a MegaForCausalLM"):
        from_mega({**values("causal"), "bidirectional": True}, given)
    with pytest.raises(ValueError, match=r"MEGA has no weight 'mega\.layers\.0\.extra'"):
        from_mega(values("causal"), {**given, "mega.layers.0.extra": torch.zeros(1)})
