"""Remembered taps are those of the kernel as it is now."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch

from lagwise.kernels import KERNELS, LagKernel, remembered
from lagwise.kernels.remembered import remembered_taps
from lagwise.mixers import ToeplitzMixer

pytestmark = pytest.mark.cpu


@pytest.fixture
def kernel() -> LagKernel:
    return KERNELS["rpe"](8, causal=False, hidden=4, layers=1)


def computed(kernel: LagKernel, length: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a call computes taps, which must equal the kernel's."""
    calls = []
    with monkeypatch.context() as patched:
        patched.setattr(type(kernel), "taps", lambda self, n, taps=type(kernel).taps: calls.append(n) or taps(self, n))
        found = remembered_taps(kernel, length)
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
def test_copies_are_separate_and_nothing_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KERNELS["rpe"](8, causal=False, hidden=4, layers=1)
    small = len(pickle.dumps(kernel))
    computed(kernel, 9, monkeypatch)
    assert len(pickle.dumps(kernel)) < small + 100
    assert computed(copy.deepcopy(kernel), 9, monkeypatch) == 1
    kept = len(remembered._latest)
    del kernel
    gc.collect()
    assert len(remembered._latest) < kept


@torch.no_grad()
def test_large_kernels_are_not_kept(kernel: LagKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_MOST_TAPS", 100)
    assert [computed(kernel, 9, monkeypatch) for _ in range(2)] == [1, 1]
    assert [computed(kernel, 3, monkeypatch) for _ in range(2)] == [1, 0]
    monkeypatch.setattr(remembered, "_MOST_VALUES", 10)
    assert [computed(kernel, 4, monkeypatch) for _ in range(2)] == [1, 1]  # too many values to compare


def test_training_after_evaluation_has_gradients() -> None:
    mixer = ToeplitzMixer(8, causal=True, kernel={"name": "rpe", "layers": 1})
    x = torch.randn(2, 12, 8)
    with torch.inference_mode():
        expected = mixer(x)
        assert torch.equal(mixer(x), expected)
    y = mixer(x)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    assert all(parameter.grad is not None for parameter in mixer.parameters())


@torch.no_grad()
def test_transforms_compute_anew(kernel: LagKernel) -> None:
    remembered_taps(kernel, 9)
    weights = {name: torch.stack([value, 2 * value]) for name, value in kernel.named_parameters()}

    def taps(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        class Taps(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.kernel = kernel

            def forward(self) -> torch.Tensor:
                return remembered_taps(self.kernel, 9)

        return torch.func.functional_call(Taps(), {f"kernel.{n}": v for n, v in weights.items()}, ())

    both = torch.func.vmap(taps)(weights)
    torch.testing.assert_close(both[0], kernel.taps(9))
    assert not torch.allclose(both[0], both[1])
