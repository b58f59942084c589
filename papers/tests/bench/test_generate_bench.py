"""The benchmark of generation checks streaming before it times it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.mixers import ToeplitzMixer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.ops import toeplitz_product
from lagwise_papers.bench import generate
from lagwise_papers.bench.future_fill import ContinuousFutureFill, EpochedFutureFill, future_fill
from lagwise_papers.bench.stream_peers import NStates, RingBuffer, replace_toeplitz
from lagwise_papers.bench.streams import BASELINES, EXACT, LAYERS, RECOMPUTE, Layer, state_bytes
from lagwise_papers.bench.whole_streams import LAGWISE, PEERS, OnlineStream, StreamFactory


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


def test_state_bytes_count_all_storage() -> None:
    layer = Layer(ToeplitzMixer(4, kernel={"name": "modal", "modes": 8}), 3)
    memory = 2 * 3 * 8 * 4 * 4  # real and imaginary parts; the poles belong to the mixer
    assert state_bytes(layer.state) == memory
    assert state_bytes((layer.state, layer.state)) == memory


@pytest.mark.parametrize("length", [1, 50, 700])
@pytest.mark.parametrize(
    "make", [OnlineStream, EpochedFutureFill, ContinuousFutureFill, lambda *a: ContinuousFutureFill(*a, tile=1)]
)
@torch.no_grad()
def test_whole_streams_equal_the_product(make: StreamFactory, length: int) -> None:
    taps, x = torch.randn(3, length, dtype=torch.float64), torch.randn(2, length, 3, dtype=torch.float64)
    stream = make(taps, 2)
    y = torch.cat([stream.step(token) for token in x.split(1, dim=1)], dim=1)
    torch.testing.assert_close(y, toeplitz_product(x, taps), rtol=0, atol=1e-10)


def test_future_fill_is_its_sum() -> None:
    inputs, taps = torch.randn(2, 9, 3, dtype=torch.float64), torch.randn(3, 20, dtype=torch.float64)
    expected = [sum(inputs[:, j] * taps[:, 9 + s - 1 - j] for j in range(9)) for s in range(1, 6)]
    torch.testing.assert_close(future_fill(inputs, taps, 5), torch.stack(expected, 1), rtol=0, atol=1e-12)


def test_whole_streams_are_checked_and_timed_beside_a_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs.py").write_text(
        "from lagwise_papers.bench.future_fill import EpochedFutureFill as exact\n\n\n"
        "def wrong(taps, batch):\n    return exact(1.01 * taps, batch)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "streams.json"
    arguments = ["bench", "generate", "--what", "streams", "--lengths", "150", "--batches", "2", "--channels", "4"]
    arguments += ["--repeats", "2", "--threads", "1"]
    result = CliRunner().invoke(app, [*arguments, "--peer", "theirs:exact", "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["results"]["streams"]["batch 2"]
    assert [row["method"] for row in rows] == [LAGWISE, *PEERS, "theirs:exact"]
    assert all(0 < row["token"]["median"] <= row["slowest"] for row in rows)
    few = ["--lengths", "60,150", "--most-tokens", "200", "--no-baselines", "--out", str(out)]
    assert CliRunner().invoke(app, [*arguments, *few]).exit_code == 0
    rows = json.loads(out.read_text())["results"]["streams"]["batch 2"]
    assert [(row["method"], row["length"]) for row in rows] == [(LAGWISE, 60)]
    wrong = CliRunner().invoke(app, [*arguments, "--peer", "theirs:wrong"])
    assert "theirs:wrong differs from the product of the whole text" in str(wrong.exception)
    other = CliRunner().invoke(app, ["bench", "generate", "--peer", "theirs:exact"])
    assert "needs --what streams" in str(other.exception)
