"""Toeplitz products: one definition, four engines.

A Toeplitz matrix with coefficients ``t`` acts on each channel of a signal as ``y_i = sum_j t_{i-j} x_j`` (TNN eq. 4).
`toeplitz_product` computes it by whichever engine is fastest; `toeplitz_reference` is the dense matrix that every
engine is tested against.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ENGINES = ("auto", "dense", "fft", "overlap_save", "block")

# Working set of one group of channels on the CPU, in real elements of the padded signal. 2**19 float32 values are
# 2 MB: spectra stay in cache and freed buffers are reused rather than mapped afresh (docs/log.md, "channel groups").
_CPU_GROUP_ELEMENTS = 1 << 19
_BLOCK = 64
# Measured crossover, CPU, float32 (docs/log.md, "engine crossover"): the block engine never wins there, overlap-save
# wins on long signals with short kernels.
_OVERLAP_SAVE_MIN_LENGTH = 16384
_OVERLAP_SAVE_MIN_RATIO = 8
_POINTS_PER_TAP = 4


def toeplitz_product(x: Tensor, taps: Tensor, *, causal: bool = True, engine: str = "auto") -> Tensor:
    """Multiply every channel of a signal by its own Toeplitz matrix.

    Formula:
        ``y[b, i, c] = sum_j t[c, i - j] x[b, j, c]``, over ``j <= i`` when causal.

    Shapes:
        x ``(batch, length, channels)``; taps ``(channels, n_taps)``, lag 0 first, when causal, or lag
        ``-(n_taps - 1) / 2`` first (so lag 0 in the middle) when not; result like x. Taps may be fewer than the
        length (all other lags are zero) or more (they are ignored).

    Units and ranges:
        Lags in tokens. Arithmetic is float64 if either input is, else float32, whatever the dtype of x.

    Preconditions:
        ValueError for an empty signal, mismatched channels, an even number of two-sided taps or an unknown engine.
        Values are not checked: one NaN reaches a whole channel through the FFT.

    Source:
        TNN eq. 4 and app. B. Unlike the released code the FFT has a fast length of at least length + largest lag
        (not 2n), runs along the contiguous axis, and carries its own gradient. The FFT engines leak round-off from
        future to past (about 1e-7 of the largest value in the row); ``block`` is exactly causal for finite values.
    """
    taps, origin = _validated(x, taps, causal, engine)
    if engine == "auto":
        engine = _choose_engine(x.shape[1], taps.shape[1])
    if engine == "dense":
        return toeplitz_reference(x, taps, causal=causal)
    if engine == "block":
        return _block_product(x, taps, origin)
    plan = _plan(x.shape[1], taps.shape[1], origin, frames=engine == "overlap_save")
    return _SpectralProduct.apply(x, taps, plan)


def toeplitz_reference(x: Tensor, taps: Tensor, *, causal: bool = True) -> Tensor:
    """The same product through the dense ``(channels, length, length)`` matrices: O(n²), for tests and short inputs.

    Formula, shapes, units, errors and source as in `toeplitz_product` (TNN eq. 3 and 4).
    """
    taps, _ = _validated(x, taps, causal, "dense")
    dtype = _compute_dtype(x, taps)
    matrix = toeplitz_matrix(taps.to(dtype), x.shape[1], causal=causal)
    return torch.einsum("cij,bjc->bic", matrix, x.to(dtype)).to(x.dtype)


def toeplitz_matrix(taps: Tensor, length: int, *, causal: bool = True) -> Tensor:
    """Dense Toeplitz matrices ``T[c, i, j] = t[c, i - j]`` (TNN eq. 3).

    Shapes: taps ``(channels, n_taps)`` as in `toeplitz_product`; result ``(channels, length, length)``.
    Lags without a tap are zero. ValueError for two-sided taps of even number.
    """
    origin = 0 if causal else _centre(taps)
    lag = torch.arange(length, device=taps.device)[:, None] - torch.arange(length, device=taps.device)[None, :]
    index = lag + origin
    inside = (index >= 0) & (index < taps.shape[1])
    return taps[:, index.clamp(0, taps.shape[1] - 1)] * inside


def truncation_length(decay: float, tolerance: float) -> int | None:
    """Number of taps after which a kernel with this decay is negligible.

    Formula: the smallest ``L`` with ``decay**L <= tolerance``, that is ``ceil(ln tolerance / ln decay)``. Leaving out
    lags ``>= L`` changes an output by at most ``tolerance * max|t| * max|x| / (1 - decay)``.

    Units: decay per token in [0, 1]; tolerance relative, in (0, 1). None when the kernel never decays (``decay = 1``).
    ValueError outside those ranges. Source: TNN eq. 5; the bound is the geometric series of what is left out.
    """
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"decay must be in [0, 1], got {decay}")
    if not 0.0 < tolerance < 1.0:
        raise ValueError(f"tolerance must be in (0, 1), got {tolerance}")
    if decay == 1.0:
        return None
    if decay == 0.0:
        return 1
    return max(1, math.ceil(math.log(tolerance) / math.log(decay)))


def fast_length(minimum: int) -> int:
    """Smallest even FFT length ``>= minimum`` of the form ``2**a * odd`` with odd in 1, 3, 5, 9, 15.

    More odd factors are legal but cost more than the points they save: on the CPU an FFT of 4000 = 2**5 * 5**3 points
    is slower than one of 4096. ValueError if minimum < 1.
    """
    if minimum < 1:
        raise ValueError(f"minimum must be at least 1, got {minimum}")
    return min(odd * 2 ** max(1, math.ceil(math.log2(minimum / odd))) for odd in (1, 3, 5, 9, 15))


def _validated(x: Tensor, taps: Tensor, causal: bool, engine: str) -> tuple[Tensor, int]:
    """Check the arguments; return taps cut to the lags that the signal can reach, and the index of lag 0."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if x.dim() != 3 or x.shape[1] == 0:
        raise ValueError(f"x must be (batch, length >= 1, channels), got {tuple(x.shape)}")
    if not (x.is_floating_point() and taps.is_floating_point()):
        raise ValueError(f"x and taps must be real floating-point tensors, got {x.dtype} and {taps.dtype}")
    if taps.dim() != 2 or taps.shape[0] != x.shape[2] or taps.shape[1] == 0:
        raise ValueError(f"taps must be (channels={x.shape[2]}, n_taps >= 1), got {tuple(taps.shape)}")
    length = x.shape[1]
    if causal:
        return taps[:, :length], 0
    centre = _centre(taps)
    reach = min(centre, length - 1)
    return taps[:, centre - reach : centre + reach + 1], reach


