"""The mixer contract for whole sequences, for every mixer in the table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_mixer import CHANNELS, every_causal_mixer, every_direction, every_entry, every_mixer, factory, make, noise
from poison import check_poisoned_padding
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from lagwise import testing
from lagwise.mixers import MIXERS, Mixer


@pytest.mark.sampled(2)
@every_direction
def test_shape_and_dtype_at_all_lengths(name: str, options: dict, causal: bool) -> None:
    testing.check_shapes(factory(name, options), CHANNELS, causal)


@every_causal_mixer
def test_causality_of_values_and_gradients(name: str, options: dict) -> None:
    testing.check_causality(factory(name, options), CHANNELS)


@pytest.mark.sampled(2)
@every_direction
def test_padding_has_no_effect(name: str, options: dict, causal: bool) -> None:
    testing.check_padding(factory(name, options), CHANNELS, causal)


@pytest.mark.sampled(2)
@every_direction
def test_nan_and_infinity_at_padding_have_no_effect(name: str, options: dict, causal: bool) -> None:
    mixer = make(name, options, causal=causal)
    check_poisoned_padding(mixer, CHANNELS, streamed=causal and mixer.streams)


@every_direction
def test_packed_documents_equal_separate_ones(name: str, options: dict, causal: bool) -> None:
    testing.check_packing(factory(name, options), CHANNELS, causal)


@every_mixer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_stays_near_float64(name: str, options: dict, dtype: torch.dtype) -> None:
    testing.check_autocast(factory(name, options), CHANNELS, MIXERS[name].directions[0], dtype)


@every_direction
def test_gradcheck(name: str, options: dict, causal: bool) -> None:
    testing.check_gradients(factory(name, options), CHANNELS, causal)


@every_mixer
def test_state_dict_round_trip(name: str, options: dict) -> None:
    testing.check_weights(factory(name, options), CHANNELS, MIXERS[name].directions[0])


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
@every_entry
def test_compiled_graph_equals_eager(name: str, options: dict) -> None:
    """Capture of forward and backward in one graph, for the defaults of every mixer and for SKI. Options, the other
    direction and code generation are in the slow suite."""
    check_compiled(make(name, options, dtype=torch.float32), "aot_eager")


@every_direction
@pytest.mark.slow
def test_compiled_graph_equals_eager_in_every_direction(name: str, options: dict, causal: bool) -> None:
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
    assert mixer(noise(0, 5000)).shape == (0, 5000, 16)
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
