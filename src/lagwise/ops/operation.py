"""One operation, one class: a plain definition, and engines that compute the same faster.

This file alone asks in which mode a call is made (eager, recorded by `torch.compile`, exported, traced, transformed by
`torch.func`, or differentiated a second time) and uses private names of PyTorch for it. Definitions and engines do not.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.fake_tensor import unset_fake_temporarily as without_fakes  # noqa: F401
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

# One concept: how a call becomes a computation. Modes, operators and classes of operations are of no use alone.

_Function = TypeVar("_Function", bound=Callable[..., Any])
Values = Sequence[Any]  # tensors, and None or numbers among them
PLAIN = "plain"  # the name of an operation's definition among its engines
_preferred = os.environ.get("LAGWISE_ENGINE", "")  # see `engine_first`
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


def transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is active; fast paths have no rules for these."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def traced() -> bool:
    """Whether nothing may depend on the values of tensors: a graph is being recorded, which must also hold for other
    values, or many batches are computed as one (`torch.vmap`)."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or transformed()


def recorded() -> bool:
    """Whether tensors may have no values that could be read: `traced`, or a mode is active whose tensors are fake, or
    that records operations."""
    if traced():
        return True
    return torch._C._len_torch_dispatch_stack() + torch._ops._len_torch_dispatch_stack_pre_dispatch() > 0


def differentiable() -> bool:
    """Whether the results of this backward pass are differentiated again (``create_graph=True``) or transformed."""
    return not torch.compiler.is_compiling() and (torch.is_grad_enabled() or transformed())


def definitions_only() -> bool:
    """Whether operations are recorded or transformed as they are defined: in exports, in traces, under `torch.func` and
    in forward mode."""
    return exporting() or torch.jit.is_tracing() or transformed()


def worthwhile(x: Tensor, numbers: int) -> bool:
    """Whether x has so many numbers that a call into C gains more than it costs. In a compiled graph every call does:
    it is an operator, of which the compiler has less to compile."""
    return in_graph() or x.numel() >= numbers


def kept_apart(x: Tensor, *_: Any) -> bool:
    """Whether a graph calls an operator, rather than its operations, for what takes compilers for a CPU long and gains
    nothing: many loops with long indices. Autocast, which is rare there, would not reach an operator's operations."""
    return in_graph() and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def device_check(holds: Callable[[], Tensor], message: str) -> None:
    """Have the device fail where a condition does not hold, for which the host does not wait: eagerly and in graphs.
    Exports and traces do not compute it."""
    if in_graph() or not traced():
        torch._assert_async(holds(), message)


