"""Products by FFT on a GPU with the gates around them, in half of the passes over memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops.bilinear import differentiable, differentiable_gradients
from lagwise.ops.fused import frames as fused_frames
from lagwise.ops.fused import fused
from lagwise.ops.toeplitz.direct import few_lags
from lagwise.ops.toeplitz.spectral import (
    Plan,
    kernel_spectrum,
    packed_gradients,
    plan_product,
    planned_product,
    signal_frames,
    valid_frames,
)


def gated_product(gate: Tensor, value: Tensor, kernel: Tensor, origin: int, engine: str) -> Tensor | None:
    """``silu(gate) * (kernel * silu(value))`` where fused kernels serve the product by FFT, and it has not so few lags
    that the direct engine is faster; otherwise None.

    Shapes: gate and value ``(batch, length, channels)``; kernel, taps ``(channels, n_taps)`` with lag 0 at index
    origin, or frequencies as of `spectral_product`; result like the gate. Spectra are float32; the signal's is kept for
    the gradient.
    """
    if not fused(gate, value, kernel) or gate.dtype != value.dtype or engine not in ("auto", "fft", "overlap_save"):
        return None
    if engine == "auto" and kernel.dim() == 2 and few_lags(value, kernel):
        return None
    length = value.shape[1]
    if kernel.dim() == 3:
        plan = Plan(2 * (kernel.shape[2] - 1), 1, length, 0, 0)
    else:
        plan = plan_product(length, kernel.shape[1], origin, engine)
    return _GatedProduct.apply(gate, value, kernel, plan) if plan.parts == 1 else None


class _GatedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, value: Tensor, kernel: Tensor, plan: Plan) -> Tensor:
        factors = kernel_spectrum(kernel, plan)
        spectrum = fused_frames.transform(fused_frames.load(value, signal_frames(plan), activate=True))
        product = fused_frames.inverse(fused_frames.multiply(spectrum, factors))
        y, out = fused_frames.store_gated(*fused_frames.used(product, valid_frames(plan), value.shape[1]), gate)
        ctx.save_for_backward(gate, value, kernel, y, spectrum, factors)
        ctx.plan = plan
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        gate, value, kernel, y, spectrum, factors = ctx.saved_tensors
        plan = ctx.plan
        if differentiable():
            inputs = (gate, value, kernel, plan)
            return tuple(differentiable_gradients(_plain, inputs, ctx.needs_input_grad, [grad]))
        both = gate.new_empty((*gate.shape[:2], 2 * gate.shape[2]))
        dgate, dvalue = both.chunk(2, dim=2)
        frames = fused_frames.load_gated_gradient(grad, y, gate, dgate, list(valid_frames(plan)))
        dkernel, dspectrum = packed_gradients(spectrum, fused_frames.transform(frames), factors, kernel, plan)
        signal = fused_frames.inverse(dspectrum)
        fused_frames.store_activation_gradient(
            *fused_frames.used(signal, signal_frames(plan), value.shape[1]), value, dvalue
        )
        return dgate, dvalue, dkernel, None


def _plain(gate: Tensor, value: Tensor, kernel: Tensor, plan: Plan) -> Tensor:
    return F.silu(gate) * planned_product(F.silu(value), kernel, plan)
