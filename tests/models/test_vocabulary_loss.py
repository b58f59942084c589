"""The loss of language models without the logits of all tokens at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM
from lagwise.models import heads as heads_module
from lagwise.training import load_recipe, train

WIDTH, TOKENS = 8, 100
VOCABULARY = 4 * WIDTH
# Parameters of the pretended device are of a class of their own, for which there are no chunks.
pytestmark = pytest.mark.real_device
NEW_ENOUGH = pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="PyTorch before 2.13")


def build(kind: str, **fields: Any) -> LagwiseForCausalLM | LagwiseForMaskedLM:
    torch.manual_seed(0)
    config = LagwiseConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=1, causal=kind == "causal", **fields
    )
    model = LagwiseForCausalLM(config) if kind == "causal" else LagwiseForMaskedLM(config)
    for parameter in model.parameters():  # the bias of a new head is zero
        nn.init.normal_(parameter, std=0.3)
    return model


def batch() -> dict[str, torch.Tensor]:
    """Two rows with tokens that have no label."""
    torch.manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (2, TOKENS))
    return {"input_ids": ids, "labels": ids.masked_fill(torch.rand(ids.shape) < 0.3, -100)}


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "causal": ("causal", {}, {}),
    "causal, head of its own": ("causal", {"tie_word_embeddings": False, "head_bias": True}, {}),
    "causal, tanh": ("causal", {"head_transform": "tanh"}, {}),
    "causal, packed": ("causal", {}, {"seq_idx": (torch.arange(TOKENS) // 30).expand(2, -1)}),
    "causal, accumulated": ("causal", {}, {"num_items_in_batch": torch.tensor(500)}),
    "causal, packed and accumulated": (
        "causal",
        {},
        {
            "seq_idx": (torch.arange(TOKENS) // 30).expand(2, -1),
            "labels": batch()["labels"].masked_fill(torch.arange(TOKENS) % 30 == 0, -100),
            "num_items_in_batch": 500,
        },
    ),
    "masked": ("masked", {}, {}),
    "masked, only labels": ("masked", {"sparse_prediction": True}, {"num_items_in_batch": 500}),
}


def prepared(case: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A case, with its tensors on the default device."""
    kind, fields, more = CASES[case]
    there = torch.get_default_device()
    return kind, fields, {name: value.to(there) if torch.is_tensor(value) else value for name, value in more.items()}


def with_and_without_logits(case: str, dtype: torch.dtype, autocast: bool) -> list[list[Any]]:
    """The loss and the gradients of a case with logits, and those without."""
    kind, fields, more = prepared(case)
    results = []
    for skip in (False, True):
        model = build(kind, **fields).to(dtype)
        with torch.autocast(torch.get_default_device().type, torch.bfloat16, enabled=autocast):
            out = model(**{**batch(), **more}, skip_logits=skip)
        assert (out.logits is None) == skip
        out.loss.backward()
        results.append([out.loss, *(p.grad for p in model.parameters())])
    return results


@NEW_ENOUGH
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_equal_those_with_logits(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_module, "_LOGITS_AT_ONCE", 64)  # several chunks, the last one shorter
    torch.testing.assert_close(*with_and_without_logits(case, torch.float32, autocast=False))


@NEW_ENOUGH
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("case", ["causal, tanh", "causal, accumulated", "masked"])
def test_in_half_precision_too(autocast: bool, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks have the same logits; their gradients of the weights are added in float32."""
    monkeypatch.setattr(heads_module, "_LOGITS_AT_ONCE", 64)
    monkeypatch.setattr(heads_module, "_MAX_LOGITS", 1)
    dtype = torch.float32 if autocast else torch.bfloat16
    (plain, *expected), (loss, *found) = with_and_without_logits(case, dtype, autocast)
    torch.testing.assert_close(loss.float(), plain.float(), rtol=1e-5 if autocast else 1e-2, atol=0)
    for ours, gradient in zip(found, expected, strict=True):
        assert (ours - gradient).norm() <= 0.02 * gradient.norm()


class _Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(t.numel() for t in _tensors(out))])
        return out


def _tensors(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    return [t for each in out for t in _tensors(each)] if isinstance(out, list | tuple) else []


@NEW_ENOUGH
@pytest.mark.parametrize("half", [False, True])
def test_no_tensor_has_the_logits_of_all_tokens(
    half: bool, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    monkeypatch.setattr(heads_module, "_LOGITS_AT_ONCE", 16)
    monkeypatch.setattr(heads_module, "_MAX_LOGITS", 1)
    model = LagwiseForCausalLM(LagwiseConfig(vocab_size=4096, hidden_size=WIDTH, num_hidden_layers=1))
    for skip in (False, True):
        with _Largest() as seen:
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss = model(**batch(), skip_logits=skip).loss
            loss.backward()
        assert (seen.elements >= 2 * TOKENS * 4096) == (not skip)


class _Doubled(nn.Linear):
    """A head with more than a matrix, such as an adapter."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize("case", ["small vocabulary", "double", "another head"])
def test_otherwise_there_are_logits(case: str) -> None:
    """Where chunks would be slower, less exact or wrong, the loss is that of the logits."""
    fields: dict[str, Any] = {"tie_word_embeddings": False} if case == "another head" else {}
    model, given = build("causal", **fields), batch()
    if case == "small vocabulary":
        model = LagwiseForCausalLM(LagwiseConfig(vocab_size=VOCABULARY, hidden_size=2 * WIDTH, num_hidden_layers=1))
    if case == "double":
        model = model.double()
    if case == "another head":
        model.lm_head = _Doubled(WIDTH, VOCABULARY)
    with torch.no_grad():
        with_logits, without = (model(**given, skip_logits=skip) for skip in (False, True))
    assert without.logits is not None
    assert torch.equal(with_logits.loss, without.loss)


@NEW_ENOUGH
def test_training_leaves_the_logits_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training and validation."""
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question " * 40)
    recipe = ["model.hidden_size=32", "model.num_hidden_layers=1", "model.block.token_mixer.kernel.hidden=4"]
    recipe += ["data.length=32", f"data.source={tmp_path / 'text.txt'}", "training.steps=3", "training.batch_size=2"]
    recipe += ["training.precision=float32", "training.evaluate_every=3"]
    seen: list[bool] = []
    forward = LagwiseForCausalLM.loss_without_logits

    def counted(self: LagwiseForCausalLM, *args: Any) -> Any:
        loss = forward(self, *args)
        seen.append(loss is not None)
        return loss

    monkeypatch.setattr(LagwiseForCausalLM, "loss_without_logits", counted)
    train(load_recipe("tnn-lm", recipe), tmp_path / "run", progress=False)
    assert len(seen) >= 4
    assert all(seen)
