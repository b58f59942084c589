"""The engine of an optional package, which a function of PyTorch stands for: the package needs a GPU."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.mixers import ToeplitzMixer
from lagwise.ops import toeplitz_product
from lagwise.ops.toeplitz import subquadratic


@pytest.fixture
def asked(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what the package was asked for, as a package that serves the tests' device."""
    shapes: list[tuple[int, ...]] = []

    def fft_causal_conv1d(x: Tensor, weight: Tensor) -> Tensor:
        """``y_t = sum_j weight_j x_{t-j}``, as the package has it: channels first, and no dtype but the signal's."""
        shapes.append((*x.shape, weight.shape[1]))
        assert x.dtype == weight.dtype == torch.float32
        assert x.is_contiguous()
        padded = F.pad(x, (weight.shape[1] - 1, 0))
        return F.conv1d(padded, weight.flip(1).unsqueeze(1), groups=x.shape[1])

    package = ModuleType("subquadratic_ops_torch.fft_causal_conv1d")
    package.fft_causal_conv1d = fft_causal_conv1d  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "subquadratic_ops_torch", ModuleType("subquadratic_ops_torch"))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setattr(subquadratic, "_devices", [device.type])
    return shapes


@pytest.mark.parametrize(("causal", "n_taps"), [(True, 1), (True, 200), (False, 33), (False, 201)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_equals_the_dense_matrix(asked: list, causal: bool, n_taps: int, dtype: torch.dtype) -> None:
    x = torch.randn(2, 100, 3).to(dtype).requires_grad_()
    taps = torch.randn(3, n_taps, requires_grad=True)
    weight = torch.randn(x.shape).to(dtype)
    found = [
        (y, *torch.autograd.grad(y, (x, taps), weight))
        for y in (toeplitz_product(x, taps, causal=causal, engine=name) for name in ("subquadratic", "dense"))
    ]
    for value, exact in zip(*found, strict=True):
        assert value.dtype == exact.dtype
        torch.testing.assert_close(value, exact, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-4)
    kernel_size = asked[0][3]
    assert kernel_size in (128, 256)


def test_a_mixer_takes_it_and_streams_like_any_exact_engine(asked: list) -> None:
    mixer = ToeplitzMixer(4, kernel={"name": "rpe", "decay": 0.9}, engine="subquadratic")
    x = torch.randn(2, 60, 4)
    whole = mixer(x)
    assert asked
    first, state = mixer.prefill(x[:, :40], mixer.init_state(2))
    rest, _ = mixer.prefill(x[:, 40:], state)
    torch.testing.assert_close(torch.cat([first, rest], 1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("n_taps", "dtype"), [(8193, torch.float32), (30, torch.float64)])
def test_other_products_take_the_fft(asked: list, n_taps: int, dtype: torch.dtype) -> None:
    x, taps = torch.randn(1, 9000, 1, dtype=dtype), torch.randn(1, n_taps, dtype=dtype)
    y = toeplitz_product(x, taps, engine="subquadratic")
    torch.testing.assert_close(y, toeplitz_product(x, taps, engine="fft"))
    assert not asked


def test_a_gpu_without_the_package_is_told(asked: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "subquadratic_ops_torch.fft_causal_conv1d", None)
    with pytest.raises(ValueError, match=r"'subquadratic' needs the package subquadratic-ops-torch .* 'auto' computes"):
        toeplitz_product(torch.randn(1, 9, 2), torch.randn(2, 3), engine="subquadratic")
