"""Steps as CUDA graphs: on the pretended device, runs on fixed tensors stand in for a graph's replays."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import tiny_step

from lagwise.models import StreamingSession, cuda_graph
from lagwise.models.step import InPlaceStream, StreamingStep

KINDS = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm", "converted")


def replayed(warm: Callable[[], Any], run: Callable[[], torch.Tensor], device: Any) -> tuple[Callable[[], Any], Any]:
    """As `cuda_graph.capture`: a capture computes nothing, and a replay writes to the same tensor each time."""
    warm()
    results: list[torch.Tensor] = []

    def replay() -> None:
        result = run()
        results[0].copy_(result)

    rows = len(inspect.getclosurevars(run).nonlocals["token"])
    results.append(torch.full((rows, 258), float("nan"), dtype=torch.double))
    return replay, results[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_streams_on_fixed_tensors_give_the_models_logits(
    kind: str, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    monkeypatch.setattr(cuda_graph, "capture", replayed)
    model, ids = tiny_step(kind), torch.randint(6, (2, 200))
    if device.type != "cpu":
        assert cuda_graph.branches(StreamingStep(model, online=True), 2) == (kind == "ski-tnn-lm")
        if kind == "ski-tnn-lm":
            return
    expected = model(ids).logits
    model._steps[2] = cuda_graph.GraphStep(model, 2, StreamingStep(model, online=True))
    cache = model(ids[:, :20], use_cache=True).past_key_values
    found = [model.next_logits(ids[:, place : place + 1], cache) for place in range(20, 150)]
    assert isinstance(cache.stream, InPlaceStream)
    other = cache.copy()  # the state goes back to the cache
    found += [model.next_logits(ids[:, place : place + 1], cache) for place in range(150, 200)]
    torch.testing.assert_close(torch.stack(found, 1), expected[:, 20:], rtol=0, atol=1e-9)
    again = model.next_logits(ids[:, 150:151], other)
    torch.testing.assert_close(again, expected[:, 150], rtol=0, atol=1e-9)


@pytest.mark.real_device  # a session has inference tensors
@pytest.mark.parametrize("kind", ["mega-lm", "tnn-lm", "converted"])
def test_batches_whose_rows_come_and_go(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sequence gets its own logits, and a graph is captured only for rows that stay."""
    captured: list[int] = []

    def counting(warm: Any, run: Any, device: Any) -> Any:
        captured.append(len(inspect.getclosurevars(run).nonlocals["token"]))
        return replayed(warm, run, device)

    monkeypatch.setattr(cuda_graph, "capture", counting)
    model, texts = tiny_step(kind), torch.randint(6, (4, 80))
    with torch.no_grad():
        expected = model(texts).logits
    model._steps[None] = cuda_graph.GraphStep(model, None, StreamingStep(model, online=True))
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
    step(cuda_graph._CAPTURE)  # these rows do not stay
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

    monkeypatch.setattr(cuda_graph, "capture", refused)
    model, ids = tiny_step("mega-lm"), torch.randint(6, (2, 30))
    expected = model(ids).logits
    model._steps[2] = cuda_graph.GraphStep(model, 2, StreamingStep(model, online=True))
    cache = model(ids[:, :20], use_cache=True).past_key_values
    with pytest.warns(UserWarning, match="without a CUDA graph, which cannot be captured: operation not permitted"):
        found = [model.next_logits(ids[:, place : place + 1], cache) for place in range(20, 30)]
    torch.testing.assert_close(torch.stack(found, 1), expected[:, 20:], rtol=0, atol=1e-9)


def test_what_a_graph_reads_is_kept() -> None:
    made, table = torch.ones(3), torch.ones(3)
    with (outside := cuda_graph._Outside()):
        _ = (made + table) * table
    assert {id(t) for t in outside.tensors.values()} == {id(made), id(table)}


@torch.no_grad()
def test_graphs_are_refused_elsewhere() -> None:
    with pytest.raises(ValueError, match="CPU or a CUDA device"):
        cuda_graph.graph_step(tiny_step("mega-lm").cpu(), 1)


@pytest.mark.parametrize("kind", KINDS)
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
