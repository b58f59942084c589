"""The pre-norm residual block of TNN and of the Transformer, its norms, and channel mixers, which process each token
separately."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from lagwise.mixers import MIXERS
from lagwise.mixers.base import StreamModule
from lagwise.mixers.toeplitz import gated_width
from lagwise.ops import Layout
from lagwise.ops.activations import ACTIVATIONS
from lagwise.ops.fused import autocast_dtype
from lagwise.ops.fused.layers import residual_norm
from lagwise.ops.tokens import apply_linear, linears, rms_norm, silu_product
from lagwise.tables import Spec, build, known


class Block(StreamModule):
    """A residual layer on ``(batch, length, channels)`` that streams as its mixers do. Abstract, as `StreamModule`."""

    inputs: int = 1  # of as many channels each as its output, side by side


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


class NoNorm(nn.Identity):
    """The identity."""

    def __init__(self, channels: int):
        super().__init__()


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
        centred = isinstance(norm, LayerNorm)
        bias = norm.bias if isinstance(norm, LayerNorm) else None
        return residual_norm(x, branch, norm.weight, bias, cast(float, norm.eps), centred, autocast_dtype(x))
    x = x if branch is None else x + branch
    return x, normed(norm, x, mask)


def _positive(epsilon: float) -> float:
    if not isinstance(epsilon, int | float) or isinstance(epsilon, bool) or not epsilon > 0:
        raise ValueError(f"epsilon of a norm must be a positive number, got {epsilon!r}")
    return epsilon


class GLU(nn.Module):
    """Gated linear unit: ``W_3 (silu(W_1 x) * W_2 x)`` (TNN §3.1 and fig. 2; Shazeer 2020).

    Shapes: ``(..., channels)`` to the same.

    Options:
        expansion: inner width relative to the channels (table 13: 1).
        bias: whether the layers have biases (Megalodon's SwiGLU has none).

    >>> GLU(8)(torch.randn(2, 100, 8)).shape
    torch.Size([2, 100, 8])
    """

    def __init__(self, channels: int, *, expansion: float = 1, bias: bool = True):
        super().__init__()
        width = gated_width(channels, expansion)
        self.gate = nn.Linear(channels, width, bias=bias)
        self.value = nn.Linear(channels, width, bias=bias)
        self.out = nn.Linear(width, channels, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        (gate, value), biases = apply_linear(x, self.gate, self.value)
        return linears(silu_product(gate, value, biases), self.out)[0]


class MLP(nn.Module):
    """The Transformer's feed-forward layer: ``W_2 act(W_1 x)`` (Vaswani et al. 2017).

    Shapes: ``(..., channels)`` to the same.

    Options:
        expansion: inner width relative to the channels.
        activation: ``gelu``, ``gelu_tanh`` (its approximation in GPT-2 and HyenaDNA), ``silu`` (MEGA's), ``relu``,
            ``tanh`` or ``none``.
        bias: whether the layers have biases (Megalodon's have none).
    """

    def __init__(self, channels: int, *, expansion: float = 4, activation: str = "gelu", bias: bool = True):
        super().__init__()
        width = gated_width(channels, expansion)
        self.activation = ACTIVATIONS[known(activation, ACTIVATIONS, "activation")]
        self.up = nn.Linear(channels, width, bias=bias)
        self.down = nn.Linear(width, channels, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return linears(self.activation(linears(x, self.up)[0]), self.down)[0]


CHANNEL_MIXERS: dict[str, type[nn.Module]] = {"glu": GLU, "mlp": MLP}


class ChannelLayer(nn.Module):
    """``x + dropout(mix_channels(norm x))``: the second half of a block, or the identity for ``{"name": "none"}``.
    branch: what is added to x before; residual: what x is replaced by in the sum."""

    def __init__(self, channels: int, spec: Spec, norm: str | Mapping[str, Any], dropout: float):
        super().__init__()
        self.norm: nn.Module | None = None
        self.mixer: Any = None
        if spec != {"name": "none"}:
            self.norm = make_norm(norm, channels)
            self.mixer = build(CHANNEL_MIXERS, spec, channels, what="channel mixer")
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, branch: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        if self.norm is None:
            return x if branch is None else x + branch
        x, h = residual_normed(self.norm, x, mask, branch)
        return (x if residual is None else residual) + self.dropout(self.mixer(h))


class PreNormBlock(Block):
    """``x + mix_tokens(norm x)``, then ``x + mix_channels(norm x)`` (TNN §3.1 and fig. 2).

    Options:
        token_mixer: spec of a token mixer; by default ``gtu``.
        channel_mixer: spec of a channel mixer; by default ``glu``, ``none`` for none.
        norm: by name or by name and options: ``rms`` (no parameters, as TNN's published size requires), ``scale``,
            ``layer``, ``batch`` or ``none``.
        dropout: rate for both mixers' outputs in training.

    The structures of TNN table 7 are three choices of the two specs::

        GTU + GLU        token_mixer={"name": "gtu"},       channel_mixer={"name": "glu"}      (the default)
        GTU only         token_mixer={"name": "gtu"},       channel_mixer={"name": "none"}
        attention + GLU  token_mixer={"name": "attention"}, channel_mixer={"name": "glu"}

    A Transformer is ``attention`` with ``mlp``; ``ema`` or ``tcn`` with ``mlp`` are the stacks without attention of
    TCNCA tables 4 and 5.

    Streams like its token mixer: everything else is per token.

    >>> block = PreNormBlock(8, token_mixer={"name": "gtu", "kernel": {"name": "rpe"}}, channel_mixer={"name": "glu"})
    >>> block(torch.randn(2, 100, 8)).shape
    torch.Size([2, 100, 8])
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        token_mixer: Mapping[str, Any] | None = None,
        channel_mixer: Mapping[str, Any] | None = None,
        norm: str | Mapping[str, Any] = "rms",
        dropout: float = 0.0,
    ):
        super().__init__(channels)
        self.token_norm = make_norm(norm, channels)
        mixer = {"name": "gtu"} if token_mixer is None else token_mixer
        self.token_mixer = build(MIXERS, mixer, channels, what="token mixer", causal=causal)
        self.dropout = nn.Dropout(dropout)
        self.channels = ChannelLayer(
            channels, {"name": "glu"} if channel_mixer is None else channel_mixer, norm, dropout
        )

    def mix(self, x: Tensor, state: Any, layout: Layout) -> tuple[Tensor, Any]:
        x, h = residual_normed(self.token_norm, x, layout.mask)
        mixed, state = self.token_mixer.run(h, state, layout)
        return self.channels(x, layout.mask, branch=self.dropout(mixed)), state

    def init_state(self, batch_size: int) -> Any:
        return self.token_mixer.init_state(batch_size)
