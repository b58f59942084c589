"""One operation, one class: a plain definition, and engines that compute the same faster.

`Operation.__call__` alone asks in which world a call is made: eager, recorded by `torch.compile`, exported, traced,
transformed by `torch.func`, or differentiated a second time. Definitions and engines do not.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from lagwise.ops.bilinear import differentiable, differentiable_gradients, transformed
from lagwise.ops.operators import exporting, in_graph

Values = Sequence[Any]  # tensors, and None or numbers among them
PLAIN = "plain"  # the name of an operation's definition among its engines
_wanted = os.environ.get("LAGWISE_ENGINE", "")  # see `engine_first`


class Engine:
    """A faster form of an operation, for the arguments that it `serves`. All methods are static.

    Arguments are those of the definition. `forward` and `backward` compute with ordinary tensors: nothing records or
    transforms what they do, except that `torch.compile` traces them into its graph. What they call in C or in Triton is
    an operator (`lagwise.ops.operators.loop_operator`), which a graph takes as it is.
    """

    @staticmethod
    def serves(*args: Any) -> bool:
        """Whether the engine computes these arguments, and faster than the engines after it. It asks for devices,
        dtypes and sizes alone."""
        raise NotImplementedError

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor | tuple[Tensor, ...], Values]:
        """The results, and what `backward` needs beside the arguments."""
        raise NotImplementedError

    @staticmethod
    def backward(args: Values, kept: Values, grads: Values, wanted: Values) -> Values:
        """A gradient of each argument where wanted, from those of the results. A result that nothing has used has the
        gradient None."""
        raise NotImplementedError


class Operation:
    """A function of tensors with a plain definition, which PyTorch differentiates, transforms and exports, and engines.

    The first engine that serves the arguments is taken. Second derivatives, `torch.func`, forward mode, exports and
    `torch.jit.trace` use the definition. ``LAGWISE_ENGINE=NAME`` prefers the engines of this name, and ``plain`` the
    definitions.

    >>> @operation
    ... def doubled(x: Tensor, times: int = 1) -> Tensor:
    ...     return x * 2**times
    >>> @doubled.engine("shift")
    ... class Shift(Engine):
    ...     serves = staticmethod(lambda x, times: x.dtype == torch.int64)
    ...     forward = staticmethod(lambda x, times: (x << times, ()))
    >>> doubled(torch.tensor([3])).item(), doubled.explain(torch.tensor([3]))
    (6, 'doubled: shift')
    """

    def __init__(self, plain: Callable[..., Any]):
        self.plain = plain
        self.engines: dict[str, type[Engine]] = {}
        self._defaults: tuple[Any, ...] = plain.__defaults__ or ()
        self._count = plain.__code__.co_argcount
        functools.update_wrapper(self, plain)

    def engine(self, name: str) -> Callable[[type[Engine]], type[Engine]]:
        """A decorator that adds an engine after those before."""

        def add(engine: type[Engine]) -> type[Engine]:
            self.engines[name] = engine
            return engine

        return add

    def __call__(self, *args: Any) -> Any:
        args = self._filled(args)
        engine = None if definitions_only() else self._serving(args)
        if engine is None:
            return self.plain(*args)
        if torch.is_grad_enabled():
            return _Call.apply(self.plain, engine, *args)
        return engine.forward(*args)[0]

    def _filled(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        missing = self._count - len(args)
        return args + self._defaults[-missing:] if missing else args

    def _serving(self, args: tuple[Any, ...]) -> type[Engine] | None:
        if _wanted == PLAIN:
            return None
        if _wanted in self.engines and self.engines[_wanted].serves(*args):
            return self.engines[_wanted]
        for engine in self.engines.values():
            if engine.serves(*args):
                return engine
        return None

    def chosen(self, *args: Any) -> str:
        """The name of the engine that an eager call or a compiled graph with these arguments takes."""
        serving = self._serving(self._filled(args))
        return next((name for name, engine in self.engines.items() if engine is serving), PLAIN)

    def explain(self, *args: Any) -> str:
        """Which engine computes these arguments, and which do not serve them."""
        args = self._filled(args)
        refused = [name for name, engine in self.engines.items() if not engine.serves(*args)]
        why = f" (not for these arguments: {', '.join(refused)})" if refused else ""
        return f"{self.plain.__name__}: {self.chosen(*args)}{why}"


def definitions_only() -> bool:
    """Whether operations are recorded or transformed as they are defined: in exports, in traces, under `torch.func` and
    in forward mode."""
    return exporting() or torch.jit.is_tracing() or transformed()


def operation(plain: Callable[..., Any]) -> Operation:
    """Decorate the definition of an `Operation`."""
    return Operation(plain)


@contextmanager
def engine_first(name: str) -> Iterator[None]:
    """Prefer the engines of a name within the block, as LAGWISE_ENGINE does for a process; ``plain`` for none."""
    global _wanted
    before, _wanted = _wanted, name
    try:
        yield
    finally:
        _wanted = before


def worthwhile(x: Tensor, numbers: int) -> bool:
    """Whether x has so many numbers that a call into C gains more than it costs. In a compiled graph every call does:
    it is an operator, of which the compiler has less to compile."""
    return in_graph() or x.numel() >= numbers


class _Call(torch.autograd.Function):
    """A call of an engine, whose gradients are its own unless they are differentiated again."""

    @staticmethod
    def forward(ctx: Any, plain: Callable[..., Any], engine: type[Engine], *args: Any) -> Any:
        ctx.set_materialize_grads(False)
        results, kept = engine.forward(*args)
        tensors = [each if isinstance(each, Tensor) else None for each in args]
        ctx.save_for_backward(*tensors, *kept)
        ctx.plain, ctx.engine = plain, engine
        ctx.others = [None if isinstance(each, Tensor) else each for each in args]
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        count, wanted = len(ctx.others), ctx.needs_input_grad[2:]
        saved = ctx.saved_tensors
        args = [other if own is None else own for own, other in zip(saved[:count], ctx.others, strict=True)]
        if differentiable():
            found = differentiable_gradients(ctx.plain, args, wanted, grads)
        else:
            found = ctx.engine.backward(args, saved[count:], grads, wanted)
        return None, None, *found
