"""Estimates of memory, and errors before memory is allocated."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from tiny_models import RECIPES, tiny

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, memory

CONFIG = LagwiseConfig(hidden_size=16, num_hidden_layers=3)


@pytest.mark.real_device  # the pretended one does not keep weights tied in .double()
@pytest.mark.parametrize("name", RECIPES)
def test_parameters_are_counted_from_one_block(name: str) -> None:
    model = tiny(name)
    assert memory.parameter_count(type(model), model.config) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("training", "size"), [(False, 4), (True, 16)])
def test_a_model_over_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch, training: bool, size: int) -> None:
    needed = size * sum(p.numel() for p in LagwiseForCausalLM(CONFIG).parameters())
    monkeypatch.setattr(memory, "available_memory", lambda: needed)
    memory.check_memory(LagwiseForCausalLM, CONFIG, training=training)
    monkeypatch.setattr(memory, "available_memory", lambda: needed - 1)
    with pytest.raises(ValueError, match=r"parameters takes .* GB of memory.* smaller"):
        memory.check_memory(LagwiseForCausalLM, CONFIG, training=training)


@pytest.mark.parametrize("changed", [{"rows": 400}, {"length": 400}, {"checkpointing": False}])
def test_a_step_over_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]) -> None:
    step = {"rows": 4, "length": 100, "checkpointing": True}
    config = LagwiseConfig(hidden_size=16, num_hidden_layers=3, vocab_size=60)  # small enough for all logits at once
    monkeypatch.setattr(memory, "available_memory", lambda: 4 * 400 * (3 * 16 + 2 * 60))
    memory.check_step_memory(LagwiseForCausalLM, config, **step)
    with pytest.raises(ValueError, match=r"a step of .* training\.batch_size"):
        memory.check_step_memory(LagwiseForCausalLM, config, **{**step, **changed})


def test_images_over_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory", lambda: 4 * 10 * 3 * 20 * 30)
    memory.check_images_memory(10, 3, 20, 30)
    with pytest.raises(ValueError, match=r"first answer of 10 images of 20 x 31 pixels .* smaller"):
        memory.check_images_memory(10, 3, 20, 31)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "linear_cross_entropy"), reason="PyTorch before 2.13")
def test_logits_of_a_large_vocabulary_need_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 4 * 400 * 3 * 16)
    memory.check_step_memory(LagwiseForCausalLM, CONFIG, rows=4, length=100, checkpointing=True)
    with pytest.raises(ValueError, match=r"a step of .* training\.batch_size"):  # whose gradients are scaled first
        memory.check_step_memory(LagwiseForCausalLM, CONFIG, rows=4, length=100, checkpointing=True, float16=True)


def test_hidden_states_that_nobody_asked_for_are_not_kept() -> None:
    model = tiny("tnn-lm", num_hidden_layers=3).eval()
    inputs: list[weakref.ref[torch.Tensor]] = []

    def note(layer: Any, given: tuple[torch.Tensor, ...]) -> None:
        inputs.append(weakref.ref(given[0]))
        if len(inputs) == 3:
            assert inputs[1]() is None

    for layer in model.model.layers:
        layer.register_forward_pre_hook(note)
    with torch.no_grad():
        model(torch.arange(20)[None], use_cache=False)
    assert len(inputs) == 3


def test_a_block_with_too_many_layers_is_not_built() -> None:
    kernel = {"name": "rpe", "layers": 10**7}
    block = {"name": "prenorm", "token_mixer": {"name": "gtu", "kernel": kernel}}
    with pytest.raises(ValueError, match="over 10000 parameter tensors"):
        memory.check_memory(LagwiseForCausalLM, LagwiseConfig(block=block), training=False)
