"""Steps on fixed tensors give the model's logits, whatever happens between two tokens, compiled or not."""

from __future__ import annotations

import copy
import importlib
import inspect
import shutil
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import by_tokens, tiny, tiny_step

from lagwise.models import LagwiseForCausalLM, StreamingCache, StreamingSession, compiled
from lagwise.models.compiled import source_digests
from lagwise.models.step import InPlaceStep, Run, StreamingStep


def compiles(test: Any) -> Any:
    """Mark a test as one that compiles code."""
    test = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")(test)
    return pytest.mark.cpu(pytest.mark.slow(pytest.mark.timeout(600)(test)))  # a GPU has CUDA graphs


RECIPES = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "megalodon-lm", "tcnca-lm")
KINDS = (*RECIPES, "converted", "family", "positions", "context")


class Counted:
    """A form of the step that counts its runs."""

    runs = 0

    def runner(self, state: list[torch.Tensor]) -> Run:
        run = super().runner(state)  # type: ignore[misc]

        def counted(tokens: torch.Tensor) -> torch.Tensor:
            self.runs += 1
            return run(tokens)

        return counted


class Plain(Counted, InPlaceStep):
    """The step as compiled code runs it, without a compiler."""


class Graph(Counted, compiled.GraphStep):
    """The step as a CUDA graph, for which `replayed` stands in."""


def in_place(model: LagwiseForCausalLM, rows: int | None, form: Any = Plain) -> Any:
    step = model._steps[rows] = form(model, rows, StreamingStep(model, online=True))
    return step


def replayed(warm: Callable[[], Any], run: Callable[[], torch.Tensor], device: Any) -> tuple[Callable[[], Any], Any]:
    """As `compiled.capture`: a capture computes nothing, and a replay writes to the same tensor each time."""
    warm()
    rows = len(inspect.getclosurevars(run).nonlocals["token"])
    result = torch.full((rows, 258), float("nan"), dtype=torch.double)
    return lambda: result.copy_(run()), result


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", [pytest.param(Plain, marks=pytest.mark.cpu), Graph])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_streams_switch_between_the_model_and_its_step(kind: str, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, single tokens and copies in any order, with rows padded on the left."""
    monkeypatch.setattr(compiled, "capture", replayed)
    model, ids = tiny_step(kind), torch.randint(6, (2, 130))
    if form is Graph and model.device.type != "cpu":
        branches = compiled.branches(StreamingStep(model, online=True), 2)
        assert branches == (kind == "ski-tnn-lm")
        if branches:
            return
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    expected = model(ids, attention_mask=mask).logits
    step, cache, place = in_place(model, 2, form), model.model.new_cache(), 0
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
    assert step.runs == 74


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_step_of_any_batch_size_in_sessions(kind: str) -> None:
    """Each sequence gets the same as alone, and every token is computed by the step."""
    model, ids = tiny_step(kind, position_embedding="sinusoidal"), torch.randint(6, (4, 90))
    alone, in_any = model(ids).logits, in_place(model, None)
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
    assert in_any.runs == steps + 1


@pytest.mark.cpu
@torch.no_grad()
def test_beam_search_reorders_states() -> None:
    model, ids = tiny_step("mega-lm"), torch.randint(258, (2, 9))
    options: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "num_beams": 3}
    expected = model.generate(ids, **options)
    step = in_place(model, None)
    assert torch.equal(model.generate(ids, **options), expected)
    assert step.runs == 19


@pytest.mark.cpu
@torch.no_grad()
def test_weights_may_change_between_streams() -> None:
    model, ids = tiny_step("converted"), torch.randint(258, (1, 20))
    step = in_place(model, 1)
    first = by_tokens(model, ids, 10)[0]
    for parameter in model.parameters():
        parameter.mul_(1.01)
    second = by_tokens(model, ids, 10)[0]
    assert (second - first).abs().max() > 1e-3
    torch.testing.assert_close(second, model(ids).logits[:, 10:], rtol=0, atol=1e-9)
    assert step.runs == 20


@pytest.mark.cpu
@torch.no_grad()
def test_compiled_code_is_of_one_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAGWISE_CACHE", str(tmp_path))
    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", unittest.mock.MagicMock())
    monkeypatch.setattr(compiled, "_compile", lambda step, rows, path, report: path.touch() or {})
    model, ids = tiny_step("mega-lm"), torch.randint(258, (1, 20))
    assert model.compile_step()
    model.float()
    with pytest.warns(UserWarning, match="call compile_step again"):
        logits = by_tokens(model, ids, 10)[0]
    torch.testing.assert_close(logits, model(ids).logits[:, 10:])


