"""Train Toeplitz forecasters with a kernel of `lagwise.kernels` by gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lagwise.forecasting.moments import Moments
from lagwise.forecasting.solving import Refill, expand, kernel_equations, kernel_right

_STEPS = 600
_STEPS_PER_EVALUATION = 20  # of the held-out error
_LEARNING_RATE = 1e-2


def learned_map(
    spec: Mapping[str, Any],
    moments: Moments,
    error: Callable[[np.ndarray], float] | None,
    *,
    kernels: int,
    penalty: float = 0.0,
    steps: int | None = None,
    refill: Refill | None = None,
    seed: int,
) -> tuple[np.ndarray, int]:
    """Train a kernel on the exact error of all windows at once, and return its map ``(look_back, horizon)`` and the
    number of steps.

    Formula: with N and r of `kernel_equations`, the mean squared error is ``k^T N k - 2 r^T k`` plus a constant, and
    the penalty adds ``penalty k^T k``. So a step costs O(look_back^2) for any number of windows. AdamW's learning rate
    follows a cosine. Training starts with a new kernel, and depends on the arguments alone.

    Args:
        spec: Name and options of a kernel, as in models. Its lag 0 is the shortest used lag: the last value for the
            first horizon.
        moments: Of the training windows.
        error: Of a map on held-out windows; the best kernel during training is kept.
        kernels: Number of groups of horizons.
        penalty: As above.
        steps: Number of steps; by default chosen by the error, or 600 without one.
        refill: As in `ridge_path`, every 20 steps.
        seed: Of the initial kernel.
    """
    import torch

    from lagwise.kernels import KERNELS
    from lagwise.tables import build

    matrix, right = (torch.from_numpy(a) for a in kernel_equations(moments, kernels))
    look_back, n = len(moments.inputs), len(matrix)
    scale = moments.count * (moments.cross.shape[1] // kernels)
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
        return (made / np.sqrt(n) * gain.exp()[:, None]).flip(1).t()  # in temporal order

    last = _STEPS if steps is None else steps
    best, best_error, best_step = None, np.inf, last
    for step in range(last + 1):
        k = taps()
        if step % _STEPS_PER_EVALUATION == 0 or step == last:
            maps = expand(k.detach().numpy(), look_back)
            found = -step if error is None else error(maps)
            if found < best_error:
                best, best_error, best_step = maps.copy(), found, step
            if refill is not None:
                right = torch.from_numpy(kernel_right(refill(maps), kernels) / scale)
        if step == last:
            break
        optimizer.zero_grad()
        loss = ((matrix @ k - 2 * right + penalty * k) * k).sum() / kernels
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
    assert best is not None
    return best, best_step


def learned_size(spec: Mapping[str, Any], kernels: int) -> int:
    """Count the parameters: those of the kernel, and a gain for each of its channels."""
    from lagwise.kernels import KERNELS
    from lagwise.tables import build

    return kernels + sum(p.numel() for p in build(KERNELS, spec, kernels, what="model", causal=True).parameters())
