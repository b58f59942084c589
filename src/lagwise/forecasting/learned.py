"""Toeplitz forecasters whose kernel is one of `lagwise.kernels`, trained by gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lagwise.forecasting.moments import Moments
from lagwise.forecasting.solving import expand, kernel_equations

_STEPS = 600
_EVERY = 20  # steps between looks at the held-out error
_LEARNING_RATE = 1e-2


def learned_map(
    spec: Mapping[str, Any], moments: Moments, held_out: Moments | None, *, kernels: int, seed: int
) -> np.ndarray:
    """The map ``(look_back, horizon)`` of a kernel trained on the exact error of all windows at once.

    Formula: with N and r of `kernel_equations` the mean squared error is ``k^T N k - 2 r^T k`` plus a constant, so a
    step costs O(look_back^2) however many windows there are. AdamW's rate falls along a cosine; of the kernels met on
    the way the best on the held-out windows is kept, the last one without any.

    spec: name and options of a kernel, as in models. Lag 0 of the kernel is the shortest that is used: the last value
    for the first horizon.
    """
    import torch

    from lagwise.kernels import KERNELS
    from lagwise.tables import build

    matrix, right = (torch.from_numpy(a) for a in kernel_equations(moments, kernels))
    look_back, n = len(moments.inputs), len(matrix)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        kernel = build(KERNELS, spec, kernels, what="model", causal=True)
    gain = torch.nn.Parameter(torch.zeros(kernels, dtype=torch.float64))
    parameters = [*kernel.parameters(), gain]
    optimizer = torch.optim.AdamW(parameters, lr=_LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)

    def taps() -> torch.Tensor:
        made = kernel.taps(n).double()
        made = torch.nn.functional.pad(made, (0, n - made.shape[1]))
        return (made / np.sqrt(n) * gain.exp()[:, None]).flip(1).t()  # in the order of time

    best, best_error = None, np.inf
    for step in range(_STEPS + 1):
        k = taps()
        if step % _EVERY == 0 or step == _STEPS:
            maps = expand(k.detach().numpy(), look_back)
            error = -step if held_out is None else held_out.error(maps).mean()
            if error < best_error:
                best, best_error = maps.copy(), error
        if step == _STEPS:
            break
        optimizer.zero_grad()
        loss = ((matrix @ k - 2 * right) * k).sum() / kernels
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
    assert best is not None
    return best


def learned_size(spec: Mapping[str, Any], kernels: int) -> int:
    """Parameters of the kernel, and a gain for each of its channels."""
    from lagwise.kernels import KERNELS
    from lagwise.tables import build

    return kernels + sum(p.numel() for p in build(KERNELS, spec, kernels, what="model", causal=True).parameters())
