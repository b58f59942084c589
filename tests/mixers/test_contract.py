"""The mixer contract, for every entry of the table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lagwise.mixers import MIXERS, Mixer

CHANNELS = 16
LENGTHS = (1, 2, 3, 63, 64, 100, 1000, 1021)

# Every entry with its defaults, and the options that change how it computes.
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in MIXERS),
    ("attention", {"position": "none"}),
    ("chunked_attention", {"chunk": 7}),
    ("chunked_attention", {"chunk": 16, "heads": 2, "position": "none"}),
    ("chunked_attention", {"chunk": 12, "function": "laplace", "position": "simple"}),
    ("chunked_attention", {"chunk": 9, "heads": 2, "function": "relu2", "position": "rotary"}),
    ("chunked_attention", {"chunk": 1, "position": "simple"}),
    ("toeplitz", {"engine": "block"}),
    ("toeplitz", {"kernel": {"name": "rpe", "decay": 1.0}}),
    ("toeplitz", {"kernel": {"name": "rpe", "decay": 0.9}}),
    ("toeplitz", {"kernel": {"name": "free", "max_length": 1100}}),
    ("toeplitz", {"kernel": {"name": "frequency"}}),
    ("toeplitz", {"kernel": {"name": "frequency", "inputs": "omega", "grid": 100}}),
    ("toeplitz", {"kernel": {"name": "frequency", "grid": 100}, "engine": "block"}),
    ("gtu", {"kernel": {"name": "frequency", "inputs": "omega"}}),
    ("toeplitz", {"kernel": {"name": "warped"}}),
    ("toeplitz", {"engine": "direct", "kernel": {"name": "rpe", "decay": 0.5}}),
    ("toeplitz", {"kernel": {"name": "warped"}, "engine": "ski"}),
    ("toeplitz", {"kernel": {"name": "warped"}, "engine": {"name": "ski", "degree": 3, "spacing": 4, "width": 40}}),
    ("toeplitz", {"kernel": {"name": "rpe", "decay": 1.0}, "engine": {"name": "ski", "spacing": 5}}),
    ("gtu", {"kernel": {"name": "warped"}, "engine": "ski"}),
    ("toeplitz", {"kernel": {"name": "ema"}}),
    ("toeplitz", {"kernel": {"name": "ema"}, "engine": "ski"}),
    ("ema", {"truncation": 70, "dimension": 3}),
    ("ema", {"engine": "auto"}),
    ("tcn", {"kernel_size": 3, "dilation": 3, "depth": 3, "convolutions": 2, "norm": "rms", "activation": "gelu"}),
    ("tcn", {"kernel_size": 17, "dilation": 5, "depth": 2, "activation": "none", "residual": False}),
]
every_mixer = pytest.mark.parametrize(("name", "options"), OPTIONS, ids=lambda v: str(v) if v else "default")


def make(name: str, options: dict[str, Any], *, causal: bool = True, dtype: torch.dtype = torch.float64) -> Mixer:
    engine = options.get("engine")
    if not causal and isinstance(engine, dict):  # a plan is for causal kernels only, and refused for others
        options = {**options, "engine": {k: v for k, v in engine.items() if k not in ("spacing", "width")}}
    return MIXERS[name](CHANNELS, causal=causal, **options).to(dtype)


def noise(batch: int, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, length, CHANNELS, dtype=dtype)


def in_chunks(mixer: Mixer, x: Tensor, sizes: list[int]) -> Tensor:
    """Prefill x in chunks of these sizes (and the rest in one)."""
    state, parts, start = mixer.init_state(x.shape[0]), [], 0
    for size in (*sizes, x.shape[1] - sum(sizes)):
        if size:
            y, state = mixer.prefill(x[:, start : start + size], state)
            parts.append(y)
            start += size
    return torch.cat(parts, dim=1)


@every_mixer
@pytest.mark.parametrize("causal", [True, False])
def test_shape_and_dtype_at_all_lengths(name: str, options: dict, causal: bool) -> None:
    mixer = make(name, options, causal=causal, dtype=torch.float32)
    for length in LENGTHS:
        y = mixer(noise(2, length, torch.float32))
        assert y.shape == (2, length, CHANNELS)
        assert y.dtype == torch.float32
        assert y.isfinite().all()


@every_mixer
def test_causality_of_values_and_gradients(name: str, options: dict) -> None:
    mixer = make(name, options)
    x = noise(1, 100).requires_grad_()
    y = mixer(x)
    changed = x.detach().clone()
    changed[:, 60:] += 1
    torch.testing.assert_close(mixer(changed)[:, :60], y[:, :60], rtol=0, atol=1e-12)
    (grad,) = torch.autograd.grad(y[:, 40].sum(), x)
    assert grad[:, 41:].abs().max() < 1e-12
    assert grad[:, :41].abs().max() > 1e-6


@every_mixer
@pytest.mark.parametrize("length", [1, 3, 64, 301])
def test_streaming_equals_forward(name: str, options: dict, length: int) -> None:
    mixer = make(name, options)
    x = noise(2, length)
    whole = mixer(x)
    generator = torch.Generator().manual_seed(length)
    sizes: list[int] = []
    while sum(sizes) < length - 1:
        sizes.append(int(torch.randint(1, min(80, length - sum(sizes)) + 1, (), generator=generator)))
    torch.testing.assert_close(in_chunks(mixer, x, sizes), whole, rtol=0, atol=1e-9)
    state, tokens = mixer.init_state(2), []
    for token in x[:, : min(length, 40)].unbind(1):
        y, state = mixer.step(token, state)
        tokens.append(y)
    torch.testing.assert_close(torch.stack(tokens, 1), whole[:, : len(tokens)], rtol=0, atol=1e-9)


@every_mixer
def test_streaming_in_float32(name: str, options: dict) -> None:
    mixer = make(name, options, dtype=torch.float32)
    x = noise(2, 500, torch.float32)
    whole = mixer(x)
    error = (in_chunks(mixer, x, [1, 7, 300, 1, 64]) - whole).abs().max() / whole.abs().max()
    assert error < 1e-5


@every_mixer
def test_streaming_beyond_the_kernels_reach(name: str, options: dict) -> None:
    """Past the horizon (in float32, 175 lags at decay 0.9) the state stops growing and still gives forward's output."""
    mixer = make(name, options, dtype=torch.float32)
    x = noise(1, 1050, torch.float32)
    whole = mixer(x)
    torch.testing.assert_close(in_chunks(mixer, x, [300, 1, 300, 1, 1, 400]), whole, rtol=1e-3, atol=1e-4)


