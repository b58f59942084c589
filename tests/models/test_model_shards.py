"""Language models on shards of sequences: the loss and all gradients of one process."""

from __future__ import annotations

import copy
import os
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import run_together
from tiny_models import SHARED, tiny_head

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForSequenceClassification

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork")
ROWS, LENGTH = 3, 60
SIZES = {2: (23, 37), 3: (20, 1, 39)}
# Further parts of a model that count tokens: positions, types, and a norm of all outputs.
OTHERS: list[dict[str, Any]] = [
    {"position_embedding": "learned", "max_position_embeddings": 64},
    {"position_embedding": "sinusoidal", "type_vocab_size": 2},
]


def batches() -> dict[str, dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    ids, place = torch.randint(5, (ROWS, LENGTH)), torch.arange(LENGTH)  # few words: n-grams and matches occur again
    mask = torch.stack([place >= 11, place < 41, place >= 0]).long()
    documents = (place[None, :, None] >= torch.tensor([[5, 20, 23, 50], [23, 24, 37, 60], [1, 2, 3, 4]])[:, None]).sum(
        2
    )
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, 11] = -100  # what padding predicts has no meaning
    return {
        "plain": {"input_ids": ids, "labels": ids},
        "padded": {"input_ids": ids, "labels": labels, "attention_mask": mask},
        "packed": {"input_ids": ids, "labels": labels, "attention_mask": mask, "seq_idx": documents},
    }


def worst(model: Any, batch: dict[str, torch.Tensor], counted: int | None, *, by_loss: bool) -> float:
    """The largest relative difference of losses and gradients: of the loss, which transformers computes in float32, or
    of a product with the logits."""
    sizes = SIZES[dist.get_world_size()]
    start = sum(sizes[: dist.get_rank()])
    own = slice(start, start + sizes[dist.get_rank()])
    whole, part = copy.deepcopy(model), copy.deepcopy(model)
    torch.manual_seed(2)
    slope = torch.randn(ROWS, LENGTH, 50, dtype=torch.float64) * batch.get("attention_mask", torch.ones(1))[..., None]
    batch = {name: t for name, t in batch.items() if by_loss or name != "labels"}

    def objective(model: Any, batch: dict[str, torch.Tensor], slope: torch.Tensor) -> torch.Tensor:
        out = model(**batch, num_items_in_batch=counted)
        return out.loss if by_loss else (out.logits * slope).sum()

    expected = objective(whole, batch, slope)
    expected.backward()
    part.split_sequences(dist.group.WORLD)
    found = objective(part, {name: t[:, own] for name, t in batch.items()}, slope[:, own])
    found.backward()
    total = found.detach().double()
    dist.all_reduce(total)
    scores = [abs(total / expected - 1).item()]
    largest = max(p.grad.abs().max().item() for p in whole.parameters() if p.grad is not None)
    for (name, p), q in zip(part.named_parameters(), whole.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None and q.grad is not None:
            dist.all_reduce(p.grad)
            scores.append((p.grad - q.grad).abs().max().item() / largest)
    return max(scores)


def check(names: list[str]) -> None:
    dist.init_process_group("gloo")
    wrong = []
    models = {name: tiny_head(name).train() for name in names}
    models |= {str(each): tiny_head("tnn-lm", **each).train() for each in OTHERS}
    for name, model in models.items():
        for kind, batch in batches().items():
            counted = 77 if kind == "padded" else None
            for by_loss, least in ((True, 1e-6), (False, 1e-10)):
                if not (found := worst(model, batch, counted, by_loss=by_loss)) < least:
                    wrong.append(f"{name} {kind} {by_loss}: {found:.1e}")
    model.split_sequences(dist.group.WORLD)
    with pytest.raises(ValueError, match="cannot be streamed"):
        model(torch.ones(1, 2, dtype=torch.long), past_key_values=object())
    with pytest.raises(ValueError, match="by seq_idx, not by cu_seqlens"):
        model(torch.ones(1, 2, dtype=torch.long), cu_seqlens=torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"the same rows, got \(rows, tokens\) \[\(1, 2\), \(2, 2\)"):
        model(torch.ones(1 + min(1, dist.get_rank()), 2, dtype=torch.long))
    model.split_sequences(None)
    assert model(torch.ones(1, 2, dtype=torch.long)).logits.shape == (1, 2, 50)
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(len(wrong) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("count", sorted(SIZES))
def test_every_recipe_of_language_models(count: int) -> None:
    assert run_together(check, [*SHARED], count=count) == [0] * count


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"stochastic_depth": 0.1}, "stochastic depth"),
        ({"block": {"name": "prenorm", "norm": "batch"}}, "token_norm is a batch norm"),
        ({"block": {"name": "prenorm", "token_mixer": {"name": "long_short"}}}, "LongShortMixer cannot mix a sequence"),
        ({"inputs": {"name": "values", "features": 2}}, "must be of tokens"),
    ],
)
def test_parts_without_an_exact_form_are_refused_by_name(fields: dict[str, Any], reason: str) -> None:
    config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, causal=True, **fields)
    model = LagwiseForCausalLM(config) if "inputs" not in fields else LagwiseForCausalLM(LagwiseConfig(hidden_size=8))
    if "inputs" in fields:
        model.config = config
    with pytest.raises(ValueError, match=reason):
        model.split_sequences(object())


def test_heads_that_pool_are_refused() -> None:
    model = LagwiseForSequenceClassification(LagwiseConfig(hidden_size=8, num_hidden_layers=1))
    with pytest.raises(ValueError, match="LagwiseForSequenceClassification pools tokens"):
        model.split_sequences(object())
