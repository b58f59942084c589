"""Count the kernels that `torch.compile` would launch in a training step on a GPU, without one.

Inductor gets the graphs of fake tensors on the device of `fake_cuda`, schedules them as for an H100, in Triton, and is
stopped before it writes a kernel. A node of its schedule is a launch: a fused loop, or a library's call such as a
matrix product. Calls inside an operator of lagwise are counted as `counting` counts them. Fusion and the division of
work between forward and backward pass are inductor's own, without folding of constants and without what it chooses by
timing on the card (padding of matrices).
"""

from __future__ import annotations

import types
from collections import Counter as Tally
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch._inductor.compile_fx as compile_fx
from torch import Tensor, nn
from torch._dynamo import device_interface
from torch._functorch import config as functorch_config
from torch._inductor import config, ir
from torch._inductor.scheduler import NopKernelSchedulerNode, Scheduler
from torch._inductor.virtualized import V
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensorMode

from steps.counting import Counter

_CARD = types.SimpleNamespace(
    name="NVIDIA H100", major=9, minor=0, total_memory=80 << 30, multi_processor_count=132, warp_size=32,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, L2_cache_size=50 << 20, gcnArchName="",
)  # fmt: skip


# Matrix products and other calls of PyTorch's; calls in lagwise's operators, most of them of products by FFT or SKI;
# fused kernels; casts of weights, and sums for gradients of biases, both alone; loops that inductor generates.
KINDS = ("products", "operators", "kernels", "casts", "sums", "loops")
_ALONE = {"cast_weights": "casts", "column_sums": "sums"}


@dataclass
class GraphCount:
    """Counts of what the graphs of a training step launch.

    Attributes:
        kinds: Kernels, each of one of `KINDS`.
        waits: Values that the host reads, and copies to and from it.
        graphs: Forward and backward graphs.
        complex: Operations on complex numbers, of which inductor generates no kernels: each is a call of PyTorch's, or
            an error (torch 2.11 on a card).
        refused: Why a graph could not be a CUDA graph (``mode="reduce-overhead"``); None if it could.
    """

    kinds: Tally[str] = field(default_factory=Tally)
    waits: int = 0
    graphs: int = 0
    complex: int = 0
    refused: str | None = None

    @property
    def calls(self) -> int:
        return self.kinds.total()


class _Scheduled(Exception):
    """The schedule is known."""


