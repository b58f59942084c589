"""The mixer contract for streaming, for every mixer in the table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_mixer import CHANNELS, every_stream, factory, make, noise
from torch import Tensor

from lagwise import testing
from lagwise.mixers.base import state_grows
from lagwise.mixers.state import detached, join_states, renewed, select_rows
from lagwise_papers.bench.streams import state_bytes


@pytest.mark.sampled(2)
@every_stream
@pytest.mark.parametrize("length", [1, 3, 64, 301])
def test_streaming_equals_forward(name: str, options: dict, length: int) -> None:
    testing.check_streaming(factory(name, options), CHANNELS, [length])


@every_stream
def test_streaming_in_float32(name: str, options: dict) -> None:
    mixer = make(name, options, dtype=torch.float32)
    x = noise(2, 500, torch.float32)
    whole = mixer(x)
    error = (testing.streamed(mixer, x, [1, 7, 300, 1, 64]) - whole).abs().max() / whole.abs().max()
    assert error < 1e-5


@every_stream
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
@torch.no_grad()
def test_streaming_to_4096_tokens(name: str, options: dict, dtype: torch.dtype, tolerance: float) -> None:
    """Token by token and in random chunks, up to the kernel's reach."""
    mixer = make(name, options, dtype=dtype)
    limits = (getattr(m, "max_length", None) for m in mixer.modules())
    length = min([4096, *(limit for limit in limits if limit is not None)])
    x = noise(1, length, dtype)
    whole = mixer(x)
    generator = torch.Generator().manual_seed(0)
    sizes: list[int] = []
    while length - sum(sizes) > 600:
        sizes.append(max(1, int(torch.randint(-300, 600, (), generator=generator, device="cpu"))))
    for streamed in (testing.streamed(mixer, x, sizes), testing.streamed(mixer, x, [1] * length)):
        error = (streamed - whole).abs().max() / whole.abs().max()
        assert error < tolerance, f"{error:.1e}"


@every_stream
def test_streaming_beyond_the_kernels_reach(name: str, options: dict) -> None:
    """Beyond the horizon (in float32, 175 lags at decay 0.9) the state stops growing, and outputs still equal
    forward's."""
    mixer = make(name, options, dtype=torch.float32)
    x = noise(1, 1050, torch.float32)
    whole = mixer(x)
    torch.testing.assert_close(testing.streamed(mixer, x, [300, 1, 300, 1, 1, 400]), whole, rtol=1e-3, atol=1e-4)


@every_stream
@torch.no_grad()
def test_a_stream_that_all_rows_have_left_goes_on(name: str, options: dict) -> None:
    mixer = make(name, options, dtype=torch.float32)
    _, full = mixer.prefill(noise(2, 60, torch.float32), mixer.init_state(2))
    state = select_rows(full, torch.tensor([], dtype=torch.long))
    for size in (*[1] * 6, 130):
        y, state = mixer.prefill(noise(0, size, torch.float32), state)
        assert y.shape == (0, size, CHANNELS)
    with pytest.raises(ValueError, match="the stream's 2 rows, got 0"):
        mixer.step(noise(0, 1, torch.float32)[:, 0], full)


@every_stream
@torch.no_grad()
def test_a_new_stream_uses_the_present_weights(name: str, options: dict) -> None:
    """Also those written through ``.data``, whose versions PyTorch does not count, as some averages of weights are."""
    mixer, x, sizes = make(name, options), noise(2, 12), [1, 1, 4, 1, 1, 4]
    testing.streamed(mixer, x, sizes)
    for parameter in mixer.parameters():
        parameter.data.mul_(0.5)
    torch.testing.assert_close(testing.streamed(mixer, x, sizes), mixer(x), rtol=0, atol=1e-9)


@every_stream
def test_an_old_state_stays_valid(name: str, options: dict) -> None:
    """Needed for branching in generation."""
    testing.check_old_states(factory(name, options), CHANNELS)


@pytest.mark.sampled(2)
@every_stream
def test_joined_states_continue_as_if_alone(name: str, options: dict) -> None:
    testing.check_joined_states(factory(name, options), CHANNELS)


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


@pytest.mark.parametrize(("name", "options"), CONSTANT, ids=lambda v: str(v) if v else "default")
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


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *CONSTANT,
        ("attention", {}),
        ("toeplitz", {"kernel": {"name": "rpe", "decay": 1.0}}),
        ("toeplitz", {"kernel": {"name": "rpe", "decay": 1.0}, "engine": {"name": "ski", "spacing": 5}}),
    ],
    ids=lambda v: str(v) if v else "default",
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
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (3, 1), (3, 5)])
def test_tokens_of_other_rows_are_refused(name: str, options: dict, rows: int, length: int) -> None:
    mixer = make(name, options, dtype=torch.float32)
    _, state = mixer.prefill(noise(2, 5, torch.float32), mixer.init_state(2))
    with pytest.raises(ValueError, match=rf"the stream's 2 rows, got {rows}|\(batch=2, .* got \({rows}, "):
        mixer.prefill(noise(rows, length, torch.float32), state)


@every_stream
def test_padding_anywhere_while_streaming(name: str, options: dict) -> None:
    testing.check_padding_anywhere(factory(name, options), CHANNELS)


@every_stream
def test_a_step_takes_one_token(name: str, options: dict) -> None:
    mixer = make(name, options)
    state = mixer.init_state(2)
    assert mixer.step(noise(2, 1)[:, 0], state)[0].shape == (2, CHANNELS)
    with pytest.raises(ValueError, match=rf"takes one token \(batch, {CHANNELS}\), got \(2, 1, {CHANNELS}\)"):
        mixer.step(noise(2, 1), state)


@every_stream
def test_a_state_carried_on_in_training(name: str, options: dict) -> None:
    """As a constant it gives the outputs of the whole sequence, and gradients for the parameters as they are now: those
    of finite differences with the same state. A growing state is not carried."""
    mixer = make(name, options, causal=True)
    if state_grows(mixer):
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
