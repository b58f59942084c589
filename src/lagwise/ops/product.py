"""Toeplitz products: one definition, several engines.

A Toeplitz matrix with coefficients ``t`` acts on each channel of a signal as ``y_i = sum_j t_{i-j} x_j`` (TNN eq. 4).
`toeplitz_product` computes it with the fastest engine; `toeplitz_reference` is the dense matrix that every engine is
tested against.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lagwise.ops.operation import compute_dtype, symbolic
from lagwise.ops.toeplitz.block import centre, toeplitz_matrix
from lagwise.ops.toeplitz.convolution import convolution, reachable_taps

EXACT_ENGINES = ("auto", "dense", "fft", "overlap_save", "direct")
ENGINES = (*EXACT_ENGINES, "ski")  # of `lagwise.mixers.ToeplitzMixer`
_FORMER_ENGINES = ("block", "subquadratic")  # configurations of saved models may name them


def toeplitz_product(x: Tensor, taps: Tensor, *, causal: bool = True, engine: str = "auto") -> Tensor:
    """Multiply every channel of a signal by its own Toeplitz matrix.

    Formula:
        ``y[b, i, c] = sum_j t[c, i - j] x[b, j, c]``, over all j, and ``j <= i`` when causal.

    Args:
        x: ``(batch, length, channels)``.
        taps: ``(channels, n_taps)``. Lag 0 is first when causal; otherwise lag ``-(n_taps - 1) / 2`` is first, with lag
            0 in the middle. Lags beyond the taps are zero; taps beyond the length are ignored.
        causal: Whether taps are for lags from 0 on.
        engine: ``auto`` is the fastest: direct for few lags, otherwise an FFT. The others are ``dense``, ``fft``,
            ``overlap_save`` and ``direct``. While `torch.export` leaves the length open, one plain convolution is used
            whatever the engine. For approximations in linear time there are `causal_ski_product` and `ski_product`.

    Returns:
        A tensor like x. Arithmetic is float64 if either input is, otherwise float32, whatever the dtype of x.

    Raises:
        ValueError: For an empty signal, mismatched channels, an even number of two-sided taps, or an unknown engine.
            Values are not checked: one NaN spreads over a whole channel through the FFT.

    Source:
        TNN eq. 4 and app. B. Unlike the released code, the FFT has a fast length of at least length + largest lag (not
        2n), runs along the contiguous axis, and has its own gradient. The FFT engines leak round-off from future to
        past (about 1e-7 of the largest value in the frame); ``direct`` is exactly causal for finite values. ``auto``
        and ``overlap_save`` cut causal taps beyond 8192 lags into parts (uniformly partitioned overlap-save; Stockham
        1966, Kulp 1988): the leak then stays within about 8192 tokens, or within a sixteenth of the taps if that is
        more.

    >>> x = torch.tensor([1.0, 0.0, 0.0, 2.0]).view(1, 4, 1)
    >>> toeplitz_product(x, torch.tensor([[1.0, 0.5]]), engine="direct").flatten().tolist()
    [1.0, 0.5, 0.0, 2.0]
    """
    if symbolic(x.shape[1]):
        return convolution(x, taps, 0 if causal else centre(taps), engine)
    taps, origin = _validated(x, taps, causal, engine)
    if engine == "dense":
        return toeplitz_reference(x, taps, causal=causal)
    return convolution(x, taps, origin, engine)


def saved_engine(name: Any) -> Any:
    """Engine of a saved configuration: ``auto``, which computes the same, in place of one that has been removed."""
    return "auto" if name in _FORMER_ENGINES else name


def toeplitz_reference(x: Tensor, taps: Tensor, *, causal: bool = True) -> Tensor:
    """`toeplitz_product` through dense ``(channels, length, length)`` matrices: O(n²), for tests and short inputs.

    Formula, shapes, units, errors and source as in `toeplitz_product` (TNN eq. 3 and 4).

    >>> x, taps = torch.randn(2, 100, 4), torch.randn(4, 30)
    >>> torch.allclose(toeplitz_reference(x, taps), toeplitz_product(x, taps), atol=1e-4)
    True
    """
    taps, _ = _validated(x, taps, causal, "dense")
    dtype = compute_dtype(x, taps)
    matrix = toeplitz_matrix(taps.to(dtype), x.shape[1], causal=causal)
    return torch.einsum("cij,bjc->bic", matrix, x.to(dtype)).to(x.dtype)


def _validated(x: Tensor, taps: Tensor, causal: bool, engine: str) -> tuple[Tensor, int]:
    """Check the arguments. Returns the taps cut to the lags within the signal, and the index of lag 0."""
    if engine not in EXACT_ENGINES:
        raise ValueError(f"engine must be one of {', '.join(EXACT_ENGINES)}, got {engine!r}")
    if x.dim() != 3 or 0 in x.shape[1:]:
        raise ValueError(f"x must be (batch, length >= 1, channels >= 1), got {tuple(x.shape)}")
    if not (x.is_floating_point() and taps.is_floating_point()):
        raise ValueError(f"x and taps must be real floating-point tensors, got {x.dtype} and {taps.dtype}")
    if taps.dim() != 2 or taps.shape[0] != x.shape[2] or taps.shape[1] == 0:
        raise ValueError(f"taps must be (channels={x.shape[2]}, n_taps >= 1), got {tuple(taps.shape)}")
    return reachable_taps(taps, x.shape[1], causal)
