"""A CUDA device that does nothing. Call `load` before torch is imported; fake tensors may then be on ``cuda``."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path

from lagwise.compiler import find_compiler, load_compiled

_SOURCE = Path(__file__).with_suffix(".cpp")


def load() -> None:
    """Give a build of PyTorch without CUDA the device.

    RuntimeError for a build with CUDA, and if torch has been imported, since it then has looked for devices;
    FileNotFoundError if there is no compiler.
    """
    if "torch" in sys.modules:
        raise RuntimeError("the fake CUDA device must be loaded before torch is imported")
    compiler, spec = find_compiler(), importlib.util.find_spec("torch")
    if compiler is None:
        raise FileNotFoundError("the fake CUDA device needs a C++ compiler as `cc`, or named by $CC")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    if (folder / "lib" / "libtorch_cuda.so").is_file():
        raise RuntimeError("the fake CUDA device needs a build of PyTorch without CUDA, and this one has it")
    for name in ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    include = (folder / "include", folder / "include/torch/csrc/api/include")
    flags = ("-std=c++20", "-O1", "-shared", "-fPIC", *(f"-I{path}" for path in include), "-Wno-attributes")
    load_compiled([_SOURCE], compiler, flags, lambda library: library)
    import torch

    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True
