"""Megalodon's final norm, which has a state."""

from __future__ import annotations

import torch
from tiny_models import tiny

from lagwise.blocks.norm import RMSNorm
from lagwise.mixers import TimestepNorm
from lagwise.models import LagwiseForCausalLM, StreamingCache


@torch.no_grad()
def test_the_final_norm_goes_on_over_chunks_and_begins_anew_in_documents() -> None:
    model, ids = tiny("megalodon-lm"), torch.randint(0, 256, (1, 40))
    whole = model.model(ids).last_hidden_state
    cache = StreamingCache(2)  # for the layers alone
    parts = [model.model(part, past_key_values=cache).last_hidden_state for part in ids.split(13, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)
    packed = model.model(torch.cat([ids, ids], 1), seq_idx=torch.tensor([[0] * 40 + [1] * 40])).last_hidden_state
    torch.testing.assert_close(packed, torch.cat([whole, whole], 1), rtol=0, atol=1e-10)
    hidden = model.model(ids, output_hidden_states=True).hidden_states
    assert len(hidden) == 3
    torch.testing.assert_close(hidden[-1], whole)


def test_norms_begin_without_effect() -> None:
    model = LagwiseForCausalLM(tiny("megalodon-lm").config)
    norms = [m for m in model.modules() if isinstance(m, TimestepNorm | RMSNorm)]
    assert len(norms) == 5
    for norm in norms:
        assert norm.weight is not None
        assert (norm.weight == 1).all()
