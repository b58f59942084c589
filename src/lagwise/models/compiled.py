"""Compiled streaming steps, which change their state in place, in a cache by the source code that they depend on."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.fx.experimental._config
import transformers
from torch import Tensor, nn

from lagwise.cache import cached_folder, default_cache, require_private
from lagwise.compiler import find_cxx, processor
from lagwise.files import one_line
from lagwise.mixers import Mixer
from lagwise.models.heads import VocabularyHead
from lagwise.models.step import InPlace, InPlaceStep, Run, StreamingStep

_FILE = "step.pt2"
# Weights are passed at run time, so that the code remains valid when the model is trained further; without
# always_keep_tensor_constants, those of up to 8 numbers become part of the code. Loops over one token are too short for
# several threads; the libraries' matrix products still use them.
_OPTIONS = {
    "aot_inductor.package_constants_in_so": False,
    "always_keep_tensor_constants": True,
    "cpp.threads": 1,
}
_EXAMPLE_ROWS = 4  # batch size of example inputs for code with a dynamic batch size
# Packages that count with their versions: they are large, and always released with one.
_LIBRARIES = {"torch", "transformers", *sys.stdlib_module_names} - {"__main__"}


class CompiledStep(InPlaceStep):
    """The step as code that AOTInductor compiled, loaded from the cache folder.

    Args:
        model: The language model.
        batch_size: Batch size of the code, or None for any.
        step: The model's step.
        key: Name of the folder (`_key`).
    """

    def __init__(self, model: VocabularyHead, batch_size: int | None, step: StreamingStep, key: str):
        self.key = key
        file = _folder(key) / _FILE
        require_private(file, default_cache().resolve())
        # As in `torch._inductor.aoti_load_package`, without importing the compiler.
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(file), "model", False, 1, -1)
        super().__init__(model, batch_size, step)

    def runner(self, state: list[Tensor]) -> Run:
        """The compiled code on these tensors."""
        return lambda tokens: self._loader.run([tokens, *state])[0]

    def use(self, model: VocabularyHead, step: StreamingStep) -> bool:
        """Let the code read a step's weights, if it is of the model's configuration; a warning says so if it is not."""
        if _key(model, self.batch_size, step) != self.key:
            warnings.warn("the compiled step is not used: the model has changed; call compile_step again", stacklevel=5)
            return False
        weights = _constants(InPlace(step))
        # User-managed constants: the code reads the model's own tensors, and this object keeps the others alive.
        self._constants = {name: weights[name] for name in self._loader.get_constant_fqns()}
        self._loader.load_constants(self._constants, False, True, True)
        return super().use(model, step)


def compiled_step(
    model: VocabularyHead,
    batch_size: int | None,
    *,
    cached: bool = False,
    report: Callable[[str], None] | None = None,
) -> CompiledStep | None:
    """Load a model's compiled step from the cache folder, or compile it.

    Args:
        model: The language model, on the CPU.
        batch_size: Batch size, or None for any.
        cached: Return None if the step is not in the cache folder.
        report: Called with a line of text before and after compilation.

    Raises:
        ValueError: If the model's state grows with the text, or if a class of it has no source file.
        FileNotFoundError: If there is no C++ compiler.
        RuntimeError: If compilation fails.
    """
    step = StreamingStep(model, online=True)
    key = _key(model, batch_size, step)
    if cached and not _folder(key).is_dir():
        return None
    cached_folder(_folder(key), lambda folder: _compile(step, batch_size, folder / _FILE, report))
    return CompiledStep(model, batch_size, step, key)


@torch.no_grad()
def _key(model: VocabularyHead, batch_size: int | None, step: StreamingStep) -> str:
    """Digest of everything that the compiled code depends on, except the values of weights."""
    tensors = {**_constants(step), **step.start(batch_size or _EXAMPLE_ROWS)}
    depends_on = {
        "config": {name: value for name, value in model.config.to_dict().items() if not name.startswith("_")},
        "tensors": {name: [str(t.dtype), list(t.shape), list(t.stride())] for name, t in tensors.items()},
        "batch": batch_size,
        "options": _OPTIONS,
        "sources": source_digests(InPlace(step)),
        "versions": [torch.__version__, transformers.__version__, str(find_cxx())],
        "processor": processor(),
    }
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _compile(
    step: StreamingStep, batch_size: int | None, path: Path, report: Callable[[str], None] | None
) -> dict[str, Any]:
    say = report or (lambda line: None)
    if find_cxx() is None:
        raise FileNotFoundError(
            "no C++ compiler found to compile the step; install g++ or set the environment variable CXX"
        )
    say("compiling the model's step; the result is cached")
    began, rows = time.monotonic(), batch_size or _EXAMPLE_ROWS
    state = step.start(rows)
    example = (torch.zeros(rows, dtype=torch.long, device="cpu"), *state.values())
    shapes = None
    if batch_size is None:
        open_batch = {0: torch.export.Dim("batch", min=1)}
        shapes = {"tokens": open_batch, "state": (open_batch,) * len(state)}
    config: Any = torch.fx.experimental._config
    oblivious = config.patch(backed_size_oblivious=batch_size is None)  # else the code may assume more than one row
    with torch.no_grad(), warnings.catch_warnings(), oblivious:
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(InPlace(step), example, strict=False, dynamic_shapes=shapes)
            torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=dict(_OPTIONS))
        except Exception as error:
            mixers = {type(part) for part in step.modules() if isinstance(part, Mixer)}
            own = {each.__name__ for each in mixers if each.__module__.partition(".")[0] != "lagwise"}
            whose = f" (with {', '.join(sorted(own))} of another package)" if own else ""
            raise RuntimeError(f"the model's step could not be compiled{whose}: {one_line(error, 500)}") from error
    seconds = time.monotonic() - began
    say(f"compiled in {seconds:.0f} s")
    return {"seconds": seconds}


def _folder(key: str) -> Path:
    return default_cache().resolve() / "steps" / key


def _constants(module: nn.Module) -> dict[str, Tensor]:
    named = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return {name: tensor.detach() for each in named for name, tensor in each}


def source_digests(model: nn.Module) -> dict[str, str]:
    """Digests of all source files of the packages that a model's classes are from, by their paths there.

    Packages that these use count too, unless they are installed: a change of a script's own modules is noticed. For a
    module without a package, the modules in its folder are those of its package.

    Raises:
        ValueError: If a class has no source file, for example because it was defined in a notebook or by `exec`.
    """
    todo = {_package(each.__module__): each.__name__ for part in model.modules() for each in type(part).__mro__}
    digests, done = dict[str, str](), set(_LIBRARIES)
    while todo:
        package, user = todo.popitem()
        if package in done:
            continue
        done.add(package)
        files = _files(package)
        if not files:
            raise ValueError(
                f"{user} cannot be compiled: it has no source file, whose changes would be noticed; define it in a "
                "module that is imported"
            )
        digests |= {name: _digest(path, path.stat().st_mtime_ns) for name, path in files.items()}
        for name, module in [*sys.modules.items()]:
            for value in vars(module).values() if _package(name) == package else ():
                other = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
                if isinstance(other, str) and _is_own(_package(other)):
                    todo[_package(other)] = name
    return digests


def _package(name: str) -> str:
    return name.partition(".")[0]


def _files(package: str) -> dict[str, Path]:
    """The source files of an imported package by name."""
    module = sys.modules.get(package)
    file = getattr(module, "__file__", None) or ""
    roots = [Path(each) for each in getattr(module, "__path__", ())]
    if roots:
        return {f"{package}/{path.relative_to(root)}": path for root in roots for path in root.rglob("*.py")}
    return {f"{package}/{path.name}": path for path in Path(file).parent.glob("*.py")} if file.endswith(".py") else {}


@functools.cache
def _is_own(package: str) -> bool:
    """Whether an imported package has sources outside the folders for installed packages."""
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")]
    return any(not any(path.resolve().is_relative_to(each) for each in installed) for path in _files(package).values())


@functools.lru_cache(maxsize=1 << 12)
def _digest(path: Path, modified_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
