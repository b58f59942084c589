"""The contract of mixers, for every mixer in the table: `lagwise.testing`, and what needs more than it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_mixer import (
    CHANNELS,
    OPTIONS,
    STREAMS,
    diagonal,
    every_direction,
    every_entry,
    every_mixer,
    every_stream,
    factory,
    make,
    noise,
)
from poison import check_poisoned_padding
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.export import Dim

from lagwise import testing
from lagwise.mixers import MIXERS, Mixer
from lagwise.mixers.base import mixers_of
from lagwise.mixers.derived import frozen
from lagwise.mixers.state import detached, join_states, renewed, select_rows
from lagwise_papers.bench.streams import state_bytes


def check_float16(make_mixer: testing.Factory, channels: int, causal: bool) -> None:
    testing.check_autocast(make_mixer, channels, causal, torch.float16)


WHOLE = [
    testing.check_shapes,
    testing.check_padding,
    testing.check_packing,
    testing.check_gradients,
    testing.check_weights,
    testing.check_autocast,
    check_float16,
]
STREAMED = [
    testing.check_streaming,
    testing.check_padding_anywhere,
    testing.check_old_states,
    testing.check_joined_states,
    testing.check_fixed_shapes,
]
GROWING = [case for case in STREAMS if any(part.grows for part in mixers_of(make(*case, causal=True)))]
FIXED = [case for case in STREAMS if case not in GROWING]


def test_states_that_grow() -> None:
    assert {name for name, _ in GROWING} == {"attention", "toeplitz", "caracal"}  # with a kernel without end


@diagonal(
    ("check", "name", "options", "causal"),
    [
        (check, *case, causal)
        for case in OPTIONS  # seven checks in a row, so that six in turn meet each of them
        for check in WHOLE
        for causal in MIXERS[case[0]].directions
    ],
)
def test_whole_sequences(check: Any, name: str, options: dict, causal: bool) -> None:
    check(factory(name, options), CHANNELS, causal)


@diagonal(("name", "options"), [case for case in OPTIONS if True in MIXERS[case[0]].directions])
def test_causality(name: str, options: dict) -> None:
    testing.check_causality(factory(name, options), CHANNELS)


@diagonal(
    ("check", "name", "options"),
    [
        (check, *case)
        for case in STREAMS
        for check in STREAMED
        if case in FIXED or check is not testing.check_fixed_shapes
    ],
)
def test_streams(check: Any, name: str, options: dict) -> None:
    check(factory(name, options), CHANNELS)


@every_direction
def test_nan_and_infinity_at_padding_have_no_effect(name: str, options: dict, causal: bool) -> None:
    mixer = make(name, options, causal=causal)
    check_poisoned_padding(mixer, CHANNELS, streamed=causal and mixer.streams)


@every_entry
def test_export_runs(name: str, options: dict) -> None:
    mixer = make(name, options, dtype=torch.float32).eval()
    x = noise(1, 48, torch.float32)
    exported = torch.export.export(mixer, (x,))
    torch.testing.assert_close(exported.module()(x), mixer(x), rtol=1e-5, atol=1e-5)


@every_direction
def test_views_may_be_copies(name: str, options: dict, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporters replace `view` and `reshape` of non-contiguous tensors by copies, so in-place writes to views would be
    lost."""
    mixer = make(name, options, causal=causal)
    x = noise(2, 48)

    def results() -> list[Tensor]:
        with torch.no_grad():
            y = mixer(x)
            return [y, mixer.prefill(x, mixer.init_state(2))[0]] if causal and mixer.streams else [y]

    expected = results()
    for method in ("view", "reshape"):
        monkeypatch.setattr(torch.Tensor, method, _copying(getattr(torch.Tensor, method)))
    torch.testing.assert_close(results(), expected, rtol=1e-12, atol=1e-12)


def _copying(method: Any) -> Any:
    def copied(x: Tensor, *args: Any) -> Tensor:
        return method(x if x.is_contiguous() else x.clone(memory_format=torch.contiguous_format), *args)

    return copied


@every_direction
@pytest.mark.slow
def test_compiled_graph_equals_eager(name: str, options: dict, causal: bool) -> None:
    """Capture of forward and backward in one graph. By default, tests of operations and of trainings see to it."""
    check_compiled(make(name, options, causal=causal, dtype=torch.float32), "aot_eager")


