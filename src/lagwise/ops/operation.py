"""One operation, one class: a plain definition, and engines that compute the same faster.

This file alone asks in which mode a call is made (eager, recorded by `torch.compile`, exported, traced, transformed by
`torch.func`, or differentiated a second time) and uses private names of PyTorch for it. Definitions and engines do not.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.fake_tensor import unset_fake_temporarily as without_fakes  # noqa: F401
from torch.autograd import forward_ad
from torch.fx.experimental.symbolic_shapes import has_static_value
from torch.utils._device import DeviceContext

# One concept: how a call becomes a computation. Modes, operators and classes of operations are of no use alone.

Values = Sequence[Any]  # tensors, and None or numbers among them
PLAIN = "plain"  # the name of an operation's definition among its engines
_preferred = os.environ.get("LAGWISE_ENGINE", "")
# Dispatch keys of a thread in which nothing intercepts operations, wherever this module is first imported.
with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
    _INCLUDED, _EXCLUDED = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
_QUIET = _INCLUDED.raw_repr()


def exporting() -> bool:
    """Whether a graph is recorded to be exported. Before PyTorch 2.13 `torch.compiler.is_exporting` is also true while
    `torch.compile` records one, so its flag is read instead."""
    return torch.compiler._is_exporting_flag


def in_graph() -> bool:
    """Whether `torch.compile` records a graph. Exporters record one too, but cannot save operators of lagwise."""
    return torch.compiler.is_compiling() and not exporting()


def symbolic(length: int) -> bool:
    """Whether a length is a symbol of a graph being exported, so that nothing may depend on its value."""
    return not isinstance(length, int)


def open_length(length: int) -> bool:
    """Whether a graph being recorded may have to hold for other lengths, too."""
    return symbolic(length) or in_graph()


def at_most(count: int, length: int) -> int:
    """The smaller of two numbers; the first where a graph leaves the second open."""
    return count if symbolic(length) else cast("int", torch.sym_min(count, length))


def beyond(length: int, limit: int) -> bool:
    """Whether a length surely exceeds a limit: false where a graph leaves one of them open."""
    return not symbolic(length) and not symbolic(limit) and length > limit


def chunk_count(length: int, size: int) -> int:
    """Number of chunks of a size that hold a length: at least two where a graph leaves it open, because a graph of a
    single chunk works for no other number."""
    if symbolic(length):
        return length // size + 2
    whole = -(-length // size)
    return whole if has_static_value(length) else cast("int", torch.sym_max(whole, 2))


def transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is active; fast paths have no rules for these."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def definitions_only() -> bool:
    """Whether operations are recorded or transformed as they are defined: in exports, traces and transforms."""
    return exporting() or torch.jit.is_tracing() or transformed()


def traced() -> bool:
    """Whether nothing may depend on the values of tensors: a graph is being recorded, which must also hold for other
    values, or many batches are computed as one (`torch.vmap`)."""
    return torch.compiler.is_compiling() or definitions_only()


def recorded() -> bool:
    """Whether tensors may have no values that could be read: `traced`, or a mode is active whose tensors are fake, or
    that records operations."""
    if traced():
        return True
    return torch._C._len_torch_dispatch_stack() + torch._ops._len_torch_dispatch_stack_pre_dispatch() > 0


def differentiable() -> bool:
    """Whether the results of this backward pass are differentiated again (``create_graph=True``) or transformed."""
    return not torch.compiler.is_compiling() and (torch.is_grad_enabled() or transformed())


def compute_dtype(x: Tensor, taps: Tensor) -> torch.dtype:
    """float64 if either input is, otherwise float32: half-precision FFTs are unsupported or too inaccurate."""
    return torch.float64 if {x.dtype, taps.dtype} & {torch.float64, torch.complex128} else torch.float32


def cpu_graph(x: Tensor, *_: Any) -> bool:
    """Whether a graph calls an operator for what takes compilers for a CPU long and gains nothing: many loops with long
    indices. Autocast, which is rare there, would not reach inside."""
    return in_graph() and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def device_check(holds: Callable[[], Tensor], message: str) -> None:
    """Have the device fail where a condition does not hold, for which the host does not wait: eagerly and in graphs.
    Exports and traces do not compute it."""
    if in_graph() or not traced():
        torch._assert_async(holds(), message)


def surely(holds: Callable[[], Any]) -> bool:
    """Whether a condition on the values of tensors holds: false wherever nothing may depend on values (`traced`)."""
    return not traced() and bool(holds())


def intercepted() -> bool:
    """Whether hooks of all modules, or a function mode other than a default device, may change what functions do."""
    if torch.nn.modules.module._has_any_global_hook():
        return True
    modes = range(torch._C._len_torch_function_stack())
    return any(type(torch._C._get_function_stack_at(i)) is not DeviceContext for i in modes)


def fake_mode() -> Any:
    """The active mode whose tensors have no values, or None."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)


