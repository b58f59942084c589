"""Compiled training steps, by `torch.compile`."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch._functorch import config

from lagwise.compiler import find_compiler, find_cxx, has_python_headers
from lagwise.data.options import AUTO
from lagwise.models.loading import default_device
from lagwise.process import group_size
from lagwise.training.recipe import REDUCE_OVERHEAD, TrainingOptions

_MIN_GRAPH_STEPS = 5_000  # some minutes, of which compilation takes about one


def chosen_compilation(options: TrainingOptions, one_length: bool) -> bool | str:
    """Decide how to compile a training step: as the options say, and where they leave it open, as CUDA graphs if these
    can serve and the training is long enough to make up for the compilation. one_length: whether all steps have it."""
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
    lacking = _lacking(default_device().type)
    if lacking is not None:
        raise ValueError(f"`compile` needs {lacking}; or leave it out")
    if options.compile == REDUCE_OVERHEAD:
        _check_graphs(options)


def compile_model(model: Any, how: bool | str = True) -> None:
    """Compile the layers of a model in place with `torch.compile`.

    Gradients have the precision of their operations, as without compilation: by default PyTorch traces backward passes
    under autocast, which would give half-precision gradients to kernels that disable autocast in their forward pass.
    Layers of one kind share a graph, so that a deep model takes no longer to compile than one layer.

    Args:
        how: True, or a mode of `torch.compile`. With `REDUCE_OVERHEAD` the whole model is one graph: call
            `torch.compiler.cudagraph_mark_step_begin` before each step, which overwrites the outputs of the one before
            and its gradients.
    """
    config.backward_pass_autocast = "off"
    if isinstance(how, str):
        model.compile(mode=how)
    else:
        for layer in model.base_model.layers:
            layer.compile()


def _check_graphs(options: TrainingOptions) -> None:
    """Raise ValueError if a step cannot run as CUDA graphs."""
    option = f"`compile={REDUCE_OVERHEAD}`"
    if default_device().type != "cuda":
        raise ValueError(f"{option} needs an NVIDIA GPU, which is not here; take `compile=true`, or leave it out")
    if group_size() > 1:  # which exchange gradients in the backward pass
        raise ValueError(f"{option} is for one process, got {group_size()}; take `compile=true`")
    if options.accumulate > 1:  # the graph of a micro-batch would overwrite the gradients of the one before
        raise ValueError(
            f"{option} does not go with `accumulate`, got {options.accumulate}; take `compile=true`, or a "
            "smaller `batch_size`"
        )


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
