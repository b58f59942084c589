"""Fused kernels compiled for a card that is not here: Triton's interpreter runs sources that its compiler refuses."""

from __future__ import annotations

import importlib
import os
import pkgutil
from typing import Any

import pytest
import torch
from gated_layer import GatedLayer
from torch import nn

from lagwise.blocks import MegaBlock, MegalodonBlock
from lagwise.mixers import ShortConvMixer, TCNMixer
from lagwise.mixers.toeplitz import GTU, ToeplitzMixer
from lagwise.ops import fused
from steps.triton_card import absent_card


def modules() -> list[nn.Module]:
    """Modules that use every kernel."""
    return [
        GatedLayer(),
        GTU(16, kernel={"name": "rpe", "hidden": 32, "layers": 3}),
        GTU(16, kernel={"name": "rpe", "hidden": 64, "layers": 6, "inputs": "sincos"}),
        GTU(16, causal=False, kernel={"name": "frequency", "hidden": 8, "grid": 64}),
        ToeplitzMixer(16, kernel={"name": "rpe"}),
        ToeplitzMixer(16, kernel={"name": "warped", "filter_size": 8}, engine="ski"),
        MegaBlock(16, memory={"name": "ema", "dimension": 4}, query_size=8, value_size=16, chunk=16),
        MegaBlock(16, memory={"name": "tcn", "depth": 2}, query_size=8, value_size=16, chunk=16),
        MegalodonBlock(16, query_size=8, value_size=16, chunk=16, groups=2),
        ShortConvMixer(16, kernel_size=3),
        TCNMixer(16, depth=2),
    ]


def sources() -> set[str]:
    """Names of all kernels."""
    from lagwise.ops.fused.launcher import launched

    names = [each.name for each in pkgutil.iter_modules(fused.__path__) if each.name.endswith("_kernels")]
    found = [vars(importlib.import_module(f"{fused.__name__}.{name}")) for name in names]
    return {each.kernel.__name__ for module in found for each in module.values() if isinstance(each, launched)}


@pytest.mark.cpu
def test_kernels_compile_for_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton comes with PyTorch for GPUs")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("needs Triton's compiler: run without TRITON_INTERPRET")
    from triton.runtime import driver, jit  # pyrefly: ignore[missing-import]

    card, unlaunched = absent_card(lambda *_, **__: None)
    kernels: set[str] = set()
    compile_kernel = jit.JITFunction._do_compile

    def compiled(self: Any, key: Any, signature: Any, device: int, *others: Any) -> Any:
        found = compile_kernel(self, key, signature, device, *others)
        assert b"ELF" in found.asm["cubin"][:4]
        kernels.add(self.__name__)
        self.device_caches[device][0][key] = unlaunched
        return unlaunched

    monkeypatch.setattr(driver, "_active", card)
    monkeypatch.setattr(jit.JITFunction, "_do_compile", compiled)
    monkeypatch.setattr(fused, "_devices", ["cpu"])
    x = torch.randn(1, 70, 16, requires_grad=True)
    for module in modules():
        for half in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                y = module.train()(x)
            y.sum().backward()
    assert kernels == sources()