def is_plain_parameter(part: Any) -> bool:
    """Whether a tensor is a parameter and nothing more, or a fake one."""
    return type(part) in (nn.Parameter, FakeTensor)


def with_open_sizes(x: Tensor) -> None:
    """Have graphs take the sizes of a tensor as symbols from the first call on."""
    torch._dynamo.maybe_mark_dynamic(x, tuple(range(x.dim())))


def callable_directly(*arguments: Any) -> bool:
    """Whether code in C or Triton may read these arguments' memory and skip PyTorch's dispatcher: no gradient, trace or
    mode would miss it, and no tensor is fake, batched, negated on reading, or of a class of its own."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if torch._C._dispatch_tls_local_include_set().raw_repr() & ~_QUIET:
        return False
    for argument in arguments:
        for each in argument if type(argument) is list else (argument,):
            kind = type(each)
            if kind is Tensor or kind is nn.Parameter:
                keys = torch._C._dispatch_keys(each).raw_repr()
                if not (_is_ordinary[keys] if keys in _is_ordinary else _ordinary(keys, each)):
                    return False
            elif isinstance(each, Tensor):
                return False
    return True


_is_ordinary: dict[int, bool] = {}  # whether tensors of these dispatch keys are ordinary ones


def _ordinary(keys: int, x: Tensor) -> bool:
    with torch.inference_mode(False):
        ordinary = torch._C._dispatch_keys(torch.empty(0, device=x.device.type)).raw_repr()
    return _is_ordinary.setdefault(keys, not keys & ~ordinary)


class Engine:
    """A faster form of an operation, for the arguments that it `serves`. It has no instances.

    Arguments are those of the definition. `forward` and `backward` compute with ordinary tensors: nothing records or
    transforms what they do, except that `torch.compile` traces them into its graph. What they call in C or in Triton is
    an operator (`loop_operator`), which a graph takes as it is.
    """

    #: positions of arguments that `backward` does not need, so that they are not kept in memory
    unsaved: tuple[int, ...] = ()

    @staticmethod
    def serves(*args: Any) -> bool:
        """Whether the engine computes these arguments, and faster than the engines after it. It asks for devices,
        dtypes and sizes alone."""
        return True

    @classmethod
    def forward(cls, *args: Any) -> tuple[Any, Values]:
        """The results, and what `backward` needs beside the arguments. By default that is nothing."""
        return cls.evaluate(*args), ()

    @classmethod
    def evaluate(cls, *args: Any) -> Any:
        """The results, where nothing needs a gradient. An engine defines this, or `forward`."""
        return cls.forward(*args)[0]

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        """A gradient of each argument that needs one (any further are dropped), from those of the results: None for a
        result that nothing has used."""
        raise NotImplementedError

    @staticmethod
    def restored(args: Values, saved: Values) -> Values:
        """Return arguments for which the definition has the same gradients, where some are `unsaved`."""
        return args


class Operation:
    """A function of tensors with a plain definition, which PyTorch differentiates, transforms and exports, and engines.

    The first engine that serves the arguments is taken; `definitions_only` and second derivatives use the definition.
    ``LAGWISE_ENGINE=NAME`` prefers the engines of this name, and ``plain`` the definitions.

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
        self.plain = self.definition = plain
        self.engines: dict[str, type[Engine]] = {}
        self._defaults: tuple[Any, ...] = plain.__defaults__ or ()
        self._count = plain.__code__.co_argcount
        self._operator: Callable[..., Any] | None = None
        self._where: Callable[..., bool] = in_graph
        self._results = 1
        functools.update_wrapper(self, plain)

    def engine(self, name: str) -> Callable[[type[Engine]], type[Engine]]:
        """A decorator that adds an engine after those before."""
        return lambda engine: self.engines.setdefault(name, engine)

    def in_graphs(
        self,
        name: str,
        like: Callable[..., Any],
        *,
        engine: type[Engine] | None = None,
        where: Callable[..., bool] = lambda *_: True,
        constants: str = "",
        results: str = "y",
        saved: str = "",
    ) -> None:
        """Have compiled graphs call the operation as the operator ``lagwise::NAME``, so that what it computes is not
        compiled anew for every length. Parameters of the definition are annotated, tensors before numbers.

        Args:
            like: Returns new tensors like the results, and like what the engine saves, for the same arguments.
            engine: What the operator computes; by default what serves when the graph runs, or the definition.
            where: Whether a graph calls the operator for these arguments; by default every compiled graph does.
            constants, results, saved: Names, separated by spaces, of the last tensors, which have no gradient; of the
                results; and of the tensors that the engine saves.
        """
        parameters = list(inspect.signature(self.definition, eval_str=True).parameters.values())
        count = sum(p.annotation in (Tensor, Tensor | None) for p in parameters)
        n_tensors, n_results, n_saved = count - len(constants.split()), len(results.split()), len(saved.split())

        def compute(*arguments: Any) -> Any:
            served_by = engine or self._serving(*arguments)
            outputs, tensors = served_by.forward(*arguments) if served_by else (self.plain(*arguments), ())
            outputs = [outputs] if isinstance(outputs, Tensor) else outputs
            outputs = _separate([*outputs, *(tensors if n_saved else ())], arguments)
            return outputs[0] if len(outputs) == 1 else outputs

        def derive(grads: list[Tensor], inputs: list[Tensor | None], kept: list[Tensor], *numbers: Any) -> list[Tensor]:
            needs_grad = [n < n_tensors and x is not None for n, x in enumerate((*inputs, *numbers))]
            computed = self.gradients((*inputs, *numbers), kept, grads, needs_grad, engine=engine)
            pairs = [(g, x) for g, x in zip(computed, inputs[:n_tensors], strict=False) if x is not None]
            return [torch.zeros_like(x) if g is None else g.to(x.dtype).contiguous() for g, x in pairs]

        typed = _typed(parameters)
        schema = f"({', '.join(typed)}) -> {_tensors(n_results + n_saved)}"
        operator = torch.library.custom_op(f"lagwise::{name}", compute, mutates_args=(), schema=schema)
        lists = ["Tensor[] grads", "Tensor?[] inputs", "Tensor[] kept", *typed[count:]]
        schema = f"({', '.join(lists)}) -> Tensor[]"
        backward = torch.library.custom_op(f"lagwise::{name}_gradients", derive, mutates_args=(), schema=schema)

        def save(ctx: Any, *, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs[:count], *(output[n_results:] if n_saved else ()))
            ctx.numbers = inputs[count:]

        def differentiate(ctx: Any, *grads: Tensor) -> Any:
            saved, grads = ctx.saved_tensors, tuple(grad.contiguous() for grad in grads[:n_results])
            computed = iter(backward(list(grads), list(saved[:count]), list(saved[count:]), *ctx.numbers))
            of_tensors = [None if x is None else next(computed) for x in saved[:n_tensors]]
            return *of_tensors, *([None] * (len(parameters) - n_tensors))

        operator.register_fake(like)
        backward.register_fake(
            lambda _, inputs, *__: [x.new_empty(x.shape) for x in inputs[:n_tensors] if x is not None]
        )
        operator.register_autograd(differentiate, setup_context=save)
        self._operator, self._where, self._results = operator, where, n_results

    def __call__(self, *args: Any) -> Any:
        if len(args) < self._count:
            args += self._defaults[len(args) - self._count :]
        if definitions_only() or _preferred == PLAIN:
            return self.plain(*args)
        if self._operator is not None and in_graph() and self._where(*args):
            outputs = self._operator(*args)
            if isinstance(outputs, Tensor):
                return outputs
            return outputs[0] if self._results == 1 else tuple(outputs[: self._results])
        engine = self._serving(*args)
        if engine is None:
            return self.plain(*args)
        return _Call.apply(self.plain, engine, *args) if torch.is_grad_enabled() else engine.evaluate(*args)

    def _serving(self, *args: Any) -> type[Engine] | None:
        return self.engines.get(self.chosen(*args))

    def gradients(
        self,
        args: Values,
        saved: Values,
        grads: Values,
        needs_grad: Sequence[bool],
        *,
        engine: type[Engine] | None = None,
    ) -> Values:
        """Compute gradients by an engine, or by that which serves, where autograd records nothing."""
        engine = engine or self._serving(*args)
        if engine is not None:
            return engine.backward(args, saved, grads, needs_grad)
        # Operators run below autograd, so the thread's dispatch keys are restored for autograd to record.
        with torch._C._ForceDispatchKeyGuard(_INCLUDED, _EXCLUDED), torch.enable_grad():
            sources = [each.detach().requires_grad_() if n else each for each, n in zip(args, needs_grad, strict=True)]
            return differentiable_gradients(self.plain, sources, needs_grad, grads, again=False)

    def chosen(self, *args: Any) -> str:
        """The name of the engine that an eager call with these arguments takes."""
        if _preferred == PLAIN or (_preferred in self.engines and self.engines[_preferred].serves(*args)):
            return _preferred
        for name, engine in self.engines.items():
            if engine.serves(*args):
                return name
        return PLAIN

    def explain(self, *args: Any) -> str:
        """Say which engine computes these arguments, and which do not serve them."""
        if len(args) < self._count:
            args += self._defaults[len(args) - self._count :]
        refused = [name for name, engine in self.engines.items() if not engine.serves(*args)]
        why = f" (not for these arguments: {', '.join(refused)})" if refused else ""
        return f"{self.definition.__name__}: {self.chosen(*args)}{why}"


