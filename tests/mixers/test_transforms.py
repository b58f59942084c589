"""The mixer contract for second derivatives, forward-mode derivatives and `torch.func`."""

from __future__ import annotations

import functools

import pytest
import torch
from every_mixer import every_trained_direction, make, noise
from torch import Tensor
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from lagwise.mixers import Mixer

LENGTH = 50  # so that approximate engines approximate
# PyTorch's fast attention has one derivative alone, and refuses a second.
differentiable_attention = functools.partial(sdpa_kernel, SDPBackend.MATH)

pytestmark = pytest.mark.real_device  # forward-mode derivatives


def parameters_of(mixer: Mixer) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in mixer.named_parameters()}


def loss(mixer: Mixer, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    weight = torch.linspace(-1, 2, x.shape[1], dtype=x.dtype)[:, None]
    return (functional_call(mixer, parameters, (x,)).sin() * weight).sum()


def directions(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.randn_like(p) for name, p in parameters.items()}


@every_trained_direction
def test_gradgradcheck(name: str, options: dict, causal: bool) -> None:
    mixer = make(name, options, causal=causal)
    x = noise(1, LENGTH).requires_grad_()
    some = [p for p in mixer.parameters() if p.numel() <= 200][:2]
    with differentiable_attention():
        assert torch.autograd.gradgradcheck(lambda a, *_: mixer(a), (x, *some), fast_mode=True, atol=1e-4)


@every_trained_direction
def test_hessian_products_of_all_kinds_agree(name: str, options: dict, causal: bool) -> None:
    """With respect to the parameters: reverse over reverse, and forward mode over `torch.func.grad`."""
    mixer = make(name, options, causal=causal)
    x, given = noise(2, LENGTH), parameters_of(mixer)
    names, v = list(given), directions(given)

    def by_values(*values: Tensor) -> Tensor:
        return loss(mixer, dict(zip(names, values, strict=True)), x)

    with differentiable_attention():
        twice = torch.autograd.functional.hvp(by_values, tuple(given.values()), tuple(v.values()))[1]
        gradient, forwards, *_ = jvp(lambda p: grad(loss, argnums=1)(mixer, p, x), (given,), (v,))
    loss(mixer, dict(mixer.named_parameters()), x).backward()
    for key, parameter, second in zip(names, mixer.parameters(), twice, strict=True):
        scale = second.abs().max() + 1e-9
        torch.testing.assert_close(gradient[key], parameter.grad, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(forwards[key] / scale, second / scale, rtol=0, atol=1e-7)


@every_trained_direction
def test_vmap_equals_a_loop(name: str, options: dict, causal: bool) -> None:
    """Over signals, over models, and over the signals' gradients."""
    models = [make(name, options, causal=causal) for _ in range(2)]
    each = [parameters_of(model) for model in models]
    stacked = {key: torch.stack([given[key] for given in each]) for key in each[0]}
    x = noise(3, LENGTH)[:, None]

    def one(parameters: dict[str, Tensor], signal: Tensor) -> Tensor:
        return functional_call(models[0], parameters, (signal,))

    with differentiable_attention(), torch.no_grad():
        signals = torch.stack([models[0](a) for a in x])
        torch.testing.assert_close(vmap(models[0])(x), signals, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(vmap(one, (0, None))(stacked, x[0]), torch.stack([m(x[0]) for m in models]))
        torch.testing.assert_close(vmap(one)(stacked, x[:2]), torch.stack([models[0](x[0]), models[1](x[1])]))
        gradients = vmap(grad(loss, argnums=1), (None, None, 0))(models[0], each[0], x)
    for i, signal in enumerate(x):
        models[0].zero_grad()
        loss(models[0], dict(models[0].named_parameters()), signal).backward()
        for key, parameter in models[0].named_parameters():
            torch.testing.assert_close(gradients[key][i], parameter.grad, rtol=1e-7, atol=1e-9)
