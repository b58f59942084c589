"""One convolution of every channel of a signal with its own kernel, also with the gates around it, and the engines that
compute it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from lagwise.ops import native
from lagwise.ops.fused import frames as fused_frames
from lagwise.ops.fused import fused, joined
from lagwise.ops.operation import (
    Engine,
    Values,
    at_most,
    compute_dtype,
    in_graph,
    operation,
    symbolic,
)
from lagwise.ops.toeplitz import spectral
from lagwise.ops.toeplitz.block import centre
from lagwise.ops.toeplitz.direct import Direct, DirectKernel, is_direct, symbolic_product
from lagwise.ops.tokens import silu_product, with_biases


class _Contraction(torch.autograd.Function):
    """A contraction of ``<g, x * k>``, with rules for every transform: number 0 gives y from x and k, 1 the gradient of
    x from g and k, and 2 that of k from g and x. The gradients of each are the other two."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, index: int, settings: Values) -> Tensor:
        return _contract(a, b, index, settings)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor, int, Values], output: Tensor) -> None:
        a, b, ctx.index, ctx.settings = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)

    @staticmethod
    def backward(ctx, grad: Tensor):
        operands, gradients = list(ctx.saved_tensors), []
        operands.insert(ctx.index, grad)  # in the place of the result
        for position, needed in zip(sorted({0, 1, 2} - {ctx.index}), ctx.needs_input_grad[:2], strict=True):
            others = [operand for other, operand in enumerate(operands) if other != position]
            gradient = _Contraction.apply(*others, position, ctx.settings) if needed else None
            gradients.append(None if gradient is None else gradient.to(operands[position].dtype))
        return *gradients, None, None

    @staticmethod
    def jvp(ctx, a_tangent: Tensor, b_tangent: Tensor, *_: None) -> Tensor:
        a, b = ctx.saved_tensors
        settings = (ctx.index, ctx.settings)
        return _Contraction.apply(a_tangent, b, *settings) + _Contraction.apply(a, b_tangent, *settings)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, a: Tensor, b: Tensor, index: int, settings: Values) -> tuple[Tensor, int]:
        """Several signals with one kernel become a larger batch; signals with one kernel each become more channels."""
        if index != 2 and in_dims[1] is None:
            folded = a.movedim(in_dims[0], 0).flatten(0, 1)
            return _Contraction.apply(folded, b, index, settings).unflatten(0, (info.batch_size, -1)), 0
        folded, channels_of_b = [], 0 if index != 2 else 2
        for t, dim, axis in zip((a, b), in_dims[:2], (2, channels_of_b), strict=True):
            t = t.unsqueeze(axis) if dim is None else t.movedim(dim, axis)
            folded.append(t.expand(*t.shape[:axis], info.batch_size, *t.shape[axis + 1 :]).flatten(axis, axis + 1))
        axis = 0 if index == 2 else 2
        return _Contraction.apply(*folded, index, settings).unflatten(axis, (info.batch_size, -1)), axis


def _contract(a: Tensor, b: Tensor, index: int, settings: Values) -> Any:
    origin, engine, dilation, count = settings  # count: of taps
    x, kernel, needs_grad = a, b, (True, False)
    if index == 2:
        x, kernel, needs_grad = b, b.new_empty((b.shape[2], count), dtype=compute_dtype(a, b)), (False, True)
    args = (x, kernel, origin, engine, dilation)
    if index == 0 and symbolic(x.shape[1]):
        return symbolic_product(x, kernel, origin, dilation)
    by = Direct if is_direct(x, kernel, engine, dilation) else spectral.FFT
    return by.evaluate(*args) if index == 0 else by.backward(args, (), [a], needs_grad)[index - 1]


@operation
def convolution(x: Tensor, kernel: Tensor, origin: int, engine: str = "auto", dilation: int = 1) -> Tensor:
    """Convolve every channel of a signal with its own kernel: linear in both, and differentiable any number of times
    and under `torch.func` by fast contractions.

    Formula: ``y_i = sum_m kernel_m x_{i - (m - origin) dilation}``.

    Args:
        x: ``(batch, length, channels)``.
        kernel: Taps ``(channels, n_taps)`` with lag 0 at index ``origin``.
        origin: Index of lag 0.
        engine: ``auto``, ``fft``, ``overlap_save`` or ``direct`` as in `toeplitz_product`, which checks the arguments;
            or ``spectral``, which is ``auto`` without the direct product.
        dilation: In tokens; above 1, the product is direct whatever the engine.

    Returns:
        A tensor like x.

    Source: TNN eq. 4. Lag by lag: SKI-TNN §3.2 (T_sparse); TCNCA §2 (dilated).
    """
    settings = (origin, engine, dilation, kernel.shape[1])
    if torch.compiler.is_compiling():  # exporters refuse some rules of a contraction
        return _contract(x, kernel, 0, settings)
    return _Contraction.apply(x, kernel, 0, settings)


