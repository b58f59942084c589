"""Blocks and units against their published formulas, written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.blocks import BLOCKS, GLU, MLP, PreNormBlock
from lagwise.mixers import GTU, AttentionMixer
from lagwise.ops import toeplitz_reference

KERNEL = {"name": "rpe", "hidden": 8, "layers": 1}
TABLE_7: dict[str, dict[str, Any]] = {
    "GTU + GLU": {"token_mixer": {"name": "gtu", "kernel": KERNEL}},
    "GTU only": {"token_mixer": {"name": "gtu", "kernel": KERNEL}, "channel_mixer": {"name": "none"}},
    "attention + GLU": {"token_mixer": {"name": "attention", "heads": 2}},
    "Transformer": {
        "token_mixer": {"name": "attention", "heads": 2},
        "channel_mixer": {"name": "mlp"},
        "norm": "layer",
    },
}
every_structure = pytest.mark.parametrize("options", TABLE_7.values(), ids=TABLE_7)


def affine(layer: nn.Linear, x: Tensor) -> Tensor:
    return x @ layer.weight.t() + layer.bias


def test_gtu_is_its_formula() -> None:
    """W_o (silu(W_u x) * T silu(W_v x)), T the dense Toeplitz matrices."""
    unit = GTU(6, expansion=2, kernel=KERNEL).double()
    x = torch.randn(2, 30, 6, dtype=torch.float64)
    mixed = toeplitz_reference(F.silu(affine(unit.value, x)), unit.toeplitz.kernel.taps(30))
    expected = affine(unit.out, F.silu(affine(unit.gate, x)) * mixed)
    torch.testing.assert_close(unit(x), expected, rtol=0, atol=1e-12)


def test_channel_mixers_are_their_formulas() -> None:
    x = torch.randn(3, 6)
    glu, mlp = GLU(6, expansion=2), MLP(6)
    torch.testing.assert_close(glu(x), affine(glu.out, F.silu(affine(glu.gate, x)) * affine(glu.value, x)))
    torch.testing.assert_close(mlp(x), affine(mlp.down, F.gelu(affine(mlp.up, x))))
    assert (glu.gate.out_features, mlp.up.out_features) == (12, 24)


def test_attention_mixer_is_torchs_own() -> None:
    mixer = AttentionMixer(8, heads=2, position="none")
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(mixer.qkv.weight)
        theirs.in_proj_bias.copy_(mixer.qkv.bias)
        theirs.out_proj.weight.copy_(mixer.out.weight)
        theirs.out_proj.bias.copy_(mixer.out.bias)
    x = torch.randn(2, 9, 8)
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    torch.testing.assert_close(mixer(x), theirs(x, x, x, attn_mask=future)[0], rtol=1e-4, atol=1e-5)


def test_prenorm_block_is_two_residual_layers() -> None:
    block = PreNormBlock(6, **TABLE_7["GTU + GLU"]).double()
    x = torch.randn(2, 20, 6, dtype=torch.float64)

    def norm(z: Tensor) -> Tensor:
        return z / (z.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    h = x + block.token_mixer(norm(x))
    torch.testing.assert_close(block(x), h + block.channel_mixer(norm(h)), rtol=0, atol=1e-12)
    assert not list(block.token_norm.parameters())


@every_structure
def test_structures_of_table_7(options: dict) -> None:
    block = PreNormBlock(6, **options)
    assert (block.channel_mixer is None) == (options.get("channel_mixer") == {"name": "none"})
    assert isinstance(block.token_mixer, GTU if options["token_mixer"]["name"] == "gtu" else AttentionMixer)


@every_structure
def test_blocks_stream_and_pad_like_their_mixers(options: dict) -> None:
    block = PreNormBlock(6, **options).double()
    x = torch.randn(2, 25, 6, dtype=torch.float64)
    whole = block(x)
    first, state = block.prefill(x[:, :10], block.init_state(2))
    parts = [first]
    for token in x[:, 10:].unbind(1):
        y, state = block.step(token, state)
        parts.append(y[:, None])
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-9)
    padded = torch.cat([torch.randn(2, 4, 6, dtype=torch.float64), x], 1)
    mask = torch.cat([torch.zeros(2, 4), torch.ones(2, 25)], 1)
    torch.testing.assert_close(block(padded, mask=mask)[:, 4:], whole, rtol=0, atol=1e-9)
    packed = block(torch.cat([x, x], 1), seq_idx=torch.tensor([[0] * 25 + [1] * 25] * 2))
    torch.testing.assert_close(packed, torch.cat([whole, whole], 1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_may_be_bidirectional(causal: bool) -> None:
    block = PreNormBlock(6, causal=causal, **TABLE_7["GTU + GLU"])
    x = torch.randn(1, 20, 6)
    changed = x.clone()
    changed[:, 15:] += 1
    moved = (block(changed) - block(x))[:, :15].abs().max()
    assert (moved < 1e-5) == causal


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "rmss"}, "did you mean 'rms'"),
        ({"token_mixer": {"name": "gtv"}}, "did you mean 'gtu'"),
        ({"channel_mixer": {"name": "glu", "expand": 2}}, "did you mean 'expansion'"),
        ({"token_mixer": {"name": "attention", "heads": 4}}, "heads must divide the 6 channels"),
        ({"token_mixer": {"name": "gtu", "expansion": 0}}, "at least one channel"),
        ({"channel_mixer": {"name": "mlp", "expansion": 0.01}}, "at least one channel"),
        ({"token_mixer": {"name": "gtu", "causal": False}}, "option of token mixer"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BLOCKS["prenorm"](6, **options)
