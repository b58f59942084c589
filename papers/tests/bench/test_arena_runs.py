"""The trainings on Long Range Arena compare models of about one size, and say what they leave out."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from lagwise.models import LagwiseConfig, LagwiseForImageClassification, LagwiseForSequenceClassification
from lagwise.training import load_recipe


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


def test_runs_without_data_are_named(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    trained: list[str] = []
    monkeypatch.setattr(script, "planned", lambda jobs, *rest: {name: {"steps": 3} for name in jobs})
    monkeypatch.setattr(script, "run", lambda name, *rest: trained.append(name))
    monkeypatch.setattr(script, "path_x", lambda given: trained.append("path-x"))
    monkeypatch.setattr(sys, "argv", ["arena.py", str(tmp_path), "--text", "imdb"])
    script.main()
    assert sorted(trained) == sorted([n for n in script.PLAN if n[0] in "tlp"] + ["path-x"])
    skipped = capsys.readouterr().err.splitlines()
    names = [line.split(":")[0] for line in skipped]
    assert names == ["image-tnn-2d", "image-ski-tnn", "retrieval-tnn", "retrieval-bytes"]
    assert skipped[-1].endswith("skipped, because its data are not given (--pairs)")


def test_bytes_tell_texts_of_other_bytes_apart(script: ModuleType, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    books = ["".join(rng.choice(list(letters), 3000)) for letters in ("abcd", "cdef", "efgh")]

    def row(number: int) -> str:
        one, other = rng.integers(3, size=2)
        texts = "\t".join("".join(rng.permutation(list(books[book]))[:2000]) for book in (one, other))
        return f"{int(one == other)}\t{number}\t{number}\t{texts}\n"

    for split in ("train", "eval", "test"):
        (tmp_path / f"new_aan_pairs.{split}.tsv").write_text("".join(map(row, range(60))))
    given = Namespace(pairs=str(tmp_path), results=tmp_path / "results.json")
    script.bytes_baseline(given)
    found: dict[str, Any] = json.loads(given.results.read_text())["results"]["retrieval-bytes"]
    assert found["rows_seen"] == 60
    assert found["scores"]["test"]["accuracy"] > 0.9


@pytest.mark.slow
def test_path_x_reports_the_memory_of_its_steps(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAGWISE_CACHE", str(tmp_path / "cache"))
    recipe, overrides = script._PATH_X
    short = ["training.steps=2", "training.batch_size=2", "training.accumulate=2", "training.log_every=1"]
    small = ["data.source=lra-path-x:300", "model.hidden_size=8", "model.num_hidden_layers=1"]
    monkeypatch.setattr(script, "_PATH_X", (recipe, [*overrides, *short, *small]))
    monkeypatch.setitem(sys.modules, "arena", script)
    given = Namespace(folder=tmp_path, results=tmp_path / "results.json")
    script.path_x(given)
    found = json.loads(given.results.read_text())["results"]["path-x-tnn-2d"]
    assert [step for step, _ in found["losses"]] == [1, 2]
    assert found["rows_seen"] == 4
    assert found["memory"] > 2**27
    (tmp_path / "results.json").unlink()  # stopped before the results were written
    script.path_x(given)
    assert json.loads(given.results.read_text())["results"]["path-x-tnn-2d"] == found