@every_mixer
@pytest.mark.slow
def test_compiled_code_equals_eager(name: str, options: dict) -> None:
    check_compiled(make(name, options, dtype=torch.float32), "inductor")


def check_compiled(mixer: Mixer, backend: str) -> None:
    torch.compiler.reset()
    x = noise(2, 48, torch.float32)
    compiled = torch.compile(mixer, backend=backend, fullgraph=True)
    results = []
    for function in (mixer, compiled):
        mixer.zero_grad()
        signal = x.clone().requires_grad_()
        y = function(signal)
        y.square().sum().backward()
        results.append((y, signal.grad, *(p.grad for p in mixer.parameters())))
    for a, b in zip(*results, strict=True):  # gradients of weights are sums, whose rounding is as large as their terms
        torch.testing.assert_close(a, b, rtol=1e-3, atol=max(1e-4, 1e-5 * float(a.detach().abs().max())))


@every_direction
@pytest.mark.slow
def test_one_graph_serves_every_length(name: str, options: dict, causal: bool) -> None:
    check_graphs(make(name, options, causal=causal, dtype=torch.float32))


def check_graphs(mixer: Mixer) -> None:
    """The first length has a graph, and all others share one, but for those that chunks of attention divide."""
    torch.compiler.reset()
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(mixer, backend=backend, fullgraph=True)
    for length in (299, 451, 349):
        x = noise(2, length, torch.float32).requires_grad_()  # some mixers have no parameters
        y = compiled(x)
        y.square().sum().backward()
        torch.testing.assert_close(y, mixer(x), rtol=1e-3, atol=1e-4)
    assert backend.frame_count <= 2