@pytest.mark.cpu
@torch.no_grad()
def test_unsupported_calls_use_the_model() -> None:
    """Errors, gradients, hidden states and other batch sizes; copies of the model have no steps."""
    model, ids = tiny_step("mega-lm"), torch.randint(258, (1, 9))
    step, cache = in_place(model, 1), StreamingCache(2)
    model(ids, past_key_values=cache)
    with pytest.raises(ValueError, match=r"input_ids must be in \[0, 258\)"):
        model(torch.tensor([[258]]), past_key_values=cache)
    with pytest.raises(ValueError, match="another model"):
        copy.deepcopy(model)(ids[:, :1], past_key_values=cache)
    assert len(model(ids[:, :1], past_key_values=cache, output_hidden_states=True).hidden_states) == 3
    with torch.enable_grad():
        assert model(ids[:, :1], past_key_values=cache).logits.requires_grad
    assert step.runs == 0
    model(ids[:, :1], past_key_values=cache)
    assert step.runs == 1
    other = copy.deepcopy(cache)
    first, second = (model(ids[:, :1], past_key_values=each).logits for each in (cache, other))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)
    cache.reset()
    assert cache.seen == 0
    torch.testing.assert_close(model(ids, past_key_values=cache).logits, model(ids).logits, rtol=0, atol=1e-12)


