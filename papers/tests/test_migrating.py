"""Layers of mega-pytorch, tnn-pytorch and safari against ours with the same weights (papers/docs/migrating.md)."""

from __future__ import annotations

from typing import Any

import peer_layers as peers
import pytest
import torch
from torch import Tensor

from lagwise.blocks import BLOCKS
from lagwise.mixers import MIXERS
from lagwise.tables import build

WIDTH, LENGTH = 6, 160


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


def loaded(module: Any, weights: dict[str, Tensor]) -> Any:
    module.double().load_state_dict({name: value.double() for name, value in weights.items()})
    return module.eval()


def same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * float(theirs.detach().abs().max()))


def test_a_layer_of_mega_pytorch() -> None:
    """The package's own, whole and streamed."""
    package = pytest.importorskip("mega_pytorch")
    model = package.Mega(
        dim=WIDTH, num_tokens=9, depth=1, pre_norm=True, ema_heads=3, attn_dim_qk=4, attn_dim_value=5
    ).double()
    block = build(BLOCKS, peers.mega_block(WIDTH, 3, 4, 5, LENGTH), WIDTH, what="block", causal=True)
    ours = loaded(block, peers.mega_weights(model.layers[0].state_dict(), LENGTH))
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    layer, norm, feed_forward, second = model.layers[0]
    theirs = layer(norm(x), x)
    theirs = theirs + feed_forward(second(theirs))
    same(ours(x), theirs)
    state, parts = ours.init_state(2), []
    for part in x.split([70, 1, 89], 1):
        y, state = ours.prefill(part, state)
        parts.append(y)
    same(torch.cat(parts, 1), theirs)


@pytest.mark.parametrize("causal", [True, False])
def test_a_layer_of_tnn_pytorch(causal: bool) -> None:
    hidden, layers, glu, gamma = 8, 2, 9, 0.98
    theirs = drawn(peers.tnn_shapes(WIDTH, hidden, layers, glu))
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    block = build(BLOCKS, peers.tnn_block(WIDTH, hidden, layers, glu, gamma), WIDTH, what="block", causal=causal)
    ours = loaded(block, peers.tnn_weights(theirs, layers))
    # They add 1e-8 outside the root of norms, which shows where few features of the kernel's network are left.
    same(ours(x)[0], peers.tnn_layer(theirs, x[0], layers=layers, causal=causal, gamma=gamma), 1e-6)


@pytest.mark.parametrize("shift", [0.0, 0.05])
def test_an_operator_of_safari(shift: float) -> None:
    hidden, layers, features = 8, 2, 5
    theirs = drawn(peers.hyena_shapes(WIDTH, hidden, layers, features))
    tables = peers.hyena_tables(WIDTH, LENGTH, features)
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    mixer = build(MIXERS, peers.hyena_mixer(LENGTH, hidden, layers, features, shift), WIDTH, what="mixer", causal=True)
    ours = loaded(mixer, peers.hyena_weights(theirs, layers))
    y = peers.hyena_operator({**theirs, **tables}, x[0], layers=layers, shift=shift)
    same(ours(x)[0], y, 1e-5)  # their tables are in float32