@every_mixer
def test_wrong_input_is_named(name: str, options: dict) -> None:
    mixer = make(name, options)
    with pytest.raises(ValueError, match="channels=16"):
        mixer(torch.ones(1, 4, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match="length >= 1"):
        mixer(noise(1, 0))
    with pytest.raises(ValueError, match=r"mask must be .*\(2, 8\)"):
        mixer(noise(2, 8), mask=torch.ones(2, 7))
    if not mixer.streams:
        with pytest.raises(ValueError, match="does not stream"):
            mixer.init_state(1)
    elif mixer.causal:
        _, state = mixer.prefill(noise(2, 3), mixer.init_state(2))
        with pytest.raises((ValueError, RuntimeError)):
            mixer.prefill(noise(1, 2), state)
    if mixer.streams and mixer.directions == (True, False):
        with pytest.raises(ValueError, match="causal=True"):
            make(name, options, causal=False).init_state(1)


@every_stream
@torch.no_grad()
def test_a_new_stream_uses_the_present_weights(name: str, options: dict) -> None:
    """Also those written through ``.data``, whose versions PyTorch does not count, as some averages of weights are."""
    mixer, x, sizes = make(name, options), noise(2, 12), [1, 1, 4, 1, 1, 4]
    testing.streamed(mixer, x, sizes)
    for parameter in mixer.parameters():
        parameter.data.mul_(0.5)
    torch.testing.assert_close(testing.streamed(mixer, x, sizes), mixer(x), rtol=0, atol=1e-9)


# Mixers whose state must not grow with the text, with windows of less than 280 tokens.
CONSTANT: list[tuple[str, dict[str, Any]]] = [
    ("ema", {}),
    ("ema", {"truncation": 70}),
    ("tcn", {"depth": 4}),
    ("chunked_attention", {}),
    ("chunked_attention", {"chunk": 7, "position": "simple"}),
    ("toeplitz", {"kernel": {"name": "rpe", "decay": 0.9}, "engine": "ski"}),
    ("toeplitz", {"kernel": {"name": "rpe", "decay": 0.9}}),
    ("toeplitz", {"kernel": {"name": "modal"}}),
    ("hyena", {"kernel": {"name": "modal"}}),
    ("short_conv", {}),
    ("linear_attention", {}),
    ("lru", {}),
    ("s5", {}),
    ("gss", {}),
    ("flash", {}),
    ("relative_attention", {}),
]


@diagonal(("name", "options"), CONSTANT)
@pytest.mark.parametrize("grad", [False, True])
def test_memory_of_a_stream_is_constant(name: str, options: dict, grad: bool) -> None:
    mixer = make(name, options, dtype=torch.float32)
    with torch.set_grad_enabled(grad):
        held = {}
        for length in (620, 3692):  # at one place in their blocks
            state = mixer.init_state(2)
            for size in (length - 120, 60, 40, *[1] * 20):
                _, state = mixer.prefill(noise(2, size, torch.float32), state)
                held.setdefault(length, []).append(state_bytes(state))
    assert max(held[3692]) <= max(held[620])


@diagonal(
    ("name", "options"),
    [
        *CONSTANT,
        ("attention", {}),
        ("toeplitz", {"kernel": {"name": "rpe", "decay": 1.0}}),
        ("toeplitz", {"kernel": {"name": "rpe", "decay": 1.0}, "engine": {"name": "ski", "spacing": 5}}),
    ],
)
@torch.no_grad()
def test_memory_of_a_batch_depends_only_on_its_present_rows(name: str, options: dict) -> None:
    """It does not depend on rows that have left or on the running time, since servers' batches never end."""
    mixer = make(name, options, dtype=torch.float32)

    def fresh(length: int) -> Any:
        return mixer.prefill(noise(1, length, torch.float32), mixer.init_state(1))[1]

    state, held = join_states([fresh(300), fresh(300), fresh(300)]), []
    for turn in range(25):
        state = join_states([select_rows(state, torch.tensor([1, 2])), fresh(40 + 7 * turn % 40)])
        for _ in range(6):
            _, state = mixer.step(noise(3, 1, torch.float32)[:, 0], state)
        held.append(state_bytes(state))
    assert max(held[5:]) <= held[0]  # 300 tokens then, fewer than 100 since


@every_stream
def test_a_state_carried_on_in_training(name: str, options: dict) -> None:
    """As a constant it gives the outputs of the whole sequence, and gradients for the parameters as they are now: those
    of finite differences with the same state. A growing state is not carried."""
    mixer = make(name, options, causal=True)
    if any(part.grows for part in mixers_of(mixer)):
        return
    x, before = noise(2, 60), [p.detach().clone() for p in mixer.parameters()]
    step = 1e-8  # the networks of some kernels have kinks, which a larger step meets
    whole = mixer(x)
    state = detached(mixer.prefill(x[:, :40], mixer.init_state(2))[1])
    weight = noise(2, 20)

    def piece() -> Tensor:
        return mixer.prefill(x[:, 40:], renewed(state, mixer.init_state(2)))[0]

    torch.testing.assert_close(piece(), whole[:, 40:], rtol=0, atol=1e-9)
    parameters, directions = list(mixer.parameters()), [torch.randn_like(p) for p in before]
    if not parameters:
        return
    (piece() * weight).sum().backward()
    slope = sum(float((p.grad * d).sum()) for p, d in zip(parameters, directions, strict=True) if p.grad is not None)
    found = []
    with torch.no_grad():
        for sign in (1, -1):
            for p, old, d in zip(parameters, before, directions, strict=True):
                p.copy_(old + sign * step * d)
            found.append(float((piece() * weight).sum()))
    assert (found[0] - found[1]) / (2 * step) == pytest.approx(slope, rel=1e-4, abs=1e-4)


@diagonal(("name", "options"), GROWING)
def test_a_growing_state_is_refused(name: str, options: dict) -> None:
    with pytest.raises(ValueError, match="grows with"):
        make(name, options).require_fixed()


@diagonal(
    ("name", "options"),
    [
        ("lru", {}),
        ("s5", {}),
        ("toeplitz", {"kernel": {"name": "s4d", "modes": 4}}),
        ("toeplitz", {"kernel": {"name": "cema", "dimension": 4}}),
        ("toeplitz", {"kernel": {"name": "s4", "modes": 4, "span": 100}}),
        ("gss", {}),
    ],
)
@torch.no_grad()
def test_a_frozen_mixer_is_one_graph_without_complex_numbers(name: str, options: dict) -> None:
    mixer = make(name, options).eval()
    form = frozen(mixer)
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    program = torch.export.export(form, (noise(2, 48),), dynamic_shapes=shapes, strict=False)
    values = [node.meta.get("val") for node in program.graph.nodes]
    assert not any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)
    for batch, length in ((1, 1), (3, 131)):
        x = noise(batch, length)
        torch.testing.assert_close(program.module()(x), mixer(x), rtol=0, atol=1e-10)


def test_a_frozen_copy_shares_weights() -> None:
    mixer = make("gtu", {})
    assert frozen(mixer).gate.weight is mixer.gate.weight
