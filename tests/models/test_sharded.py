"""Models whose weights are divided between processes: values, gradients and generation of whole ones."""

from __future__ import annotations

import copy
import os
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import run_together
from tiny_models import MASKED, SHARED, tiny_head
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from lagwise.models.sharded import whole_model

# Two processes would need two GPUs.
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(os.name != "posix", reason="needs fork")]
SHORT = {"name": "prenorm", "token_mixer": {"name": "gtu", "kernel": {"name": "rpe", "decay": 0.3, "layers": 1}}}


def shard(model: Any) -> None:
    for layer in model.base_model.layers:
        fully_shard(layer)
    fully_shard(model)


def compare(name: str) -> dict[str, float]:
    """Differences of a sharded model from the whole one, each process with its own rows."""
    model = tiny_head(name).train()
    part = copy.deepcopy(model)
    shard(part)
    assert all(isinstance(p, DTensor) for p in part.parameters())
    torch.manual_seed(1)
    ids = torch.randint(50, (2, 40))
    rank, found = dist.get_rank(), {}
    loss = model(ids, labels=ids).loss
    loss.backward()
    mine = part(ids[rank : rank + 1], labels=ids[rank : rank + 1]).loss
    mine.backward()
    copied = DistributedDataParallel(copy.deepcopy(model))  # each process with its own rows and all weights
    copied(ids[rank : rank + 1], labels=ids[rank : rank + 1]).loss.backward()
    found["gradients of copies"] = max(
        (p.grad - q.grad).abs().max().item()
        for p, q in zip(copied.parameters(), model.parameters(), strict=True)
        if q.grad is not None
    )
    total = mine.detach().clone()
    dist.all_reduce(total)
    found["loss"] = abs(total / 2 - loss).item()
    found["gradients"] = max(
        (p.grad.full_tensor() - q.grad).abs().max().item()
        for p, q in zip(part.parameters(), model.parameters(), strict=True)
        if q.grad is not None
    )
    whole = whole_model(part).state_dict()
    found["weights"] = max((whole[n] - w).abs().max().item() for n, w in model.state_dict().items())
    model.eval()
    part.eval()
    with torch.no_grad():
        found["logits"] = (part(ids).logits - model(ids).logits).abs().max().item()
        if name not in MASKED:
            drafts: list[tuple[str, dict[str, Any]]] = [("", {}), ("prompt lookup", {"prompt_lookup_num_tokens": 3})]
            drafts += [("a draft", {"assistant_model": model}), ("a sharded draft", {"assistant_model": part})]
            for kind, options in drafts:
                texts = [m.generate(ids[:1, :9], max_new_tokens=8, do_sample=False, **options) for m in (model, part)]
                found[f"generation with {kind}"] = float(not torch.equal(*texts))
    return found


def convert() -> None:
    """Every process gets the whole recurrent form."""
    model = tiny_head("tnn-lm", block=SHORT).eval()
    part = copy.deepcopy(model)
    shard(part)
    found, expected = (m.to_recurrent(1e-2, progress=False) for m in (part, model))
    assert not any(isinstance(p, DTensor) for p in found.parameters())
    ids = torch.arange(20)[None]
    torch.testing.assert_close(found(ids).logits, expected(ids).logits, rtol=0, atol=1e-12)


def refuse_parts() -> None:
    """A forward pass names a part of a layer that was sharded on its own."""
    for name in ("block", "block.token_mixer", "block.token_mixer.toeplitz.kernel"):
        model = tiny_head("tnn-lm", block=SHORT).eval()
        fully_shard(model.model.layers[1].get_submodule(name))
        with pytest.raises(ValueError, match=rf"fully_shard cannot shard layers\.1\.{name} \(FSDP.*shard whole layers"):
            model(torch.arange(20)[None])


def check(names: list[str]) -> None:
    dist.init_process_group("gloo")
    convert()
    refuse_parts()
    wrong = []
    for name in names:
        for what, difference in compare(name).items():
            if not difference < 1e-6:
                wrong.append(f"{name} {what}: {difference:.1e}")
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(len(wrong) > 0)


def mixed_precision(names: list[str]) -> None:
    """In bfloat16 by autocast, a sharded model does what a whole one does: kernels stay in float32."""
    dist.init_process_group("gloo")
    for name in names:
        model = tiny_head(name, dtype=torch.float32).eval()
        part = copy.deepcopy(model)
        shard(part)
        ids = torch.arange(40)[None] % 50
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(part(ids).logits, model(ids).logits, rtol=0, atol=0)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
def test_every_recipe_of_language_models() -> None:
    assert run_together(check, [*SHARED]) == [0, 0]
    assert run_together(mixed_precision, [*SHARED]) == [0, 0]