def _centre(taps: Tensor) -> int:
    if taps.shape[1] % 2 == 0:
        raise ValueError(f"two-sided taps must be odd in number, with lag 0 in the middle, got {taps.shape[1]}")
    return taps.shape[1] // 2


def _compute_dtype(x: Tensor, taps: Tensor) -> torch.dtype:
    return torch.float64 if torch.float64 in (x.dtype, taps.dtype) else torch.float32


def _choose_engine(length: int, n_taps: int) -> str:
    long = length >= _OVERLAP_SAVE_MIN_LENGTH and length >= _OVERLAP_SAVE_MIN_RATIO * n_taps
    return "overlap_save" if long else "fft"


# ---------------------------------------------------------------------------------------------------------------- FFT


class _Plan(NamedTuple):
    """How a signal is cut into FFT frames. Frame f holds the padded signal from f * hop, n_fft points long."""

    n_fft: int
    frames: int
    hop: int  # outputs that a frame contributes
    start: int  # where the signal begins in the padded signal
    skip: int  # outputs of a frame before its first valid one


def _plan(length: int, n_taps: int, origin: int, *, frames: bool) -> _Plan:
    """One frame for the whole signal, or overlap-save frames of about four times the taps.

    One frame needs n_fft >= length + largest |lag|: the circular wrap then only reaches outputs that are dropped.
    Overlap-save drops the first n_taps - 1 outputs of every frame, so it is exact for any signal length.
    """
    if frames:
        n_fft = fast_length(max(_POINTS_PER_TAP * n_taps, 1024))
        hop = n_fft - n_taps + 1
        return _Plan(n_fft, -(-length // hop), hop, n_taps - 1 - origin, n_taps - 1)
    return _Plan(fast_length(length + max(origin, n_taps - 1 - origin)), 1, length, 0, origin)


class _SpectralProduct(torch.autograd.Function):
    """Toeplitz product in the frequency domain with a hand-written gradient.

    Autograd's own gradient of rfft runs full complex FFTs and keeps every spectrum; here the backward pass is
    ``dx = irfft(G conj K)`` and ``dt = irfft(sum_b G conj X)``, the signal's spectrum is recomputed rather than kept,
    and channels are taken in groups small enough for the cache.
    """

    @staticmethod
    def forward(ctx, x: Tensor, taps: Tensor, plan: _Plan) -> Tensor:
        ctx.save_for_backward(x, taps)
        ctx.plan = plan
        dtype = _compute_dtype(x, taps)
        y = torch.empty_like(x)
        groups = _channel_groups(x, plan)
        padded = _padding(x, groups[0], plan, dtype)
        for group in groups:
            spectrum = torch.fft.rfft(_load(padded, x, group, plan))
            spectrum *= _taps_spectrum(taps, group, plan, dtype)
            frames = torch.fft.irfft(spectrum, plan.n_fft)
            valid = frames[..., plan.skip : plan.skip + plan.hop].flatten(2)
            _store(y, group, valid[..., : x.shape[1]])
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        x, taps = ctx.saved_tensors
        plan: _Plan = ctx.plan
        dtype = _compute_dtype(x, taps)
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        dtaps = torch.empty_like(taps) if ctx.needs_input_grad[1] else None
        groups = _channel_groups(x, plan)
        padded = _padding(x, groups[0], plan, dtype)
        outputs = x.new_zeros((*padded.shape[:2], plan.frames, plan.n_fft), dtype=dtype)
        for group in groups:
            spectrum = torch.fft.rfft(_load_outputs(outputs, grad, group, plan))
            if dtaps is not None:
                products = torch.fft.rfft(_load(padded, x, group, plan)).conj_physical_().mul_(spectrum)
                response = torch.fft.irfft(products.sum(dim=(0, 2)), plan.n_fft)
                dtaps[group] = response[:, : taps.shape[1]].to(dtaps.dtype)
            if dx is not None:
                spectrum *= _taps_spectrum(taps, group, plan, dtype).conj()
                signal = _overlap_add(torch.fft.irfft(spectrum, plan.n_fft), plan)
                _store(dx, group, signal[..., plan.start : plan.start + x.shape[1]])
        return dx, dtaps, None


def _channel_groups(x: Tensor, plan: _Plan) -> list[slice]:
    """Slices of channels whose padded signals fit the cache; all channels at once off the CPU."""
    channels = x.shape[2]
    per_channel = max(1, x.shape[0] * plan.frames * plan.n_fft)
    size = channels if x.device.type != "cpu" else max(1, min(channels, _CPU_GROUP_ELEMENTS // per_channel))
    return [slice(start, min(start + size, channels)) for start in range(0, channels, size)]


def _channels_first(x: Tensor, group: slice) -> Tensor:
    """Channels of x as (batch, group, length). Gathering the group first makes the transposition that follows local:
    read straight from x it strides over whole rows, and with 512 channels every read meets the same cache sets."""
    part = x[:, :, group]
    return (part if part.stride(1) == 1 else part.contiguous()).transpose(1, 2)


def _store(y: Tensor, group: slice, part: Tensor) -> None:
    """Inverse of `_channels_first`, into a preallocated y. Rows first move to a stride of an odd number of cache lines:
    at an FFT length's own stride the channels of a token share cache sets, and transposing takes three times longer."""
    line = 16
    stride = (-(-part.shape[2] // line) | 1) * line
    rows = part.new_empty((*part.shape[:2], stride))[..., : part.shape[2]]
    y[:, :, group] = rows.copy_(part).transpose(1, 2)


def _padding(x: Tensor, group: slice, plan: _Plan, dtype: torch.dtype) -> Tensor:
    """Zeros for one group's padded signals; `_load` overwrites the signal's part only, so they serve every group."""
    points = (plan.frames - 1) * plan.hop + plan.n_fft
    return x.new_zeros((x.shape[0], group.stop - group.start, points), dtype=dtype)


def _load(padded: Tensor, x: Tensor, group: slice, plan: _Plan) -> Tensor:
    """Copy channels of x into zero-padded frames (batch, group, frames, n_fft): cast, transpose and pad in one pass."""
    padded = padded[:, : group.stop - group.start]
    padded[..., plan.start : plan.start + x.shape[1]] = _channels_first(x, group)
    return padded.unfold(-1, plan.n_fft, plan.hop) if plan.frames > 1 else padded[:, :, None]


def _load_outputs(frames: Tensor, grad: Tensor, group: slice, plan: _Plan) -> Tensor:
    """Place the gradient of the outputs where the frames produced them; the rest of ``frames`` is zero and stays so."""
    frames = frames[:, : group.stop - group.start]
    part = _channels_first(grad, group)
    whole, rest = divmod(part.shape[2], plan.hop)
    full = part[..., : whole * plan.hop].unflatten(-1, (whole, plan.hop))
    frames[:, :, :whole, plan.skip : plan.skip + plan.hop] = full
    if rest:
        frames[:, :, whole, plan.skip : plan.skip + rest] = part[..., whole * plan.hop :]
    return frames


def _taps_spectrum(taps: Tensor, group: slice, plan: _Plan, dtype: torch.dtype) -> Tensor:
    return torch.fft.rfft(taps[group].to(dtype), plan.n_fft)[:, None]


def _overlap_add(frames: Tensor, plan: _Plan) -> Tensor:
    """Adjoint of cutting a padded signal into overlapping frames."""
    if plan.frames == 1:
        return frames[:, :, 0]
    padded = frames.new_zeros((*frames.shape[:2], (plan.frames - 1) * plan.hop + plan.n_fft))
    for f in range(plan.frames):
        padded[..., f * plan.hop : f * plan.hop + plan.n_fft] += frames[:, :, f]
    return padded


# -------------------------------------------------------------------------------------------------------------- block


def _block_product(x: Tensor, taps: Tensor, origin: int) -> Tensor:
    """Cut the matrix into ``_BLOCK``-sized Toeplitz blocks; one batched GEMM for each block distance.

    Entries above the diagonal of a causal kernel are exact zeros and blocks above it are never touched, so a finite
    future cannot reach the past, not even by rounding.
    """
    dtype = _compute_dtype(x, taps)
    batch, length, channels = x.shape
    size = min(_BLOCK, length)
    blocks = -(-length // size)
    signal = F.pad(x.to(dtype), (0, 0, 0, blocks * size - length)).reshape(batch, blocks, size, channels)
    signal = signal.permute(3, 2, 1, 0).flip(1)  # (channels, size, blocks, batch), last token of a block first
    furthest = min(blocks - 1, (taps.shape[1] - 1 - origin + size - 1) // size)
    nearest = -min(blocks - 1, (origin + size - 1) // size)
    # Row i of the Hankel view from lag (distance - 1) * size + 1 on, times a reversed block, is row i of the Toeplitz
    # block: views of one padded row of taps, where an index array would cost a gather and its gradient a scatter.
    before = max(0, (1 - nearest) * size - 1 - origin)
    after = max(0, (furthest + 1) * size + origin - taps.shape[1])
    padded = F.pad(taps.to(dtype), (before, after))
    total = signal.new_zeros(signal.shape)
    for distance in range(nearest, furthest + 1):
        lag = (distance - 1) * size + 1 + origin + before
        matrix = padded[:, lag : lag + 2 * size - 1].unfold(1, size, 1)
        first, last = max(0, -distance), blocks - max(0, distance)
        product = torch.bmm(matrix, signal[:, :, first:last].flatten(2)).unflatten(2, (last - first, batch))
        # Pad to full size and add: in-place slices would cost autograd a copy of the total for every distance.
        total = total + F.pad(product, (0, 0, first + distance, blocks - last - distance))
    y = total.permute(3, 2, 1, 0).reshape(batch, blocks * size, channels)[:, :length]
    return y.to(x.dtype)
