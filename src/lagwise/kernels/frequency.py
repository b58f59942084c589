"""The kernel of FD-TNN: a small network of the angular frequency gives the frequency response."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.kernels.base import LagKernel, joined_sides
from lagwise.kernels.rpe import KernelNetwork
from lagwise.ops.constants import cached_tables, table_device
from lagwise.ops.operation import exporting, in_graph
from lagwise.ops.toeplitz.spectral import inverse_of_parts
from lagwise.tables import known

INPUTS = ("cos", "omega")


class FrequencyKernel(LagKernel):
    """Taps whose frequency response is a network of the frequency (SKI-TNN §3.3).

    Formula: the network gives ``R(w_m)`` at ``w_m = m pi / grid``, m = 0..grid, for every channel.
        Causal (SKI-TNN alg. 2, def. 1): R is real and even. Its inverse transform c is even in the lag; ``k(0) = c_0``,
        ``k(l) = 2 c_l`` for 0 < l < grid, ``k(grid) = c_grid``, and 0 at negative lags. The imaginary part of k's
        response is then minus the Hilbert transform of R, and its real part is R itself.
        Two-sided (SKI-TNN §3.3.2): the network gives real and imaginary part, the latter set to zero at 0 and pi; k is
        the inverse transform, with its value at lag grid shared with lag -grid.

    Options:
        hidden: width of the network.
        layers: its depth.
        activation: its non-linearity; the smoother, the faster taps decay.
        inputs: ``cos`` (of the frequency) or ``omega`` (the frequency, as published). The response of a real kernel is
            even and periodic. A smooth function of cos w is smooth with these symmetries, and its taps decay as SKI-TNN
            th. 2 and 3 state. A function of w has kinks at 0 and pi, and its taps decay as 1 / lag², whatever the
            activation.
        grid: number of steps from 0 to pi, which is also the longest lag.

    The grid belongs to the kernel, not to the input: taps of longer lags alias onto shorter ones, so that another grid
    is another kernel, and prompts of all lengths must use the same. A trained model may be given a finer grid, which
    reaches further back (SKI-TNN §1). ValueError for options out of range, and for training with an activation other
    than ReLU under torch.compile, which computes wrong gradients (docs/log.md, "Compiled kernels").

    >>> FrequencyKernel(4, causal=False).taps(100).shape  # lags -99 to 99
    torch.Size([4, 199])
    """

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        hidden: int = 64,
        layers: int = 6,
        activation: str = "relu",
        inputs: str = "cos",
        grid: int = 512,
    ):
        super().__init__(channels, causal)
        if not isinstance(grid, int) or grid < 1:
            raise ValueError(f"grid must be an integer of at least 1, got {grid!r}")
        self.inputs = known(inputs, INPUTS, "inputs")
        self.grid = grid
        self.network = KernelNetwork(
            1, channels if causal else 2 * channels, hidden=hidden, layers=layers, activation=activation
        )

    @property
    def support(self) -> int:
        return self.grid + 1

    def taps(self, length: int) -> Tensor:
        """See `LagKernel.taps`.

        The last layer is linear in the features, so the features are transformed to lags: they are far fewer than the
        channels.
        """
        if exporting() and length >= self.support:
            return self._real_taps()
        n = min(length, self.support)
        with self._full_precision():
            matrix, features, inside, weight = self._parts()
            parts = features[None]
            if not self.causal:  # the imaginary half of the channels next to the real half
                matrix, parts = torch.cat(matrix.chunk(2), dim=1), torch.stack([features, features * inside])
            time = inverse_of_parts(parts, 2 * self.grid).flatten(0, 1) * weight
            after = time[:, :n]
            return matrix @ (after if self.causal else torch.cat([time[:, 2 * self.grid - n + 1 :], after], dim=1))

    def _real_taps(self) -> Tensor:
        """Compute all taps by sums of cosines and sines, for graphs without FFTs."""
        with self._full_precision():
            (matrix, features, inside, weight), points = self._parts(), 2 * self.grid
            step = torch.arange(self.grid + 1, device=features.device)
            position = step[:, None] * step % points
            waves = [[f(2 * math.pi * i / points) / points for i in range(points)] for f in (math.cos, math.sin)]
            cos, sin = (features.new_tensor(wave)[position] for wave in waves)
            weight = weight[: self.grid + 1]
            even = features * (1 + inside) @ cos * weight
            if self.causal:
                return matrix @ even
            parts, odd = matrix.chunk(2), features * (-2 * inside) @ sin * weight
            even, odd = parts[0] @ even, parts[1] @ odd
            return joined_sides(even + odd, F.pad((even - odd)[:, 1:], (1, 0)))

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The last layer and its bias as a matrix, the features of the network on the grid with a constant for that
        bias, ``(hidden + 1, grid + 1)``, and `_tables` but the angles."""
        last = self.network.last
        if in_graph() and torch.is_grad_enabled() and self.network.activation != "relu":
            raise ValueError(
                "torch.compile's inductor gives wrong gradients for a frequency kernel with activation "
                f"{self.network.activation!r} (torch 2.13); use 'relu', or train without torch.compile"
            )
        matrix = torch.cat([last.weight, last.bias[:, None]], dim=1).to(self.precision(last.weight))
        sizes = (self.grid, self.causal, self.inputs, matrix.dtype)
        points, one, inside, weight = cached_tables(_tables, *sizes, like=matrix)
        return matrix, torch.cat([self.network.features(points), one], dim=1).t(), inside, weight

    def _full_precision(self) -> torch.autocast:
        return torch.autocast(self.network.last.weight.device.type, enabled=False)


def _tables(grid: int, causal: bool, inputs: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The network's inputs on the grid ``(grid + 1, 1)``; as many ones; 0 at frequencies 0 and pi, where the response
    of a real kernel is real, and 1 between, ``(grid + 1,)``; and the weights of the transform's lags ``(2 grid,)``, of
    which grid and -grid are one. Numbers are filled in, because an assignment copies them from the host."""
    angle = torch.arange(grid + 1, dtype=dtype, device=table_device()) * (math.pi / grid)
    inside, weight = torch.ones_like(angle), torch.full((2 * grid,), 2.0 if causal else 1.0, dtype=dtype)
    inside[::grid].fill_(0)
    weight[:1].fill_(1)
    weight[grid : grid + 1].div_(2)
    points = (angle.cos() if inputs == "cos" else angle)[:, None]
    return points, torch.ones_like(points), inside, weight
