"""The mixers of other long-sequence models in a model: a training step, saving and loading, and generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from family_references import FAMILY

from lagwise.mixers import MIXERS
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM

OPTIONS: dict[str, dict[str, Any]] = {"linear_attention": {"heads": 2, "feature_map": "favor"}}
SEQUENCES = [name for name in FAMILY if not MIXERS[name].needs_grid]


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_model_trains_is_saved_and_generates(name: str, tmp_path: Path) -> None:
    mixer = {"name": name, **OPTIONS.get(name, {})}
    causal = True in MIXERS[name].directions
    kind = LagwiseForCausalLM if causal else LagwiseForMaskedLM
    fields = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "pad_token_id": 1, "causal": causal}
    model = kind(LagwiseConfig(block={"name": "prenorm", "token_mixer": mixer}, **fields))
    ids = torch.randint(2, 11, (2, 20))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        loss = model(ids, labels=ids).loss
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[0]
    model.eval().save_pretrained(tmp_path)
    again = kind.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    if not causal:
        return
    options = {"do_sample": False, "max_new_tokens": 6, "attention_mask": torch.ones_like(ids)}
    again = again.double()
    said = again.generate(ids, use_cache=False, **options)
    assert said.shape == (2, 26)
    assert torch.equal(again.generate(ids, **options), said)
    if not MIXERS[name].streams:
        with pytest.raises(ValueError, match=r"does not stream.* whole sequences"):
            again(ids, use_cache=True)
