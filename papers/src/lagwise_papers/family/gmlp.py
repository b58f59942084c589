"""The spatial gating unit of gMLP."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, masked
from lagwise.ops import Layout, toeplitz_product
from lagwise.ops.packing import from_first_token
from lagwise.tables import check_integer, known

MATRICES = ("toeplitz", "dense")


class GMLPMixer(Mixer):
    """``W_o (z_1 * (M norm(z_2) + b))`` with ``z_1, z_2`` the halves of ``gelu(W_i x)``: M mixes the tokens, equally in
    every channel, and b has one number per position.

    Options:
        max_length: longest text. The published unit is for one length; here shorter texts use M's first rows and
            columns, with positions counted from a row's first real token.
        expansion: width of both halves relative to the channels (published: 6).
        matrix: ``toeplitz`` (M depends on the lag, as in the paper's language models) or ``dense``. A causal M is
            masked.

    M starts near 0 and b at 1, so that a new unit passes z_1 on. ValueError for longer texts, and for options out of
    range. It does not stream.

    Source: Liu et al. 2021, "Pay Attention to MLPs", §2 and app. C.
    """

    streams = False
    takes_shards = True

    def __init__(
        self,
        channels: int,
        *,
        causal: bool = True,
        max_length: int = 2048,
        expansion: float = 6,
        matrix: str = "toeplitz",
    ):
        super().__init__(channels, causal)
        half = round(expansion * channels / 2)
        if half < 1:
            raise ValueError(f"expansion must give at least two channels, got {expansion} * {channels}")
        self.max_length, self.matrix = check_integer("max_length", max_length), known(matrix, MATRICES, "matrix")
        self.input = nn.Linear(channels, 2 * half)
        self.norm = nn.LayerNorm(half)
        columns = max_length if causal or matrix == "dense" else 2 * max_length - 1
        self.mixing = nn.Parameter(torch.empty(max_length if matrix == "dense" else 1, columns))
        self.bias = nn.Parameter(torch.empty(max_length))
        self.out = nn.Linear(half, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw M uniformly within 0.001 / max_length, and set b to one."""
        nn.init.uniform_(self.mixing, -1e-3 / len(self.bias), 1e-3 / len(self.bias))
        nn.init.ones_(self.bias)

    def mix(self, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
        first, second = F.gelu(self.input(x)).chunk(2, 2)
        second = masked(self.norm(second), layout.mask)
        if layout.shard is None:
            spread = self._spread_rows(second, layout)
        else:
            spread = layout.shard.by_channels(self._spread_rows, second)
        return self.out((first * spread).to(first.dtype)), None

    def _spread_rows(self, z: Tensor, layout: Layout) -> Tensor:
        return from_first_token(self._spread, z, layout.mask)

    def _spread(self, z: Tensor, mask: Tensor | None) -> Tensor:
        n, longest = z.shape[1], len(self.bias)
        if n > longest:
            raise ValueError(f"gMLP's matrix is for at most {longest} tokens, got {n}; set option max_length")
        if self.matrix == "dense":
            matrix = self.mixing[:n, :n]
            mixed = (matrix.tril() if self.causal else matrix) @ z
        else:
            furthest = longest - n
            taps = self.mixing[:, :n] if self.causal else self.mixing[:, furthest : furthest + 2 * n - 1]
            mixed = toeplitz_product(z, taps.expand(z.shape[2], -1), causal=self.causal)
        return mixed + self.bias[:n, None]
