"""Chunked attention as a layer: streams with rows at different offsets, windows, positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lagwise.mixers import ChunkedAttention, ChunkedAttentionMixer
from lagwise.mixers.chunked_attention import ChunkState
from lagwise.ops import chunked_attention
from lagwise.ops.attention import rotary
from lagwise.ops.window import Window
from lagwise.testing import check_mixer

CHANNELS, CHUNK = 8, 5
every_kind = pytest.mark.parametrize(
    "options",
    [
        {},
        {"position": "none", "heads": 2},
        {"function": "laplace", "position": "simple", "heads": 2},
        {"function": "relu2", "position": "rotary"},
        {"position": "rotary", "heads": 2},
        {"sliding": True, "heads": 2},
        {"sliding": True, "function": "laplace", "position": "simple"},
        {"sliding": True, "function": "relu2", "position": "rotary", "heads": 2},
    ],
    ids=str,
)


def make(options: dict[str, Any], chunk: int = CHUNK) -> ChunkedAttentionMixer:
    mixer = ChunkedAttentionMixer(CHANNELS, chunk=chunk, **options).double()
    with torch.no_grad():  # a fresh bias is so small that leaving it out would hardly show
        for name, parameter in mixer.attention.named_parameters():
            assert name in ("lag_table", "rotary_pair")
            parameter.mul_(30)
    return mixer


def noise(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, CHANNELS, dtype=torch.float64)


def kept(state: ChunkState) -> int:
    assert isinstance(state.key, Window)
    assert isinstance(state.value, Window)
    assert state.key.size == state.value.size
    return state.key.size


@every_kind
@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("sizes", [[4, 1, 1], [17, 1, 13, 2]], ids=str)
def test_rows_with_different_offsets_stream_as_if_alone(options: dict, chunk: int, sizes: list[int]) -> None:
    """Left-padded prompts of different lengths, then more tokens over several chunk boundaries."""
    mixer = make(options, chunk)
    lengths, prompt, total = (13, 1, 8, 11), 13, 50
    x = 1e3 * noise(4, total)
    texts = [noise(1, n + total - prompt) for n in lengths]
    for row, text in enumerate(texts):
        x[row, total - text.shape[1] :] = text[0]
    mask = torch.arange(prompt) >= prompt - torch.tensor(lengths)[:, None]
    y, state = mixer.prefill(x[:, :prompt], mixer.init_state(4), mask=mask)
    parts, start = [y], prompt
    while start < total:
        size = min(sizes[len(parts) % len(sizes)], total - start)
        given = None if len(parts) % 2 else torch.ones(4, size)  # `generate` passes a mask at every token
        y, state = mixer.prefill(x[:, start : start + size], state, mask=given)
        parts.append(y)
        start += size
        assert kept(state) == min(start, chunk * mixer.attention.chunks)
    streamed = torch.cat(parts, 1)
    assert streamed.isfinite().all()
    for row, text in enumerate(texts):
        torch.testing.assert_close(streamed[row : row + 1, total - text.shape[1] :], mixer(text), rtol=0, atol=1e-9)


@pytest.mark.parametrize("chunk", [1, 9])
def test_sliding_chunks_obey_the_contract_of_mixers(chunk: int) -> None:
    def factory(channels: int, causal: bool) -> ChunkedAttentionMixer:
        return ChunkedAttentionMixer(channels, causal=causal, chunk=chunk, sliding=causal)

    check_mixer(factory, lengths=(1, 2, 3, 64, 1021))


def test_sliding_chunks_are_as_exact_far_into_a_text() -> None:
    """Angles of positions in float32 would be off by a quarter of a radian here."""
    mixer = ChunkedAttentionMixer(CHANNELS, chunk=8, sliding=True)
    x, far = torch.randn(1, 30, CHANNELS), 4_000_000
    state = mixer.init_state(1)
    y, _ = mixer.prefill(x, state._replace(seen=state.seen + far))
    torch.testing.assert_close(y, mixer(x), rtol=0, atol=1e-6)


@pytest.mark.cpu  # values on a GPU are not read for it
@pytest.mark.parametrize(("padded", "wasted"), [(False, 20 % 16), (True, 14)])
def test_a_long_prompt_wastes_less_than_a_chunk(padded: bool, wasted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries of earlier tokens are recomputed for alignment: none at first, then only those of one chunk."""
    lengths = []

    def count(query: Tensor, *args: Any, **options: Any) -> Tensor:
        lengths.append(query.shape[2])
        return chunked_attention(query, *args, **options)

    monkeypatch.setattr("lagwise.mixers.chunked_attention.chunked_attention", count)
    mixer = make({}, 16)
    mask = torch.arange(20)[None] >= 6 * padded
    _, state = mixer.prefill(noise(1, 20), mixer.init_state(1), mask=mask)
    mixer.prefill(noise(1, 300), state)
    assert lengths == [20, 300 + wasted]