@every_mixer
def test_an_old_state_stays_valid(name: str, options: dict) -> None:
    """Generation branches: two continuations of one state do not disturb each other."""
    mixer = make(name, options)
    x = noise(1, 50)
    _, state = mixer.prefill(x, mixer.init_state(1))
    one = mixer.step(noise(1, 1)[:, 0], state)
    token = noise(1, 1)[:, 0]
    first, _ = mixer.step(token, state)
    mixer.step(noise(1, 1)[:, 0], one[1])
    second, _ = mixer.step(token, state)
    assert torch.equal(first, second)


@every_mixer
def test_states_can_be_picked_by_row(name: str, options: dict) -> None:
    """Beam search reorders rows; a batch of states is the states of its rows."""
    mixer = make(name, options)
    x = noise(3, 20)
    _, state = mixer.prefill(x, mixer.init_state(3))
    picked = state.map_batch(lambda t: t[torch.tensor([2, 0])])
    token = noise(2, 1)[:, 0]
    y, _ = mixer.step(token, picked)
    for row, source in enumerate((2, 0)):
        _, alone = mixer.prefill(x[source : source + 1], mixer.init_state(1))
        torch.testing.assert_close(y[row : row + 1], mixer.step(token[row : row + 1], alone)[0], rtol=0, atol=1e-10)


@every_mixer
@pytest.mark.parametrize("causal", [True, False])
def test_padding_leaves_no_trace(name: str, options: dict, causal: bool) -> None:
    mixer = make(name, options, causal=causal)
    x = noise(1, 30)
    alone = mixer(x)
    for left, right in ((7, 0), (0, 7), (4, 9)):
        padded = torch.cat([1e3 * noise(1, left), x, 1e3 * noise(1, right)], dim=1)
        mask = torch.tensor([[0] * left + [1] * 30 + [0] * right])
        y = mixer(padded, mask=mask)
        assert y.isfinite().all()
        torch.testing.assert_close(y[:, left : left + 30], alone, rtol=0, atol=1e-9)