def reachable_taps(taps: Tensor, length: int, causal: bool) -> tuple[Tensor, int]:
    """The taps of lags within a signal of this length, and the index of lag 0."""
    if causal:
        return taps[:, : at_most(taps.shape[1], length)], 0
    middle = centre(taps)
    reach = at_most(middle, length - 1)
    return taps[:, middle - reach : middle + reach + 1], reach


def truncation_length(decay: float, tolerance: float) -> int | None:
    """Number of taps after which a kernel with this decay is negligible.

    Formula: the smallest ``L`` with ``decay**L <= tolerance``, that is ``ceil(ln tolerance / ln decay)``. Leaving out
    lags ``>= L`` changes an output by at most ``tolerance * max|t| * max|x| / (1 - decay)``.

    Args:
        decay: Per token, in [0, 1].
        tolerance: Relative, in (0, 1).

    Returns:
        The number of taps, or None if the kernel never decays (``decay = 1``).

    Raises:
        ValueError: Outside these ranges.

    Source: TNN eq. 5; the bound is the geometric series of the omitted lags.

    >>> truncation_length(0.99, 1e-3)  # 0.99 ** 688 = 0.00099
    688
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


for _name, _engine in {
    "triton_direct": DirectKernel, "direct": Direct, "triton": spectral.FramesOnGPU, "loop": spectral.Loops,
    "fft": spectral.FFT,
}.items():  # fmt: skip
    convolution.engine(_name)(_engine)
# Plans, and the shapes of images and padding, would be compiled anew for every length of the signal.
convolution.in_graphs("toeplitz_product", lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format))


def gated_product(
    gate: Tensor, value: Tensor, kernel: Tensor, origin: int, engine: str, biases: Tensor | None = None
) -> Tensor:
    """``silu(gate) * (kernel * silu(value))``, in one engine where kernels on a GPU or loops in C serve the product by
    FFT, and it has not so few lags that the direct engine is faster.

    Shapes: gate and value ``(batch, length, channels)``; kernel, taps ``(channels, n_taps)`` with lag 0 at index
    origin; biases ``(2, channels)``, added to gate and value before, which only loops do; result like the gate. On a
    GPU, spectra are float32, and kept for the gradient. A graph for all lengths computes them again, since the length
    of its FFTs is no symbol. Loops compute the product again.
    """
    if biases is None and in_graph() and fused(gate, value, kernel):
        return _gated_pair(_Pair.apply(gate, value), kernel, origin, engine, has_static_value(gate.shape[1]))
    return _gated(gate, value, kernel, biases, origin, engine)


@operation
def _gated(gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, origin: int, engine: str) -> Tensor:
    gate, value = with_biases(gate, value, biases)
    return silu_product(gate, convolution(F.silu(value), kernel, origin, engine))


def _in_one_part(gate: Tensor, value: Tensor, kernel: Tensor, origin: int, engine: str) -> bool:
    """Whether the product is one by FFT, of which a graph knows the length, without parts of the kernel."""
    if gate.dtype != value.dtype or not has_static_value(value.shape[1]) or is_direct(value, kernel, engine):
        return False
    return spectral.planned(value, kernel, origin, engine).parts == 1


@_gated.engine("triton")
class _GatedFrames(Engine):
    @staticmethod
    def serves(gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, *settings: Any) -> bool:
        return biases is None and fused(gate, value, kernel) and _in_one_part(gate, value, kernel, *settings)

    @staticmethod
    def forward(gate: Tensor, value: Tensor, kernel: Tensor, _: None, *settings: Any) -> tuple[Tensor, Values]:
        plan = spectral.planned(value, kernel, *settings)
        spectrum, factors = _gated_spectra(value, kernel, plan)
        frames = fused_frames.inverse(fused_frames.multiply_packed(spectrum, factors, False))
        y, out = fused_frames.store_gated(*fused_frames.used(frames, plan.valid_frames, value.shape[1]), gate)
        return out, (y, spectrum, factors)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        gate, value, kernel, _, *settings = args
        plan = spectral.planned(value, kernel, *settings)
        y, spectrum, factors = saved if len(saved) > 1 else (*saved, *_gated_spectra(value, kernel, plan))
        both = gate.new_empty((*gate.shape[:2], 2 * gate.shape[2]))
        dgate, dvalue = both.chunk(2, dim=2)  # neighbours in memory, for `joined`
        frames = fused_frames.load_gated_gradient(grads[0], y, gate, dgate, list(plan.valid_frames))
        spectra = (spectrum, fused_frames.transform(frames), factors)
        dkernel, dspectrum = spectral.packed_gradients(*spectra, kernel)
        frames = fused_frames.used(fused_frames.inverse(dspectrum), plan.signal_frames, value.shape[1])
        fused_frames.store_activation_gradient(*frames, value, dvalue)
        return dgate, dvalue, dkernel


def _gated_spectra(value: Tensor, kernel: Tensor, plan: spectral.Plan) -> tuple[Tensor, Tensor]:
    """The packed spectrum of silu(value), and the spectrum of the kernel."""
    frames = fused_frames.load(value, plan.signal_frames, activate=True)
    return fused_frames.transform(frames), spectral.kernel_spectrum(kernel, plan)


@_gated.engine("loop")
class _GatedLoops(Engine):
    @staticmethod
    def serves(gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, *settings: Any) -> bool:
        served = native.serves(gate) and spectral.by_loops(value, kernel)
        return served and _in_one_part(gate, value, kernel, *settings)

    @staticmethod
    def evaluate(gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, *settings: Any) -> Tensor:
        return native.convolve(value, kernel, spectral.planned(value, kernel, *settings).for_loops, gate, biases)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        gate, value, kernel, biases, *settings = args
        inputs = value, kernel, spectral.planned(value, kernel, *settings).for_loops, gate, biases
        dvalue, dkernel, dgate, dbiases = native.convolve_gradients(grads[0], *inputs, True, needs_grad[2])
        dkernel = dkernel.to(kernel.dtype) if needs_grad[2] else None
        return dgate, dvalue, dkernel, dbiases if needs_grad[3] else None


class _Pair(torch.autograd.Function):
    """Gate and value side by side. Compilers leave out both of its copies, where one product made gate and value: a
    `cat` of what `split_with_sizes` has made."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, value: Tensor) -> Tensor:
        return torch.cat([gate, value], dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        return grad.split_with_sizes([grad.shape[-1] // 2] * 2, dim=-1)


@operation
def _gated_pair(pair: Tensor, kernel: Tensor, origin: int, engine: str, keep: bool) -> Tensor:
    """`_gated` of gate and value side by side, for graphs. keep: whether spectra are saved."""
    return _gated(*_apart(pair, kernel, origin, engine))


def _apart(pair: Tensor, kernel: Tensor, origin: int, engine: str) -> Values:
    return *pair.chunk(2, dim=2), kernel, None, origin, engine


class _InGraph(Engine):
    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Values]:
        gate, value, *rest = _apart(*args[:-1])
        if _GatedFrames.serves(gate, value, *rest):
            out, (y, *spectra) = _GatedFrames.forward(gate, value, *rest)
            kept = map(torch.view_as_real, spectra) if args[-1] else [gate.new_empty(0, dtype=torch.float32)] * 2
        else:
            y, kept = convolution(F.silu(value), rest[0], *rest[2:]), [gate.new_empty(0, dtype=torch.float32)] * 2
            out = F.silu(gate) * y
        return out, (y, *kept)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        (gate, value, kernel, *rest), (y, *spectra), (grad,) = _apart(*args[:-1]), saved, grads
        if _GatedFrames.serves(gate, value, kernel, *rest):
            spectra = map(torch.view_as_complex, spectra) if args[-1] else ()
            arguments = (gate, value, kernel, *rest)
            dgate, dvalue, dkernel = _GatedFrames.backward(arguments, (y, *spectra), grads, needs_grad)
        else:
            dgate = torch.ops.aten.silu_backward(grad * y, gate)
            arguments = (F.silu(value), kernel, *rest[1:], 1)
            dsignal, dkernel = convolution.gradients(arguments, (), [grad * F.silu(gate)], (True, True))
            dvalue = torch.ops.aten.silu_backward(dsignal, value)
        return joined([dgate, dvalue]), dkernel


def _gated_like(pair: Tensor, kernel: Tensor, origin: int, engine: str, keep: bool) -> tuple[Tensor, ...]:
    batch, length, channels = pair.shape[0], pair.shape[1], pair.shape[2] // 2
    shapes: list[tuple[int, ...]] = [(0,), (0,)]
    if keep and _GatedFrames.serves(*_apart(pair, kernel, origin, engine)):
        plan = spectral.plan_product(pair.shape[1], kernel.shape[1], origin, engine)
        points = plan.n_fft // 2
        shapes = [(batch, channels, plan.frames, points, 2), (channels, 1, points + 1, 2)]
    products = (pair.new_empty((batch, length, channels)) for _ in range(2))
    return *products, *(pair.new_empty(shape, dtype=torch.float32) for shape in shapes)


# Compilers fuse the gates with neither the transposition into frames nor that back. Spectra are kept as real numbers,
# because inductor makes no kernels of complex ones.
_gated_pair.in_graphs("gated_product", _gated_like, engine=_InGraph, saved="y spectrum factors")
