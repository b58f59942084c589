"""The mixer contract, for every entry of the table: streaming."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from every_mixer import every_stream, make, noise
from torch import Tensor

from lagwise.bench.streams import state_bytes
from lagwise.mixers import Mixer


def in_chunks(mixer: Mixer, x: Tensor, sizes: list[int]) -> Tensor:
    """Prefill x in chunks of these sizes (and the rest in one)."""
    state, parts, start = mixer.init_state(x.shape[0]), [], 0
    for size in (*sizes, x.shape[1] - sum(sizes)):
        if size:
            y, state = mixer.prefill(x[:, start : start + size], state)
            parts.append(y)
            start += size
    return torch.cat(parts, dim=1)


@every_stream
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


@every_stream
def test_streaming_in_float32(name: str, options: dict) -> None:
    mixer = make(name, options, dtype=torch.float32)
    x = noise(2, 500, torch.float32)
    whole = mixer(x)
    error = (in_chunks(mixer, x, [1, 7, 300, 1, 64]) - whole).abs().max() / whole.abs().max()
    assert error < 1e-5


@every_stream
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
@torch.no_grad()
def test_streaming_to_4096_tokens(name: str, options: dict, dtype: torch.dtype, tolerance: float) -> None:
    """Token by token and in random chunks, as far as a kernel goes."""
    mixer = make(name, options, dtype=dtype)
    limits = (getattr(m, "max_length", None) for m in mixer.modules())
    length = min([4096, *(limit for limit in limits if limit is not None)])
    x = noise(1, length, dtype)
    whole = mixer(x)
    generator = torch.Generator().manual_seed(0)
    sizes: list[int] = []
    while length - sum(sizes) > 600:
        sizes.append(max(1, int(torch.randint(-300, 600, (), generator=generator))))
    for streamed in (in_chunks(mixer, x, sizes), in_chunks(mixer, x, [1] * length)):
        error = (streamed - whole).abs().max() / whole.abs().max()
        assert error < tolerance, f"{error:.1e}"


@every_stream
def test_streaming_beyond_the_kernels_reach(name: str, options: dict) -> None:
    """Past the horizon (in float32, 175 lags at decay 0.9) the state stops growing and still gives forward's output."""
    mixer = make(name, options, dtype=torch.float32)
    x = noise(1, 1050, torch.float32)
    whole = mixer(x)
    torch.testing.assert_close(in_chunks(mixer, x, [300, 1, 300, 1, 1, 400]), whole, rtol=1e-3, atol=1e-4)


@every_stream
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


@every_stream
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


class Rows:
    """Signals of different length that stream together, and what each must give alone."""

    def __init__(self, mixer: Mixer, lengths: list[int]):
        self.mixer = mixer
        self.signals = [noise(1, n) for n in lengths]
        self.expected = [mixer(x) for x in self.signals]
        self.at = [0] * len(lengths)

    def begin(self, row: int, tokens: int) -> Any:
        """The state of a row by itself, after some tokens."""
        state, self.at[row] = self.mixer.init_state(1), tokens
        return self.mixer.prefill(self.signals[row][:, :tokens], state)[1] if tokens else state

    def go_on(self, rows: list[int], state: Any, sizes: list[int], *, padding: tuple[int, ...] = ()) -> Any:
        """Stream these rows on, by `step` where a size is 1; padding before the rows' first tokens, in one chunk."""
        for size in sizes:
            left = [min(size, n) for n in padding or [0] * len(rows)]
            parts = [self.signals[r][:, self.at[r] : self.at[r] + size - n] for r, n in zip(rows, left, strict=True)]
            x = torch.cat([F.pad(part, (0, 0, n, 0), value=7.0) for part, n in zip(parts, left, strict=True)])
            if size == 1:
                token, state = self.mixer.step(x[:, 0], state)
                y = token[:, None]
            else:
                mask = torch.arange(size) >= torch.tensor(left)[:, None] if padding else None
                y, state = self.mixer.prefill(x, state, mask=mask)
            for i, (row, n) in enumerate(zip(rows, left, strict=True)):
                end = self.at[row] + size - n
                torch.testing.assert_close(y[i, n:], self.expected[row][0, self.at[row] : end], rtol=0, atol=1e-9)
                self.at[row] = end
        return state


@every_stream
def test_joined_states_go_on_as_each_would_alone(name: str, options: dict) -> None:
    """Requests join and leave a batch that runs: rows that have seen different numbers of tokens, or none."""
    rows = Rows(make(name, options), [260, 80, 60, 100, 60, 60])
    state = rows.begin(0, 193).join([rows.begin(0, 193), rows.begin(1, 1), rows.begin(2, 0), rows.begin(3, 38)])
    state = rows.go_on([0, 1, 2, 3], state, [1, 1, 1, 15, 1, 2, 1, 20])
    left = state.map_batch(lambda t: t[torch.tensor([3, 1])])
    again = left.join([left, rows.begin(4, 5), rows.begin(5, 0)])
    again = rows.go_on([3, 1, 4, 5], again, [9], padding=(0, 0, 0, 4))
    rows.go_on([3, 1, 4, 5], again, [1, 7, 1])
    rows.go_on([0, 2], state.map_batch(lambda t: t[torch.tensor([0, 2])]), [1, 6])  # the old state stays valid


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
        for length in (620, 3308):  # at one place in their blocks
            state = mixer.init_state(2)
            for size in (length - 120, 60, 40, *[1] * 20):
                _, state = mixer.prefill(noise(2, size, torch.float32), state)
                held.setdefault(length, []).append(state_bytes(state))
    assert max(held[3308]) <= max(held[620])


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
def test_memory_of_a_batch_is_that_of_the_rows_in_it(name: str, options: dict) -> None:
    """Not of those that have left, nor of the time that it has been running: servers' batches never end."""
    mixer = make(name, options, dtype=torch.float32)

    def fresh(length: int) -> Any:
        return mixer.prefill(noise(1, length, torch.float32), mixer.init_state(1))[1]

    state, held = fresh(300).join([fresh(300), fresh(300), fresh(300)]), []
    for turn in range(25):
        rest = state.map_batch(lambda t: t[1:])
        state = rest.join([rest, fresh(40 + 7 * turn % 40)])
        for _ in range(6):
            _, state = mixer.step(noise(3, 1, torch.float32)[:, 0], state)
        held.append(state_bytes(state))
    assert max(held[5:]) <= held[0]  # of 300 tokens then, of less than 100 since


@every_stream
def test_left_padding_while_streaming(name: str, options: dict) -> None:
    mixer = make(name, options)
    x = noise(1, 40)
    padded = torch.cat([1e3 * noise(1, 5), x], dim=1)
    mask = torch.tensor([[0] * 5 + [1] * 40])
    y, state = mixer.prefill(padded[:, :25], mixer.init_state(1), mask=mask[:, :25])
    rest, state = mixer.prefill(padded[:, 25:], state, mask=mask[:, 25:])
    torch.testing.assert_close(torch.cat([y, rest], 1)[:, 5:], mixer(x), rtol=0, atol=1e-9)