operation = Operation  # as a decorator


class _Call(torch.autograd.Function):
    """A call of an engine, whose gradients are its own unless they are differentiated again."""

    @staticmethod
    def forward(ctx: Any, plain: Callable[..., Any], engine: type[Engine], *args: Any) -> Any:
        ctx.set_materialize_grads(False)
        results, saved = engine.forward(*args)
        left_out = engine.unsaved
        inputs = [each if isinstance(each, Tensor) and n not in left_out else None for n, each in enumerate(args)]
        ctx.save_for_backward(*inputs, *saved)
        ctx.plain, ctx.engine = plain, engine
        ctx.others = [None if isinstance(each, Tensor) else each for each in args]
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        count, needs_grad = len(ctx.others), ctx.needs_input_grad[2:]
        if all(grad is None for grad in grads):
            return (None,) * (2 + count)
        saved = ctx.saved_tensors
        args = [other if own is None else own for own, other in zip(saved[:count], ctx.others, strict=True)]
        if differentiable():
            args = ctx.engine.restored(args, saved[count:])
            return None, None, *differentiable_gradients(ctx.plain, args, needs_grad, grads)
        gradients = [*ctx.engine.backward(args, saved[count:], grads, needs_grad)]
        return None, None, *(gradients + [None] * (count - len(gradients)))