def intercepted() -> bool:
    """Whether something may change what modules and functions do: hooks of all modules, or a function mode other than
    a default device."""
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

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor | tuple[Tensor, ...], Values]:
        """The results, and what `backward` needs beside the arguments."""
        raise NotImplementedError

    @classmethod
    def evaluate(cls, *args: Any) -> Any:
        """The results, where nothing needs a gradient."""
        return cls.forward(*args)[0]

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        """A gradient of each argument that needs one, from those of the results. A result that nothing has used has the
        gradient None."""
        raise NotImplementedError

    @staticmethod
    def restored(args: Values, saved: Values) -> Values:
        """Arguments for which the definition has the same gradients, where some are `unsaved`."""
        return args


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

        def add(engine: type[Engine]) -> type[Engine]:
            self.engines[name] = engine
            return engine

        return add

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
        compiled anew for every length (`graph_operator`).

        The definition's parameters must be annotated, tensors before numbers, and those of ``constants`` the last of
        the tensors.

        Args:
            like: Returns new tensors like the results, and like what the engine saves, for the same arguments.
            engine: What the operator computes. By default the definition, differentiated by autograd, for which it is
                computed again; of a bilinear operation, its contractions.
            where: Whether a graph calls the operator for these arguments; by default every compiled graph does.
            constants, results, saved: Names, separated by spaces: tensors without a gradient, results, and tensors that
                the engine saves.
        """
        parameters = inspect.signature(self.definition, eval_str=True).parameters.values()
        tensors = [
            f"{p.name}?" if p.annotation == Tensor | None else p.name
            for p in parameters
            if p.annotation in (Tensor, Tensor | None)
        ]
        numbers = [f"{_SCHEMA[p.annotation]} {p.name}" for p in parameters if p.annotation in _SCHEMA]
        count = len(tensors) - len(constants.split())
        engine = engine or self.whole()

        def compute(*args: Any) -> Any:
            if engine is None:
                return self.plain(*args)
            values, kept = engine.forward(*args)
            values = (values,) if isinstance(values, Tensor) else values
            return values[0] if len(values) == 1 and not saved else (*values, *kept)

        def gradients(*arguments: Any) -> Values:
            grads, rest = arguments[: self._results], arguments[self._results :]
            args, kept = rest[: len(tensors)], rest[len(tensors) : len(tensors) + len(saved.split())]
            args += rest[len(tensors) + len(kept) :]
            needs_grad = [True] * count + [False] * (len(args) - count)
            return cast("type[Engine]", engine).backward(args, kept, grads, needs_grad)[:count]

        self._results = len(results.split())
        self._where = where
        self._operator = graph_operator(
            name, compute, gradients if engine else None, like, tensors=" ".join(tensors[:count]),
            constants=" ".join(tensors[count:]), numbers=", ".join(numbers), results=results, kept=saved,
        )  # fmt: skip

    def whole(self) -> type[Engine] | None:
        """Return the engine that the operator of `in_graphs` computes by default; None for the definition."""
        return None

    def __call__(self, *args: Any) -> Any:
        if len(args) < self._count:
            args = self._filled(args)
        if definitions_only() or _preferred == PLAIN:
            return self.plain(*args)
        if self._operator is not None and in_graph() and self._where(*args):
            return self._from_graph(*args)
        engine = self._serving(args)
        if engine is None:
            return self.plain(*args)
        if torch.is_grad_enabled():
            return _Call.apply(self.plain, engine, *args)
        return engine.evaluate(*args)

    def _filled(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        missing = self._count - len(args)
        return args + self._defaults[-missing:] if missing > 0 else args

    def _from_graph(self, *args: Any) -> Any:
        results = cast("Callable[..., Any]", self._operator)(*args)
        if isinstance(results, Tensor):
            return results
        return results[0] if self._results == 1 else tuple(results[: self._results])

    def _serving(self, args: tuple[Any, ...]) -> type[Engine] | None:
        if _preferred and _preferred in self.engines and self.engines[_preferred].serves(*args):
            return self.engines[_preferred]
        for engine in self.engines.values():
            if engine.serves(*args):
                return engine
        return None

    def chosen(self, *args: Any) -> str:
        """The name of the engine that an eager call with these arguments takes."""
        engine = None if _preferred == PLAIN else self._serving(self._filled(args))
        return next((name for name, each in self.engines.items() if each is engine), PLAIN)

    def explain(self, *args: Any) -> str:
        """Say which engine computes these arguments, and which do not serve them."""
        args = self._filled(args)
        refused = [name for name, engine in self.engines.items() if not engine.serves(*args)]
        why = f" (not for these arguments: {', '.join(refused)})" if refused else ""
        return f"{self.plain.__name__}: {self.chosen(*args)}{why}"


def operation(plain: Callable[..., Any]) -> Operation:
    """Decorate the definition of an `Operation`."""
    return Operation(plain)


@contextmanager
def engine_first(name: str) -> Iterator[None]:
    """Prefer the engines of a name within the block, as LAGWISE_ENGINE does for a process; ``plain`` for none."""
    global _preferred
    before, _preferred = _preferred, name
    try:
        yield
    finally:
        _preferred = before


class _Call(torch.autograd.Function):
    """A call of an engine, whose gradients are its own unless they are differentiated again."""

    @staticmethod
    def forward(ctx: Any, plain: Callable[..., Any], engine: type[Engine], *args: Any) -> Any:
        ctx.set_materialize_grads(False)
        results, saved = engine.forward(*args)
        kept = [each if isinstance(each, Tensor) else None for each in args]
        for position in engine.unsaved:
            kept[position] = None
        ctx.save_for_backward(*kept, *saved)
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
        return None, None, *ctx.engine.backward(args, saved[count:], grads, needs_grad)


def differentiable_gradients(
    function: Callable[..., Any], inputs: Values, needs_grad: Sequence[bool], grads: Sequence[Tensor | None]
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
        self, grad: Tensor, x: Tensor, kernel: Tensor, needs_grad: Sequence[bool], /
    ) -> tuple[Tensor | None, Tensor | None]:
        """Compute contractions 1 and 2, each if it is needed; they may share work."""
        ...


class Bilinear(Operation):
    """An operation that is linear in its first two arguments, a signal and a kernel: differentiable any number of times
    and under `torch.func`, always by fast contractions.

    It decorates a function that returns the `Form` for the same arguments: signal, kernel and settings. Engines may
    serve some arguments faster. The operator of `in_graphs` is the form's, too.
    """

    def __init__(self, form: Callable[..., Form]):
        super().__init__(form)
        self.plain = lambda x, kernel, *settings: bilinear_product(x, kernel, form(x, kernel, *settings))

    def whole(self) -> type[Engine]:
        form = self.definition

        class Contractions(Engine):
            forward = staticmethod(lambda *args: (form(*args).contract(0, *args[:2]), ()))
            backward = staticmethod(
                lambda args, saved, grads, needs_grad: form(*args).gradients(grads[0], *args[:2], needs_grad[:2])
            )

        return Contractions


def bilinear_product(x: Tensor, kernel: Tensor, form: Form) -> Tensor:
    """``x * k`` of a form."""
    return _Contraction.apply(x, kernel, 0, form) if transformed() else _Product.apply(x, kernel, form)


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
        if not differentiable():
            return *ctx.form.gradients(grad, x, kernel, needs_grad), None
        dx = _Contraction.apply(grad, kernel, 1, ctx.form).to(x.dtype) if needs_grad[0] else None
        return dx, _Contraction.apply(grad, x, 2, ctx.form).to(kernel.dtype) if needs_grad[1] else None, None


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


_SCHEMA = {
    int: "SymInt", float: "float", bool: "bool", str: "str", torch.dtype: "ScalarType", list[int]: "SymInt[]",
}  # fmt: skip


def graph_operator(
    name: str,
    compute: Callable[..., Any],
    gradients: Callable[..., Any] | None,
    like: Callable[..., Any],
    *,
    tensors: str,
    numbers: str = "",
    constants: str = "",
    results: str = "y",
    kept: str = "",
) -> Callable[..., Any]:
    """The operator ``lagwise::NAME``, to be called where `in_graph`: a compiled graph calls it as it is, so that what
    it computes is not compiled anew for every length.

    Args:
        compute: Takes the tensors, the constants and the numbers. Returns the results and what is kept for the
            gradient: one tensor, or a tuple.
        gradients: Takes the gradients of the results, the tensors, the constants, what was kept, and the numbers.
            Returns a gradient of each of the tensors. None: autograd's, for which compute is called again.
        like: Returns new tensors like those of compute, for the same arguments.
        tensors, constants, results, kept: Names, separated by spaces. Constants are tensors without a gradient. Inputs
            whose name ends in ``?`` may be None.
        numbers: As in a schema, such as ``SymInt origin, str engine``.
    """
    inputs, outputs = f"{tensors} {constants}".split(), f"{results} {kept}".split()
    count, n_tensors, n_results = len(inputs), len(tensors.split()), len(results.split())
    derive: Callable[..., Any] = gradients or functools.partial(
        _autograd_gradients, compute, n_results, count, n_tensors
    )

    def schema(names: list[str], returned: str) -> str:
        of_tensors = [f"Tensor? {name[:-1]}" if name.endswith("?") else f"Tensor {name}" for name in names]
        return f"({', '.join(of_tensors + [numbers] * bool(numbers))}) -> {returned}"

    def contiguous_gradients(*arguments: Any) -> list[Tensor]:
        inputs = arguments[n_results : n_results + n_tensors]
        pairs = zip(derive(*arguments), inputs, strict=True)
        return [gradient.to(x.dtype).contiguous() for gradient, x in pairs if x is not None]

    def separate(*arguments: Any) -> Any:
        results = compute(*arguments)
        single = isinstance(results, Tensor)
        return _separate((results,), arguments)[0] if single else _separate(results, arguments)

    returned = "Tensor" if len(outputs) == 1 else f"({', '.join(['Tensor'] * len(outputs))})"
    operator = torch.library.custom_op(f"lagwise::{name}", separate, mutates_args=(), schema=schema(inputs, returned))
    given = [*(f"grad_{each}" for each in results.split()), *inputs, *kept.split()]
    backward = torch.library.custom_op(
        f"lagwise::{name}_gradients", contiguous_gradients, mutates_args=(), schema=schema(given, "Tensor[]")
    )

    def save(ctx: Any, *, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:count], *(output[n_results:] if kept else ()))
        ctx.numbers = inputs[count:]

    def differentiate(ctx: Any, *grads: Tensor) -> Any:
        grads = tuple(grad.contiguous() for grad in grads[:n_results])
        saved = ctx.saved_tensors
        result = iter(backward(*grads, *saved, *ctx.numbers))
        of_tensors = [None if x is None else next(result) for x in saved[:n_tensors]]
        return *of_tensors, *([None] * (count - n_tensors + len(ctx.numbers)))

    operator.register_fake(like)
    backward.register_fake(
        lambda *given: [x.new_empty(x.shape) for x in given[n_results:][:n_tensors] if x is not None]
    )
    operator.register_autograd(differentiate, setup_context=save)
    return operator


def _separate(results: Iterable[Tensor], inputs: Iterable[Any]) -> tuple[Tensor, ...]:
    """Contiguous results that share no memory with inputs or with each other, which PyTorch forbids in an operator."""
    used = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, Tensor)}
    apart = []
    for result in results:
        result = result.contiguous()
        shared = result.untyped_storage().data_ptr() in used
        apart.append(result.clone() if shared else result)
        used.add(apart[-1].untyped_storage().data_ptr())
    return tuple(apart)


def _autograd_gradients(
    compute: Callable[..., Any], results: int, inputs: int, n_tensors: int, *arguments: Any
) -> list[Tensor | None]:
    """The gradients of the first ``n_tensors`` inputs, from those of the results. Custom operators run below autograd,
    so the thread's dispatch keys are restored for autograd to record."""
    grads, values, numbers = arguments[:results], arguments[results : results + inputs], arguments[results + inputs :]
    with torch._C._ForceDispatchKeyGuard(_INCLUDED, _EXCLUDED), torch.enable_grad():
        sources = [None if x is None else x.detach().requires_grad_() for x in values[:n_tensors]]
        outputs = compute(*sources, *values[n_tensors:], *numbers)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs[:results]
        wrt = [x for x in sources if x is not None]
        gradients = iter(torch.autograd.grad(outputs, wrt, grads, allow_unused=True, materialize_grads=True))
    return [None if x is None else next(gradients) for x in sources]


