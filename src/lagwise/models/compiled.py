"""The streaming step as compiled code, which changes its state in place."""

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
from lagwise.mixers.fixed_online import OnlineFollower
from lagwise.models.cache import StreamingCache
from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.inputs import check_vocabulary, surplus_argument
from lagwise.models.step import StreamingStep, tensor_versions

_FILE = "step.pt2"
# Weights are given at run time, so that code serves a model that is trained further. Loops of one thread: those of a
# token are too short to share; libraries' matrix products still are.
_OPTIONS = {"aot_inductor.package_constants_in_so": False, "cpp.threads": 1}
_ANY = 4  # rows of the example that code for any number of them is compiled with
_SOURCES = ("ops", "kernels", "mixers", "blocks", "models")


class CompiledStep:
    """A language model's `StreamingStep` for batches of one size, or of any (None), by AOTInductor, loaded from a
    folder."""

    def __init__(self, model: LagwiseForCausalLM, batch_size: int | None, digest: str, step: StreamingStep):
        self.batch_size, self.digest = batch_size, digest
        file = _folder(digest) / _FILE
        require_private(file, default_cache().resolve())
        # What `torch._inductor.aoti_load_package` makes, without importing a compiler for it.
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(file), "model", False, 1, -1)
        self._use(model, step)

    def answer(self, model: LagwiseForCausalLM, inputs: Mapping[str, Any]) -> Tensor | None:
        """Logits ``(batch, 1, vocab_size)`` for arguments of the model's forward, if `follow` can give them."""
        if surplus_argument(inputs) is not None:
            return None
        mask = inputs.get("attention_mask")
        if model.config.output_hidden_states or (mask is not None and not mask[:, -1].all()):
            return None
        logits = self.follow(model, inputs["input_ids"], inputs.get("past_key_values"))
        return None if logits is None else logits[:, None]

    def follow(self, model: LagwiseForCausalLM, ids: Tensor, cache: Any) -> Tensor | None:
        """Logits ``(batch, vocab_size)`` of ids, if they are one token of every row that follows what a
        `StreamingCache` has seen, which then goes on; else None, and the model says what is wrong."""
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
        return stream.step(ids[:, 0].long().contiguous())  # as in the example that the code is compiled for

    def run(self, tokens: Tensor, state: list[Tensor]) -> Tensor:
        """Logits ``(batch, vocab_size)``; the state is changed in place."""
        (logits,) = self._loader.run([tokens, *state])
        return logits

    def _current(self, model: LagwiseForCausalLM) -> bool:
        """Take up the model's weights if they have changed; whether this code still fits the model."""
        if self._weights == tensor_versions(model):
            return True
        digest, step = described(model, self.batch_size)
        if digest != self.digest:
            warnings.warn("the compiled step is not used: the model has changed; call compile_step again", stacklevel=4)
            return False
        self._use(model, step)
        return True

    def _use(self, model: LagwiseForCausalLM, step: StreamingStep) -> None:
        self.step, self._weights, self._vocabulary = step, tensor_versions(model), model.config.vocab_size
        given = _constants(_InPlace(step, []))
        # User-managed: the code reads the model's own tensors, and this object keeps the others.
        self._held = {name: given[name] for name in self._loader.get_constant_fqns()}
        self._loader.load_constants(self._held, False, True, True)


