"""Other packages' approximations of attention as token mixers. Tests of packages that are not installed are skipped."""

from __future__ import annotations

import sys

import pytest
import torch

from lagwise.blocks import PreNormBlock
from lagwise.mixers import Mixer
from lagwise_papers.bench import attention_peers
from lagwise_papers.bench.attention_peers import ATTENTION_PEERS
from lagwise_papers.family import FNetMixer

LENGTH = 512


def make(name: str, channels: int, length: int = LENGTH, **options: bool) -> Mixer:
    try:
        return ATTENTION_PEERS[name](channels, length, **options)
    except ImportError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ATTENTION_PEERS)
def test_a_peer_trains_in_a_block(name: str) -> None:
    block = PreNormBlock(32, causal=False, token_mixer={"name": "fnet"})
    block.token_mixer = mixer = make(name, 32)
    x = torch.randn(2, LENGTH, 32, requires_grad=True)
    y = block(x)
    assert y.shape == x.shape
    y.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in (x, *mixer.parameters()))
    with pytest.raises(ValueError, match="without padding"):
        mixer(x, mask=torch.ones(2, LENGTH))


def test_fnet_of_transformers_equals_ours() -> None:
    x = torch.randn(2, 100, 32, dtype=torch.float64)
    torch.testing.assert_close(make("fnet (transformers)", 32)(x), FNetMixer(32)(x), rtol=0, atol=1e-9)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "linformer.linformer", None)
    with pytest.raises(ImportError, match=r"linformer cannot be imported .*papers\[peers\]"):
        attention_peers.linformer(32, 64)