@every_mixer
def test_left_padding_while_streaming(name: str, options: dict) -> None:
    mixer = make(name, options)
    x = noise(1, 40)
    padded = torch.cat([1e3 * noise(1, 5), x], dim=1)
    mask = torch.tensor([[0] * 5 + [1] * 40])
    y, state = mixer.prefill(padded[:, :25], mixer.init_state(1), mask=mask[:, :25])
    rest, state = mixer.prefill(padded[:, 25:], state, mask=mask[:, 25:])
    torch.testing.assert_close(torch.cat([y, rest], 1)[:, 5:], mixer(x), rtol=0, atol=1e-9)


@every_mixer
@pytest.mark.parametrize("causal", [True, False])
def test_packed_documents_equal_separate_ones(name: str, options: dict, causal: bool) -> None:
    mixer = make(name, options, causal=causal)
    documents = [noise(1, n) for n in (5, 1, 30, 14)]
    row = torch.cat(documents, dim=1).requires_grad_()
    seq_idx = torch.cat([torch.full((1, d.shape[1]), i) for i, d in enumerate(documents)], dim=1)
    packed = mixer(row, seq_idx=seq_idx)
    separate = torch.cat([mixer(d) for d in documents], dim=1)
    torch.testing.assert_close(packed, separate, rtol=0, atol=1e-9)
    (grad,) = torch.autograd.grad(packed[:, 6:36].sum(), row)
    assert grad[:, :6].abs().max() == 0
    assert grad[:, 36:].abs().max() == 0


@every_mixer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_stays_near_float64(name: str, options: dict, dtype: torch.dtype) -> None:
    mixer = make(name, options, dtype=torch.float32)
    x = noise(2, 200, torch.float32)
    with torch.autocast("cpu", dtype):
        y = mixer(x)
        first, state = mixer.prefill(x[:, :150], mixer.init_state(2))
        token, _ = mixer.step(x[:, 150], state)
    exact = mixer.double()(x.double())
    for ours, wanted in ((y, exact), (first, exact[:, :150]), (token, exact[:, 150])):
        assert ours.isfinite().all()
        assert (ours.double() - wanted).norm() / wanted.norm() < 8 * torch.finfo(dtype).eps


@every_mixer
@pytest.mark.parametrize("causal", [True, False])
def test_gradcheck(name: str, options: dict, causal: bool) -> None:
    mixer = make(name, options, causal=causal)
    x = noise(1, 6).requires_grad_()
    some = [p for p in mixer.parameters() if p.numel() <= 64][:2]
    assert torch.autograd.gradcheck(lambda a, *_: mixer(a), (x, *some), fast_mode=True)


@every_mixer
def test_state_dict_round_trip(name: str, options: dict) -> None:
    mixer, other = make(name, options), make(name, options)
    x = noise(1, 30)
    assert not torch.equal(mixer(x), other(x))
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(mixer(x), other(x))


@every_mixer
def test_export_runs(name: str, options: dict) -> None:
    mixer = make(name, options, dtype=torch.float32).eval()
    x = noise(1, 48, torch.float32)
    exported = torch.export.export(mixer, (x,))
    torch.testing.assert_close(exported.module()(x), mixer(x), rtol=1e-5, atol=1e-5)


@every_mixer
@pytest.mark.parametrize("causal", [True, False])
def test_compiled_graph_equals_eager(name: str, options: dict, causal: bool) -> None:
    """Capture of forward and backward in one graph; code generation is in the slow suite."""
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
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@every_mixer
def test_wrong_input_is_named(name: str, options: dict) -> None:
    mixer = make(name, options)
    with pytest.raises(ValueError, match="channels=16"):
        mixer(torch.ones(1, 4, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match="length >= 1"):
        mixer(noise(1, 0))
    with pytest.raises(ValueError, match=r"mask must be .*\(2, 8\)"):
        mixer(noise(2, 8), mask=torch.ones(2, 7))
    with pytest.raises(ValueError, match="causal=True"):
        make(name, options, causal=False).init_state(1)
