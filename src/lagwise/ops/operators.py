"""Loops in C as operators of PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Dispatch keys of ordinary tensors, and of a thread in which nothing intercepts operations.
_ORDINARY = torch._C._dispatch_keys(torch.empty(0, device="cpu"))
_QUIET = torch._C._dispatch_tls_local_include_set()


def callable_directly(*arguments: Any) -> bool:
    """Whether a loop in C may read these arguments' memory and skip PyTorch's dispatcher: no gradient, trace or mode
    would miss the operation, and every tensor is an ordinary one on the CPU, not one that is fake, batched, negated on
    reading, or of a class of its own."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if (torch._C._dispatch_tls_local_include_set() | _QUIET) != _QUIET:
        return False
    return all(_ordinary(each) for each in arguments if isinstance(each, Tensor))


def _ordinary(x: Tensor) -> bool:
    return type(x) in (Tensor, nn.Parameter) and (torch._C._dispatch_keys(x) | _ORDINARY) == _ORDINARY


def loop_operator(like: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Decorate a function of tensors that calls a loop in C, so that it works on whatever tensors PyTorch has: fake,
    traced and batched ones too.

    It becomes the operator ``lagwise::NAME``, without a gradient. A call that can be made directly
    (`callable_directly`) skips PyTorch's dispatcher, which saves 30 microseconds.

    Args:
        like: Returns new tensors like the results, for the same arguments.
    """

    def decorate(function: _Function) -> _Function:
        operator = torch.library.custom_op(f"lagwise::{function.__name__}", function, mutates_args=())
        operator.register_fake(like)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return function(*arguments) if callable_directly(*arguments) else operator(*arguments)

        return cast(_Function, call)

    return decorate
