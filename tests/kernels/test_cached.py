"""Cached taps are those of the kernel as it is now."""

from __future__ import annotations

import pytest
import torch

from lagwise.kernels import KERNELS, LagKernel, base
from lagwise.kernels.base import cached, cached_taps

pytestmark = pytest.mark.cpu


@pytest.fixture
def kernel() -> LagKernel:
    return KERNELS["rpe"](8, causal=False, hidden=4, layers=1)


def computed(kernel: LagKernel, length: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a call computes taps, which must equal the kernel's."""
    calls = []
    with monkeypatch.context() as patched:
        patched.setattr(type(kernel), "taps", lambda self, n, taps=type(kernel).taps: calls.append(n) or taps(self, n))
        found = cached_taps(kernel, length)
    assert torch.equal(found, kernel.taps(length))
    return len(calls)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_same_kernel_computes_once(mode: type, kernel: LagKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    with mode():
        assert [computed(kernel, 9, monkeypatch) for _ in range(3)] == [1, 0, 0]
        assert [computed(kernel, n, monkeypatch) for n in (5, 5, 9)] == [1, 0, 1]
    assert computed(kernel, 9, monkeypatch) == 1  # gradients are enabled


@torch.no_grad()
def test_any_change_is_noticed(kernel: LagKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = kernel.network.last.weight  # type: ignore[attr-defined]
    changes = [
        lambda: weight.mul_(2),
        lambda: weight.data.mul_(2),  # which PyTorch does not count
        lambda: setattr(weight, "data", weight.data + 1),
        lambda: setattr(kernel, "decay", 0.5),
        lambda: setattr(kernel.network, "activation", "silu"),
        lambda: kernel.double(),
        lambda: kernel.load_state_dict({name: value + 1 for name, value in kernel.state_dict().items()}),
    ]
    computed(kernel, 9, monkeypatch)
    for change in changes:
        change()
        assert [computed(kernel, 9, monkeypatch) for _ in range(2)] == [1, 0]


@torch.no_grad()
def test_large_kernels_are_not_kept(kernel: LagKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_MAX_CACHED_VALUES", 100)
    assert [computed(kernel, 9, monkeypatch) for _ in range(2)] == [1, 1]
    assert [computed(kernel, 3, monkeypatch) for _ in range(2)] == [1, 0]
    monkeypatch.setattr(base, "_MAX_COMPARED_VALUES", 10)
    assert [computed(kernel, 4, monkeypatch) for _ in range(2)] == [1, 1]  # too many values to compare


@torch.no_grad()
@pytest.mark.parametrize("by_value", [False, True])
def test_added_and_removed_members_count_as_changes(by_value: bool) -> None:
    module, calls = torch.nn.Sequential(torch.nn.Linear(2, 2)), []

    def computes() -> int:
        before = len(calls)
        cached(module, "kind", None, lambda: calls.append(1) or torch.zeros(1), by_value=by_value)
        return len(calls) - before

    changes = [
        lambda: module.append(torch.nn.ReLU()),
        lambda: module[0].register_buffer("scale", torch.ones(1)),
        lambda: setattr(module[0], "bias", None),
        lambda: module.__setitem__(0, torch.nn.Linear(2, 2)),
        lambda: module.__delitem__(1),
    ]
    assert [computes(), computes()] == [1, 0]
    for change in changes:
        change()
        assert [computes(), computes()] == [1, 0]