@pytest.mark.real_device  # a session has inference tensors
@pytest.mark.parametrize("kind", ["mega-lm", "tnn-lm", "converted"])
def test_batches_whose_rows_come_and_go(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sequence gets its own logits, and a graph is captured only for rows that stay."""
    captured: list[int] = []

    def counting(warm: Any, run: Any, device: Any) -> Any:
        captured.append(len(inspect.getclosurevars(run).nonlocals["token"]))
        return replayed(warm, run, device)

    monkeypatch.setattr(compiled, "capture", counting)
    model, texts = tiny_step(kind), torch.randint(6, (4, 80))
    with torch.no_grad():
        expected = model(texts).logits
    in_place(model, None, Graph)
    session, places = StreamingSession(model), dict[int, list[int]]()

    def add(row: int, length: int) -> None:
        places[session.add(texts[row, :length])] = [row, length]

    def step(times: int) -> None:
        for _ in range(times):
            tokens = {handle: int(texts[row, place]) for handle, (row, place) in places.items()}
            logits = session.step(tokens)
            for each, (handle, (row, place)) in enumerate(places.items()):
                torch.testing.assert_close(logits[each], expected[row, place], rtol=0, atol=1e-9)
                places[handle][1] += 1

    add(0, 10)
    add(1, 23)
    step(8)
    assert captured == [2]
    add(2, 5)
    step(compiled._CAPTURE)  # these rows do not stay
    session.drop(0)
    del places[0]
    assert captured == [2]
    step(12)
    add(3, 30)
    step(20)
    assert captured == [2, 2, 3]


@torch.no_grad()
def test_a_step_that_cannot_be_captured_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(compiled, "capture", refused)
    model, ids = tiny_step("mega-lm"), torch.randint(6, (2, 30))
    expected = model(ids).logits
    in_place(model, 2, Graph)
    cache = model(ids[:, :20], use_cache=True).past_key_values
    with pytest.warns(UserWarning, match="without a CUDA graph, which cannot be captured: operation not permitted"):
        found = [model.next_logits(ids[:, place : place + 1], cache) for place in range(20, 30)]
    torch.testing.assert_close(torch.stack(found, 1), expected[:, 20:], rtol=0, atol=1e-9)


def test_what_a_graph_reads_is_kept() -> None:
    made, table = torch.ones(3), torch.ones(3)
    with (outside := compiled._Outside()):
        _ = (made + table) * table
    assert {id(t) for t in outside.tensors.values()} == {id(made), id(table)}


@torch.no_grad()
def test_graphs_are_refused_elsewhere() -> None:
    with pytest.raises(ValueError, match="CPU or a CUDA device"):
        compiled.graph_step(tiny_step("mega-lm").cpu(), 1)


@pytest.mark.parametrize("kind", RECIPES)
def test_a_graph_reads_no_values(kind: str, pytestconfig: pytest.Config) -> None:
    """A capture fails where the host waits for a value, and would keep what it copies from the host."""
    if pytestconfig.getoption("--device") != "pretended":
        pytest.skip("watches operations on the pretended device")
    from second_device import NAME, SecondDevice, _There
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    class Crossings(TorchDispatchMode):
        found: list[str] = []

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out, name = function(*args, **(kwargs or {})), function._schema.name
            given = [isinstance(t, _There) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            made = [isinstance(t, _There) for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
            crosses = name in ("aten::_to_copy", "aten::copy_") and len({*given, *made}) > 1
            if crosses or name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal"):
                self.found.append(name)
            return out

    with SecondDevice(), torch.no_grad():
        step = StreamingStep(tiny_step(kind).to(NAME), online=True)
        state, token = step.start(2), torch.zeros(2, dtype=torch.long, device=NAME)
        step(token, state)  # tables are made
        with Crossings() as crossings:
            _, state = step(token, state)
    assert not crossings.found


@pytest.mark.cpu
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


@pytest.mark.cpu
def test_sources_of_a_model_are_those_of_the_packages_of_its_parts() -> None:
    digests = source_digests(tiny_step("family"))
    for name in ("lagwise/ops/window.py", "lagwise/models/step.py", "lagwise_papers/family/recurrence.py"):
        assert len(digests[name]) == 64
    assert {name.partition("/")[0] for name in digests} == {"lagwise", "lagwise_papers"}


@pytest.mark.cpu
@pytest.mark.parametrize("changed", ["own/__init__.py", "own/scale.py", "beside.py"])
def test_a_change_of_a_users_sources_changes_their_digest(
    changed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prefix = changed.partition(".")[0].replace("/", "_")  # others for each test, as imported modules remain
    sources = {
        "own/__init__.py": "from torch import nn\nclass Gain(nn.Module):\n  def forward(self, x):\n"
        "    from .scale import GAIN\n    return GAIN * x\n",
        "own/scale.py": f"import {prefix}_beside as beside\nGAIN = beside.GAIN\n",
        "beside.py": "GAIN = 1\n",
    }
    for file, content in sources.items():
        path = tmp_path / f"{prefix}_{file}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    model = torch.nn.Sequential(importlib.import_module(f"{prefix}_own").Gain())
    model(torch.ones(1))  # imports the rest
    before = source_digests(model)
    with open(tmp_path / f"{prefix}_{changed}", "a") as source:
        source.write("# changed\n")
    after = source_digests(model)
    assert [Path(each).name for each in after if after[each] != before[each]] == [f"{prefix}_{changed}".split("/")[-1]]


@pytest.mark.cpu
def test_a_class_without_a_source_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("mega-lm")
    monkeypatch.setattr(type(model.model.layers[0]), "__module__", "no_such_module")
    with pytest.raises(ValueError, match="no source"):
        model.compile_step(cached=True)


@compiles
@pytest.mark.parametrize("kind", KINDS)
# In float32 the whole sequence is itself up to 2.6e-5 off float64 (kind "family"), and its plain steps 1.5e-5 off it.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 5e-5)])
@torch.inference_mode()
def test_compiled_code_equals_the_model(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    model, ids = tiny_step(kind).to(dtype), torch.randint(6, (1, 400))
    lines: list[str] = []
    assert model.compile_step(report=lines.append)
    assert model.compile_step(cached=True)
    assert [line.split()[0] for line in lines] == ["compiling", "compiled"]
    expected, (steps, cache) = model(ids).logits, by_tokens(model, ids, 100)
    assert (steps - expected[:, 100:]).abs().max() <= tolerance * expected.abs().max()
    assert cache.stream is not None


@compiles
@pytest.mark.parametrize(("kind", "rows"), [*((kind, None) for kind in KINDS), ("converted", 3)])
@torch.inference_mode()
def test_compiled_code_of_several_rows(kind: str, rows: int | None) -> None:
    """Ids may be views of longer rows and of a smaller dtype."""
    model, ids = tiny_step(kind).float(), torch.randint(6, (9, 90), dtype=torch.int32)
    assert model.compile_step(rows)
    for count in (1, 2, 9) if rows is None else (rows,):
        expected, (steps, cache) = model(ids[:count]).logits, by_tokens(model, ids[:count], 20)
        assert cache.stream is not None
        assert (steps - expected[:, 20:]).abs().max() <= 1e-5 * expected.abs().max()


@compiles
@torch.no_grad()
def test_compiled_code_serves_other_weights() -> None:
    """Also those of one number, as in the norms of `norm="scale"`."""
    model, ids = tiny_step("tnn-lm", norm="scale").float(), torch.randint(258, (1, 40))
    assert model.compile_step()
    for factor in (1.0, 2.0):
        for parameter in model.parameters():
            parameter.mul_(factor)
        expected, (steps, cache) = model(ids).logits, by_tokens(model, ids, 20)
        assert cache.stream is not None
        assert (steps - expected[:, 20:]).abs().max() <= 1e-5 * expected.abs().max()
