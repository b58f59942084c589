"""Choose the plan of causal SKI for a kernel: the cheapest within a tolerance."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.ski.products import SKIPlan, causal_ski_product, split_kernel

# The channels and lags on which a plan is chosen.
_SAMPLED_CHANNELS = 16
SAMPLED_LAGS = 1024


def best_plan(taps: Tensor, tolerance: float, *, ends: bool = False) -> tuple[SKIPlan, float]:
    """The cheapest plan whose estimated error on a kernel is within the tolerance, or the most accurate one if there is
    none; and that error.

    The estimate is `ski_error` on the 16 roughest channels (by second differences) and the first 1024 lags, relative
    as the tolerance. The choice depends on values, so an exported model cannot make it.

    Shapes: taps ``(channels, n)``, lag 0 first. ``ends``: whether the kernel is zero beyond the taps; otherwise it is
    not examined there.

    >>> smooth = 0.999 ** torch.arange(4096.0)[None]
    >>> plan, error = best_plan(smooth, 1e-3)
    >>> plan.spacing > 1, error < 1e-3
    (True, True)
    """
    taps = taps.detach()
    roughness = taps.diff(n=2, dim=1).abs().sum(1) / taps.abs().sum(1).clamp(min=1e-30)
    chosen = roughness.topk(min(_SAMPLED_CHANNELS, len(taps))).indices
    ends = ends and taps.shape[1] <= SAMPLED_LAGS
    sample = taps[chosen, :SAMPLED_LAGS]
    best: tuple[SKIPlan, float] | None = None
    for plan in PLANS:
        error = ski_error(sample, plan, ends=ends)
        if best is None or error < best[1]:
            best = plan, error
        if error <= tolerance:
            break
    assert best is not None
    return best


# From the cheapest to the most accurate, by measurement (docs/log.md, "SKI plans").
PLANS = (
    SKIPlan(16, 64, 1),
    SKIPlan(8, 64, 1),
    SKIPlan(8, 64, 3),
    SKIPlan(8, 96, 3),
    SKIPlan(4, 96, 3),
    SKIPlan(4, 128, 5),
    SKIPlan(2, 128, 5),
)


@torch.no_grad()
def ski_error(taps: Tensor, plan: SKIPlan, *, ends: bool = False) -> float:
    """Largest error of `causal_ski_product` on signals within [-1, 1], relative to the largest output.

    Formula: ``max_c sum_l max_p |T̃_p(l) - k(l)| / sum_l |k(l)|``, where p is the position of the earlier token in its
    cell: at least the relative error of the operator in the maximum norm, for these channels and lags.

    Args:
        taps: ``(channels, n)``, lag 0 first.
        plan: How the kernel is split.
        ends: Whether the kernel is zero beyond the taps, so that the error of interpolating over its end counts.
            Otherwise it continues, and the last lags, where interpolation would need later ones, are left out.
    """
    edge = (plan.degree + 1) * plan.spacing
    taps = taps.double()
    total = taps.abs().sum(1).clamp(min=1e-300)
    if ends:
        taps = F.pad(taps, (0, 2 * edge))
    length = taps.shape[1]
    nodes = max(plan.short_nodes, plan.grid(length + plan.spacing).nodes)
    padded = F.pad(taps, (0, max(plan.width, nodes * plan.spacing) - length))
    short, coarse = split_kernel(padded[:, : plan.width], padded[:, :: plan.spacing][:, :nodes], plan)
    # An impulse at each position in the first cell gives the operator's column there.
    signal = torch.eye(plan.spacing, length + plan.spacing, dtype=taps.dtype, device=taps.device)
    answers = causal_ski_product(signal[..., None].expand(-1, -1, len(taps)), short, coarse, plan)
    lags = max(1, length - edge)
    errors = torch.stack([answer[p : p + lags] - taps.t()[:lags] for p, answer in enumerate(answers)])
    return (errors.abs().amax(0).sum(0) / total).max().item()
