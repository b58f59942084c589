"""Every operation with each of its engines, in every mode of PyTorch, against its definition in float64."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from graph_code import recording
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from lagwise.ops import native, operation
from lagwise.ops.attention import chunked
from lagwise.ops.fused import layers, network
from lagwise.ops.fused.average import moving_average
from lagwise.ops.fused.convolution import gated_convolution, residual_convolutions
from lagwise.ops.fused.layers import gated_update, residual_norm
from lagwise.ops.grid import _gated_grid
from lagwise.ops.operation import PLAIN, Operation
from lagwise.ops.packing import move_rows
from lagwise.ops.recurrence.scan import _block_scan
from lagwise.ops.recurrence.timestep_norm import affine_timestep_norm
from lagwise.ops.ski.products import _sparse_plus_smooth
from lagwise.ops.toeplitz import convolution
from lagwise.ops.toeplitz.convolution import _gated
from lagwise.ops.toeplitz.spectral import inverse_of_parts
from lagwise.ops.tokens import silu_product
from lagwise.ops.vocabulary import chunked_cross_entropy

pytestmark = pytest.mark.cpu
N = 23  # the open length: no other size
SINGLE, HALF = torch.float32, torch.bfloat16


class Case(NamedTuple):
    """An operation, its arguments at a length, the positions of those that have no gradient, and the tests whose modes
    it, or an operation of PyTorch in it, does not have."""

    operation: Operation
    arguments: Callable[[int], tuple[Any, ...]]
    constants: tuple[int, ...] = ()
    without: str = ""

    def needs(self, ability: str) -> None:
        if ability in self.without:
            pytest.skip(f"this operation has no {ability}")


def _rotation(n: int) -> tuple[Any, ...]:
    return (torch.randn(2, 3, n, 8), *chunked.rotary_factors(torch.arange(n), 8, dtype=SINGLE))


def _grid(n: int, biases: Tensor | None) -> tuple[Any, ...]:
    return (randn(2, n * 4, 20), randn(2, n * 4, 20), randn(20, 7), randn(20, 5), biases, 4)


def _heads(n: int) -> tuple[Tensor, ...]:
    """Query, key and value, as projections make them: heads within tokens."""
    return tuple(torch.randn(2, n, 2, 8).transpose(1, 2) for _ in range(3))


def _ski(n: int, rows: Tensor | None) -> tuple[Any, ...]:
    coarse = randn(20, 17) if rows is None else randn(2, 20, 17)
    return (randn(2, n, 20), randn(20, 5), coarse, *([None] * 3 if rows is None else rows), 2, 0, 1)


randn = torch.randn
CASES = {
    "silu product": Case(silu_product, lambda n: (randn(2, n, 20), randn(2, n, 20), None)),
    "silu product with biases": Case(silu_product, lambda n: (randn(2, n, 20), randn(2, n, 20), randn(2, 20))),
    "residual norm": Case(
        residual_norm,
        lambda n: (randn(2, n, 20), randn(2, n, 20), randn(20), randn(20), 1e-5, True, SINGLE),
    ),
    "norm": Case(residual_norm, lambda n: (randn(2, n, 20), None, randn(20), None, 1e-5, False, SINGLE)),
    "gated update": Case(gated_update, lambda n: tuple(randn(4, 2, n, 20))),
    "grid": Case(_gated_grid, lambda n: _grid(n, None), without="batched gradients, empty, export, jit"),
    "grid with biases": Case(
        _gated_grid, lambda n: _grid(n, randn(2, 20)), without="batched gradients, empty, export, jit"
    ),
    "average": Case(
        moving_average,
        lambda n: (randn(2, n, 20), randn(20, 3), -randn(20, 3).exp(), randn(20), None),
        without="batched gradients, empty, export",  # open lengths have taps instead
    ),
    "complex average": Case(
        moving_average,
        lambda n: (randn(2, n, 20), randn(20, 3, 2), -randn(20, 3).exp(), randn(20), randn(20, 3)),
        without="batched gradients, empty, export",
    ),
    "timestep norm": Case(
        affine_timestep_norm, lambda n: (randn(2, n, 20), randn(20), randn(20), 5, 1e-5), without="empty"
    ),
    "convolutions": Case(
        residual_convolutions,
        lambda n: (randn(2, n, 20), randn(2, 20, 3), 0, (1, 3), True, True),
        without="batched gradients, empty",
    ),
    "gated convolution": Case(
        gated_convolution, lambda n: (randn(2, n, 60), randn(20, 3), 0), without="batched gradients, empty"
    ),
    "layers": Case(layers._joint_linear, lambda n: (randn(2, n, 20), SINGLE, 2, [5, 7], randn(5, 20), randn(7, 20))),
    "parameters of a network": Case(network._flat, lambda n: (randn(n, 3), randn(n, 8), randn(8))),
    "network": Case(network._layers, lambda n: (randn(n, 3), randn(8 * 3 + 8 * 8 + 16), 2, 8, 1e-6)),
    "cross-entropy": Case(
        chunked_cross_entropy,
        lambda n: (randn(n, 20), randn(40, 20), randn(40), torch.randint(0, 40, (n,)), 10, SINGLE),
    ),
    "attention": Case(
        chunked._attention,
        lambda n: (*_heads(n), randn(2, 15), torch.rand(2, n) < 2, 8, True, "softmax", False),
        without="empty, forward",
    ),
    "attention, two-sided": Case(
        chunked._attention, lambda n: (*_heads(n), None, None, 8, False, "laplace", False), without="empty"
    ),
    "sliding attention": Case(
        chunked._attention,
        lambda n: (*_heads(n), None, None, 8, True, "softmax", True),
        without="empty, second, forward",
    ),
    "rotation": Case(chunked.rotate, _rotation, constants=(1, 2)),
    "rows": Case(
        move_rows, lambda n: (randn(2, n, 5), torch.tensor([2, -1]), 12), without="batched gradients, empty"
    ),
    "convolution": Case(
        convolution, lambda n: (randn(2, n, 20), randn(20, n), 0, "fft", 1), without="batched gradients, empty"
    ),
    "convolution in frames": Case(
        convolution, lambda n: (randn(2, n, 20), randn(20, 5), 2, "overlap_save", 1), without="batched gradients, empty"
    ),
    "convolution of few lags": Case(
        convolution, lambda n: (randn(2, n, 20), randn(20, 9), 4, "auto", 2), without="batched gradients, empty"
    ),
    "gated convolution by FFT": Case(
        _gated,
        lambda n: (randn(2, n, 20), randn(2, n, 20), randn(20, n), randn(2, 20), 0, "fft"),
        without="batched gradients, empty",
    ),
    "SKI": Case(
        _sparse_plus_smooth,
        lambda n: _ski(n, None),
        without="half, batched gradients, empty, fake, traces",
    ),
    "SKI of rows": Case(
        _sparse_plus_smooth,
        lambda n: _ski(n, torch.tensor([[0, 3], [n, n - 5], [9, 7]])),
        constants=(3, 4, 5),
        without="half, batched gradients, empty, fake, traces, export",  # lengths of rows are numbers
    ),
    "block scan": Case(
        _block_scan,
        lambda n: (randn(2, n, 5), randn(5, 4, 4), *randn(2, 5, 3, 4), torch.rand(5, 3), randn(2, 5, 2), 1),
        without="half, batched gradients, empty, export",  # open lengths have taps instead
    ),
    "frequencies": Case(inverse_of_parts, lambda n: (randn(2, n, 6), 10), without="half, empty"),
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
WITH_ENGINES = [
    pytest.param(case, engine, id=f"{name}, {engine}")
    for name, case in CASES.items()
    for engine in (PLAIN, *case.operation.engines)
]
every_engine = pytest.mark.parametrize(("case", "engine"), WITH_ENGINES)


@pytest.fixture(autouse=True)
def _small_tensors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "MIN_ELEMENTS", 0)


def engine_first(name: str) -> Any:
    """Prefer an engine within a block, as LAGWISE_ENGINE does for a process."""
    return mock.patch.object(operation, "_preferred", name)


def prepared(case: Case, n: int = N, dtype: torch.dtype = SINGLE, engine: str = PLAIN) -> tuple[Any, ...]:
    """Arguments with gradients. Skips the test where the engine does not serve them."""
    torch.manual_seed(0)
    args = tuple(
        each if position in case.constants else converted(each, dtype)
        for position, each in enumerate(case.arguments(n))
    )
    if engine != PLAIN and not case.operation.engines[engine].serves(*args):
        pytest.skip(f"the engine {engine} does not serve these tensors here")
    return args


def converted(argument: Any, dtype: torch.dtype) -> Any:
    if isinstance(argument, Tensor) and argument.is_floating_point():
        return argument.detach().to(dtype).requires_grad_()
    return dtype if argument == SINGLE else argument


def tensors(values: Any) -> list[Tensor]:
    values = [values] if isinstance(values, Tensor) else values
    return [each for each in values if isinstance(each, Tensor)]


def sources(args: tuple[Any, ...]) -> list[Tensor]:
    return [each for each in tensors(args) if each.requires_grad]


def of_sources(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
    """The function of those arguments that have gradients."""
    has_gradient = [isinstance(each, Tensor) and each.requires_grad for each in args]

    def call(*given: Tensor) -> Any:
        rest = iter(given)
        return function(*(next(rest) if own else each for each, own in zip(args, has_gradient, strict=True)))

    return call


def with_gradients(function: Callable[..., Any], args: tuple[Any, ...], create_graph: bool = False) -> list[Tensor]:
    """Results, and gradients of all arguments from fixed ones of the results."""
    results = tensors(function(*args))
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=generator).to(y.dtype) for y in results]
    gradients = torch.autograd.grad(
        results, sources(args), weights, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )
    return [*results, *gradients]


def same(found: list[Tensor], expected: list[Tensor], tolerance: float = 2e-4) -> None:
    for ours, exact in zip(found, expected, strict=True):
        assert ours.shape == exact.shape
        scale = float(exact.detach().abs().max()) + 1e-30 if exact.numel() else 1.0
        torch.testing.assert_close(ours.double() / scale, exact.double() / scale, rtol=0, atol=tolerance)


@every_engine
@pytest.mark.parametrize("dtype", [SINGLE, HALF])
def test_values_and_gradients(case: Case, engine: str, dtype: torch.dtype) -> None:
    if dtype == HALF:
        case.needs("half")
    args = prepared(case, dtype=dtype, engine=engine)
    with engine_first(engine):
        found = with_gradients(case.operation, args)
        kinds = [y.dtype for y in tensors(case.operation(*args))]
    assert kinds == [y.dtype for y in tensors(case.operation.plain(*args))]
    exact = tuple(each if n in case.constants else converted(each, torch.float64) for n, each in enumerate(args))
    same(found, with_gradients(case.operation.plain, exact), 2e-4 if dtype == SINGLE else 0.15)


@every_engine
def test_without_gradients(case: Case, engine: str) -> None:
    args = prepared(case, engine=engine)
    with engine_first(engine), torch.no_grad():
        same(tensors(case.operation(*args)), tensors(case.operation.plain(*args)))


@every_engine
def test_second_derivatives(case: Case, engine: str) -> None:
    case.needs("second")
    args = prepared(case, engine=engine)

    def second(function: Callable[..., Any]) -> list[Tensor]:
        first = with_gradients(function, args, create_graph=True)
        total = sum(((each * each).sum() for each in first if each.requires_grad), torch.zeros(()))
        return list(torch.autograd.grad(total, sources(args), allow_unused=True, materialize_grads=True))

    with engine_first(engine):
        found = second(case.operation)
    same(found, second(case.operation.plain), 1e-3)


@every_engine
def test_batched_gradients(case: Case, engine: str) -> None:
    case.needs("batched gradients")
    args = prepared(case, engine=engine)
    found = []
    with engine_first(engine):
        for function in (case.operation, case.operation.plain):
            y = tensors(function(*args))[-1]
            weights = torch.stack([torch.ones_like(y), y.detach()])
            found.append(torch.autograd.grad(y, sources(args), weights, is_grads_batched=True, allow_unused=True))
    same(*found)


@every_engine
@pytest.mark.parametrize("transform", ["forward", "vmap"])
def test_transforms(case: Case, engine: str, transform: str) -> None:
    case.needs(transform)
    args = prepared(case, engine=engine)
    inputs = tuple(each.detach() for each in sources(args))
    found = []
    with engine_first(engine):
        for function in (case.operation, case.operation.plain):
            torch.manual_seed(1)
            pure = of_sources(function, args)
            if transform == "forward":
                y = torch.func.jvp(pure, inputs, tuple(torch.randn_like(each) for each in inputs))
                found.append([*tensors(y[0]), *tensors(y[1])])
            else:
                found.append(tensors(torch.vmap(pure)(*(torch.stack([each, 2 * each]) for each in inputs))))
    same(*found)


def apart(argument: Any) -> Any:
    """A tensor with a gradient whose numbers lie in another order."""
    if not isinstance(argument, Tensor) or not argument.requires_grad or argument.dim() < 2:
        return argument
    return argument.detach().mT.contiguous().mT.requires_grad_()


@every_engine
def test_views_expanded_gradients_and_results_changed_in_place(case: Case, engine: str) -> None:
    args = prepared(case, engine=engine)
    views = tuple(apart(each) for each in args)
    found = []
    with engine_first(engine):
        for function, given in ((case.operation, views), (case.operation.plain, args)):
            y = tensors(function(*given))[-1]
            alone = engine != PLAIN and function is case.operation and y._base is None
            y = y.mul_(2) if alone else 2 * y
            gradients = torch.autograd.grad(y.sum(), sources(given), allow_unused=True, materialize_grads=True)
            found.append([y, *gradients])
    same(*found)


@every_engine
def test_negative_views_and_zero_gradients(case: Case, engine: str) -> None:
    """Tensors without ordinary memory."""
    first, *rest = prepared(case, engine=engine)
    with engine_first(engine):
        same(tensors(case.operation(torch._neg_view(first), *rest)), tensors(case.operation.plain(-first, *rest)))
        y = tensors(case.operation(first, *rest))[-1]
        (found,) = torch.autograd.grad(y, first, torch._efficientzerotensor(y.shape))
    assert not found.any()


@every_case
def test_empty(case: Case) -> None:
    case.needs("empty")
    args = prepared(case, 0)
    same(with_gradients(case.operation, args), with_gradients(case.operation.plain, args))


@every_case
def test_fake_tensors(case: Case) -> None:
    case.needs("fake")
    args = prepared(case)
    shapes = [y.shape for y in tensors(case.operation(*args))]
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(each) if isinstance(each, Tensor) else each for each in args]
        assert [y.shape for y in tensors(case.operation(*fake))] == shapes


@every_case
def test_autocast(case: Case) -> None:
    args = prepared(case)
    with torch.autocast("cpu", HALF):
        found = tensors(case.operation(*args))
    same(found, tensors(case.operation.plain(*args)), 0.1)


@every_case
def test_traces_hold_the_definition(case: Case) -> None:
    case.needs("traces")
    args = prepared(case)
    call, inputs = of_sources(case.operation, args), [each.detach() for each in sources(args)]
    for pre_dispatch in (False, True):
        traced = make_fx(call, pre_dispatch=pre_dispatch)(*inputs)
        same(tensors(traced(*inputs)), tensors(call(*inputs)))
    case.needs("jit")
    traced = torch.jit.trace(call, inputs, check_trace=False)
    same(tensors(traced(*inputs)), tensors(call(*inputs)))
    assert "lagwise::" not in str(traced.graph)


class _Module(torch.nn.Module):
    def __init__(self, case: Case, args: tuple[Any, ...]):
        super().__init__()
        self.case, self.args = case, args

    def forward(self, *given: Tensor) -> Any:
        rest = iter(given)
        return self.case.operation(*(next(rest) if isinstance(each, Tensor) else each for each in self.args))


@pytest.mark.sampled(2)
@every_case
def test_compiled_at_every_length(case: Case) -> None:
    torch._dynamo.reset()
    code: list[str] = []
    compiled = torch.compile(_Module(case, prepared(case)), backend=recording(code), fullgraph=True)
    for n in (N, 40, 31):
        args = prepared(case, n)
        given = tuple(tensors(args))
        same(with_gradients(compiled, given), with_gradients(case.operation, args))
    assert len(code) <= 4  # forward and backward, for the first length and for all others
    if case.operation._operator is not None:
        assert f"lagwise.{case.operation._operator._name}." in "".join(code)


@every_case
def test_exported_with_an_open_length(case: Case) -> None:
    """Files hold only PyTorch's own operations."""
    case.needs("export")
    args = prepared(case)
    given = tuple(each.detach() for each in tensors(args))
    shapes = tuple(
        {axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(each.shape) if size == N} for each in given
    )
    exported = torch.export.export(_Module(case, args), given, dynamic_shapes=(shapes,), strict=False)
    assert not [node for node in exported.graph.nodes if "lagwise" in str(node.target)]
    longer = prepared(case, 50)
    found = exported.module()(*(each.detach() for each in tensors(longer)))
    same(tensors(found), tensors(case.operation(*longer)))