def count_compiled(
    make: Callable[[], nn.Module], inputs: Callable[[], dict[str, Tensor]], *, half: bool = True, combined: bool = False
) -> GraphCount:
    """Count a compiled training step of the model that ``make()`` builds, which returns a loss for the keyword
    arguments of ``inputs()``. half: under bfloat16 autocast. combined: with inductor's option ``combo_kernels``, by
    which independent loops share a launch. RuntimeError if it cannot be one graph."""
    total = GraphCount()

    def stop(scheduler: Scheduler) -> None:
        total.kinds.update(kind for kind in map(_kind, scheduler.nodes) if kind)
        total.refused = total.refused or V.graph.disable_cudagraphs_reason
        raise _Scheduled

    def schedule(graph: torch.fx.GraphModule, examples: list[Any], **options: Any) -> Any:
        total.graphs += 1
        _count_nodes(graph, total)
        try:
            compile_fx.compile_fx_inner(graph, examples, **options)
        except Exception as error:
            if not _is_scheduled(error):
                raise

        def run(inputs_of_model: list[Any]) -> Any:
            arguments = list(inputs_of_model)
            inputs_of_model.clear()
            return graph(*arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        return compile_fx.compile_fx(graph, examples, inner_compile=schedule)

    torch.compiler.reset()
    with ExitStack() as stack:
        _pretend(stack)
        stack.enter_context(config.patch(combo_kernels=combined))
        stack.enter_context(functorch_config.patch(backward_pass_autocast="off"))  # as `training.compile` does
        stack.enter_context(mock.patch.object(Scheduler, "codegen", stop))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        with torch.device("cuda"):
            model, inputs_of_model = make().train(), inputs()
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = compiled(**inputs_of_model)
        loss.backward()
    return total


def _pretend(stack: ExitStack) -> None:
    """Let PyTorch take the device for a card."""
    interface: Any = device_interface.CudaInterface
    of_card = {"get_device_properties": staticmethod(lambda device=None: _CARD)}
    here = {"current_device": staticmethod(lambda: 0)}
    ready = {name: staticmethod(lambda device=None: True) for name in ("is_available", "is_triton_capable")}
    further = {
        "get_compute_capability": staticmethod(lambda device=None: 90),
        "raise_if_triton_unavailable": staticmethod(lambda device=None: None),
    }
    stack.enter_context(mock.patch.multiple(interface, **of_card, **here, **ready, **further))
    stack.enter_context(mock.patch.multiple(interface.Worker, **of_card, **here))
    stack.enter_context(
        mock.patch.multiple(
            torch.cuda,
            get_device_properties=lambda device=None: _CARD,
            get_device_capability=lambda device=None: (9, 0),
            get_device_name=lambda device=None: _CARD.name,
            current_device=lambda: 0,
            device_count=lambda: 1,
            _lazy_init=lambda: None,
        )
    )
    stack.enter_context(config.patch(shape_padding=False, joint_graph_constant_folding=False))


def _kind(node: Any) -> str | None:
    """Return which of `KINDS` a node of the schedule is, if it is a launch."""
    if isinstance(node, NopKernelSchedulerNode) or isinstance(node.node, ir.MultiOutput | ir.MutationOutput):
        return None
    operator = getattr(node.node, "op_overload", None)
    if operator is not None and operator.namespace == "lagwise_triton":
        return _ALONE.get(operator._opname, "kernels")
    if isinstance(node.node, ir.ExternKernel):
        return None if operator is not None and _ours(operator) else "products"
    return "loops"


def _ours(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "lagwise"


def _count_nodes(graph: torch.fx.GraphModule, total: GraphCount) -> None:
    """Add the calls inside lagwise's operators, and all waits."""
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        arguments, options = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda each: each.meta["val"])
        total.complex += any(each.is_complex() for each in _tensors(node, arguments))
        if _ours(node.target):
            mode: Any = torch._guards.detect_fake_mode(arguments)
            mode.allow_non_fake_inputs = True  # tables that it makes on the host
            for counter in (Counter(), Counter()):  # the first call fills caches
                # The operator runs outside of compilation, where it has its fused kernels and remembered tables.
                with mode, counter, mock.patch.object(torch.compiler, "is_compiling", return_value=False):
                    OPDEFS[node.target._schema.name]._init_fn(*arguments, **options)
            total.kinds["operators"] += counter.total.calls
            total.waits += counter.total.waits
        elif _waits(node, arguments):
            total.waits += 1


def _waits(node: torch.fx.Node, arguments: Any) -> bool:
    """Whether an operation reads values, or has tensors on the host."""
    tags = getattr(node.target, "tags", ())
    tensors = _tensors(node, arguments)
    lookup = node.target is torch.ops.aten.index.Tensor and all(
        each.dtype != torch.bool for each in tensors
    )  # whose shape depends on values for masks only
    if torch.Tag.data_dependent_output in tags or (torch.Tag.dynamic_output_shape in tags and not lookup):
        return True
    return any(each.device.type == "cpu" for each in tensors)


def _tensors(node: torch.fx.Node, arguments: Any) -> list[Tensor]:
    """Return an operation's arguments and results that are tensors."""
    leaves = torch.utils._pytree.tree_leaves((arguments, node.meta.get("val")))
    return [each for each in leaves if isinstance(each, Tensor)]


def _is_scheduled(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, _Scheduled) or "_Scheduled" in repr(error):
            return True
        error = error.__cause__ or error.__context__
    return False
