"""Count what a training step would do on a GPU: calls, bytes, arithmetic, memory and waits of the host.

Tensors are fake ones on the device of `fake_cuda`, so that all code, autocast included, takes its path for CUDA. Every
operation below autograd counts:

- calls: operations that start a kernel, so neither views nor allocations. A long FFT or a sort starts several.
- bytes: sizes of the tensors read and written, each once; an expanded axis counts once, a lookup reads as many rows as
  it returns. An operator of the namespace ``lagwise_triton`` is one kernel: its inputs and outputs, and tensors that it
  writes into, each once. What other operators of lagwise run inside is counted. What a library does inside a call is
  not: cuFFT takes two passes for long transforms, and PyTorch copies the input of an inverse real one.
- flops: `torch.utils.flop_counter`'s, those of kernel networks, and 5/2 n log2 n for a real FFT of n points.
- peak: the largest total of tensors that exist at a time, without the parameters.
- waits: values that the host reads, operations on the host, and copies to the device.

The counts are exact and repeatable, and say nothing about time.
"""

from __future__ import annotations

import collections
import math
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
_ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach", "set_", "resize_",
                "lift_fresh", "_unsafe_view", "alias", "device", "layout", "sym_size", "sym_stride", "sym_numel",
                "is_same_size"}  # fmt: skip
_WRITES = {"zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like",
           "zero_", "fill_", "arange", "scalar_tensor", "normal_", "uniform_"}  # fmt: skip
_LOOKUPS = {"index_select", "gather", "embedding", "index", "take"}
_READS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_dim", "is_nonzero"}


@dataclass
class Count:
    """Totals of operations."""

    calls: int = 0
    bytes: float = 0.0
    flops: float = 0.0
    peak: float = 0.0
    waits: int = 0
    by_line: dict[str, list[float]] = field(default_factory=lambda: collections.defaultdict(lambda: [0, 0.0]))


