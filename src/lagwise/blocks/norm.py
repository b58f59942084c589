"""Norms of the residual stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from lagwise.ops.fused import autocast_dtype
from lagwise.ops.fused.norm import residual_norm
from lagwise.ops.tokens import rms_norm
from lagwise.tables import build


class RMSNorm(nn.RMSNorm):
    """``x / sqrt(mean(x²) + epsilon)`` over the channels (TNN's SimpleRMSNorm), by default without parameters.

    Options: epsilon, inside the root (1e-6); affine, whether it has a learned scale. TNN's released code adds 1e-8
    outside the root. An epsilon of 1e-16 is equal to that within rounding, except for vectors whose root mean square is
    itself near 1e-8.
    """

    def __init__(self, channels: int, *, epsilon: float = 1e-6, affine: bool = False):
        super().__init__(channels, eps=_positive(epsilon), elementwise_affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        y = rms_norm(x, cast(float, self.eps))
        return y if self.weight is None else y * self.weight


class ScaleNorm(nn.Module):
    """`RMSNorm` times one learned number (Nguyen & Salazar 2019, as in MEGA).

    Options: epsilon, inside the root (1e-6).
    """

    def __init__(self, channels: int, *, epsilon: float = 1e-6):
        super().__init__()
        self.epsilon = _positive(epsilon)
        self.scale = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.epsilon) * self.scale


class LayerNorm(nn.LayerNorm):
    """Layer norm over the channels.

    Options: epsilon (1e-5); affine, whether it has a learned scale and shift.
    """

    def __init__(self, channels: int, *, epsilon: float = 1e-5, affine: bool = True):
        super().__init__(channels, eps=_positive(epsilon), elementwise_affine=affine)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of each channel over the real tokens of a batch; padding does not enter the statistics.

    Evaluation mode uses the running statistics, so that a token's output depends on no other token and streaming is
    exact. In training mode every token depends on statistics of the whole batch, including the future, as in the
    published models for the Long Range Arena; language models should use another norm. With several processes, each has
    the statistics of its own share of the batch, unless `torch.nn.SyncBatchNorm.convert_sync_batchnorm` changes the
    model. Takes ``(tokens, channels)``; `normed` gives it those of a batch.

    Options: epsilon (1e-5); momentum of the running statistics (0.1).
    """

    def __init__(self, channels: int, *, epsilon: float = 1e-5, momentum: float = 0.1):
        super().__init__(channels, eps=_positive(epsilon), momentum=momentum)


class NoNorm(nn.Module):
    """The identity."""

    def __init__(self, channels: int):
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


NORMS: dict[str, type[nn.Module]] = {
    "rms": RMSNorm,
    "scale": ScaleNorm,
    "layer": LayerNorm,
    "batch": BatchNorm,
    "none": NoNorm,
}


def make_norm(spec: str | Mapping[str, Any], channels: int) -> nn.Module:
    """A norm by its name, or by name and options such as ``{"name": "layer", "affine": False}``.

    Apply it with `normed`. ValueError for an unknown name or option.
    """
    return build(NORMS, {"name": spec} if isinstance(spec, str) else spec, channels, what="norm")


def normed(norm: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """A norm of x ``(batch, length, channels)``. mask ``(batch, length)`` is true where a token is real; a batch norm
    in training reads only those, and gives zero elsewhere. ValueError if there are fewer than 2 then."""
    if not isinstance(norm, nn.BatchNorm1d | nn.SyncBatchNorm):
        return norm(x)
    tokens = x.flatten(0, -2)
    if mask is None or not norm.training:
        return norm(tokens).view(x.shape)
    real = mask.flatten().nonzero()[:, 0]
    if len(real) < 2:
        raise ValueError("batch norm needs at least 2 real tokens in a training batch to take statistics of")
    y = norm(tokens[real])
    return torch.zeros_like(tokens, dtype=y.dtype).index_copy(0, real, y).view(x.shape)


def residual_normed(
    norm: nn.Module, x: Tensor, mask: Tensor | None, branch: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``x + branch``, or x without one, and the norm of it (`normed`). By a kernel on a GPU or a loop in C in one pass,
    and the norm by the root mean square or by the variance is in the dtype of autocast."""
    if type(norm) in (RMSNorm, LayerNorm):
        bias = norm.bias if isinstance(norm, LayerNorm) else None
        centred = isinstance(norm, LayerNorm)
        return residual_norm(x, branch, norm.weight, bias, cast(float, norm.eps), centred, autocast_dtype(x))
    x = x if branch is None else x + branch
    return x, normed(norm, x, mask)


def _positive(epsilon: float) -> float:
    if not isinstance(epsilon, int | float) or isinstance(epsilon, bool) or not epsilon > 0:
        raise ValueError(f"epsilon of a norm must be a positive number, got {epsilon!r}")
    return epsilon
