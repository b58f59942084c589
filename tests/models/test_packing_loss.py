"""Packed documents have the same loss as separate ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_models import LIMIT, RECIPES, VARIANTS, tiny
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DataCollatorWithFlattening

from lagwise.models import LagwiseForCausalLM

SIZES = (1, 2, 5, 30, 17)
every_recipe = pytest.mark.parametrize("recipe", [*RECIPES, *VARIANTS])


def loss_in_double(logits: Tensor, labels: Tensor, vocab_size: int, **kwargs: Any) -> Tensor:
    """The sum, in double precision, of the losses that transformers averages in single precision."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


def documents() -> list[dict[str, Tensor]]:
    return [{"input_ids": torch.randint(0, 256, (size,))} for size in SIZES]


def value_and_gradients(model: LagwiseForCausalLM, *batches: dict[str, Any]) -> list[Tensor]:
    model.loss_function = loss_in_double
    model.zero_grad()
    loss = sum(model(**batch).loss for batch in batches)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def flattened(**options: Any) -> Callable[[list], dict[str, Any]]:
    return DataCollatorWithFlattening(**options)


def with_boundaries(examples: list[dict[str, Tensor]]) -> dict[str, Any]:
    ids = torch.cat([each["input_ids"] for each in examples])[None]
    cu_seqlens = torch.tensor([0, *(len(each["input_ids"]) for each in examples)]).cumsum(0)
    return {"input_ids": ids, "labels": ids, "cu_seqlens": cu_seqlens}


def in_rows(examples: list[dict[str, Tensor]]) -> dict[str, Any]:
    """Two padded rows of documents, whose first tokens have no label."""
    rows = [[each["input_ids"] for each in part] for part in (examples[:4], examples[4:])]
    numbers = [torch.cat([torch.full_like(ids, i) for i, ids in enumerate(row)]) for row in rows]
    labels = [torch.cat([torch.cat([ids[:1] * 0 - 100, ids[1:]]) for ids in row]) for row in rows]
    padded = partial(pad_sequence, batch_first=True)
    seq_idx = padded(numbers, padding_value=-1)
    batch = {"input_ids": padded([torch.cat(row) for row in rows]), "labels": padded(labels, padding_value=-100)}
    return {**batch, "seq_idx": seq_idx, "attention_mask": (seq_idx >= 0).long()}


COLLATORS: dict[str, Callable[[list], dict[str, Any]]] = {
    "rows": in_rows,
    "position_ids": flattened(),
    "seq_idx": flattened(return_position_ids=False, return_seq_idx=True),
    "flash": flattened(return_position_ids=False, return_flash_attn_kwargs=True),
    "all of it": flattened(return_seq_idx=True, return_flash_attn_kwargs=True),
    "cu_seqlens": with_boundaries,
}


@pytest.mark.sampled(2)
@every_recipe
def test_packed_equals_separate(recipe: str) -> None:
    model, examples = tiny(recipe).train(), documents()
    alone = (dict.fromkeys(("input_ids", "labels"), each["input_ids"][None]) for each in examples)
    expected = value_and_gradients(model, *alone)
    assert len(expected) > 10
    for name, collate in COLLATORS.items():
        batch = collate(examples)
        assert (batch["input_ids"].shape == (2, 38)) == (name == "rows")
        for got, wanted in zip(value_and_gradients(model, batch), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


def test_the_mean_is_over_predicted_tokens() -> None:
    """Also if the Trainer counts the labels itself and passes the number."""
    model, examples = tiny("tnn-lm"), documents()
    batch = in_rows(examples)
    count = (batch["labels"] != -100).sum()
    assert count == sum(SIZES) - len(SIZES)
    total = sum(
        model(input_ids=ids, labels=ids).loss * (ids.shape[1] - 1)
        for each in examples
        if (ids := each["input_ids"][None]).shape[1] > 1
    )
    for kwargs in ({}, {"num_items_in_batch": count}):
        torch.testing.assert_close(model(**batch, **kwargs).loss, total / count, rtol=1e-5, atol=0)


def test_a_limit_applies_to_documents() -> None:
    """A row may be longer than the limit of learned positions, but a document may not."""
    model = tiny("transformer-learned-lm")
    ids = torch.randint(0, 256, (1, LIMIT + 50))
    halves = torch.arange(LIMIT + 50)[None] // (LIMIT - 1)
    assert model(ids, seq_idx=halves).logits.isfinite().all()
    with pytest.raises(ValueError, match=f"at most {LIMIT} tokens, got {LIMIT + 1}"):
        model(ids, seq_idx=torch.arange(LIMIT + 50)[None] // (LIMIT + 1))


BOUNDARIES = torch.tensor([0, 1, 4])


@pytest.mark.parametrize(
    ("rows", "boundaries", "message"),
    [
        (1, {"seq_idx": torch.zeros(1, 4), "cu_seqlens": BOUNDARIES}, "exactly one of seq_idx and cu_seqlens"),
        (1, {"seq_idx": torch.zeros(1, 4).long(), "cu_seq_lens_q": BOUNDARIES}, "seq_idx and cu_seq_lens_q put the"),
        (1, {"cu_seq_lens_q": BOUNDARIES, "cu_seq_lens_k": torch.tensor([0, 2, 4])}, "_q and cu_seq_lens_k put the"),
        (2, {"cu_seqlens": BOUNDARIES}, "cu_seqlens is for a batch of one packed row, got 2 rows"),
        (1, {"cu_seqlens": torch.tensor([0, 5])}, "cu_seqlens must grow from 0 to at most 4"),
    ],
    ids=str,
)
def test_wrong_boundaries_are_named(rows: int, boundaries: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny("tnn-lm")(torch.zeros(rows, 4, dtype=torch.long), **boundaries)


@pytest.mark.parametrize("position_ids", [[[0, 0, 0, 1, 2]], [[1, 1, 0, 1, 2]], [[0, 1, 1, 1, 1]]])
def test_padding_is_not_a_document(position_ids: list) -> None:
    """For any positions that transformers gives to padding."""
    model, ids = tiny("tnn-lm"), torch.randint(0, 256, (1, 5))
    mask = torch.tensor([[1, 1, 0, 0, 0] if position_ids[0][-1] == 1 else [0, 0, 1, 1, 1]])
    with_positions = model(ids, attention_mask=mask, position_ids=torch.tensor(position_ids))
    assert with_positions.past_key_values is not None
    assert torch.equal(with_positions.logits, model(ids, attention_mask=mask).logits)