def callable_directly(*arguments: Any) -> bool:
    """Whether a loop in C or a kernel may read these arguments' memory and skip PyTorch's dispatcher: no gradient,
    trace or mode would miss the operation, and every tensor is an ordinary one, not one that is fake, batched, negated
    on reading, or of a class of its own."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if not _quiet(torch._C._dispatch_tls_local_include_set().raw_repr()):
        return False
    for argument in arguments:
        for each in argument if type(argument) is list else (argument,):
            kind = type(each)
            if kind is Tensor or kind is nn.Parameter:
                keys = torch._C._dispatch_keys(each).raw_repr()
                if not (_known[keys] if keys in _known else _ordinary(keys, each)):
                    return False
            elif isinstance(each, Tensor):
                return False
    return True


# By the dispatch keys of a tensor, whether it is an ordinary one: every operation would else find it out again.
_known: dict[int, bool] = {}


@functools.cache
def _quiet(keys: int) -> bool:
    return not keys & ~_QUIET


def _ordinary(keys: int, x: Tensor) -> bool:
    with torch.inference_mode(False):
        ordinary = torch._C._dispatch_keys(torch.empty(0, device=x.device.type)).raw_repr()
    return _known.setdefault(keys, not keys & ~ordinary)


def loop_operator(
    like: Callable[..., Any], namespace: str = "lagwise", *, writes: Iterable[str] = ()
) -> Callable[[_Function], _Function]:
    """Decorate a function of tensors that calls a loop in C, or a kernel on a GPU, so that it works on whatever tensors
    PyTorch has: fake, traced and batched ones too.

    It becomes the operator ``lagwise::NAME``, without a gradient. A call that can be made directly
    (`callable_directly`) skips PyTorch's dispatcher, which saves 30 microseconds.

    Args:
        like: Returns new tensors like the results, for the same arguments.
        namespace: Namespace of the operator.
        writes: Names of the arguments that it writes to.
    """

    def decorate(function: _Function) -> _Function:
        name = f"{namespace}::{function.__name__}"
        operator = torch.library.custom_op(name, function, mutates_args=tuple(writes))
        operator.register_fake(like)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return function(*arguments) if callable_directly(*arguments) else operator(*arguments)

        return cast(_Function, call)

    return decorate
