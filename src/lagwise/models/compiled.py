"""Compiled streaming steps, which change their state in place."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.fx.experimental._config
from torch import Tensor, nn

import lagwise
from lagwise.cache import cached_folder, default_cache, require_private
from lagwise.compiler import processor
from lagwise.files import one_line
from lagwise.mixers import Mixer
from lagwise.mixers.state import select_rows
from lagwise.models.cache import StreamingCache
from lagwise.models.heads import VocabularyHead
from lagwise.models.inputs import check_vocabulary, surplus_argument
from lagwise.models.step import StreamingStep, tensor_versions
from lagwise.ops.streaming import OnlineFollower

_FILE = "step.pt2"
# Weights are passed at run time, so that the code remains valid when the model is trained further; without
# always_keep_tensor_constants, those of up to 8 numbers become part of the code. Loops over one token are too short for
# several threads; the libraries' matrix products still use them.
_OPTIONS = {
    "aot_inductor.package_constants_in_so": False,
    "always_keep_tensor_constants": True,
    "cpp.threads": 1,
}
_ANY = 4  # batch size of the example inputs for code with a dynamic batch size
_SOURCES = ("ops", "kernels", "mixers", "blocks", "models")


class CompiledStep:
    """A language model's `StreamingStep`, compiled by AOTInductor and loaded from the cache folder.

    Args:
        model: The language model.
        batch_size: Batch size of the code, or None for any.
        digest: Digest that names the folder (see `described`).
        step: The model's step.
    """

    def __init__(self, model: VocabularyHead, batch_size: int | None, digest: str, step: StreamingStep):
        self.batch_size, self.digest = batch_size, digest
        file = _folder(digest) / _FILE
        require_private(file, default_cache().resolve())
        # As in `torch._inductor.aoti_load_package`, without importing the compiler.
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(file), "model", False, 1, -1)
        self._use(model, step)

    def answer(self, model: VocabularyHead, inputs: Mapping[str, Any]) -> Tensor | None:
        """Logits ``(batch, 1, vocab_size)`` for arguments of the model's forward, or None if `follow` returns None."""
        if surplus_argument(inputs) is not None:
            return None
        mask = inputs.get("attention_mask")
        if model.config.output_hidden_states or (mask is not None and not mask[:, -1].all()):
            return None
        logits = self.follow(model, inputs["input_ids"], inputs.get("past_key_values"))
        return None if logits is None else logits[:, None]

    def follow(self, model: VocabularyHead, ids: Tensor, cache: Any) -> Tensor | None:
        """Process ids if they are one further token per row of a `StreamingCache`, and update the cache.

        Returns logits ``(batch, vocab_size)``, or None if the compiled step does not apply. The caller then runs the
        model itself, which raises any error.
        """
        rows = len(ids) if self.batch_size is None else self.batch_size
        if ids.shape != (rows, 1) or ids.device.type != "cpu" or not isinstance(cache, StreamingCache):
            return None
        if torch.is_grad_enabled() or model.training or cache.rows != rows or cache.seen == 0:
            return None
        if cache.model != model.model.number or cache.seen == model.model.length_limit or cache.past is not None:
            return None
        stream = cache.stream
        if stream is None or stream.compiled is not self:
            cache.require_no_right_padding()
            if not self._current(model):
                return None
            stream = CompiledStream(self, cache)
        check_vocabulary(ids, self._vocabulary)
        cache.note_padding(None)
        return stream.step(ids[:, 0].long().contiguous())  # as in the example inputs

    def run(self, tokens: Tensor, state: list[Tensor]) -> Tensor:
        """Return logits ``(batch, vocab_size)``, and change the state in place."""
        (logits,) = self._loader.run([tokens, *state])
        return logits

    def _current(self, model: VocabularyHead) -> bool:
        """Reload the model's weights if they have changed. Returns whether the code still fits the model."""
        if self._weights == tensor_versions(model):
            return True
        digest, step = described(model, self.batch_size)
        if digest != self.digest:
            warnings.warn("the compiled step is not used: the model has changed; call compile_step again", stacklevel=4)
            return False
        self._use(model, step)
        return True

    def _use(self, model: VocabularyHead, step: StreamingStep) -> None:
        self.step, self._weights, self._vocabulary = step, tensor_versions(model), model.config.vocab_size
        given = _constants(_InPlace(step, []))
        # User-managed constants: the code reads the model's own tensors, and this object keeps the others alive.
        self._held = {name: given[name] for name in self._loader.get_constant_fqns()}
        self._loader.load_constants(self._held, False, True, True)


