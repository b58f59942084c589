"""The trainings on Long Range Arena compare models of about one size, and say what they leave out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from lagwise.data import read_labelled
from lagwise.models import LagwiseConfig, LagwiseForImageClassification, LagwiseForSequenceClassification
from lagwise.training import load_recipe
from lagwise_papers.bench.text_baselines import bag_of_bytes, majority
from lagwise_papers.data.published import ARENA


@pytest.fixture
def script(benchmark_script: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_script("arena")


def parameters(recipe: str, overrides: list[str]) -> tuple[int, LagwiseConfig]:
    fields = {"vocab_size": 258, **load_recipe(recipe, overrides).model}
    config = LagwiseConfig(**fields, causal=False, num_labels=2)
    head = LagwiseForImageClassification if config.input_name == "patches" else LagwiseForSequenceClassification
    with torch.device("meta"):
        return sum(p.numel() for p in head(config).parameters()), config


def test_models_of_a_task_have_about_one_size(script: ModuleType) -> None:
    configs: dict[str, Any] = {}
    for name, (recipe, overrides) in script.PLAN.items():
        without = ["model.ngram_sizes=[]"]  # their embeddings are 200 times as large as the rest
        size, configs[name] = parameters(recipe, [*overrides, *without])
        assert size == pytest.approx(parameters(recipe, without)[0], rel=0.16), name
    tnn, fd, ski = (configs[f"text-{word}tnn"].block for word in ("", "fd-", "ski-"))
    kernel = tnn["token_mixer"]["kernel"]
    for other in (fd, ski):  # nothing but the kernel and its product differ
        mixer = {key: value for key, value in other["token_mixer"].items() if key != "engine"}
        assert {**other, "token_mixer": {**mixer, "kernel": kernel}} == tnn


def test_bag_of_bytes_finds_texts_of_equal_letters(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for part, count in (("train", 200), ("eval", 10), ("test", 100)):
        lines = []
        for label in np.arange(count) % 2:
            one, other = (random.dirichlet(np.ones(10)) for _ in range(2))
            texts = ["".join(random.choice(list("éabcdefghi"), 400, p=p)) for p in (one, one if label else other)]
            lines.append("\t".join([str(label), "1", "2", *texts]) + "\n")
        (tmp_path / f"new_aan_pairs.{part}.tsv").write_text("".join(lines))
    rows = read_labelled(ARENA["aan"].open(str(tmp_path)), ("text1", "text2"), "label")
    assert majority(rows)["accuracy"] == 0.5
    assert bag_of_bytes(rows)["accuracy"] > 0.9
    with pytest.raises(ValueError, match="are numbers"):
        bag_of_bytes(replace(rows, label_names=None))
