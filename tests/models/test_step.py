"""The streaming step as a function of tensors."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from tiny_models import tiny, tiny_step

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, StreamingCache
from lagwise.models.step import StreamingStep

case = functools.cache(tiny_step)
_NARROW = {"name": "mega", "memory": {"name": "ema", "dimension": 1}, "query_size": 2, "value_size": 1, "chunk": 4}
KINDS = ("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "tcnca-lm", "megalodon-lm")
KINDS += ("converted", "positions", "family", "context")
kinds = pytest.mark.parametrize("kind", KINDS)


@torch.no_grad()
def test_a_step_of_ski_reaches_as_far_as_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eager stream enlarges its ring of nodes when it is full, after 64 of them; a graph cannot."""
    mixer = {"name": "toeplitz", "kernel": {"name": "warped", "decay": 0.995}, "engine": "ski"}
    block = {"name": "prenorm", "token_mixer": mixer, "channel_mixer": {"name": "none"}}
    model = LagwiseForCausalLM(LagwiseConfig(hidden_size=4, num_hidden_layers=1, block=block)).double().eval()
    for name, parameter in model.named_parameters():
        if "kernel" in name:
            parameter.normal_()
    ids = torch.randint(6, (1, 700))
    expected, cache, step = model(ids).logits, model.model.new_cache(), StreamingStep(model)
    model(ids[:, :560], past_key_values=cache)
    state = step.take(cache)[0]
    monkeypatch.setattr("lagwise.mixers.ski.traced", lambda: True)
    for number in range(560, 700):
        logits, state = step(ids[:, number], state)
        torch.testing.assert_close(logits, expected[:, number], rtol=0, atol=1e-12 * float(expected.abs().max()))
    assert state["0.nodes"].shape[1] > 64


@kinds
@torch.no_grad()
def test_the_step_equals_the_model(kind: str) -> None:
    """From the first token, and from a cache of padded prompts, which give rows different offsets, and back to it."""
    model, ids = case(kind), torch.randint(6, (2, 60))
    step, expected = StreamingStep(model), model(ids).logits
    state = step.start(2)
    shapes = {name: tensor.shape for name, tensor in state.items()}
    for number, tokens in enumerate(ids[:, :30].unbind(1)):
        logits, state = step(tokens, state)
        torch.testing.assert_close(logits, expected[:, number], rtol=0, atol=1e-10 * float(expected.abs().max()))
    assert {name: tensor.shape for name, tensor in state.items()} == shapes
    assert not any(tensor.is_complex() for tensor in state.values())
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    expected = model(ids, attention_mask=mask).logits
    cache = StreamingCache(len(model.model.layers))
    model(ids[:, :30], attention_mask=mask[:, :30], past_key_values=cache)
    state, _ = step.take(cache)
    for number in range(30, 45):
        logits, state = step(ids[:, number], state)
        torch.testing.assert_close(logits, expected[:, number], rtol=0, atol=1e-9)
    step.give([*state.values()], cache)
    after = model(ids[:, 45:], past_key_values=cache).logits
    torch.testing.assert_close(after, expected[:, 45:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", [*KINDS, "narrow"])
@torch.no_grad()
def test_taken_states_have_their_own_memory(kind: str) -> None:
    """The state is modified in place. Views of a single channel or mode could be mistaken for copies."""
    model = tiny("mega-lm", position_embedding="sinusoidal", block=_NARROW) if kind == "narrow" else case(kind)
    cache = StreamingCache(2)
    model(torch.randint(258, (2, 30)), past_key_values=cache)
    step = StreamingStep(model, online=True)
    expected = step.take(cache)[0]
    state, _ = step.take(cache)
    assert all(tensor.is_contiguous() for tensor in state.values())
    for tensor in state.values():
        tensor.fill_(3)
    after = step.take(cache)[0]
    assert all(torch.equal(after[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("recipe", ["tnn-lm", "fd-tnn-lm", "learned-decay"])
@torch.no_grad()
def test_followers_of_exact_kernels(recipe: str) -> None:
    """Over several blocks of every size, from and to positions within a block."""
    model, ids = tiny(recipe, sharp=True), torch.randint(258, (2, 400))
    expected, cache = model(ids).logits, StreamingCache(2)
    model(ids[:, :90], past_key_values=cache)
    step = StreamingStep(model, online=True)
    state, followers = step.take(cache)
    for number in range(90, 350):
        logits, after = step(ids[:, number], state)
        for name, tensor in state.items():
            tensor.copy_(after[name])
        for follower in followers:
            follower.advance()
        torch.testing.assert_close(logits, expected[:, number], rtol=0, atol=1e-9)
    step.give([*state.values()], cache, followers)
    after = model(ids[:, 350:], past_key_values=cache).logits
    torch.testing.assert_close(after, expected[:, 350:], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "mixer",
    [
        {"name": "relative_attention", "heads": 2, "memory": 16},
        {"name": "flash", "chunk": 8},
        {"name": "ema", "truncation": 20},
        {"name": "ema"},
    ],
    ids=lambda mixer: "-".join(map(str, mixer.values())),
)
def test_a_state_after_a_prompt_under_autocast_has_the_types_of_the_step(
    mixer: dict[str, Any], device: torch.device
) -> None:
    """Compiled steps read its memory as theirs."""
    block = {"name": "prenorm", "token_mixer": mixer}
    model = LagwiseForCausalLM(LagwiseConfig(vocab_size=17, hidden_size=8, num_hidden_layers=1, block=block)).eval()
    step = StreamingStep(model)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        cache = model(torch.arange(10)[None], use_cache=True).past_key_values
    taken = step.take(cache)[0]
    assert {n: t.dtype for n, t in taken.items()} == {n: t.dtype for n, t in step.start(1).items()}
