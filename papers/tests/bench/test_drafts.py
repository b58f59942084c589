"""The benchmark of assisted decoding checks that drafts do not change the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.training import Recipe, train
from lagwise_papers.bench.drafts import table_rows, time_drafts

FIELDS = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "block": {"name": "mega"}}


def test_a_perfect_draft_needs_few_forwards() -> None:
    model = LagwiseForCausalLM(LagwiseConfig(**FIELDS)).eval()
    prompts = list(torch.randint(20, (2, 12)))
    plain, *drafted = time_drafts(model, model, prompts, sizes=[4], new_tokens=12, repeats=2, progress=False)
    assert (plain.method, plain.forwards_per_token, plain.equal) == ("none", 1.0, 1.0)
    assert [row.method for row in drafted] == ["model", "lookup"]
    assert all(row.equal == 1 for row in drafted)
    assert len(table_rows([plain, *drafted])) == 3


def test_drafts_that_change_the_text_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, draft = (LagwiseForCausalLM(LagwiseConfig(**FIELDS)).eval() for _ in range(2))
    generate = model.generate

    def wrong(*args: object, **options: object) -> torch.Tensor:
        text = generate(*args, **options).clone()
        text[:, -1] += (1 if text[0, -1] < 19 else -1) * ("assistant_model" in options)
        return text

    monkeypatch.setattr(model, "generate", wrong)
    with pytest.raises(ValueError, match=r"drafts of \('model', 2\) change the text"):
        time_drafts(model, draft, [torch.tensor([1, 2])], sizes=[2], new_tokens=2, repeats=2, progress=False)


def test_the_command(tiny_recipe: Recipe, tmp_path: Path) -> None:
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    out = tmp_path / "drafts.json"
    arguments = ["bench", "drafts", run, "--draft", run, "--sizes", 2, "--prompts", 1, "--tokens", 4, "--repeats", 2]
    result = CliRunner().invoke(app, [*map(str, arguments), "--prompt-tokens", "20", "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["results"]["rows"]
    assert [(row["method"], row["draft_tokens"]) for row in rows] == [("none", 0), ("model", 2), ("lookup", 2)]