@pytest.mark.covers("TCNCA app. F")
@every_kind
@pytest.mark.parametrize("evaluation_chunk", [3, 11])
def test_evaluation_may_use_another_chunk(options: dict, evaluation_chunk: int) -> None:
    """TCNCA uses different chunk sizes for training and evaluation."""
    mixer, x = make({**options, "evaluation_chunk": evaluation_chunk}), noise(2, 37)
    outputs = {}
    for training in (True, False):
        mixer.train(training)
        outputs[training] = mixer(x)
        state, parts = mixer.init_state(2), []
        for part in x.split([6, 1, 1, 14, *[1] * 15], dim=1):
            y, state = mixer.prefill(part, state)
            parts.append(y)
        torch.testing.assert_close(torch.cat(parts, 1), outputs[training], rtol=0, atol=1e-9)
        assert kept(state) == (5 if training else evaluation_chunk) * mixer.attention.chunks
    torch.testing.assert_close(outputs[True][:, :3], outputs[False][:, :3], rtol=0, atol=1e-9)
    assert not torch.allclose(outputs[True], outputs[False])


@every_kind
@pytest.mark.parametrize("evaluation_chunk", [3, 11])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_stream_keeps_its_initial_chunk(options: dict, evaluation_chunk: int, gradients: bool) -> None:
    """Also in single steps, whose biases are remembered from those of other streams."""
    mixer, x = make({**options, "evaluation_chunk": evaluation_chunk}), noise(1, 30)
    with torch.set_grad_enabled(gradients):
        for training in (True, False):
            whole = mixer.train(training)(x)
            _, state = mixer.prefill(x[:, :8], mixer.init_state(1))
            mixer.train(not training)
            parts = []
            for part in x[:, 8:].split([1, 9, 1, 1, 10], dim=1):
                y, state = mixer.prefill(part, state)
                parts.append(y)
            torch.testing.assert_close(torch.cat(parts, 1), whole[:, 8:], rtol=0, atol=1e-9)


@pytest.mark.covers("MEGA app. D.1")
@pytest.mark.parametrize("heads", [1, 2])
def test_positions_equal_their_definitions(heads: int) -> None:
    q, k, v = torch.randn(3, 2, heads, 13, 4, dtype=torch.float64)
    place = torch.arange(13) % 5
    exact = chunked_attention(rotary(q, place), rotary(k, place), v, chunk=5)
    torch.testing.assert_close(ChunkedAttention(4, heads=heads, chunk=5)(q, k, v), exact, rtol=0, atol=1e-10)
    i, j = torch.arange(5)[:, None], torch.arange(5)
    simple = ChunkedAttention(4, heads=heads, chunk=5, position="simple", evaluation_chunk=7).double()
    assert simple.lag_table is not None
    assert simple.lag_table.shape == (heads, 13)
    bias = simple.lag_table[:, i - j + 6]
    torch.testing.assert_close(simple(q, k, v), chunked_attention(q, k, v, chunk=5, bias=bias), rtol=0, atol=1e-10)
    additive = ChunkedAttention(4, heads=heads, chunk=5, position="rotary").double()
    assert additive.rotary_pair is not None
    a, b = (rotary(t[:, None].expand(heads, 5, 4), torch.arange(5)) for t in additive.rotary_pair)
    bias = a @ b.transpose(1, 2)
    torch.testing.assert_close(additive(q, k, v), chunked_attention(q, k, v, chunk=5, bias=bias), rtol=0, atol=1e-10)


@pytest.mark.cpu
def test_weights_may_be_unaligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory-mapped weights are not aligned to complex numbers, which compiled code may assume."""
    view = torch.view_as_complex

    def checked(x: Tensor) -> Tensor:
        assert x.data_ptr() % (2 * x.element_size()) == 0
        return view(x)

    monkeypatch.setattr(torch, "view_as_complex", checked)
    memory = np.zeros(256, dtype=np.uint8)
    start = -memory.ctypes.data % 64 + 8
    weights = torch.from_numpy(np.frombuffer(memory.data, dtype=np.float64, count=16, offset=start))
    attention = ChunkedAttention(4, heads=2, chunk=5, position="rotary").double()
    attention.rotary_pair = torch.nn.Parameter(weights.view(2, 2, 4))
    q, k, v = torch.randn(3, 2, 2, 13, 4, dtype=torch.float64)
    attention(q, k, v).sum().backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads must divide the 8 channels, got 3"),
        ({"heads": 8}, "'rope' needs an even size of queries, got 1"),
        ({"heads": 8, "position": "rotary"}, "'rotary' needs an even size"),
        ({"chunk": 0}, "chunk must be .*at least 1, got 0"),
        ({"sliding": True, "causal": False}, "sliding chunks need causal attention"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChunkedAttentionMixer(8, **options)


def test_wrong_arguments_of_the_core_are_named() -> None:
    with pytest.raises(ValueError, match="causal=True"):
        ChunkedAttention(4, causal=False).init_state(1, 4, like=torch.zeros(1))
