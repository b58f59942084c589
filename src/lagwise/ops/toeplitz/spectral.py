"""Products in the frequency domain: one FFT for the whole signal, or overlap-save frames of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops import native
from lagwise.ops.fused import TritonEngine
from lagwise.ops.fused import frames as fused_frames
from lagwise.ops.fused.frames import Frames
from lagwise.ops.operation import Engine, Values, compute_dtype, operation

# Working set of one group of channels on the CPU, in real elements of the padded signal. 2**19 float32 values are
# 2 MB: spectra stay in cache and freed buffers are reused rather than mapped afresh (docs/log.md, "channel groups").
_CPU_GROUP_ELEMENTS = 1 << 19
# But at least as many channels as fill cache lines of the signal: a smaller group reads whole lines for a part of each.
_CPU_GROUP_CHANNELS = 32
# Measured crossover, CPU, float32 (docs/log.md, "engine crossover"): overlap-save wins on long signals, short kernels.
_OVERLAP_SAVE_MIN_LENGTH = 16384
_OVERLAP_SAVE_MIN_RATIO = 8
_POINTS_PER_TAP = 4
# Causal taps beyond this are cut into parts of about this many lags, or into this many parts: an output then carries
# the rounding of its own frame and of the past, not of the whole signal (docs/log.md, "long causal products").
_PART, _MAX_PARTS = 8192, 16


def fast_length(minimum: int) -> int:
    """Smallest even FFT length ``>= minimum`` of the form ``2**a * odd`` with odd in 1, 3, 5, 9, 15.

    More odd factors are legal but cost more than the points they save: on the CPU an FFT of 4000 = 2**5 * 5**3 points
    is slower than one of 4096. ValueError if minimum < 1.
    """
    if minimum < 1:
        raise ValueError(f"minimum must be at least 1, got {minimum}")
    return min(odd * 2 ** max(1, math.ceil(math.log2(minimum / odd))) for odd in (1, 3, 5, 9, 15))


class Plan(NamedTuple):
    """The cut of a signal into FFT frames. Frame f holds the padded signal from f * hop, n_fft points long.

    Taps may be cut into parts as long as a hop: part p meets frame f - p.
    """

    n_fft: int
    frames: int
    hop: int  # outputs that a frame contributes
    start: int  # where the signal begins in the padded signal
    skip: int  # outputs of a frame before its first valid one
    parts: int = 1

    @property
    def signal_frames(self) -> Frames:
        """Positions of the signal's tokens in the frames."""
        return Frames(self.frames, self.n_fft, self.hop, self.start, 0, self.n_fft)

    @property
    def valid_frames(self) -> Frames:
        """Positions of the product's tokens in the frames."""
        return Frames(self.frames, self.n_fft, self.hop, self.skip, self.skip, self.skip + self.hop)

    @property
    def for_loops(self) -> list[int]:
        """The plan as `native.convolve` takes it. There, taps lie on the circle by their lag, which may be negative, so
        that a frame's outputs begin where the signal does."""
        return [self.skip - self.start, self.n_fft // 2, self.frames, self.hop, self.start, self.parts]


def plan_product(length: int, n_taps: int, origin: int, engine: str) -> Plan:
    """One frame for the whole signal, or overlap-save frames of about four times the taps or twice a part of them.

    One frame needs n_fft >= length + largest |lag|: the circular wrap then only reaches outputs that are dropped.
    Overlap-save drops the first n_taps - 1 outputs of every frame, so it is exact for any signal length.
    """
    if engine != "fft" and origin == 0 and n_taps > _PART:
        parts = min(_MAX_PARTS, -(-n_taps // _PART))
        hop = fast_length(2 * -(-n_taps // parts)) // 2
        return Plan(2 * hop, -(-length // hop), hop, hop, hop, -(-n_taps // hop))
    long = length >= _OVERLAP_SAVE_MIN_LENGTH and length >= _OVERLAP_SAVE_MIN_RATIO * n_taps
    if engine == "overlap_save" or (engine != "fft" and long):
        n_fft = fast_length(max(_POINTS_PER_TAP * n_taps, 1024))
        hop = n_fft - n_taps + 1
        return Plan(n_fft, -(-length // hop), hop, n_taps - 1 - origin, n_taps - 1)
    return Plan(fast_length(length + max(origin, n_taps - 1 - origin)), 1, length, 0, origin)


def planned(x: Tensor, kernel: Tensor, origin: int, engine: str) -> Plan:
    """`plan_product` of a signal and taps."""
    return plan_product(x.shape[1], kernel.shape[1], origin, engine)


class FFT(Engine):
    """`lagwise.ops.toeplitz.convolution` in frames, by groups of channels small enough for the cache.

    Autograd's own gradient of rfft runs full complex FFTs and keeps every spectrum. Here ``dx = irfft(G conj K)`` and
    ``dt = irfft(sum_b G conj X)``, and the signal's spectrum is computed again rather than kept.
    """

    @staticmethod
    def serves(x: Tensor, kernel: Tensor, origin: int, engine: str, dilation: int) -> bool:
        return dilation == 1

    @staticmethod
    def evaluate(x: Tensor, kernel: Tensor, origin: int, engine: str, dilation: int) -> Tensor:
        y, plan = torch.empty_like(x), planned(x, kernel, origin, engine)
        if x.shape[0] == 0:  # FFTs refuse an empty batch; `len` would fix the size in an exported graph
            return y
        padded, groups = _padding(x, kernel, plan)
        for group in groups:
            spectrum = torch.fft.rfft(_load(padded, x, group, plan))
            spectrum = _across_frames(spectrum, kernel_spectrum(kernel, plan, group, padded.dtype), 1)
            frames = torch.fft.irfft(spectrum, plan.n_fft)
            valid = frames[..., plan.skip : plan.skip + plan.hop].flatten(2)
            _store(y, group, valid[..., : x.shape[1]])
        return y

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        (x, kernel, origin, engine, _), (grad,) = args, grads
        plan, dx = planned(x, kernel, origin, engine), torch.empty_like(x) if needs_grad[0] else None
        if x.shape[0] == 0:
            return dx, torch.zeros_like(kernel) if needs_grad[1] else None
        of_kernel: list[Tensor] = []
        padded, groups = _padding(x, kernel, plan)
        outputs = x.new_zeros((*padded.shape[:2], plan.frames, plan.n_fft), dtype=padded.dtype)
        for group in groups:
            spectrum = torch.fft.rfft(_load_outputs(outputs, grad, group, plan))
            if needs_grad[1]:
                products = _kernel_products(torch.fft.rfft(_load(padded, x, group, plan)), spectrum, plan)
                of_kernel.append(_kernel_gradient(products, kernel, plan))
            if dx is not None:
                factors = kernel_spectrum(kernel, plan, group, padded.dtype).conj()
                signal = _overlap_add(torch.fft.irfft(_across_frames(spectrum, factors, -1), plan.n_fft), plan)
                _store(dx, group, signal[..., plan.start : plan.start + x.shape[1]])
        return dx, torch.cat(of_kernel) if needs_grad[1] else None


class FramesOnGPU(FFT):
    """`FFT` with Triton's kernels around it, of all channels at once."""

    @staticmethod
    def serves(x: Tensor, kernel: Tensor, origin: int, engine: str, dilation: int) -> bool:
        return dilation == 1 and TritonEngine.serves(x, kernel)

    @staticmethod
    def evaluate(x: Tensor, kernel: Tensor, origin: int, engine: str, dilation: int) -> Tensor:
        plan = planned(x, kernel, origin, engine)
        frames, factors = fused_frames.load(x, plan.signal_frames), kernel_spectrum(kernel, plan)
        if plan.parts == 1:
            frames = fused_frames.inverse(fused_frames.multiply_packed(fused_frames.transform(frames), factors, False))
        else:
            frames = torch.fft.irfft(_across_frames(torch.fft.rfft(frames), factors, 1), plan.n_fft)
        return fused_frames.store(frames, plan.valid_frames, x.shape[1], x.dtype)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        x, kernel, origin, engine, _ = args
        plan, dkernel = planned(x, kernel, origin, engine), None
        frames, factors = fused_frames.load(grads[0], plan.valid_frames), kernel_spectrum(kernel, plan)
        signal = fused_frames.load(x, plan.signal_frames) if needs_grad[1] else None
        if plan.parts == 1:
            spectrum = fused_frames.transform(frames)
            if signal is not None:
                dkernel, spectrum = packed_gradients(fused_frames.transform(signal), spectrum, factors, kernel)
            else:
                spectrum = fused_frames.multiply_packed(spectrum, factors, True)
            frames = fused_frames.inverse(spectrum) if needs_grad[0] else None
        else:
            spectrum = torch.fft.rfft(frames)
            if signal is not None:
                dkernel = _kernel_gradient(_kernel_products(torch.fft.rfft(signal), spectrum, plan), kernel, plan)
            spectrum = _across_frames(spectrum, factors.conj(), -1) if needs_grad[0] else spectrum
            frames = torch.fft.irfft(spectrum, plan.n_fft) if needs_grad[0] else None
        dx = None if frames is None else fused_frames.store(frames, plan.signal_frames, x.shape[1], x.dtype)
        return dx, dkernel


class Loops(FFT):
    """`FFT` by loops in C."""

    @staticmethod
    def serves(x: Tensor, kernel: Tensor, origin: int, engine: str, dilation: int) -> bool:
        return dilation == 1 and by_loops(x, kernel)

    @staticmethod
    def evaluate(x: Tensor, kernel: Tensor, origin: int, engine: str, dilation: int) -> Tensor:
        return native.convolve(x, kernel, planned(x, kernel, origin, engine).for_loops, None, None)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        x, kernel, origin, engine, _ = args
        plan = planned(x, kernel, origin, engine).for_loops
        dx, dtaps, *_ = native.convolve_gradients(grads[0], x, kernel, plan, None, None, *needs_grad[:2])
        return dx if needs_grad[0] else None, dtaps.to(kernel.dtype) if needs_grad[1] else None


def by_loops(x: Tensor, kernel: Tensor) -> bool:
    """Whether loops in C compute the product: they are faster if the channels fill a quarter of a vector."""
    return native.serves(x, kernel) and 4 * x.shape[2] >= native.lanes()


def packed_gradients(signal: Tensor, grad: Tensor, factors: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the kernel, and the packed spectrum of the signal's, from the packed spectra of a signal and of a
    gradient and those of `kernel_spectrum`."""
    total, spectrum = fused_frames.spectrum_gradients(signal, grad, factors)
    return fused_frames.inverse(total)[:, 0, : kernel.shape[1]].to(kernel.dtype), spectrum


def _padding(x: Tensor, kernel: Tensor, plan: Plan) -> tuple[Tensor, list[slice]]:
    """Return zeros for the padded signals of a group of channels, and the groups: as many channels as fit into the
    cache, all of them unless on the CPU. `_load` overwrites only the signal's part, so the zeros serve every group."""
    channels, size = x.shape[2], x.shape[2]
    if x.device.type == "cpu":
        fitting = _CPU_GROUP_ELEMENTS // (x.shape[0] * plan.frames * plan.n_fft)
        size = min(channels, max(_CPU_GROUP_CHANNELS, fitting))
    points = (plan.frames - 1) * plan.hop + plan.n_fft
    padded = x.new_zeros((x.shape[0], size, points), dtype=compute_dtype(x, kernel))
    return padded, [slice(start, min(start + size, channels)) for start in range(0, channels, size)]


def _channels_first(x: Tensor, group: slice) -> Tensor:
    """Channels of x as (batch, group, length). Gathering the group first makes the transposition that follows local:
    read directly from x it strides over whole rows, and with 512 channels every read hits the same cache sets."""
    part = x[:, :, group]
    return (part if part.stride(1) == 1 else part.contiguous()).transpose(1, 2)


def _store(y: Tensor, group: slice, part: Tensor) -> None:
    """Inverse of `_channels_first`, into a preallocated y. Rows first move to a stride of an odd number of cache lines:
    with the stride of an FFT length the channels of a token share cache sets, and transposing takes three times as
    long."""
    line = 16
    stride = (-(-part.shape[2] // line) | 1) * line
    rows = part.new_empty((*part.shape[:2], stride))[..., : part.shape[2]]
    y[:, :, group] = rows.copy_(part).transpose(1, 2)


def _load(padded: Tensor, x: Tensor, group: slice, plan: Plan) -> Tensor:
    """Copy channels of x into zero-padded frames (batch, group, frames, n_fft): cast, transpose and pad in one pass."""
    padded = padded[:, : group.stop - group.start]
    padded[..., plan.start : plan.start + x.shape[1]] = _channels_first(x, group)
    return padded.unfold(-1, plan.n_fft, plan.hop) if plan.frames > 1 else padded[:, :, None]


def _load_outputs(frames: Tensor, grad: Tensor, group: slice, plan: Plan) -> Tensor:
    """Copy the gradient of the outputs to where the frames produced them; the rest of ``frames`` stays zero."""
    frames = frames[:, : group.stop - group.start]
    part = _channels_first(grad, group)
    whole, rest = part.shape[2] // plan.hop, part.shape[2] % plan.hop  # a symbol has no `divmod`
    full = part[..., : whole * plan.hop].unflatten(-1, (whole, plan.hop))
    frames[:, :, :whole, plan.skip : plan.skip + plan.hop] = full
    if rest:
        frames[:, :, whole, plan.skip : plan.skip + rest] = part[..., whole * plan.hop :]
    return frames


def kernel_spectrum(
    kernel: Tensor, plan: Plan, group: slice = slice(None), dtype: torch.dtype = torch.float32
) -> Tensor:
    """The spectrum ``(channels, parts, points)`` of a group of channels of taps."""
    taps = kernel[group].to(dtype)
    if plan.parts > 1:
        taps = F.pad(taps, (0, plan.parts * plan.hop - taps.shape[1]))
    return torch.fft.rfft(taps.unflatten(1, (plan.parts, -1)), plan.n_fft)


def _across_frames(spectrum: Tensor, kernel: Tensor, step: int) -> Tensor:
    """Multiply spectra (batch, group, frames, points) by a kernel (group, parts, points), in place: its part p adds to
    the frame p later (step 1) or p earlier (step -1)."""
    if kernel.shape[1] == 1:
        return spectrum.mul_(kernel)
    for some in _channels_in_cache(spectrum):
        rows, taps = spectrum[:, some], kernel[some]
        total = rows * taps[:, :1]
        for p in range(1, taps.shape[1]):
            earlier, later = slice(0, -p), slice(p, None)
            source, target = (earlier, later) if step == 1 else (later, earlier)
            total[:, :, target].addcmul_(rows[:, :, source], taps[:, p : p + 1])
        rows.copy_(total)
    return spectrum


def _kernel_products(signal: Tensor, grad: Tensor, plan: Plan) -> Tensor:
    """The spectrum of the kernel's gradient (group, parts, points) from those of signal and gradient (batch, group,
    frames, points)."""
    signal = signal.conj_physical_()
    if plan.parts == 1:
        return signal.mul_(grad).sum(dim=(0, 2))[:, None]
    total = signal.new_zeros((signal.shape[1], plan.parts, signal.shape[3]))
    for some in _channels_in_cache(signal):
        for row, other in zip(signal[:, some], grad[:, some], strict=True):
            for f in range(plan.frames):
                met = min(plan.parts, plan.frames - f)
                total[some, :met].addcmul_(row[:, f : f + 1], other[:, f : f + met])
    return total


def _channels_in_cache(spectrum: Tensor) -> list[slice]:
    """Return slices of the channels of spectra (batch, group, frames, points) that stay in the cache for every part of
    a kernel."""
    channels = spectrum.shape[1]
    fitting = max(1, _CPU_GROUP_ELEMENTS * channels // (2 * spectrum.numel()))
    size = fitting if spectrum.device.type == "cpu" else channels
    return [slice(start, start + size) for start in range(0, channels, size)]


def _kernel_gradient(products: Tensor, kernel: Tensor, plan: Plan) -> Tensor:
    """The gradient of a group of channels of taps from the products of spectra, as `kernel_spectrum` has them."""
    taps = torch.fft.irfft(products, plan.n_fft)
    taps = taps[..., : plan.hop].flatten(1) if plan.parts > 1 else taps[:, 0]
    return taps[:, : kernel.shape[1]].to(kernel.dtype)


def _overlap_add(frames: Tensor, plan: Plan) -> Tensor:
    """Adjoint of cutting a padded signal into overlapping frames."""
    if plan.frames == 1:
        return frames[:, :, 0]
    padded = frames.new_zeros((*frames.shape[:2], (plan.frames - 1) * plan.hop + plan.n_fft))
    for f in range(plan.frames):
        padded[..., f * plan.hop : f * plan.hop + plan.n_fft] += frames[:, :, f]
    return padded


@operation
def inverse_of_parts(parts: Tensor, points: int) -> Tensor:
    """``irfft(parts[0], points)``, and of a second part ``irfft(1j * parts[1], points)``.

    A compiled graph calls it as it is and has no complex numbers: PyTorch's inductor makes no kernels of them, and
    fails where it tries to (torch 2.11).

    Shapes: parts ``(1 or 2, rows, points / 2 + 1)``, float32 or float64, for an even number of points; result ``(1 or
    2, rows, points)``. Imaginary parts of the first and the last frequency are ignored.
    """
    if len(parts) == 1:
        spectra = parts.to(parts.dtype.to_complex())
    else:
        none = torch.zeros_like(parts[0])
        spectra = torch.stack([torch.complex(parts[0], none), torch.complex(none, parts[1])])
    return torch.fft.irfft(spectra, points).contiguous()  # cuFFT may keep the order of strides


class _Inverse(Engine):
    evaluate = staticmethod(inverse_of_parts.plain)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        spectra = torch.fft.rfft(grads[0]) * (2 / args[1])  # a frequency counts for its negative, too
        spectra[..., :: args[1] // 2] /= 2  # but not the first and the last
        return torch.cat([spectra[:1].real, spectra[1:].imag]), None


inverse_of_parts.in_graphs(
    "inverse_of_parts", lambda parts, points: parts.new_empty((*parts.shape[:2], points)), engine=_Inverse
)
