"""Launches of Triton's kernels, with a pretended compiler."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from lagwise.ops import fused


class _Kernel:
    """A kernel that is compiled, and launched in Triton's way or directly."""

    def __init__(self, launches: list[tuple[str, Any]]):
        self.launches = launches

    def __getitem__(self, grid: Any) -> Any:
        def launch(*arguments: Any, **constants: Any) -> Any:
            self.launches.append(("found by Triton", (grid, arguments, constants)))
            return _Compiled(self.launches)

        return launch


class _Compiled:
    def __init__(self, launches: list[tuple[str, Any]]):
        self.launches = launches

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments: self.launches.append(("direct", (grid, arguments)))


def test_launches_like_an_earlier_one_skip_the_search_for_a_compiled_form(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[tuple[str, Any]] = []
    triton = ModuleType("triton")
    triton.jit = lambda source: _Kernel(launches)  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "triton", triton)
        patched.setitem(sys.modules, "triton.language", ModuleType("triton.language"))
        patched.delitem(sys.modules, f"{fused.__name__}.launcher", raising=False)
        launcher = importlib.import_module(f"{fused.__name__}.launcher")
        del sys.modules[launcher.__name__]

    @launcher.launched
    def kernel(x, count, scale, WIDE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[name-defined]  # noqa: F821
        ...

    x = torch.zeros(64, device="cpu")

    def launch(x: torch.Tensor, count: int, **constants: Any) -> str:
        kernel[(3,)](x, count, 0.5, **{"WIDE": True, "BLOCK": 16} | constants)
        return launches[-1][0]

    assert launch(x, 64) == "found by Triton"
    assert launch(torch.ones_like(x), 64) == "direct"
    grid, arguments = launches[-1][1]
    assert grid[:3] == (3, 1, 1)
    assert arguments[1:] == (64, 0.5, True, 16)  # constants in the order of the source
    kernel[(2, 5)](x, 64, 0.5, BLOCK=16, WIDE=True)
    assert launches[-1][1][0][:3] == (2, 5, 1)
    assert launches[-1][1][1][3:] == (True, 16)
    for other in (
        launch(x, 1),  # Triton compiles such numbers into the code
        launch(x.double(), 64),
        launch(x[1:], 64),  # not aligned
        launch(x, 64, BLOCK=32),
        launch(x, 64, WIDE=False),
    ):
        assert other == "found by Triton"
    assert launch(x[1:], 64) == "direct"
    monkeypatch.setattr(launcher, "_MAX_LAUNCHES", 2)
    assert [launch(x, count)[0] for count in (7, 7, 8, 9, 7)] == ["f", "d", "f", "f", "f"]
