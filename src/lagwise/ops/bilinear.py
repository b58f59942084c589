"""Products that are linear in a signal and in a kernel, differentiable any number of times and under `torch.func`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad


class Form(Protocol):
    """A product ``y = x * k`` of a signal ``(batch, length, channels)`` and one kernel per channel.

    It is defined by three contractions of ``<g, x * k>``: 0 gives y from x and k, 1 the gradient of x from g and k, and
    2 the gradient of k from g and x. The gradients of each contraction are the other two.
    """

    @property
    def channel_axis(self) -> int:
        """The kernel's axis of channels."""
        ...

    def contract(self, index: int, a: Tensor, b: Tensor, /) -> Tensor:
        """Compute the contraction with this index, without a gradient."""
        ...

    def gradients(
        self, grad: Tensor, x: Tensor, kernel: Tensor, needs_grad: tuple[bool, bool], /
    ) -> tuple[Tensor | None, Tensor | None]:
        """Compute contractions 1 and 2, each if it is needed; they may share work."""
        ...


def bilinear_product(x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """``x * k`` of a form."""
    return _Contraction.apply(x, kernel, 0, form) if transformed() else _Product.apply(x, kernel, form)


def transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is active; fast paths have no rules for these."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def traced() -> bool:
    """Whether nothing may depend on the values of tensors: a graph is being recorded, which must also hold for other
    values, or many batches are computed as one (`torch.vmap`)."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or transformed()


def differentiable() -> bool:
    """Whether the results of this backward pass are differentiated again (``create_graph=True``) or transformed."""
    return not torch.compiler.is_compiling() and (torch.is_grad_enabled() or transformed())


def differentiable_gradients(
    function: Callable[..., Any], inputs: Sequence[Any], needs_grad: Sequence[bool], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients of a differentiable function with respect to the inputs that need them, themselves differentiable.

    Used in the backward of a fast path that cannot be differentiated twice: ``function`` computes the same, more
    slowly.
    """
    with torch.enable_grad():
        # Use views, since one input may have been made from another: only the function's own use of each counts here.
        inputs = [t.view_as(t) if needed else t for t, needed in zip(inputs, needs_grad, strict=True)]
        sources = [t for t, needed in zip(inputs, needs_grad, strict=True) if needed]
        results = function(*inputs)
        results = [results] if isinstance(results, Tensor) else results
        pairs = [
            (result, grad)
            for result, grad in zip(results, grads, strict=True)
            if grad is not None and result.requires_grad
        ]
        if not pairs:  # a constant of the inputs that need gradients
            return [None] * len(needs_grad)
        outputs, grads = zip(*pairs, strict=True)
        gradients = iter(torch.autograd.grad(outputs, sources, grads, create_graph=True, allow_unused=True))
    return [next(gradients) if needed else None for needed in needs_grad]


class _Product(torch.autograd.Function):
    """Contraction 0 with both gradients in one pass, unless they are differentiated again."""

    @staticmethod
    def forward(ctx, x: Tensor, kernel: Tensor, form: Form) -> Tensor:
        ctx.save_for_backward(x, kernel)
        ctx.form = form
        return form.contract(0, x, kernel)

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, kernel = ctx.saved_tensors
        needs_grad = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        if differentiable():
            dx = _Contraction.apply(grad, kernel, 1, ctx.form).to(x.dtype) if needs_grad[0] else None
            dkernel = _Contraction.apply(grad, x, 2, ctx.form).to(kernel.dtype) if needs_grad[1] else None
        else:
            dx, dkernel = ctx.form.gradients(grad, x, kernel, needs_grad)
        return dx, dkernel, None


class _Contraction(torch.autograd.Function):
    """Any contraction, with rules for every transform. It is separate from `_Product` because compilers refuse some of
    these rules."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, index: int, form: Form) -> Tensor:
        return form.contract(index, a, b)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor, int, Form], output: Tensor) -> None:
        a, b, ctx.index, ctx.form = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)

    @staticmethod
    def backward(ctx, grad: Tensor):
        saved = ctx.saved_tensors
        positions = [position for position in range(3) if position != ctx.index]
        operands = dict(zip(positions, saved, strict=True)) | {ctx.index: grad}
        gradients = []
        for position, old, needed in zip(positions, saved, ctx.needs_input_grad[:2], strict=True):
            others = (operands[other] for other in range(3) if other != position)
            gradients.append(_Contraction.apply(*others, position, ctx.form).to(old.dtype) if needed else None)
        return *gradients, None, None

    @staticmethod
    def jvp(ctx, a_tangent: Tensor, b_tangent: Tensor, *_: None) -> Tensor:
        a, b = ctx.saved_tensors
        by_a, by_b = ((a_tangent, b), (a, b_tangent))
        return _Contraction.apply(*by_a, ctx.index, ctx.form) + _Contraction.apply(*by_b, ctx.index, ctx.form)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, a: Tensor, b: Tensor, index: int, form: Form) -> tuple[Tensor, int]:
        """Several signals with one kernel become a larger batch; signals with one kernel each become more channels."""
        if index != 2 and in_dims[1] is None:
            folded = a.movedim(in_dims[0], 0).flatten(0, 1)
            return _Contraction.apply(folded, b, index, form).unflatten(0, (info.batch_size, -1)), 0
        axes = [2, form.channel_axis if index != 2 else 2]
        folded = []
        for t, dim, axis in zip((a, b), in_dims[:2], axes, strict=True):
            t = t.unsqueeze(axis) if dim is None else t.movedim(dim, axis)
            folded.append(t.expand(*t.shape[:axis], info.batch_size, *t.shape[axis + 1 :]).flatten(axis, axis + 1))
        axis = form.channel_axis if index == 2 else 2
        return _Contraction.apply(*folded, index, form).unflatten(axis, (info.batch_size, -1)), axis
