"""The benchmarks of generation check streams, and that drafts do not change the text, before they time them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.mixers import ToeplitzMixer
from lagwise.models import LagwiseConfig, LagwiseForTokenClassification
from lagwise_papers.bench import generate
from lagwise_papers.bench.signal_speed import table_rows, time_signal
from lagwise_papers.bench.stream_peers import NStates, RingBuffer
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


@pytest.mark.slow
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


def model(**fields: Any) -> LagwiseForTokenClassification:
    block = {"name": "prenorm", "token_mixer": {"name": "ema", "dimension": 2}}
    config = {"hidden_size": 8, "num_hidden_layers": 1, "block": block, "num_labels": 3, **fields}
    inputs = {"name": "values", "features": 2, "stride": 4}
    return LagwiseForTokenClassification(LagwiseConfig(inputs=inputs, **config)).eval()


def test_every_chunk_size_is_timed() -> None:
    results = time_signal(model(), 100.0, 1.0, [1, 10])
    assert [r.chunk for r in results] == [1, 10]
    for r in results:
        assert 0 < r.median <= r.late <= r.worst
        assert r.real_time > 0
    assert [row[:2] for row in table_rows(results, 100.0)] == [("1", "0.01"), ("10", "0.1")]
    with pytest.raises(ValueError, match="too short for pushes of 500"):
        time_signal(model(), 100.0, 1.0, [500])


def test_a_wrong_stream_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = model()
    forward = type(wrong.model).forward

    def later(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = forward(self, *args, **kwargs)
        if kwargs.get("cache") is not None:
            out.last_hidden_state = out.last_hidden_state + torch.linspace(0, 3, 8)
        return out

    with torch.no_grad():
        wrong.classifier.weight.normal_()
    monkeypatch.setattr(type(wrong.model), "forward", later)
    with pytest.raises(ValueError, match="streaming differs by"):
        time_signal(wrong, 100.0, 1.0, [1])
