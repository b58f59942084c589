"""The compiled step gives the model's logits, whatever happens between two tokens."""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import FAMILY, tiny

from lagwise.models import LagwiseForCausalLM, StreamingCache, StreamingSession, compiled, in_place
from lagwise.models.sources import source_digests

pytestmark = pytest.mark.cpu  # a GPU has CUDA graphs: test_cuda_graph.py
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
KINDS = (
    "tnn-lm",
    "fd-tnn-lm",
    "ski-tnn-lm",
    "mega-lm",
    "megalodon-lm",
    "tcnca-lm",
    "converted",
    "family",
    "positions",
    "context",
)
COMPILED = [kind for kind in KINDS if kind != "positions"]  # whose sinusoids are in float32
VARIANTS: dict[str, dict[str, Any]] = {
    "family": {"block": FAMILY},
    "positions": {"position_embedding": "sinusoidal"},
    "context": {"ngram_sizes": [2, 4], "match_sizes": [2, 3]},
}


class Eager:
    """A stand-in for compiled code that runs the step eagerly."""

    module: Any

    def __init__(self, *arguments: Any):
        self.runs = 0

    def get_constant_fqns(self) -> list[str]:
        return []

    def load_constants(self, *arguments: Any) -> None:
        pass

    @torch.no_grad()
    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        self.runs += 1
        return [self.module(*inputs)]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Replace the compiler, which takes half a minute per model; everything else is used."""

    def use(self: Any, model: Any, step: Any) -> None:
        self.step, self._weights, self._vocabulary = step, in_place.tensor_versions(model), 258
        self._loader.module = in_place.InPlace(step, list(step.start(1)))

    def made(step: Any, batch_size: int, path: Path, report: Any) -> dict[str, Any]:
        path.touch()
        return {}

    monkeypatch.setenv("LAGWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", Eager)
    monkeypatch.setattr(compiled.CompiledStep, "use", use)
    monkeypatch.setattr(compiled, "_compile", made)


def model_of(kind: str, **fields: Any) -> LagwiseForCausalLM:
    fields |= VARIANTS.get(kind, {})
    model = tiny("tnn-lm" if kind == "converted" or kind in VARIANTS else kind, sharp=True, **fields)
    return model.to_recurrent() if kind == "converted" else model


def runs(model: LagwiseForCausalLM) -> int:
    return sum(step._loader.runs for step in model._steps.values())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_streams_switch_between_eager_and_compiled_code(kind: str, eager: None) -> None:
    """Prompts, single tokens and copies in any order, with rows padded on the left."""
    model, ids = model_of(kind), torch.randint(6, (2, 130))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    expected = model(ids, attention_mask=mask).logits
    assert model.compile_step(2)
    cache, place = StreamingCache(2), 0
    for size, copied in ((20, False), (1, False), (1, True), (30, False), *[(1, False)] * 70, (8, True)):
        if copied:
            spoilt, cache = cache, cache.copy()
            model(ids[:, :1], past_key_values=spoilt)
        given = {"attention_mask": mask[:, : place + size]} if place == 0 else {}
        logits = model(ids[:, place : place + size], past_key_values=cache, **given).logits
        torch.testing.assert_close(logits[1], expected[1, place : place + size], rtol=0, atol=1e-9)
        if place:
            torch.testing.assert_close(logits[0], expected[0, place : place + size], rtol=0, atol=1e-9)
        place += size
        assert cache.seen == place
    assert runs(model) == 74


@torch.no_grad()
def test_generating_and_sessions_use_it(eager: None) -> None:
    model, ids = model_of("mega-lm"), torch.randint(258, (1, 9))
    options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    plain = model.generate(ids, **options)
    beams = model.generate(ids, **options, num_beams=2)
    model.compile_step()
    assert torch.equal(model.generate(ids, **options), plain)
    assert runs(model) == 19
    model.compile_step(2)
    assert torch.equal(model.generate(ids, **options, num_beams=2), beams)
    session = StreamingSession(model)
    first, second = session.add(ids[0]), session.add(plain[0, :15])
    for number in range(9, 20):
        rows = [session.logits[0], session.logits[1]]
        assert rows[0].argmax() == plain[0, number]
        assert number > 13 or rows[1].argmax() == plain[0, number + 6]
        session.step({first: int(plain[0, number]), second: int(plain[0, min(28, number + 6)])})
    before = runs(model)
    session.drop(second)
    session.step({first: int(plain[0, 20])})
    assert session.logits[0].argmax() == plain[0, 21]
    assert runs(model) == before + 1


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_step_of_any_batch_size_in_sessions(kind: str, eager: None) -> None:
    """Each sequence gets the same as alone, and every token is computed by the compiled step."""
    model, ids = model_of(kind, position_embedding="sinusoidal"), torch.randint(6, (4, 90))
    alone = model(ids).logits
    model.compile_step(None)
    session, rows, steps = StreamingSession(model), dict[int, tuple[int, int]](), 0

    def step() -> None:
        nonlocal steps, rows
        steps += 1
        session.step({handle: int(ids[row, place]) for handle, (row, place) in rows.items()})
        rows = {handle: (row, place + 1) for handle, (row, place) in rows.items()}
        for number, (row, place) in enumerate(rows.values()):
            torch.testing.assert_close(session.logits[number], alone[row, place - 1], rtol=0, atol=1e-9)

    for row, length in enumerate((20, 3, 31, 12)):
        rows[session.add(ids[row, :length])] = (row, length)
        for _ in range(4):
            step()
    for handle in list(rows)[::-2]:
        session.drop(handle)
        del rows[handle]
        step()
    before = session._joined().copy()  # a copy has its states, and goes on alone
    step()
    expected = torch.stack([ids[row, place - 1] for row, place in rows.values()])[:, None]
    torch.testing.assert_close(model.next_logits(expected, before), session.logits, rtol=0, atol=1e-9)
    assert runs(model) == steps + 1


@torch.no_grad()
def test_beam_search_reorders_compiled_states(eager: None) -> None:
    model, ids = model_of("mega-lm"), torch.randint(258, (2, 9))
    options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "num_beams": 3}
    expected = model.generate(ids, **options)
    model.compile_step(None)
    assert torch.equal(model.generate(ids, **options), expected)
    assert runs(model) == 19


@torch.no_grad()
def test_weights_may_change_between_streams(eager: None) -> None:
    model, ids = model_of("converted"), torch.randint(258, (1, 20))
    model.compile_step()

    def streamed() -> torch.Tensor:
        cache = StreamingCache(2)
        model(ids[:, :10], past_key_values=cache)
        return torch.cat([model(token, past_key_values=cache).logits for token in ids[:, 10:].split(1, 1)], 1)

    first = streamed()
    for parameter in model.parameters():
        parameter.mul_(1.01)
    second = streamed()
    assert (second - first).abs().max() > 1e-3
    torch.testing.assert_close(second, model(ids).logits[:, 10:], rtol=0, atol=1e-9)
    assert runs(model) == 20
    model.float()
    with pytest.warns(UserWarning, match="call compile_step again"):
        streamed()
    assert runs(model) == 20


@torch.no_grad()
def test_unsupported_calls_use_the_model(eager: None) -> None:
    """Errors, gradients, hidden states and other batch sizes; copies of the model are not compiled."""
    model, ids = model_of("mega-lm"), torch.randint(258, (1, 9))
    model.compile_step()
    cache = StreamingCache(2)
    model(ids, past_key_values=cache)
    with pytest.raises(ValueError, match=r"input_ids must be in \[0, 258\)"):
        model(torch.tensor([[258]]), past_key_values=cache)
    with pytest.raises(ValueError, match="another model"):
        copy.deepcopy(model)(ids[:, :1], past_key_values=cache)
    assert len(model(ids[:, :1], past_key_values=cache, output_hidden_states=True).hidden_states) == 3
    with torch.enable_grad():
        assert model(ids[:, :1], past_key_values=cache).logits.requires_grad
    assert runs(model) == 0
    model(ids[:, :1], past_key_values=cache)
    assert runs(model) == 1
    other = copy.deepcopy(cache)
    first, second = (model(ids[:, :1], past_key_values=each).logits for each in (cache, other))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)
    cache.reset()
    assert cache.seen == 0
    torch.testing.assert_close(model(ids, past_key_values=cache).logits, model(ids).logits, rtol=0, atol=1e-12)


def test_errors_of_compilation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAGWISE_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="grows with"):
        tiny("transformer-alibi-lm").compile_step()
    with pytest.raises(ValueError, match="batch_size"):
        tiny("mega-lm").compile_step(0)
    assert not tiny("mega-lm").compile_step(cached=True)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(FileNotFoundError, match=r"no C\+\+ compiler.*CXX"):
        tiny("mega-lm").compile_step()


def test_sources_of_a_model_are_those_of_its_parts() -> None:
    digests = source_digests(model_of("family"))
    for name in ("ops.precision", "ops.toeplitz.spectral", "models.step", "family.short_conv", "family.recurrence"):
        assert len(digests[f"lagwise.{name}"]) == 64
    assert digests["torch"] == importlib.metadata.version("torch")
    assert not [name for name in digests if name.startswith(("lagwise.data", "lagwise.cli", "json", "torch."))]


@pytest.mark.parametrize("changed", ["own", "own.scale", "beside"])
def test_a_change_of_a_users_sources_changes_their_digest(
    changed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = f"own_{changed.replace('.', '_')}"  # another name for each test, as imported modules remain
    sources = {
        f"{package}/__init__.py": "from torch import nn\nclass Gain(nn.Module):\n  def forward(self, x):\n"
        "    from .scale import (\n      GAIN,\n    )\n    return GAIN * x\n",
        f"{package}/scale.py": f"import {package}_beside as beside\nGAIN = beside.GAIN\n",
        f"{package}_beside.py": "GAIN = 1\n",
    }
    for file, content in sources.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    model = torch.nn.Sequential(importlib.import_module(package).Gain())
    before = source_digests(model)
    name, file = {
        "own": (package, f"{package}/__init__.py"),
        "own.scale": (f"{package}.scale", f"{package}/scale.py"),
        "beside": (f"{package}_beside", f"{package}_beside.py"),
    }[changed]
    with open(tmp_path / file, "a") as source:
        source.write("# changed\n")
    after = source_digests(model)
    assert [each for each in after if after[each] != before[each]] == [name]


def test_a_class_without_a_source_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("mega-lm")
    monkeypatch.setattr(type(model.model.layers[0]), "__module__", "no_such_module")
    with pytest.raises(ValueError, match="no source file"):
        model.compile_step(cached=True)


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", COMPILED)
# In float32 the whole sequence is itself up to 2.6e-5 off float64 (kind "family"), and its plain steps 1.5e-5 off it.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 5e-5)])
@torch.inference_mode()
def test_compiled_code_equals_the_model(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    model, ids = model_of(kind).to(dtype), torch.randint(6, (1, 400))
    lines: list[str] = []
    assert model.compile_step(report=lines.append)
    assert model.compile_step(cached=True)
    assert [line.split()[0] for line in lines] == ["compiling", "compiled"]
    expected, cache = model(ids).logits, StreamingCache(2)
    model(ids[:, :100], past_key_values=cache)
    steps = torch.cat([model(token, past_key_values=cache).logits for token in ids[:, 100:].split(1, 1)], 1)
    assert (steps - expected[:, 100:]).abs().max() <= tolerance * expected.abs().max()
    assert cache.stream is not None


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", COMPILED)
@torch.inference_mode()
def test_compiled_code_of_any_batch_size(kind: str) -> None:
    model, ids = model_of(kind).float(), torch.randint(6, (9, 90))
    assert model.compile_step(None)
    for rows in (1, 2, 9):
        expected, cache = model(ids[:rows]).logits, StreamingCache(2)
        model(ids[:rows, :20], past_key_values=cache)
        steps = torch.cat([model(ids[:rows, i : i + 1], past_key_values=cache).logits for i in range(20, 90)], 1)
        assert cache.stream is not None
        assert (steps - expected[:, 20:]).abs().max() <= 1e-5 * expected.abs().max()


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(600)
@torch.inference_mode()
def test_compiled_code_of_a_fixed_batch_size() -> None:
    """Ids may be views of longer rows and of a smaller dtype."""
    model, ids = model_of("converted").float(), torch.randint(258, (3, 60), dtype=torch.int32)
    expected, cache = model(ids).logits, StreamingCache(2)
    model.compile_step(3)
    model(ids[:, :20], past_key_values=cache)
    steps = torch.cat([model(ids[:, i : i + 1], past_key_values=cache).logits for i in range(20, 60)], 1)
    assert cache.stream is not None
    assert (steps - expected[:, 20:]).abs().max() <= 1e-5 * expected.abs().max()


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(600)
@torch.no_grad()
def test_compiled_code_serves_other_weights() -> None:
    """Also those of one number, as in the norms of `norm="scale"`."""
    model, ids = model_of("tnn-lm", norm="scale").float(), torch.randint(258, (1, 40))
    assert model.compile_step()
    for factor in (1.0, 2.0):
        for parameter in model.parameters():
            parameter.mul_(factor)
        expected, cache = model(ids).logits, StreamingCache(2)
        model(ids[:, :20], past_key_values=cache)
        steps = torch.cat([model(token, past_key_values=cache).logits for token in ids[:, 20:].split(1, 1)], 1)
        assert cache.stream is not None
        assert (steps - expected[:, 20:]).abs().max() <= 1e-5 * expected.abs().max()
