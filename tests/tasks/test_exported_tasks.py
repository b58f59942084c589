"""Every task's models are exported, trained ones and first answers alike, with padding where rows have lengths."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_task import CASES, recipe
from needs import needs_onnx

from lagwise.models import (
    load_model,
)
from lagwise.runs import export_run
from lagwise.training import train

LABELLED = [name for name, case in CASES.items() if case.task in ("sequence_classification", "image_classification")]
STREAMED = ("language_modelling", "associative_recall", "multi_query_recall")  # language models, exported elsewhere


def first_answer(name: str, tmp_path: Path) -> Path:
    return train(recipe(name, tmp_path / "data", "training.first_answer=only"), tmp_path / "run", progress=False)


@pytest.mark.slow
@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.task not in STREAMED])
def test_trained_models_are_exported(name: str, runs: dict[str, Path]) -> None:
    assert export_run(runs[name], format="pt2")["difference"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", LABELLED)
def test_first_answers_are_exported(name: str, tmp_path: Path) -> None:
    found = export_run(first_answer(name, tmp_path), format="pt2")
    assert found["difference"] < 1e-4
    about = json.loads((Path(found["out"]).parent / "export.json").read_text())
    labels = load_model(tmp_path / "run")[0].config.id2label
    assert about["labels"] == list(labels.values())


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("answer", ["none", "only"])
@pytest.mark.parametrize("name", ["classes of series", "classes of text", "numbers of pairs"])
def test_padded_rows_of_a_file_have_the_logits_of_rows_alone(
    name: str, answer: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = runs[name] if answer == "none" else first_answer(name, tmp_path)
    found = export_run(run)
    session = importlib.import_module("onnxruntime").InferenceSession(found["out"])
    model, _ = load_model(run)
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    for length in (9, 23, 4):
        x = torch.randint(256, (1, length))
        if name == "classes of series":
            inputs = model.config.inputs
            x = torch.randn(1, length * inputs.get("stride", 1), inputs["features"])
        types = {"token_type_ids": (torch.arange(length) >= length // 2).long()[None]} if "pairs" in name else {}
        rows.append({found["inputs"][0]: x, "attention_mask": torch.ones(1, length, dtype=torch.long), **types})
    batch = {key: padded([row[key] for row in rows]) for key in found["inputs"]}
    logits = torch.from_numpy(session.run(None, {key: value.numpy() for key, value in batch.items()})[0])
    with torch.no_grad():
        alone = torch.cat([model(**row).logits for row in rows])
    torch.testing.assert_close(logits, alone, rtol=1e-4, atol=1e-5)
    assert not np.allclose(alone[0], alone[1], rtol=1e-3)


def padded(rows: list[torch.Tensor]) -> torch.Tensor:
    """Rows ``(1, length, ...)`` as one batch, with zeros after the shorter ones."""
    made = torch.nn.utils.rnn.pad_sequence([row[0] for row in rows], batch_first=True)
    assert made.shape[0] == len(rows)
    return made


@pytest.mark.slow
def test_an_image_processor_is_written_beside_the_file(runs: dict[str, Path]) -> None:
    run = runs["classes of images"]
    found = export_run(run, format="pt2")
    assert (Path(found["out"]).parent / "preprocessor_config.json").is_file()
    with pytest.raises(ValueError, match="or a linear model of series, got LagwiseForImageClassification"):
        export_run(run, format="pt2", what="step")