class CompiledStream:
    """The state of a cache while compiled code updates it. The cache's own states are stale until `stop`."""

    def __init__(self, compiled: CompiledStep, cache: StreamingCache):
        self.compiled, self.cache, self.maker = compiled, cache, compiled.step
        state, self.followers = self._take(cache)
        self.state = list(state.values())
        self.names = list(state)
        cache.carry_on(self)

    def step(self, token: Tensor) -> Tensor:
        """Return the logits after one more token per row."""
        logits = self.compiled.run(token, self.state)
        for layer in self.cache.layers:
            layer.seen += 1  # type: ignore[attr-defined]
        for follower in self.followers:
            follower.advance()
        return logits

    def select_rows(self, rows: Tensor) -> bool:
        """Keep these rows. Returns False if that needs `stop` and the cache's own states."""
        if self.followers or self.compiled.batch_size is not None:
            return False
        with torch.inference_mode(False), torch.no_grad():
            self.state = [select_rows(tensor, rows).contiguous() for tensor in self.state]
        return True

    def join(self, before: Sequence[StreamingCache], after: Sequence[StreamingCache], cache: StreamingCache) -> bool:
        """Join the rows of other caches before and after this one's, as the state of a new cache.

        The old caches stay valid. Returns False if the join needs the caches' own states.
        """
        if self.followers or self.compiled.batch_size is not None:
            return False
        states = [[*self._take(each)[0].values()] for each in (*before, *after)]
        states.insert(len(before), self.state)
        stream = copy.copy(self)
        with torch.inference_mode(False), torch.no_grad():
            stream.state = [torch.cat(each) for each in zip(*states, strict=True)]
        stream.cache = cache
        cache.carry_on(stream)
        return True

    def _take(self, cache: StreamingCache) -> tuple[dict[str, Tensor], list[OnlineFollower]]:
        with torch.inference_mode(False):  # the tensors outlive the present inference mode
            state, followers = self.maker.take(cache)
        assert all(tensor.is_contiguous() for tensor in state.values())
        return state, followers

    def stop(self) -> None:
        """Write the states back into the cache."""
        self.cache.carry_on(None)
        self.maker.give(dict(zip(self.names, self.state, strict=True)), self.cache, self.followers)


class _InPlace(nn.Module):
    """The step with its state as positional arguments, which are overwritten with the new state."""

    def __init__(self, step: StreamingStep, names: list[str]):
        super().__init__()
        self.step, self.names = step, names

    def forward(self, tokens: Tensor, *state: Tensor) -> Tensor:
        logits, after = self.step(tokens, dict(zip(self.names, state, strict=True)))
        for old, new in zip(state, after.values(), strict=True):
            if new is not old:
                old.copy_(new)
        return logits


def compiled_step(
    model: VocabularyHead,
    batch_size: int | None,
    *,
    cached: bool = False,
    report: Callable[[str], None] | None = None,
) -> CompiledStep | None:
    """Load a model's compiled step from the cache folder, or compile it.

    The folder is named by a digest of everything that the code depends on, except the values of weights.

    Args:
        model: The language model.
        batch_size: Batch size, or None for any.
        cached: Return None if the step is not in the cache folder.
        report: Called with a line of text before and after compilation.

    Raises:
        ValueError: If the model is not on the CPU, or if its state grows with the text.
        FileNotFoundError: If there is no C++ compiler.
        RuntimeError: If compilation fails.
    """
    digest, step = described(model, batch_size)
    folder = _folder(digest)
    if cached and not folder.is_dir():
        return None
    cached_folder(folder, lambda made: _compile(step, batch_size, made / _FILE, report))
    return CompiledStep(model, batch_size, digest, step)


@torch.no_grad()
def described(model: VocabularyHead, batch_size: int | None) -> tuple[str, StreamingStep]:
    """A digest of everything that the compiled code depends on, and the step."""
    if model.device.type != "cpu":
        raise ValueError(f"only models on the CPU can be compiled, got one on {model.device}")
    step = StreamingStep(model, online=True)
    tensors = {**_constants(step), **step.start(batch_size or _ANY)}
    made_of = {
        "config": {name: value for name, value in model.config.to_dict().items() if not name.startswith("_")},
        "tensors": {name: [str(t.dtype), list(t.shape), list(t.stride())] for name, t in tensors.items()},
        "batch": batch_size,
        "options": _OPTIONS,
        "sources": _sources(),
        "versions": [torch.__version__, str(_compiler())],
        "processor": processor(),
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True, default=str).encode()).hexdigest()[:32], step


def _compile(
    step: StreamingStep, batch_size: int | None, path: Path, report: Callable[[str], None] | None
) -> dict[str, Any]:
    say = report or (lambda line: None)
    if _compiler() is None:
        raise FileNotFoundError(
            "no C++ compiler found to compile the step; install g++ or set the environment variable CXX"
        )
    say("compiling the model's step; the result is cached")
    began, rows = time.monotonic(), batch_size or _ANY
    state = step.start(rows)
    example = (torch.zeros(rows, dtype=torch.long, device="cpu"), *state.values())
    shapes = None
    if batch_size is None:
        open_batch = {0: torch.export.Dim("batch", min=1)}
        shapes = {"tokens": open_batch, "state": (open_batch,) * len(state)}
    config: Any = torch.fx.experimental._config
    oblivious = config.patch(backed_size_oblivious=batch_size is None)  # or the code may assume more than one row
    with torch.no_grad(), warnings.catch_warnings(), oblivious:
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(_InPlace(step, list(state)), example, strict=False, dynamic_shapes=shapes)
            torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=dict(_OPTIONS))
        except Exception as error:
            own = {type(part).__name__ for part in step.modules() if isinstance(part, Mixer) and not _ours(part)}
            whose = f" (with {', '.join(sorted(own))} of another package)" if own else ""
            raise RuntimeError(f"the model's step could not be compiled{whose}: {one_line(error, 500)}") from error
    seconds = time.monotonic() - began
    say(f"compiled in {seconds:.0f} s")
    return {"seconds": seconds}


def _ours(part: nn.Module) -> bool:
    return type(part).__module__.partition(".")[0] == "lagwise"


def _folder(digest: str) -> Path:
    return default_cache().resolve() / "steps" / digest


def _constants(module: nn.Module) -> dict[str, Tensor]:
    named = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return {name: tensor.detach() for each in named for name, tensor in each}


def _sources() -> str:
    root, digest = Path(lagwise.__file__).parent, hashlib.sha256()
    for path in sorted(path for name in _SOURCES for path in (root / name).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX") or "g++")