class CompiledStream:
    """What a cache holds while compiled code carries it on; the cache's own states are stale until `stop`."""

    def __init__(self, compiled: CompiledStep, cache: StreamingCache):
        self.compiled, self.cache, self.maker = compiled, cache, compiled.step
        state, self.followers = self._taken(cache)
        self.state = list(state.values())
        self.names = list(state)
        cache.carry_on(self)

    def step(self, token: Tensor) -> Tensor:
        """The logits after one token more of every row."""
        logits = self.compiled.run(token, self.state)
        for layer in self.cache.layers:
            layer.seen += 1  # type: ignore[attr-defined]
        for follower in self.followers:
            follower.advance()
        return logits

    def map_batch(self, change: Callable[[Tensor], Tensor]) -> bool:
        """Change the rows, where they are; whether that is possible, or else `stop` and the cache's states are."""
        if self.followers or self.compiled.batch_size is not None:
            return False
        with torch.inference_mode(False), torch.no_grad():
            self.state = [change(tensor).contiguous() for tensor in self.state]
        return True

    def join(self, before: Sequence[StreamingCache], after: Sequence[StreamingCache], cache: StreamingCache) -> bool:
        """Carry on, in another cache, the rows of caches before this one's, its own and of those after; whether that
        is possible. The old caches stay valid."""
        if self.followers or self.compiled.batch_size is not None:
            return False
        states = [[*self._taken(each)[0].values()] for each in (*before, *after)]
        states.insert(len(before), self.state)
        stream = copy.copy(self)
        with torch.inference_mode(False), torch.no_grad():
            stream.state = [torch.cat(each) for each in zip(*states, strict=True)]
        stream.cache = cache
        cache.carry_on(stream)
        return True

    def _taken(self, cache: StreamingCache) -> tuple[dict[str, Tensor], list[OnlineFollower]]:
        with torch.inference_mode(False):  # the tensors outlive the mode they are made in
            state, followers = self.maker.take(cache)
        assert all(tensor.is_contiguous() for tensor in state.values())
        return state, followers

    def stop(self) -> None:
        """Give the cache its states back."""
        self.cache.carry_on(None)
        self.maker.give(dict(zip(self.names, self.state, strict=True)), self.cache, self.followers)


class _InPlace(nn.Module):
    """The step with its state as a list, in place of which the new one is written."""

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
    model: LagwiseForCausalLM,
    batch_size: int | None,
    *,
    cached: bool = False,
    report: Callable[[str], None] | None = None,
) -> CompiledStep | None:
    """The compiled step of a model for batches of a size, or of any (None), from the cache folder or else compiled now;
    with ``cached``, None if it is not there.

    The folder is named by a digest of all that the code is made of but the values of weights. ``report`` receives a
    line before the step is compiled, and one after. ValueError for a model that is not on the CPU, or whose state
    grows; FileNotFoundError without a C++ compiler, RuntimeError if it fails.
    """
    digest, step = described(model, batch_size)
    folder = _folder(digest)
    if cached and not folder.is_dir():
        return None
    cached_folder(folder, lambda made: _compile(step, batch_size, made / _FILE, report))
    return CompiledStep(model, batch_size, digest, step)


@torch.no_grad()
def described(model: LagwiseForCausalLM, batch_size: int | None) -> tuple[str, StreamingStep]:
    """A digest of all that the compiled code depends on, and the step."""
    if model.device.type != "cpu":
        raise ValueError(f"a step is compiled for models on the CPU, got one on {model.device}")
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
            "compiling a step needs a C++ compiler, and there is none; install g++ or name one in the variable CXX"
        )
    say("compiling the model's step, once; it is kept in the cache")
    began, rows = time.monotonic(), batch_size or _ANY
    state = step.start(rows)
    example = (torch.zeros(rows, dtype=torch.long), *state.values())
    shapes = None
    if batch_size is None:
        open_batch = {0: torch.export.Dim("batch", min=1)}
        shapes = {"tokens": open_batch, "state": (open_batch,) * len(state)}
    config: Any = torch.fx.experimental._config
    oblivious = config.patch(backed_size_oblivious=batch_size is None)  # or it may assume more rows than one
    with torch.no_grad(), warnings.catch_warnings(), oblivious:
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(_InPlace(step, list(state)), example, strict=False, dynamic_shapes=shapes)
            torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=dict(_OPTIONS))
        except Exception as error:
            raise RuntimeError(f"the model's step could not be compiled: {one_line(error, 500)}") from error
    seconds = time.monotonic() - began
    say(f"compiled in {seconds:.0f} s")
    return {"seconds": seconds}


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