class Counter(TorchDispatchMode):
    """Counts operations while it is active. places: whether also by line of lagwise's source (``Count.places``)."""

    def __init__(self, by_line: bool = False):
        super().__init__()
        self.total = Count()
        self.by_line = by_line
        self.alive = 0
        self.tracked: weakref.WeakSet[Any] = weakref.WeakSet()

    def hold(self, *tensors: Tensor) -> None:
        """Count tensors on the device as existing until they are freed."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if tensor.device.type == "cuda" and storage not in self.tracked:
                self.tracked.add(storage)
                self.alive += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.total.peak = max(self.total.peak, self.alive)

    def _free(self, size: int) -> None:
        self.alive -= size

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        qualified = function._schema.name
        if qualified.startswith("lagwise::"):  # look inside
            with self:
                return OPDEFS[qualified]._init_fn(*args, **kwargs)
        out = function(*args, **kwargs)
        name = qualified.split("::")[1]
        inputs, outputs = _tensors((args, kwargs)), _tensors(out)
        self.hold(*outputs)
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in function._schema.returns)
        if view or name in _ALLOCATIONS:
            return out
        devices = {t.device.type for t in [*inputs, *outputs]}
        if not devices:  # a question about dtypes
            return out
        on_host = "cuda" not in devices
        if name in _READS or on_host or ("cpu" in devices and any(t.dim() for t in inputs if t.device.type == "cpu")):
            self.total.waits += 1
        if on_host or not any(t.numel() for t in outputs or inputs):
            return out
        size, calls = _bytes_moved(name, args, inputs, outputs), 1
        if name.startswith("_fft"):
            more, passes = _passes_around_fft(name, args, inputs[0], out)
            size, calls = size + more, calls + passes
        self.total.calls += calls
        self.total.bytes += size
        self.total.flops += _flops(function, name, args, kwargs, out)
        if self.by_line:
            totals = self.total.by_line[f"{_source_line()} {name}"]
            totals[0] += calls
            totals[1] += size
        return out


def count_step(
    make: Callable[[], nn.Module], inputs: Callable[[], dict[str, Tensor]], *, half: bool = True, by_line: bool = False
) -> Count:
    """Count a training step of the model that ``make()`` builds, which returns a loss for the keyword arguments of
    ``inputs()``. A step before it fills caches. half: under bfloat16 autocast."""
    # Kernels of CUDA that a build without it replaces. Not by a mode, which would intercept all functions.
    cuda = mock.patch.multiple(F, rms_norm=_fused_rms_norm, scaled_dot_product_attention=_attention)
    with FakeTensorMode(allow_non_fake_inputs=True), cuda, torch.autograd.set_detect_anomaly(by_line, False):
        with torch.device("cuda"):
            model, model_inputs = make().train(), inputs()
        for counter in (Counter(), Counter(by_line)):
            counter.hold(*model.parameters())
            weights = counter.alive
            with counter:
                with torch.autocast("cuda", torch.bfloat16, enabled=half):
                    loss = model(**model_inputs)
                loss.backward()
            model.zero_grad()
        counter.total.peak -= weights
    return counter.total


@torch.library.custom_op("lagwise_counting::rms_norm", mutates_args=())
def _rms_norm(x: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    raise NotImplementedError


@torch.library.custom_op("lagwise_counting::rms_norm_gradient", mutates_args=())
def _rms_norm_gradient(grad: Tensor, x: Tensor, factors: Tensor) -> Tensor:
    raise NotImplementedError


_rms_norm.register_fake(
    lambda x, axes: (torch.empty_like(x), x.new_empty((*x.shape[:-axes], *[1] * axes), dtype=torch.float32))
)
_rms_norm_gradient.register_fake(lambda grad, x, factors: torch.empty_like(x))


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0], output[1])
    ctx.set_materialize_grads(False)


_rms_norm.register_autograd(
    lambda ctx, grad, _: (_rms_norm_gradient(grad, *ctx.saved_tensors), None), setup_context=_save
)
# CUDA has these kernels; without one, fake tensors would decompose them.
_KERNELS = torch.library.Library("aten", "IMPL")
for _name in ("silu_backward", "mish_backward"):
    _KERNELS.impl(_name, lambda *_: None, "CUDA")


def _fused_rms_norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    y = _rms_norm(x, len(shape))[0]
    return y if weight is None else y * weight


def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
) -> Tensor:
    """Count flash attention for half precision without a mask, whose widths it makes equal and multiples of 8;
    otherwise the memory-efficient kernel."""
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        q, k, v = (t.to(dtype) for t in (q, k, v))
        attn_mask = attn_mask.to(dtype) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
    width = q.shape[-1]
    if attn_mask is None and q.dtype in (torch.float16, torch.bfloat16) and width <= 256:
        if width % 8 or v.shape[-1] != width:
            target = -(-max(width, v.shape[-1]) // 8) * 8
            q, k, v = (F.pad(t, (0, target - t.shape[-1])) for t in (q, k, v))
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, torch.zeros((), device=q.device, dtype=q.dtype), float("-inf"))
        attn_mask = F.pad(attn_mask, (0, -attn_mask.shape[-1] % 8))[..., : attn_mask.shape[-1]]
        attn_mask = attn_mask.expand(*q.shape[:3], k.shape[2])
    result = aten._scaled_dot_product_efficient_attention(
        q, k, v, attn_mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
    )
    return result[0]


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _size(t: Tensor) -> int:
    """Count the bytes of a tensor, without what is expanded."""
    return math.prod(n if stride else 1 for n, stride in zip(t.shape, t.stride(), strict=True)) * t.element_size()


def _bytes_moved(name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    written = sum(map(_size, outputs or inputs[:1]))
    if name in _WRITES:
        return written
    if name == "copy_":  # which does not read what it overwrites
        return written + _size(args[1])
    if name.startswith("_foreach_copy"):
        return sum(map(_size, inputs))
    if name in _LOOKUPS:
        return 2 * written + sum(map(_size, inputs[1:]))
    return written + sum(map(_size, inputs))


def _passes_around_fft(name: str, args: Any, x: Tensor, out: Tensor) -> tuple[int, int]:
    """Count the bytes and calls of what PyTorch does on CUDA before and after an FFT: real results have their input
    copied, which cuFFT overwrites, and a norm is a multiplication of its own."""
    copied, scaled = name == "_fft_c2r", args[2] != 0
    return 2 * (copied * _size(x) + scaled * _size(out)), copied + scaled


# Kernels of networks: the number of passes over their weights, which is also the place of the weights.
_NETWORK = {"network_layers": 1, "network_gradients": 2}


def _flops(function: Any, name: str, args: Any, kwargs: Any, out: Any) -> float:
    if function._overloadpacket in flop_registry:
        return flop_registry[function._overloadpacket](*args, **kwargs, out_val=out)
    if name.startswith("_fft"):
        real = out if name == "_fft_c2r" else args[0]
        points = real.shape[args[1][-1]]
        return (5 if name == "_fft_c2c" else 2.5) * real.numel() * math.log2(max(points, 2))
    if name in _NETWORK:  # as many multiplications for a row as there are parameters, nearly
        x, parameters = args[_NETWORK[name] - 1], args[_NETWORK[name]]
        return 2 * _NETWORK[name] * len(x) * parameters.numel()
    return 0.0


def _source_line() -> str:
    """Find the nearest line of lagwise's source; in a backward pass that of the forward operation, if anomaly detection
    recorded it."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/lagwise/" in file:
            return f"{file.rsplit('/lagwise/', 1)[1]}:{frame.f_lineno}"
        if file.endswith("torch/autograd/graph.py"):
            break
        frame = frame.f_back
    node = torch._C._current_autograd_node()
    if node is None:
        return "other"
    for text in reversed(node.metadata.get("traceback_") or []):
        if "/lagwise/" in text.split("\n")[0]:
            file, line = text.split('"')[1], text.split("line ")[1].split(",")[0]
            return f"{file.rsplit('/lagwise/', 1)[1]}:{line} gradient"
    return f"{node.name()} gradient"
