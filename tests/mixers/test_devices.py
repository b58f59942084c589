"""Mixers give the same results on other devices, where they may use other engines, as on the CPU."""

from __future__ import annotations

import pytest
import torch
from every_mixer import every_direction, make, noise
from torch import Tensor

from lagwise.mixers import Mixer


@every_direction
def test_values_and_gradients_equal_those_of_the_cpu(name: str, options: dict, causal: bool) -> None:
    mixer, x = make(name, options, causal=causal).eval(), noise(2, 120)
    torch.set_default_device(None)  # or tensors whose device nobody names would be there, too
    there = values_and_gradients(mixer, x)
    for ours, cpus in zip(there, values_and_gradients(mixer.cpu(), x.cpu()), strict=True):
        torch.testing.assert_close(ours.cpu(), cpus, rtol=0, atol=1e-8)


def values_and_gradients(mixer: Mixer, x: Tensor) -> list[Tensor]:
    given = [x.detach().clone().requires_grad_(), *mixer.parameters()]
    y = mixer(given[0])
    grads = torch.autograd.grad(y.square().sum(), given, allow_unused=True)
    return [y.detach(), *(g for g in grads if g is not None)]


def test_tensors_of_two_devices_do_not_mix() -> None:
    """Otherwise the test above would not find tensors on the wrong device."""
    there = torch.ones(3)
    torch.set_default_device(None)
    with pytest.raises(RuntimeError, match="devices"):
        there + torch.ones(3)