@every_case
def test_operators_of_graphs_are_proper_ones(case: Case) -> None:
    if case.operation._operator is None:
        pytest.skip("graphs hold its operations")
    torch.library.opcheck(case.operation._operator, prepared(case))


PREDICATES = re.findall(
    r"\w+",
    "symbolic is_compiling in_graph fused traced differentiable transformed _frozen exporting narrow has_static_value "
    "available few_lags is_tracing cpu_graph callable_directly definitions_only open_length",
)
MAX_QUESTIONS = 69


@functools.cache
def trees() -> list[tuple[str, ast.Module]]:
    source = Path(inspect.getfile(silu_product.plain)).parent.parent
    paths = [path for path in source.rglob("*.py") if path.name != "operation.py"]
    return [(str(path.relative_to(source)), ast.parse(path.read_text())) for path in paths]


def test_few_places_ask_in_which_mode_they_are() -> None:
    """All others leave it to `lagwise.ops.operation`."""
    asked = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).split(".")[-1]
                method = name == "narrow" and isinstance(node.func, ast.Attribute)  # of tensors
                asked += [f"{path}:{node.lineno}"] if name in PREDICATES and not method else []
    assert len(asked) <= MAX_QUESTIONS, asked


# Private names of PyTorch in `lagwise.ops.operation`, and the test that fails without what they give.
PRIVATE = {
    "_is_exporting_flag": "test_compiled_graphs_are_told_from_exported_ones",
    "_are_functorch_transforms_active": "test_transforms",
    "_current_level": "test_transforms",
    "_len_torch_dispatch_stack": "test_traces_hold_the_definition",
    "_ops": "test_traces_hold_the_definition",
    "_len_torch_dispatch_stack_pre_dispatch": "test_traces_hold_the_definition",
    "_has_any_global_hook": "test_only_plain_linear_layers_are_taken_apart",
    "_len_torch_function_stack": "test_only_plain_linear_layers_are_taken_apart",
    "_get_function_stack_at": "test_only_plain_linear_layers_are_taken_apart",
    "_get_dispatch_mode": "test_fake_tensors",
    "_TorchDispatchModeKey": "test_fake_tensors",
    "_assert_async": "test_graphs_refuse_padding_that_they_cannot_move",
    "_dynamo": "test_one_graph_serves_texts_packed_in_any_way",
    "_dispatch_tls_local_include_set": "test_gradients_in_operators_do_not_depend_on_where_they_were_imported",
    "_dispatch_tls_local_exclude_set": "test_gradients_in_operators_do_not_depend_on_where_they_were_imported",
    "_ForceDispatchKeyGuard": "test_gradients_in_operators_do_not_depend_on_where_they_were_imported",
    "_dispatch_keys": "test_negative_views_and_zero_gradients",
    "torch._subclasses.fake_tensor": "test_fake_tensors",
    "torch.utils._device": "test_only_plain_linear_layers_are_taken_apart",
}
ELSEWHERE = {"torch.utils._pytree", "torch.distributed._functional_collectives"}  # windows as trees, shards


def private_names(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.fullmatch("_[A-Za-z]\\w+", node.attr):
            if re.match(r"(torch|forward_ad)\b", ast.unparse(node.value)) and node.attr != "_C":
                found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and re.match(r"torch\b.*\._", node.module or ""):
            found.add(str(node.module))
        elif isinstance(node, ast.ImportFrom) and node.module == "torch.utils":
            found |= {f"torch.utils.{each.name}" for each in node.names if each.name.startswith("_")}
    return found


def test_private_names_of_pytorch_are_in_one_file_and_each_has_a_test() -> None:
    found = private_names(ast.parse(Path(inspect.getfile(Operation)).read_text()))
    assert found == set(PRIVATE)
    tests = "".join(path.read_text() for path in Path(__file__).parent.parent.rglob("test_*.py"))
    assert not [name for name in PRIVATE.values() if f"def {name}(" not in tests]
    assert not [path for path, tree in trees() if path.startswith("ops") and not private_names(tree) <= ELSEWHERE]
