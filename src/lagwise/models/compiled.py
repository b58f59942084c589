"""Streaming steps that change their state in place as compiled code, in a cache by the source code that it depends on,
and as CUDA graphs, of which the host launches one per token in place of every operation."""

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
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lagwise.cache import cached_folder, default_cache, require_private
from lagwise.compiler import find_cxx, processor
from lagwise.files import one_line
from lagwise.mixers import Mixer
from lagwise.models.heads import VocabularyHead
from lagwise.models.step import InPlace, InPlaceStep, Run, StreamingStep
from lagwise.ops.host import host_knows

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
_WARMUP = 2  # runs before a capture, in which kernels are compiled, and workspaces and tables are allocated
_CAPTURE = 4  # time of a capture in tokens
# Packages that count with their versions: they are large, and always released with one.
_LIBRARIES = {"torch", "transformers", *sys.stdlib_module_names} - {"__main__"}


class CompiledStep(InPlaceStep):
    """The step as code that AOTInductor compiled, loaded from the cache folder with this key (`_key`)."""

    def __init__(self, model: VocabularyHead, batch_size: int | None, step: StreamingStep, key: str):
        self.key = key
        file = _folder(key) / _FILE
        require_private(file, default_cache().resolve())
        # As in `torch._inductor.aoti_load_package`, without importing the compiler.
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(file), "model", False, 1, -1)
        self._constants: dict[str, Tensor] | None = None
        super().__init__(model, batch_size, step)

    def runner(self, state: list[Tensor]) -> Run:
        """The compiled code on these tensors."""
        return lambda tokens: self._loader.run([tokens, *state])[0]

    def use(self, model: VocabularyHead, step: StreamingStep) -> bool:
        """Let the code read a step's weights, if it is of the model's configuration; a warning says so if it is not."""
        if self._constants is not None and _key(model, self.batch_size, step) != self.key:
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
    """Load the compiled step of a model on the CPU from the cache folder, or compile it; None if it is not there and
    only a ``cached`` one is wanted. Arguments and errors as of `LagwiseForCausalLM.compile_step`; ValueError too for a
    class without a source file."""
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
    """Digests of all source files of the packages that a model's classes are from, by their paths there, and of those
    that these use unless they are installed: a change of a script's own modules is noticed. The package of a module
    without one is its folder. ValueError for a class without a source file, as one of a notebook."""
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


class GraphStep(InPlaceStep):
    """The step on a CUDA device, captured for every stream on that stream's own state.

    A graph reads and writes the addresses of its capture: of the stream's token and state, which are allocated once for
    a stream, and of the weights, which must not change while it runs. For any number of rows, the graph is captured
    once the rows have stayed the same for as many tokens as a capture takes, so that rows that come and go cost at most
    that much again.
    """

    refused = False  #: whether a capture has failed

    def runner(self, state: list[Tensor]) -> Run:
        """The step on these tensors, as a graph at once or later."""
        if self.batch_size is not None:
            return self._captured(state)
        run, before = super().runner(state), _CAPTURE

        def run_or_capture(tokens: Tensor) -> Tensor:
            nonlocal run, before
            if before == 0 and not self.refused:
                run = self._captured(state)
            before -= 1
            return run(tokens)

        return run_or_capture

    def _captured(self, state: list[Tensor]) -> Run:
        """The step as a graph on these tensors, which the capture leaves as they are."""
        step, outside = InPlace(self.step), _Outside()
        with torch.inference_mode(False), torch.no_grad():  # the tensors outlive the present inference mode
            token = torch.zeros(len(state[0]), dtype=torch.long, device=self.device)
            copies = [tensor.clone() for tensor in state]

            def warm() -> None:
                with outside:
                    step(token, *copies)

            try:
                replay, logits = capture(warm, lambda: step(token, *state), self.device)
            except RuntimeError as error:  # for example if an operation of a user's mixer waits for a value
                self.refused, reason = True, str(error).partition("\n")[0]
                warnings.warn(f"the step runs without a CUDA graph, which cannot be captured: {reason}", stacklevel=2)
                return super().runner(state)

        def run(tokens: Tensor) -> Tensor:
            token.copy_(tokens)
            replay()
            return logits.clone()  # the next token overwrites them

        # keep tensors that the graph reads but the step does not own, such as cached tables
        vars(run)["reads"] = outside.tensors
        return run


def graph_step(model: VocabularyHead, batch_size: int | None) -> GraphStep:
    """A model's step for CUDA graphs. ValueError if it is not on a CUDA device, its state grows with the text, or its
    steps branch by the number of tokens (causal SKI)."""
    if model.device.type != "cuda":
        raise ValueError(f"only models on the CPU or a CUDA device have compiled steps, got one on {model.device}")
    step = StreamingStep(model, online=True)
    if branches(step, batch_size or 1):
        raise ValueError("a CUDA graph cannot hold the steps of this model, which branch by the number of tokens")
    return GraphStep(model, batch_size, step)


@torch.no_grad()
def branches(step: StreamingStep, batch_size: int) -> bool:
    """Whether the host reads counts of tokens in a step, as in that of causal SKI: a graph repeats one branch."""
    state = step.start(batch_size)
    step(torch.zeros(batch_size, dtype=torch.long, device=step.model.device), state)
    return any(host_knows(tensor) for tensor in state.values())


def capture(
    warm: Callable[[], Any], run: Callable[[], Tensor], device: torch.device
) -> tuple[Callable[[], Any], Tensor]:
    """Capture ``run()`` as a CUDA graph after runs of ``warm()``. Returns its replay, and the tensor that it writes."""
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARMUP):
                warm()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the device
            result = run()
    return graph.replay, result


class _Outside(TorchDispatchMode):
    """Dispatch mode that keeps the tensors that operations read but did not create."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[int, Tensor] = {}
        self._created: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for address, tensor in _addresses((args, kwargs)):
            if address not in self._created:
                self.tensors.setdefault(address, tensor)
        result = function(*args, **(kwargs or {}))
        self._created.update(address for address, _ in _addresses(result) if address not in self.tensors)
        return result


def _addresses(values: Any) -> list[tuple[int, Tensor]]:
    """Return tensors in a tree, with the addresses of their memory."""
    return [(t.untyped_storage().data_ptr(), t) for t in pytree.tree_leaves(values) if isinstance(t, Tensor)]
