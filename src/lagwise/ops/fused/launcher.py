"""Launches of Triton's kernels, and activations in them. Imports Triton."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from typing import Any

import torch
import triton  # pyrefly: ignore[missing-import]
import triton.language as tl  # pyrefly: ignore[missing-import]
from torch import Tensor

_MAX_LAUNCHES = 4096  # launches of a kernel that are known: lengths that vary would otherwise be kept without end
_ALIGNMENT = 15  # Triton compiles other code for addresses that are not multiples of 16


class launched:
    """Decorate the source of a kernel: `triton.jit`, launched in a third of its time where the arguments are like those
    of an earlier launch. Called as ``kernel[grid](tensor, ..., **constants)``, on the device of the first argument.

    Triton finds a kernel's compiled form by what is true of every argument, at each launch; here equal numbers and
    constants, and tensors of equal dtypes and alignments, find the form again.
    """

    def __init__(self, source: Callable[..., Any]):
        self.kernel = triton.jit(source)
        self._constants = [
            name for name, each in inspect.signature(source).parameters.items() if "constexpr" in str(each.annotation)
        ]
        self._compiled: dict[Hashable, Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            device = arguments[0].get_device()
            if device >= 0 and device != torch.cuda.current_device():
                with torch.cuda.device(device):
                    return self[grid](*arguments, **constants)
            values = [constants[name] for name in self._constants]
            key: list[Any] = [device, *values]
            for each in arguments:
                if isinstance(each, Tensor):
                    key += (each.dtype, each.data_ptr() & _ALIGNMENT)
                else:
                    key.append(each)
            signature = tuple(key)
            compiled = self._compiled.get(signature)
            if compiled is not None:
                compiled[(*grid, 1, 1)](*arguments, *values)
                return None
            compiled = self.kernel[grid](*arguments, **constants)
            if compiled is not None and torch.version.hip is None:  # on AMD's cards sizes of tensors count too
                if len(self._compiled) >= _MAX_LAUNCHES:
                    self._compiled.clear()
                self._compiled[signature] = compiled
            return None

        return launch


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def silu_slope(x):
    s = tl.sigmoid(x)
    return s * (1 + x * (1 - s))