def differentiable_gradients(
    function: Callable[..., Any], inputs: Values, needs_grad: Sequence[bool], grads: Sequence[Tensor | None],
    *, again: bool = True,
) -> list[Tensor | None]:  # fmt: skip
    """Compute gradients of a differentiable function with respect to the inputs that need them, themselves
    differentiable (``again``): for the backward of a fast path that cannot be differentiated twice."""
    with torch.enable_grad():
        # Use views, since one input may have been made from another: only the function's own use of each counts here.
        inputs = [t.view_as(t) if needed else t for t, needed in zip(inputs, needs_grad, strict=True)]
        results = function(*inputs)
        results = [results] if isinstance(results, Tensor) else results
        used = [(y, g) for y, g in zip(results, grads, strict=True) if g is not None and y.requires_grad]
        if not used:  # a constant of the inputs that need gradients
            return [None] * len(needs_grad)
        sources = [t for t, needed in zip(inputs, needs_grad, strict=True) if needed]
        outputs, weights = zip(*used, strict=True)
        gradients = iter(torch.autograd.grad(outputs, sources, weights, create_graph=again, allow_unused=True))
    return [next(gradients) if needed else None for needed in needs_grad]


_SCHEMA = {
    Tensor: "Tensor", Tensor | None: "Tensor?", int: "SymInt", float: "float", bool: "bool", str: "str",
    torch.dtype: "ScalarType", list[int]: "SymInt[]", list[Tensor]: "Tensor[]",
}  # fmt: skip


