"""Convolutions by FFT with the gates around them, in half of the passes over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from lagwise.ops import native
from lagwise.ops.fused import frames as fused_frames
from lagwise.ops.fused import fused, joined
from lagwise.ops.operation import PLAIN, Engine, Values, definitions_only, graph_operator, in_graph, operation
from lagwise.ops.toeplitz import spectral
from lagwise.ops.toeplitz.convolution import Chosen, convolution, is_direct
from lagwise.ops.tokens import with_biases


def gated_product(
    gate: Tensor, value: Tensor, kernel: Tensor, origin: int, engine: str, biases: Tensor | None = None
) -> Tensor | None:
    """``silu(gate) * (kernel * silu(value))`` where kernels on a GPU or loops in C serve the product by FFT, and it has
    not so few lags that the direct engine is faster; otherwise None.

    Shapes: gate and value ``(batch, length, channels)``; kernel, taps ``(channels, n_taps)`` with lag 0 at index
    origin, or frequencies as of `spectral_product`; biases ``(2, channels)``, added to gate and value before, which
    only loops do; result like the gate. On a GPU, spectra are float32, and kept for the gradient. A graph for all
    lengths computes them again, since the length of its FFTs is no symbol. Loops compute the product again.
    """
    if gate.dtype != value.dtype or engine not in ("auto", "fft", "overlap_save") or definitions_only():
        return None
    static = has_static_value(gate.shape[1])
    if in_graph() and fused(gate, value, kernel):
        return _operator(_Pair.apply(gate, value), kernel, origin, engine, static)[0] if biases is None else None
    args = (gate, value, kernel, biases, origin, engine)
    return _gated(*args) if static and _gated.chosen(*args) != PLAIN else None


@operation
def _gated(gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, origin: int, engine: str) -> Tensor:
    gate, value = with_biases(gate, value, biases)
    return F.silu(gate) * convolution(F.silu(value), kernel, origin, engine)


def _in_one_part(value: Tensor, kernel: Tensor, origin: int, engine: str) -> bool:
    return not is_direct(value, kernel, engine) and spectral.plan_of(value, kernel, origin, engine).parts == 1


@_gated.engine("triton")
class _Frames(Engine):
    @staticmethod
    def serves(gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, origin: int, engine: str) -> bool:
        return biases is None and fused(gate, value, kernel) and _in_one_part(value, kernel, origin, engine)

    @staticmethod
    def forward(
        gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, origin: int, engine: str
    ) -> tuple[Tensor, Values]:
        plan = spectral.plan_of(value, kernel, origin, engine)
        spectrum, factors = _spectra(value, kernel, plan)
        frames = fused_frames.inverse(fused_frames.multiply(spectrum, factors))
        y, out = fused_frames.store_gated(*fused_frames.used(frames, plan.valid_frames, value.shape[1]), gate)
        return out, (y, spectrum, factors)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        gate, value, kernel, _, origin, engine = args
        plan = spectral.plan_of(value, kernel, origin, engine)
        y, spectrum, factors = saved if len(saved) > 1 else (*saved, *_spectra(value, kernel, plan))
        both = gate.new_empty((*gate.shape[:2], 2 * gate.shape[2]))
        dgate, dvalue = both.chunk(2, dim=2)  # neighbours in memory, for `joined`
        frames = fused_frames.load_gated_gradient(grads[0], y, gate, dgate, list(plan.valid_frames))
        spectra = (spectrum, fused_frames.transform(frames), factors)
        dkernel, dspectrum = spectral.packed_gradients(*spectra, kernel, plan)
        frames = fused_frames.used(fused_frames.inverse(dspectrum), plan.signal_frames, value.shape[1])
        fused_frames.store_activation_gradient(*frames, value, dvalue)
        return dgate, dvalue, dkernel, None, None, None


def _spectra(value: Tensor, kernel: Tensor, plan: spectral.Plan) -> tuple[Tensor, Tensor]:
    """The packed spectrum of silu(value), and the spectrum of the kernel."""
    frames = fused_frames.load(value, plan.signal_frames, activate=True)
    return fused_frames.transform(frames), spectral.kernel_spectrum(kernel, plan)


@_gated.engine("loop")
class _Loops(Engine):
    @staticmethod
    def serves(gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, origin: int, engine: str) -> bool:
        served = native.serves(gate) and spectral.by_loops(value, kernel)
        return served and _in_one_part(value, kernel, origin, engine)

    @staticmethod
    def forward(
        gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, origin: int, engine: str
    ) -> tuple[Tensor, Values]:
        return spectral.loop_values(value, kernel, spectral.plan_of(value, kernel, origin, engine), gate, biases), ()

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        gate, value, kernel, biases, origin, engine = args
        plan, needed = spectral.plan_of(value, kernel, origin, engine), (True, needs_grad[2])
        gradients = spectral.loop_gradients(grads[0], value, kernel, plan, needed, gate, biases)
        dvalue, dkernel, dgate, dbiases = gradients
        return dgate, dvalue, dkernel, dbiases if needs_grad[3] else None, None, None


class _Pair(torch.autograd.Function):
    """Gate and value side by side. Compilers leave out both of its copies, where one product made gate and value: a
    `cat` of what `split_with_sizes` has made."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, value: Tensor) -> Tensor:
        return torch.cat([gate, value], dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        return grad.split_with_sizes([grad.shape[-1] // 2] * 2, dim=-1)


def _of_graph(pair: Tensor, kernel: Tensor, origin: int, engine: str) -> tuple[Values, bool]:
    """The arguments of `_gated`, and whether its fused kernels serve them."""
    gate, value = pair.chunk(2, dim=2)
    return (gate, value, kernel, None, origin, engine), _Frames.serves(gate, value, kernel, None, origin, engine)


def _compute(pair: Tensor, kernel: Tensor, origin: int, engine: str, keep: bool) -> tuple[Tensor, ...]:
    (gate, value, *rest), served = _of_graph(pair, kernel, origin, engine)
    if served:
        out, (y, *spectra) = _Frames.forward(gate, value, *rest)
    else:
        y, spectra, keep = convolution(F.silu(value), kernel, origin, engine), [], False
        out = F.silu(gate) * y
    kept = map(torch.view_as_real, spectra) if keep else (pair.new_empty(0, dtype=torch.float32) for _ in range(2))
    return out, y, *kept


def _like(pair: Tensor, kernel: Tensor, origin: int, engine: str, keep: bool) -> tuple[Tensor, ...]:
    batch, length, channels = pair.shape[0], pair.shape[1], pair.shape[2] // 2
    shapes: list[tuple[int, ...]] = [(0,), (0,)]
    if keep and _of_graph(pair, kernel, origin, engine)[1]:
        plan = spectral.plan_of(pair, kernel, origin, engine)
        points = plan.n_fft // 2
        shapes = [(batch, channels, plan.frames, points, 2), (channels, 1, points + 1, 2)]
    products = (pair.new_empty((batch, length, channels)) for _ in range(2))
    return *products, *(pair.new_empty(shape, dtype=torch.float32) for shape in shapes)


def _gradients(
    grad: Tensor, pair: Tensor, kernel: Tensor, y: Tensor, spectrum: Tensor, factors: Tensor, *numbers: Any
) -> tuple[Tensor, Tensor | None]:
    origin, engine, keep = numbers
    (gate, value, *rest), served = _of_graph(pair, kernel, origin, engine)
    if served:
        spectra = map(torch.view_as_complex, (spectrum, factors)) if keep else ()
        dgate, dvalue, dkernel, *_ = _Frames.backward((gate, value, *rest), (y, *spectra), [grad], [True] * 3)
    else:
        dgate = torch.ops.aten.silu_backward(grad * y, gate)
        arguments = (F.silu(value), kernel, origin, engine, 1)
        dsignal, dkernel, *_ = Chosen.backward(arguments, (), [grad * F.silu(gate)], (True, True))
        dvalue = torch.ops.aten.silu_backward(dsignal, value)
    return joined([dgate, dvalue]), dkernel


# Compilers fuse the gates with neither the transposition into frames nor that back. Spectra are kept as real numbers,
# because inductor makes no kernels of complex ones.
_operator = graph_operator(
    "gated_product",
    _compute,
    lambda args, kept, grads, _: _gradients(*grads, *args[:2], *kept, *args[2:]),
    _like,
    kept=3,
)
