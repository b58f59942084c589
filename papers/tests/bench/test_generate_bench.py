"""The benchmarks of generation check streams, and that drafts do not change the text, before they time them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.mixers import ToeplitzMixer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.training import Recipe, train
from lagwise_papers.bench import generate
from lagwise_papers.bench.drafts import table_rows, time_drafts
from lagwise_papers.bench.stream_peers import NStates, RingBuffer, replace_toeplitz
from lagwise_papers.bench.streams import BASELINES, EXACT, LAYERS, RECOMPUTE


@pytest.mark.parametrize("peer", [RingBuffer, lambda mixer: NStates(mixer, 400)])
@torch.no_grad()
def test_baselines_equal_the_layer_they_replace(peer: type) -> None:
    mixer = ToeplitzMixer(6, kernel={"name": "rpe", "decay": 1.0}).double()
    other, x = peer(mixer), torch.randn(3, 390, 6, dtype=torch.float64)
    _, state = other.prefill(x[:, :250], other.init_state(3))
    tokens = []
    for token in x[:, 250:].unbind(1):
        y, state = other.step(token, state)
        tokens.append(y)
    torch.testing.assert_close(torch.stack(tokens, 1), mixer(x)[:, 250:], rtol=0, atol=1e-9)


def test_baselines_replace_mixers() -> None:
    model = LagwiseForCausalLM(LagwiseConfig(vocab_size=20, hidden_size=8, num_hidden_layers=2)).eval()
    ids = torch.randint(20, (1, 30))
    before = model(ids).logits
    replace_toeplitz(model, RingBuffer)
    out = model(ids[:, :20], use_cache=True)
    for token in ids[:, 20:].split(1, 1):
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
    torch.testing.assert_close(out.logits[:, -1], before[:, -1], rtol=1e-4, atol=1e-5)
    assert sum(isinstance(m, RingBuffer) for m in model.modules()) == 2


def test_every_layer_is_checked_and_timed(tmp_path: Path) -> None:
    out = tmp_path / "generate.json"
    arguments = ["--lengths", "40", "--batches", "1,2", "--what", "layers", "--channels", "16", "--repeats", "2"]
    result = CliRunner().invoke(app, ["bench", "generate", *arguments, "--threads", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["results"]["layers"]
    assert {row["method"] for row in rows} == {*LAYERS, *BASELINES, RECOMPUTE}
    assert len(rows) == 2 * (len(LAYERS) + len(BASELINES) + 1)
    assert all(row["token"]["median"] > 0 for row in rows)
    assert out.with_suffix(".png").stat().st_size > 10_000


def test_wrong_streams_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    step = ToeplitzMixer.step
    monkeypatch.setattr(ToeplitzMixer, "step", lambda *a: (1.01 * (out := step(*a))[0], out[1]))
    with pytest.raises(ValueError, match=f"streaming of {EXACT} differs from its forward pass.*not timed"):
        generate.time_generation("layers", [40], [1], channels=16, repeats=2, progress=False)
    with pytest.raises(ValueError, match="what must be layers or models"):
        generate.time_generation("blocks", [40], [1])


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


def test_the_command_of_drafts(tiny_recipe: Recipe, tmp_path: Path) -> None:
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    out = tmp_path / "drafts.json"
    arguments = ["bench", "drafts", run, "--draft", run, "--sizes", 2, "--prompts", 1, "--tokens", 4, "--repeats", 2]
    result = CliRunner().invoke(app, [*map(str, arguments), "--prompt-tokens", "20", "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["results"]["rows"]
    assert [(row["method"], row["draft_tokens"]) for row in rows] == [("none", 0), ("model", 2), ("lookup", 2)]
