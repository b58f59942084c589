"""SKI-TNN's own engine of the Toeplitz mixer: two-sided kernels by inducing points, approximately, in linear time."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from lagwise.kernels import LagKernel
from lagwise.ops import Layout, ski_product
from lagwise.ops.constants import cached_tables
from lagwise.ops.packing import row_extents
from lagwise.ops.ski import ragged_ski_product, row_spacing
from lagwise.ops.symbolic import symbolic
from lagwise.tables import check_integer

_MAX_DEGREE = 7  # above, extrapolation at the ends of a text makes errors larger

Length = TypeVar("Length", int, Tensor)


def check_extent(kernel: LagKernel, x: Tensor, layout: Layout) -> None:
    """ValueError for a row that is longer than the kernel supports."""
    if kernel.max_length is not None and not symbolic(x.shape[1]) and x.shape[1] > kernel.max_length:
        kernel.check_length(x.shape[1] if layout.mask is None else layout.extents[2])


class TwoSidedSKI:
    """Engine of `ToeplitzMixer` for a two-sided kernel with ``engine="ski"``: the kernel's free taps as a depthwise
    convolution, its smooth part by SKI of a rank (SKI-TNN alg. 1).

    Options:
        rank: inducing points (SKI-TNN §5.2: 64).
        spacing: most tokens between inducing points; longer texts have more than ``rank`` of them. None, as published,
            keeps their number and moves them apart, so that a model fails on texts much longer than in training.
        degree: of the interpolation (1, linear), at most 7.

    ValueError for options that are out of range, and for a kernel without values between tokens.
    """

    def __init__(self, kernel: LagKernel, *, rank: int = 64, spacing: int | None = None, degree: int = 1):
        self.rank, self.degree = check_integer("rank", rank, 2), check_integer("degree", degree, 0)
        if degree > _MAX_DEGREE:
            raise ValueError(f"degree must be at most {_MAX_DEGREE}, got {degree}: polynomials explode at the ends")
        self.spacing = None if spacing is None else check_integer("spacing", spacing, 1)
        if not kernel.continuous:
            kernel.smooth_at(torch.zeros(0))  # raises an explanatory error

    def grows(self, kernel: LagKernel) -> bool:
        """Whether the state grows with the text: it has none."""
        return False

    def mix(self, mixer: Any, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
        """`Mixer.mix`, without times and shards."""
        return self._mix(mixer.kernel, x, layout), None

    def _mix(self, kernel: LagKernel, x: Tensor, layout: Layout) -> Tensor:
        check_extent(kernel, x, layout)
        if symbolic(x.shape[1]):
            return self._mix_rows(kernel, x, layout)
        graph = torch.compiler.is_compiling()  # no data-dependent branch in a graph
        if layout.mask is None or (not graph and not layout.padded_before and not layout.padded_after):
            return self._mix_whole(kernel, x)
        return self._mix_rows(kernel, x, layout)

    def _mix_whole(self, kernel: LagKernel, x: Tensor) -> Tensor:
        """Mix rows that are all real (SKI-TNN alg. 1)."""
        rank = min(self._nodes(x.shape[1]), x.shape[1])
        spacing = (x.shape[1] - 1) / max(1, rank - 1)
        dtype = torch.promote_types(x.dtype, torch.float32)  # not every device has float64
        lags = torch.arange(1 - rank, rank, dtype=dtype, device=x.device) * spacing
        return ski_product(x, kernel.smooth_at(lags), degree=self.degree, local=kernel.local_taps())

    def _mix_rows(self, kernel: LagKernel, x: Tensor, layout: Layout) -> Tensor:
        """Apply SKI-TNN alg. 1 to every row separately, from its first token to its last. Where a graph leaves the
        length open, one with fewer tokens than nodes has nodes beyond its end."""
        if layout.mask is None:
            lengths = torch.full((1,), x.shape[1], device=x.device)
            first, longest = torch.zeros_like(lengths), x.shape[1]
        elif torch.compiler.is_compiling():
            first, lengths = row_extents(layout.mask)
            longest = x.shape[1]
        else:
            first, lengths, longest = layout.host.extents
        most = (lambda nodes: nodes) if symbolic(longest) else (lambda nodes: min(nodes, longest))
        rank = most(self._nodes(longest))
        nodes = lengths.new_full(lengths.shape, most(self.rank))
        if self.spacing is not None:
            nodes = nodes.maximum(_nodes_apart(lengths, self.spacing))
        if torch.compiler.is_compiling():
            lags = _row_lags(lengths, nodes, rank)
        else:
            like = x.new_empty(0, dtype=torch.promote_types(x.dtype, torch.float32))
            sizes = tuple(lengths.tolist()), tuple(nodes.tolist()), rank
            (lags,) = cached_tables(_row_tables, *sizes, like=like)
        coefficients = kernel.smooth_at(lags.flatten()).reshape(-1, *lags.shape).transpose(0, 1)
        local = kernel.local_taps()
        return ragged_ski_product(x, coefficients, first, lengths, nodes=nodes, degree=self.degree, local=local)

    def _nodes(self, length: int) -> int:
        """Inducing points of a text that has at least as many tokens."""
        if self.spacing is None:
            return self.rank
        return torch.sym_max(self.rank, _nodes_apart(length, self.spacing))  # type: ignore[return-value]


def _row_lags(lengths: Tensor, nodes: Tensor, rank: int) -> Tensor:
    """The lags between the nodes of each row, ``(batch, 2 rank - 1)``, in float64."""
    steps = torch.arange(1 - rank, rank, dtype=torch.float64, device=lengths.device)
    return row_spacing(lengths, nodes)[:, None] * steps


def _row_tables(lengths: tuple[int, ...], nodes: tuple[int, ...], rank: int) -> tuple[Tensor]:
    return (_row_lags(torch.tensor(lengths), torch.tensor(nodes), rank),)


def _nodes_apart(length: Length, spacing: int) -> Length:
    """``1 + ceil((length - 1) / spacing)``: nodes from the first token to the last, at most a spacing apart."""
    return 1 - (1 - length) // spacing
