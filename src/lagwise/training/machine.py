"""The part of training that depends on the machine: precision, compiled steps, and processes that train together."""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from functools import cache, partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor
from torch._functorch import config

from lagwise.compiler import find_compiler, find_cxx, has_python_headers
from lagwise.data.batches import Examples
from lagwise.data.options import AUTO
from lagwise.models.loading import default_device
from lagwise.process import group_size
from lagwise.tables import refuse
from lagwise.training.recipe import REDUCE_OVERHEAD, TrainingOptions

_MIN_GRAPH_STEPS = 5_000  # some minutes, of which compilation takes about one
_Choice = TypeVar("_Choice", bool, float)


@cache
def bfloat16_is_fast() -> bool:
    """Whether matrix products on this machine are faster in bfloat16 than in float32. CPUs that have instructions for
    it are timed once: some are half as fast."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    if not any("bf16" in name and bool(value) for name, value in capabilities.items()):
        return False
    return _product_seconds(torch.bfloat16) < 0.8 * _product_seconds(torch.float32)  # casts cost some of the gain


def _product_seconds(dtype: torch.dtype) -> float:
    """Time a matrix product, in seconds: the minimum of ten runs."""
    matrix = torch.ones(512, 512, dtype=dtype)
    times = []
    for _ in range(10):
        begun = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - begun)
    return min(times)


def describe() -> dict[str, Any]:
    """Describe hardware and versions, for results files."""
    import numpy
    import transformers

    from lagwise._version import __version__
    from lagwise.ops import native

    return {
        "lagwise": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "bfloat16": bfloat16_is_fast(),
        "native": None if torch.cuda.is_available() else native.available(),  # whether the loops in C are in use
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            return next(line.split(":", 1)[1].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


# Compiled training steps, by `torch.compile`.


def chosen_compilation(options: TrainingOptions, one_length: bool) -> bool | str:
    """Decide how to compile a training step: as the options say, and where they leave it open, as CUDA graphs if these
    can serve and the training is long enough. one_length: whether all steps have it."""
    if options.compile != AUTO:
        return options.compile
    usual = one_length and options.steps >= _MIN_GRAPH_STEPS and group_size() == options.accumulate == 1
    plain = options.precision != "float16" and not options.gradient_checkpointing
    on_nvidia = default_device().type == "cuda" and torch.version.cuda is not None
    return REDUCE_OVERHEAD if usual and plain and on_nvidia and _lacking("cuda") is None else False


def check_compiled(options: TrainingOptions) -> None:
    """Raise ValueError for options that exclude compiled steps, or if this machine cannot compile."""
    if options.compile in (False, AUTO):
        return
    device, graphs, option = default_device().type, options.compile == REDUCE_OVERHEAD, f"`compile={REDUCE_OVERHEAD}`"
    lacking = _lacking(device)
    refuse(
        (lacking is not None, f"`compile` needs {lacking}; or leave it out"),
        (
            graphs and device != "cuda",
            f"{option} needs an NVIDIA GPU, which is not here; take `compile=true`, or leave it out",
        ),
        (  # which exchange gradients in the backward pass
            graphs and group_size() > 1,
            f"{option} is for one process, got {group_size()}; take `compile=true`",
        ),
        (  # the graph of a micro-batch would overwrite the gradients of the one before
            graphs and options.accumulate > 1,
            f"{option} does not go with `accumulate`, got {options.accumulate}; take `compile=true`, or a smaller "
            "`batch_size`",
        ),
    )


def compile_model(model: Any, how: bool | str = True) -> None:
    """Compile the layers of a model in place with `torch.compile`, or with a mode of it the whole model as one graph.
    Gradients have the precision of their operations, as without compilation: by default PyTorch traces backward passes
    under autocast, which would give half-precision gradients to kernels that disable autocast in their forward pass."""
    config.backward_pass_autocast = "off"
    if isinstance(how, str):
        model.compile(mode=how)
    else:
        for layer in model.base_model.layers:
            layer.compile()


def _lacking(device: str) -> str | None:
    """Describe what PyTorch's compiler needs for a device and does not find here; None if nothing is missing."""
    if device == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "Triton, which is not installed: pip install triton"
        if find_compiler() is None:
            return "a C compiler, which is not here: install gcc or set CC"
    elif find_cxx() is None:
        return "a C++ compiler, which is not here: install g++ or set CXX"
    return None if has_python_headers() else "Python's headers, which are not here: install python3-dev"


# Processes, and how they share the batch and its sequences.


def processes() -> PartialState:
    """Return accelerate's state of this process. On a CPU, every process would take itself for the only one unless it
    is told to use the CPU."""
    if group_size() > 1 and default_device().type == "cpu":
        return PartialState(cpu=True, backend="gloo")
    return PartialState()


def of_first_process(choice: _Choice) -> _Choice:
    """Return the choice of the first process in all processes, which must call this together to keep the same
    weights."""
    if not (dist.is_available() and dist.is_initialized()):
        return choice
    choices = [choice]
    dist.broadcast_object_list(choices, src=0)
    return choices[0]


def shared_rows(rows: Any, batch: int, count: int) -> Examples:
    """Repeat every batch once for each process that shares it: the Trainer gives batches to the processes in turn. The
    last batch is filled up with its last row."""
    return Examples(-(-len(rows) // batch) * batch * count, partial(_shared, rows, batch, count))


def _shared(rows: Any, batch: int, count: int, index: int) -> Any:
    number, position = divmod(index, batch)
    return rows[min(number // count * batch + position, len(rows) - 1)]


class Sharing:
    """The group of ``count`` processes, with neighbouring ranks, that share sequences with this process. rows, batch:
    the rows of an evaluation, and those of a batch of it in a process."""

    def __init__(self, count: int, rows: int, batch: int):
        self.count, self.rows, self.batch = count, rows, batch
        self.group: Any = dist.new_subgroups(group_size=count)[0]

    def shard(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Cut this process's shard out of a batch of whole rows."""
        length, rank = max(t.shape[1] for t in inputs.values() if t.dim() > 1), dist.get_rank(self.group)
        own = slice(length * rank // self.count, length * (rank + 1) // self.count)
        return {
            name: t[:, own].contiguous() if isinstance(t, Tensor) and t.dim() > 1 and t.shape[1] == length else t
            for name, t in inputs.items()
        }

    def real_rows(self, number: int) -> int:
        """Count the rows of this process's evaluation batch ``number`` that do not only fill it up."""
        batch = (number * dist.get_world_size() + dist.get_rank()) // self.count
        return min(max(self.rows - batch * self.batch, 0), self.batch)
