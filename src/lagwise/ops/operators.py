"""Functions as operators of PyTorch: loops in C, kernels on GPUs, and what compilers call but do not look into."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

_Function = TypeVar("_Function", bound=Callable[..., Any])
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


def kept_apart(x: Tensor) -> bool:
    """Whether a graph calls an operator, rather than its operations, for what takes compilers for a CPU long and gains
    nothing: many loops with long indices. Autocast, which is rare there, would not reach an operator's operations."""
    return in_graph() and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


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
    """Results that share no memory with inputs or with each other, which PyTorch forbids in an operator."""
    used = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, Tensor)}
    apart = []
    for result in results:
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