def _typed(parameters: Sequence[inspect.Parameter], writes: Iterable[str] = ()) -> list[str]:
    """Return parameters as an operator's schema has them."""
    kinds = [f"Tensor(a{n}!)" if p.name in writes else _SCHEMA[p.annotation] for n, p in enumerate(parameters)]
    return [f"{kind} {p.name}" for kind, p in zip(kinds, parameters, strict=True)]


def _tensors(count: int) -> str:
    return "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"


def _separate(results: Iterable[Tensor], inputs: Iterable[Any]) -> tuple[Tensor, ...]:
    """Contiguous results that share no memory with inputs or with each other, which PyTorch forbids in an operator."""
    used, apart = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, Tensor)}, []
    for result in results:
        result = result.contiguous()
        apart.append(result.clone() if result.untyped_storage().data_ptr() in used else result)
        used.add(apart[-1].untyped_storage().data_ptr())
    return tuple(apart)


def loop_operator(
    like: Callable[..., Any], namespace: str = "lagwise", *, writes: Iterable[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function of tensors that calls a loop in C, or a kernel on a GPU, so that it works on whatever tensors
    PyTorch has: fake, traced and batched ones too.

    It becomes the operator ``NAMESPACE::NAME``, without a gradient, which writes to the arguments of the names
    ``writes``. ``like`` returns new tensors like the results, for the same arguments: the function gets these as its
    keyword-only arguments, to fill, or returns results of its own. A call that can be made directly
    (`callable_directly`) skips PyTorch's dispatcher, which saves 30 microseconds.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
        given = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]

        def fill(*arguments: Any) -> Any:
            results = like(*arguments)
            function(*arguments, **dict(zip(names, [results] if len(names) == 1 else results, strict=True)))
            return results

        compute, name = fill if names else function, f"{namespace}::{function.__name__}"
        returned = inspect.signature(function, eval_str=True).return_annotation
        count = len(names) or len(get_args(returned)) or int(returned is Tensor)
        schema = f"({', '.join(_typed(given, writes))}) -> {_tensors(count)}"
        operator = torch.library.custom_op(name, compute, mutates_args=tuple(writes), schema=schema)
        operator.register_fake(like)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return compute(*arguments) if callable_directly(*arguments) else operator(*arguments)

        return call

    return decorate
