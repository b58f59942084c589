"""Convolutions, state spaces and ALiBi's biases as Toeplitz mixers (TNN §3.4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lagwise.mixers import ToeplitzMixer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.ops import Layout, Modes, toeplitz_product
from lagwise.ops.attention import alibi_slopes, attention
from lagwise.ops.recurrence import Blocks

CHANNELS, LENGTH = 4, 30


def signal() -> Tensor:
    return torch.randn(2, LENGTH, CHANNELS, dtype=torch.float64)


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kernel", [{"name": "rpe"}, {"name": "frequency"}])
@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_a_gated_product_is_that_of_its_parts(kernel: dict[str, Any], causal: bool) -> None:
    mixer, (gate, value) = ToeplitzMixer(16, kernel=kernel, causal=causal), torch.randn(2, 2, LENGTH, 16)
    expected = nn.functional.silu(gate) * mixer(nn.functional.silu(value))
    torch.testing.assert_close(mixer.gated(gate, value, None, Layout()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.covers("TNN §3.2, §3.4 and eq. 10 to 12")
def test_a_causal_convolution() -> None:
    """Equations 10 to 12, against the framework's layer."""
    width = 7
    layer = nn.Conv1d(CHANNELS, CHANNELS, width, groups=CHANNELS, padding=width - 1, bias=False).double()
    mixer = ToeplitzMixer(CHANNELS, kernel={"name": "free", "max_length": LENGTH, "decay": 1.0}).double()
    with torch.no_grad():
        mixer.kernel.weight.zero_()
        mixer.kernel.weight[:, :width] = layer.weight[:, 0].flip(1)
    x = signal()
    same(mixer(x), layer(x.transpose(1, 2))[..., :LENGTH].transpose(1, 2))


@pytest.mark.covers("TNN §3.4 and eq. 13 to 16")
def test_a_state_space() -> None:
    """Equations 13 to 16, token by token: u_i = A u_{i-1} + B x_i, y_i = C u_i, S4D's A, B and C."""
    mixer = ToeplitzMixer(CHANNELS, kernel={"name": "s4d", "modes": 8}).double()
    with torch.no_grad():
        mixer.kernel.direct.zero_()
    modes: Modes = mixer.kernel.recurrence()
    x, state, outputs = signal(), torch.zeros(2, *modes.poles.shape, dtype=torch.complex128), []
    for t in range(LENGTH):
        state = modes.poles * state + x[:, t, :, None]
        outputs.append((modes.weights * state).sum(-1).real)
    same(mixer(x), torch.stack(outputs, 1))


@pytest.mark.covers("TNN §3.4 and eq. 9")
def test_alibi_without_queries_and_keys_is_a_decay() -> None:
    """Equation 9 without queries and keys: attention with only ALiBi's biases is a mean with exponential weights, so
    two Toeplitz products, of the values and of ones, give it exactly."""
    slope = float(alibi_slopes(1)[0])
    mixer = ToeplitzMixer(CHANNELS, kernel={"name": "free", "max_length": LENGTH, "decay": 1.0}).double()
    with torch.no_grad():
        mixer.kernel.weight.copy_((-slope * torch.arange(LENGTH, dtype=torch.float64)).exp().expand(CHANNELS, -1))
    x = signal()
    nothing = torch.zeros(2, 1, LENGTH, CHANNELS, dtype=torch.float64)
    attended = attention(nothing, nothing, x[:, None], causal=True, slopes=alibi_slopes(1), mask=None)[:, 0]
    same(mixer(x) / mixer(torch.ones_like(x)), attended)


def test_chunks_of_a_stream_share_the_blocks_of_a_state_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer to compute than a chunk to pass them."""
    made = []

    def count(modes: Modes, size: int) -> Blocks:
        made.append(size)
        return blocks(modes, size)

    blocks = Modes.blocks
    monkeypatch.setattr(Modes, "blocks", count)
    mixer, x = ToeplitzMixer(CHANNELS, kernel={"name": "s4d", "modes": 3}).double(), torch.cat([signal()] * 8, 1)
    with torch.no_grad():
        whole, state, parts = mixer(x), mixer.init_state(2), []
        for part in x.split([40, 50, 64, 33, 53], 1):
            y, state = mixer.prefill(part, state)
            parts.append(y)
    same(torch.cat(parts, 1), whole)
    assert made == [32]


@pytest.mark.parametrize("engine", ["block", "subquadratic"])
@pytest.mark.parametrize("mixer", [{"name": "gtu", "kernel": {"name": "rpe"}}, {"name": "ema", "dimension": 2}])
def test_saved_configurations_with_former_engines_load(mixer: dict[str, Any], engine: str, tmp_path: Path) -> None:
    spec = {"name": "prenorm", "token_mixer": {**mixer, "engine": "auto"}}
    model = LagwiseForCausalLM(LagwiseConfig(vocab_size=5, hidden_size=4, num_hidden_layers=1, block=spec)).eval()
    model.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"auto"', f'"{engine}"'))
    loaded, ids = LagwiseForCausalLM.from_pretrained(tmp_path).eval(), torch.arange(5)[None]
    assert loaded.config.block["token_mixer"]["engine"] == engine
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    with pytest.raises(ValueError, match="engine"):
        toeplitz_product(torch.zeros(1, 3, 2), torch.zeros(2, 3), engine=engine)
