"""Models used with libraries that replace layers or offload weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from tiny_models import RECIPES, VARIANTS, tiny
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from lagwise.models import LagwiseForCausalLM, StreamingSession

every_model = pytest.mark.parametrize("recipe", [*RECIPES, *VARIANTS])
TOKENS = torch.arange(60).view(2, 30) * 7 % 258


@pytest.fixture(autouse=True)
def _tokens_are_on_the_device(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(sys.modules[__name__], "TOKENS", TOKENS.to(device))


class Adapter(nn.Module):
    """A replacement for a linear layer as in LoRA: it has only `forward`."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(2, base.in_features).to(base.weight))
        self.up = nn.Parameter(torch.zeros(base.out_features, 2).to(base.weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


def logits_and_text(model: LagwiseForCausalLM) -> tuple[Tensor, Any]:
    with torch.no_grad():
        logits = model(TOKENS, use_cache=False).logits
    return logits, model.generate(TOKENS, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)


@pytest.mark.sampled(3)
@every_model
def test_linear_layers_can_be_replaced(recipe: str) -> None:
    model = tiny(recipe)
    expected = logits_and_text(model)
    layers = [name for name, module in model.model.layers.named_modules() if isinstance(module, nn.Linear)]
    for name in layers:
        parent, _, child = name.rpartition(".")
        setattr(model.model.layers.get_submodule(parent), child, Adapter(model.model.layers.get_submodule(name)))
    torch.testing.assert_close(logits_and_text(model), expected)
    model.train()(TOKENS, labels=TOKENS).loss.backward()
    adapters = [model.model.layers.get_submodule(name) for name in layers]
    assert adapters
    assert all(adapter.up.grad is not None and adapter.up.grad.any() for adapter in adapters)


@pytest.mark.sampled(3)
@every_model
def test_per_row_gradients_by_torch_func(recipe: str) -> None:
    model = tiny(recipe)

    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(model, parameters, (row[None],), {"labels": row[None]}).loss

    given = {name: p.detach() for name, p in model.named_parameters()}
    rows = vmap(grad(loss), (None, 0))(given, TOKENS)
    model(TOKENS, labels=TOKENS).loss.backward()  # the mean of the rows' losses
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(rows[name].mean(0), parameter.grad, rtol=1e-7, atol=1e-12)


@pytest.mark.sampled(3)
@pytest.mark.real_device
@every_model
def test_weights_may_be_offloaded(recipe: str, device: torch.device) -> None:
    model = tiny(recipe)
    expected = logits_and_text(model)
    offloaded = cpu_offload(model, execution_device=device)
    assert all(p.is_meta for p in offloaded.parameters())
    torch.testing.assert_close(logits_and_text(offloaded), expected, rtol=0, atol=0)
    assert all(p.is_meta for p in offloaded.parameters())


@pytest.mark.real_device
def test_functions_that_need_all_weights_refuse_offloaded_ones(device: torch.device) -> None:
    offloaded = cpu_offload(tiny("tnn-lm"), execution_device=device)
    for use in (StreamingSession, LagwiseForCausalLM.to_recurrent):
        with pytest.raises(ValueError, match=r"weights in memory, .* are offloaded"):
            use(offloaded)


@pytest.mark.slow
@every_model
def test_lora_by_peft(recipe: str) -> None:
    peft = pytest.importorskip("peft")
    model = tiny(recipe)
    expected = logits_and_text(model)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=2))
    torch.testing.assert_close(logits_and_text(adapted), expected)
    adapted.train()(input_ids=TOKENS, labels=TOKENS).loss.backward()
    ups = [p for name, p in adapted.named_parameters() if "lora_B" in name]
    assert ups
    assert all(p.grad is not None and p.grad.any() for p in ups)
    with torch.no_grad():
        for p in ups:
            p.normal_()
    changed = logits_and_text(adapted.eval())
    assert (changed[0] - expected[0]).abs().max() > 1e-3
    torch.testing.assert_close(logits_and_text(adapted.merge_and_unload()), changed)


@pytest.mark.slow
def test_added_tokens_by_peft() -> None:
    """peft replaces the embedding by a module that has only its weight."""
    peft = pytest.importorskip("peft")
    model = tiny("mega-lm")
    expected = logits_and_text(model)
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=2, trainable_token_indices=[7, 14])
    adapted = peft.get_peft_model(model, config)
    torch.testing.assert_close(logits_and_text(adapted), expected)
    adapted.train()(input_ids=TOKENS, labels=TOKENS).loss.backward()
    (rows,) = [p for name, p in adapted.named_parameters() if "trainable_tokens_delta" in name and p.requires_grad]
    assert rows.shape[0] == 2
    assert rows.grad is not None
    assert rows.grad.any(1).all()


@pytest.mark.slow
@every_model
def test_quantized_by_torchao(recipe: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    from transformers import AutoModelForCausalLM, TorchAoConfig

    model = tiny(recipe).float()
    expected, _ = logits_and_text(model)
    model.save_pretrained(tmp_path)
    config = quantization.Int8WeightOnlyConfig()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=TorchAoConfig(config))
    quantization.quantize_(model, config)
    for quantized in (model, loaded):
        assert any(type(p) is not nn.Parameter for p in quantized.parameters())
        logits, _ = logits_and_text(quantized)
        assert (logits - expected).norm() / expected.norm() < 0.05
