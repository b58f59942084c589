"""Products by FFT with the gates around them, in half of the passes over memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from lagwise.ops import native
from lagwise.ops.fused import frames as fused_frames
from lagwise.ops.fused import fused
from lagwise.ops.operation import differentiable, differentiable_gradients, graph_operator, in_graph
from lagwise.ops.toeplitz.direct import few_lags
from lagwise.ops.toeplitz.spectral import (
    Plan,
    by_loops,
    circular_gradient,
    circular_taps,
    kernel_spectrum,
    packed_gradients,
    plan_product,
    planned_product,
    product_gradients,
    signal_frames,
    valid_frames,
)
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
    if gate.dtype != value.dtype or engine not in ("auto", "fft", "overlap_save"):
        return None
    if not fused(gate, value, kernel):
        return _by_loops(gate, value, kernel, origin, engine, biases)
    if biases is not None:
        return None
    if in_graph():
        return _operator(_Pair.apply(gate, value), kernel, origin, engine, has_static_value(gate.shape[1]))[0]
    if engine == "auto" and kernel.dim() == 2 and few_lags(value, kernel):
        return None
    plan = _plan(value, kernel, origin, engine)
    return _GatedProduct.apply(gate, value, kernel, plan) if plan.parts == 1 else None


def _by_loops(
    gate: Tensor, value: Tensor, kernel: Tensor, origin: int, engine: str, biases: Tensor | None
) -> Tensor | None:
    open_length = in_graph() and not has_static_value(value.shape[1])
    if open_length or not by_loops(value, kernel) or not native.serves(gate):
        return None
    few = engine == "auto" and kernel.dim() == 2 and few_lags(value, kernel)
    plan = _plan(value, kernel, origin, engine)
    return None if few or plan.parts > 1 else _GatedLoop.apply(gate, value, kernel, biases, plan)


class _GatedLoop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, plan: Plan) -> Tensor:
        ctx.save_for_backward(gate, value, kernel, biases)
        ctx.plan = plan
        taps, plan = circular_taps(kernel, value.shape[1], plan)
        return native.convolve(value, taps, plan.for_loops(), gate, biases)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        (gate, value, kernel, biases), wanted = ctx.saved_tensors, ctx.needs_input_grad[:4]
        if differentiable():
            plain = functools.partial(_plain, plan=ctx.plan)
            return *differentiable_gradients(plain, (gate, value, kernel, biases), wanted, [grad]), None
        taps, plan = circular_taps(kernel, value.shape[1], ctx.plan)
        dvalue, dtaps, dgate, dbiases = native.convolve_gradients(
            grad, value, taps, plan.for_loops(), gate, biases, True, wanted[2]
        )
        dkernel = circular_gradient(dtaps, kernel, ctx.plan) if wanted[2] else None
        return dgate, dvalue, dkernel, dbiases if wanted[3] else None, None


def _plan(value: Tensor, kernel: Tensor, origin: int, engine: str) -> Plan:
    length = value.shape[1]
    if kernel.dim() == 3:
        return Plan(2 * (kernel.shape[2] - 1), 1, length, 0, 0)
    return plan_product(length, kernel.shape[1], origin, engine)


class _GatedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, value: Tensor, kernel: Tensor, plan: Plan) -> Tensor:
        spectrum, factors = _spectra(value, kernel, plan)
        out, y = _product(gate, value, spectrum, factors, plan)
        ctx.save_for_backward(gate, value, kernel, y, spectrum, factors)
        ctx.plan = plan
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        gate, value, kernel, *kept = ctx.saved_tensors
        if differentiable():
            inputs, plain = (gate, value, kernel), functools.partial(_plain, biases=None, plan=ctx.plan)
            return *differentiable_gradients(plain, inputs, ctx.needs_input_grad[:3], [grad]), None
        both = gate.new_empty((*gate.shape[:2], 2 * gate.shape[2]))
        dgate, dvalue = both.chunk(2, dim=2)  # neighbours in memory, for `joined`
        return dgate, dvalue, _gradients(grad, gate, value, kernel, ctx.plan, kept, (dgate, dvalue)), None


def _spectra(value: Tensor, kernel: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """The packed spectrum of silu(value), and the spectrum of the kernel."""
    frames = fused_frames.load(value, signal_frames(plan), activate=True)
    return fused_frames.transform(frames), kernel_spectrum(kernel, plan)


def _product(gate: Tensor, value: Tensor, spectrum: Tensor, factors: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """The gated product, and the product before its gate."""
    frames = fused_frames.inverse(fused_frames.multiply(spectrum, factors))
    y, out = fused_frames.store_gated(*fused_frames.used(frames, valid_frames(plan), value.shape[1]), gate)
    return out, y


def _gradients(
    grad: Tensor,
    gate: Tensor,
    value: Tensor,
    kernel: Tensor,
    plan: Plan,
    kept: Sequence[Tensor],
    into: tuple[Tensor, Tensor],
) -> Tensor:
    """Stores the gradients of gate and value, and returns that of the kernel. kept: the product before its gate, and
    `_spectra`."""
    (y, spectrum, factors), (dgate, dvalue) = kept, into
    frames = fused_frames.load_gated_gradient(grad, y, gate, dgate, list(valid_frames(plan)))
    dkernel, dspectrum = packed_gradients(spectrum, fused_frames.transform(frames), factors, kernel, plan)
    frames = fused_frames.used(fused_frames.inverse(dspectrum), signal_frames(plan), value.shape[1])
    fused_frames.store_activation_gradient(*frames, value, dvalue)
    return dkernel


def _plain(gate: Tensor, value: Tensor, kernel: Tensor, biases: Tensor | None, plan: Plan) -> Tensor:
    gate, value = with_biases(gate, value, biases)
    return F.silu(gate) * planned_product(F.silu(value), kernel, plan)


class _Pair(torch.autograd.Function):
    """Gate and value side by side. Compilers leave out both of its copies, where one product made gate and value: a
    `cat` of what `split_with_sizes` has made."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, value: Tensor) -> Tensor:
        return torch.cat([gate, value], dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        return grad.split_with_sizes([grad.shape[-1] // 2] * 2, dim=-1)


def _compute(pair: Tensor, kernel: Tensor, origin: int, engine: str, keep: bool) -> tuple[Tensor, ...]:
    gate, value = pair.chunk(2, dim=2)
    plan = _plan(value, kernel, origin, engine)
    if plan.parts == 1 and fused(pair, kernel):
        spectra = _spectra(value, kernel, plan)
        kept = map(torch.view_as_real, spectra) if keep else _no_spectra(pair)
        return *_product(gate, value, *spectra, plan), *kept
    y = planned_product(F.silu(value), kernel, plan)
    return F.silu(gate) * y, y, *_no_spectra(pair)


def _no_spectra(pair: Tensor) -> tuple[Tensor, Tensor]:
    return pair.new_empty(0, dtype=torch.float32), pair.new_empty(0, dtype=torch.float32)


def _like(pair: Tensor, kernel: Tensor, origin: int, engine: str, keep: bool) -> tuple[Tensor, ...]:
    batch, length, channels = pair.shape[0], pair.shape[1], pair.shape[2] // 2
    products = [pair.new_empty((batch, length, channels)) for _ in range(2)]
    if keep:
        plan = _plan(pair, kernel, origin, engine)
        if plan.parts == 1 and fused(pair, kernel):
            points = plan.n_fft // 2
            shapes = (batch, channels, plan.frames, points, 2), (channels, 1, points + 1, 2)
            return *products, *(pair.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return *products, *_no_spectra(pair)


def _computed_gradients(
    grad: Tensor,
    pair: Tensor,
    kernel: Tensor,
    y: Tensor,
    spectrum: Tensor,
    factors: Tensor,
    origin: int,
    engine: str,
    keep: bool,
) -> tuple[Tensor, Tensor | None]:
    both = pair.new_empty(pair.shape)
    (gate, value), (dgate, dvalue) = pair.chunk(2, dim=2), both.chunk(2, dim=2)
    plan = _plan(value, kernel, origin, engine)
    if plan.parts == 1 and fused(grad, pair, kernel):
        kept = map(torch.view_as_complex, (spectrum, factors)) if keep else _spectra(value, kernel, plan)
        return both, _gradients(grad, gate, value, kernel, plan, (y, *kept), (dgate, dvalue))
    dgate.copy_(torch.ops.aten.silu_backward(grad * y, gate))
    dsignal, dkernel = product_gradients(grad * F.silu(gate), F.silu(value), kernel, plan, (True, True))
    dvalue.copy_(torch.ops.aten.silu_backward(dsignal, value))
    return both, dkernel


# Compilers fuse the gates with neither the transposition into frames nor that back. Spectra are kept as real numbers,
# because inductor makes no kernels of complex ones.
_operator = graph_operator(
    "gated_product",
    _compute,
    _computed_gradients,
    _like,
    tensors="pair kernel",
    numbers="SymInt origin, str engine, bool keep",
    kept="before spectrum factors",
)
