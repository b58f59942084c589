"""Online convolution against the product of the whole signal."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.ops import online_prefill, toeplitz_product
from lagwise.ops.streaming import OnlineFollower, OnlineState, OnlineTaps, due_state, due_step, online_block
from lagwise.ops.streaming.online import ONLINE_BLOCK
from lagwise.ops.window import Window

CHANNELS = 3


def stream(taps: Tensor, *, batch: int = 2, ends: bool = False) -> OnlineState:
    """A state for finite taps, or for taps that are computed on demand, with zeros beyond those given."""
    made = OnlineTaps(lambda n: F.pad(taps, (0, max(0, n - taps.shape[1])))[:, :n], taps.shape[1] if ends else None)
    return OnlineState.start(batch, made)


def walk(x: Tensor, state: OnlineState, sizes: Callable[[], int]) -> tuple[Tensor, OnlineState]:
    parts, start = [], 0
    while start < x.shape[1]:
        y, state = online_prefill(x[:, start : start + sizes()], state)
        start += y.shape[1]
        parts.append(y)
    return torch.cat(parts, 1), state


def sizes_from(seed: int, most: int) -> Callable[[], int]:
    generator = torch.Generator().manual_seed(seed)
    return lambda: max(1, int(torch.randint(-most, most, (), generator=generator, device="cpu")))


@pytest.mark.parametrize(
    ("length", "reach"), [(1, None), (200, None), (4096, None), (1500, 5), (1500, 70), (4096, 1833)]
)
@pytest.mark.parametrize("most", [1, 600])
def test_any_chunks_give_the_whole_product(length: int, reach: int | None, most: int) -> None:
    taps = torch.randn(CHANNELS, reach or length, dtype=torch.float64)
    x = torch.randn(2, length, CHANNELS, dtype=torch.float64)
    whole = toeplitz_product(x, taps, engine="dense" if length < 2000 else "fft")
    with torch.inference_mode():
        y, state = walk(x, stream(taps, ends=reach is not None), sizes_from(length, most))
    torch.testing.assert_close(y, whole, rtol=0, atol=1e-10)
    assert state.seen == length
    if length < 2000 and most > 1:  # gradients on: nothing is remembered in place
        y, _ = walk(x, stream(taps, ends=reach is not None), sizes_from(length + 1, most))
        torch.testing.assert_close(y, whole, rtol=0, atol=1e-10)


@torch.no_grad()
def test_steps_that_change_a_state_in_place_give_the_whole_product() -> None:
    taps, x = torch.randn(CHANNELS, 700, dtype=torch.float64), torch.randn(2, 700, CHANNELS, dtype=torch.float64)
    whole, state = toeplitz_product(x, taps), online_block(walk(x[:, :150], stream(taps), lambda: 150)[1])
    fixed = due_state(state)
    follower = OnlineFollower(state, fixed)
    for i in range(150, 600):
        y, after = due_step(x[:, i], fixed, taps[:, :ONLINE_BLOCK].t())
        torch.testing.assert_close(y, whole[:, i], rtol=0, atol=1e-10)
        for own, new in zip(fixed, after, strict=True):
            own.copy_(new)
        follower.advance()
    y, _ = walk(x[:, 600:], follower.stopped(), lambda: 37)
    torch.testing.assert_close(y, whole[:, 600:], rtol=0, atol=1e-10)


def test_one_row_is_repeated_as_a_view() -> None:
    """Rows of an expanded tensor share memory, and the state writes further channels into its tensors."""
    taps, x = torch.randn(64, 2048, dtype=torch.float64), torch.randn(3, 1400, 64, dtype=torch.float64)
    x[:, :1100] = x[0, :1100]
    with torch.no_grad():
        for start in (1025, 1040, 1060, 1090):  # some channels of the product with older tokens are computed
            _, state = walk(x[:1, :start], stream(taps, batch=1), lambda: 1)
            y, _ = walk(x[:, start:], state.map_batch(lambda t: t.expand(3, *t.shape[1:])), lambda: 1)
            torch.testing.assert_close(y, toeplitz_product(x, taps)[:, start:], rtol=0, atol=1e-10)


@pytest.mark.real_device
def test_a_stream_continues_in_another_mode() -> None:
    """Tensors from inference mode cannot be modified outside it, so they are computed again."""
    taps, x = torch.randn(CHANNELS, 900), torch.randn(2, 900, CHANNELS)
    with torch.inference_mode():
        y, state = walk(x[:, :301], stream(taps), lambda: 1)
    with torch.no_grad():
        rest, _ = walk(x[:, 301:], copy.deepcopy(state), lambda: 1)
    torch.testing.assert_close(torch.cat([y, rest], 1), toeplitz_product(x, taps), rtol=1e-4, atol=1e-4)


def elements(state: OnlineState) -> int:
    tensors = {id(t): t.untyped_storage().size() for t in _tensors(state)}
    return sum(tensors.values())


def _tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Window):
        return [value._buffer.storage]
    if isinstance(value, tuple | list):
        return [t for v in value for t in _tensors(v)]
    if isinstance(value, dict):
        return _tensors(list(value.values()))
    return _tensors(list(vars(value).values())) if hasattr(value, "__dict__") and not callable(value) else []


def test_memory_and_work_are_bounded_by_the_taps(monkeypatch: pytest.MonkeyPatch) -> None:
    work = counted(monkeypatch)
    taps, state = torch.randn(CHANNELS, 300), None
    with torch.no_grad():
        state = stream(taps, batch=1, ends=True)
        sizes, works = [], []
        for _ in range(8):
            work.clear()
            _, state = walk(torch.randn(1, 1024, CHANNELS), state, lambda: 1)
            sizes.append(elements(state))
            works.append(sum(work))
    assert sizes[2] == sizes[4] == sizes[7]
    assert works[2] == works[4] == works[7]


@pytest.mark.parametrize("reach", [None, 10_000_000])
def test_no_more_taps_are_computed_than_the_text_needs(reach: int | None) -> None:
    """A slowly decaying kernel costs the same as an infinite one."""
    asked: list[int] = []

    def make(n: int) -> Tensor:
        asked.append(n)
        return torch.randn(CHANNELS, 1, dtype=torch.float64).expand(-1, n)

    state = OnlineState.start(1, OnlineTaps(make, reach))
    with torch.no_grad():
        _, state = walk(torch.randn(1, 100, CHANNELS), state, lambda: 1)
        assert sum(asked) <= 2048
        walk(torch.randn(1, 8000, CHANNELS), state, lambda: 500)
    assert sum(asked) <= 4 * 8 * 8192


def counted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The approximate multiplications of every transform from now on."""
    work: list[float] = []
    for name in ("rfft", "irfft"):
        function = getattr(torch.fft, name)

        def count(x: Tensor, n: int | None = None, function: Callable = function) -> Tensor:
            points = n or x.shape[-1]
            work.append(x.numel() / x.shape[-1] * points * math.log2(points))
            return function(x, n)

        monkeypatch.setattr(torch.fft, name, count)
    return work


def test_cost_per_token_is_even_and_log_squared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large transforms are spread over tokens: at 16,384 tokens of 64 channels, no token costs more than the transforms
    of a block of 1,024 and a share of larger ones."""
    work = counted(monkeypatch)
    channels, length = 64, 16384
    state, costs = stream(torch.randn(channels, length), batch=1), []
    with torch.no_grad():
        for x in torch.randn(1, length, channels).split(1, dim=1):
            work.clear()
            _, state = online_prefill(x, state)
            costs.append(sum(work))
    levels = math.log2(length / 64)
    assert sum(costs) < 8 * length * channels * levels * math.log2(length)
    assert max(costs) < 5 * channels * 2048 * math.log2(2048)  # three of these are of inputs, taps and outputs


def test_wrong_input_is_named() -> None:
    state = stream(torch.randn(CHANNELS, 10))
    for shape in ((1, 4, CHANNELS), (2, 4, 5), (2, 0, CHANNELS)):
        with pytest.raises(ValueError, match=r"x must be \(batch=2, length >= 1, channels=3\)"):
            online_prefill(torch.randn(shape), state)
