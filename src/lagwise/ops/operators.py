"""Loops in C as operators of PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

_Function = TypeVar("_Function", bound=Callable[..., Any])


def unrecorded(*arguments: Any) -> bool:
    """Whether nothing differentiates or records what is done with these arguments, as in the passes of a
    `torch.autograd.Function`."""
    recorded = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0
    return not recorded and all(_has_memory(each) for each in arguments if isinstance(each, Tensor))


def _has_memory(x: Tensor) -> bool:
    """Whether a tensor is neither of a class of its own nor batched by ``is_grads_batched``."""
    return type(x) in (Tensor, nn.Parameter) and not torch._C._functorch.is_legacy_batchedtensor(x)


def loop_operator(like: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Decorate a function of tensors that calls a loop in C, so that it works on whatever tensors PyTorch has: fake,
    traced and batched ones too.

    It becomes the operator ``lagwise::NAME``, without a gradient. Where its call is `unrecorded`, the loop is called
    directly, which takes 30 microseconds less.

    Args:
        like: Returns new tensors like the results, for the same arguments.
    """

    def decorate(function: _Function) -> _Function:
        operator = torch.library.custom_op(f"lagwise::{function.__name__}", function, mutates_args=())
        operator.register_fake(like)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return function(*arguments) if unrecorded(*arguments) else operator(*arguments)

        return cast(_Function, call)

    return decorate
