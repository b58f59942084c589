"""Padding before, within and after the texts of a batch has no effect, in whole rows and in all that continues them."""

from __future__ import annotations

import itertools

import pytest
import torch
from tiny_models import CAUSAL, MASKED, tiny, tiny_head
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lagwise.models import LagwiseForCausalLM, StreamingCache, StreamingSession

LENGTH = 40
EVERY = (*CAUSAL, "megalodon-lm", "transformer-learned-lm")


def holes() -> Tensor:
    """A mask of six rows: a hole; padding before and within; after; nothing for long; holes of one token; all."""
    mask = torch.ones(6, LENGTH, dtype=torch.long)
    mask[0, 13:20] = mask[1, :4] = mask[1, 15:19] = mask[2, 25:] = mask[3, :30] = 0
    mask[4, 5] = mask[4, 12:14] = mask[4, 31] = mask[5, :20] = mask[5, 29:] = 0
    return mask


def example(name: str) -> tuple[LagwiseForCausalLM, Tensor]:
    model = tiny(name).double().eval()
    model.generation_config.eos_token_id = None
    return model, torch.randint(1, model.config.vocab_size, (6, LENGTH + 12))  # 0 is padding


def check(found: Tensor, expected: list[Tensor], mask: Tensor) -> None:
    for row, real, alone in zip(found, mask.bool(), expected, strict=True):
        torch.testing.assert_close(row[real], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", EVERY)
@torch.no_grad()
def test_rows_with_holes_are_read_and_continued_as_alone(name: str) -> None:
    model, ids = example(name)
    mask = torch.cat([holes(), torch.ones(6, 12, dtype=torch.long)], 1)
    mask[1, -2] = 0  # also between single tokens
    rows = [row[real.bool()] for row, real in zip(ids, mask, strict=True)]
    alone = [model(row[None], use_cache=False).logits[0] for row in rows]
    check(model(ids, attention_mask=mask, use_cache=False).logits, alone, mask)
    caches, parts = [model.model.new_cache()], []
    for start, end in itertools.pairwise((0, 20, 30, LENGTH, 41, 49, 50, 51, 52)):
        caches.append(caches[-1].copy())
        parts.append(model(ids[:, start:end], attention_mask=mask[:, :end], past_key_values=caches[-1]).logits)
        assert caches[-1].seen == end
    check(torch.cat(parts, 1), alone, mask)
    # Rows of an earlier cache, which stays valid, leave; what is left is joined with others.
    fewer = caches[3].copy()
    fewer.batch_select_indices(torch.tensor([2, 0]))
    joined = StreamingCache.join([fewer, caches[2]])
    order = [2, 0, *range(6)]
    after = [rows[i][holes()[i, :end].sum() :] for i, end in zip(order, (40, 40, *[30] * 6), strict=True)]
    given = pad_sequence(after, batch_first=True)
    real = pad_sequence([torch.ones_like(row) for row in after], batch_first=True)
    expected = [alone[i][-len(row) :] for i, row in zip(order, after, strict=True)]
    check(model(given, attention_mask=real, past_key_values=joined).logits, expected, real)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.filterwarnings("ignore:A decoder-only")
def test_prompts_with_padding_anywhere_are_continued_as_alone(name: str) -> None:
    """Also without a cache, by beams, and as a session continues them."""
    model, ids = example(name)
    ids, mask = ids[:, :LENGTH], holes()
    prompts = [row[real.bool()][None] for row, real in zip(ids, mask, strict=True)]
    options, alone = {"max_new_tokens": 5, "pad_token_id": 0}, ids
    for way in ({"do_sample": False}, {"num_beams": 3}, {"do_sample": False, "use_cache": False}):
        if name not in ("mega-lm", "best-lm") and "do_sample" not in way:
            continue
        found = model.generate(ids, attention_mask=mask, **options, **way)
        assert torch.equal(found[:, :LENGTH], ids)
        alone = torch.cat([model.generate(prompt, **options, **way)[:, -5:] for prompt in prompts])
        assert torch.equal(found[:, -5:], alone)
    session = StreamingSession(model, prefill_chunk=7)
    handles = [session.add(prompt[0]) for prompt in prompts]
    said = [session.logits.argmax(1)]
    for _ in range(4):
        said.append(session.step(dict(zip(handles, said[-1].tolist(), strict=True))).argmax(1))
    assert torch.equal(torch.stack(said, 1), alone)


@pytest.mark.parametrize("name", ["best-lm", *MASKED])
def test_gradients_of_rows_with_holes(name: str) -> None:
    """Of two-sided models too, and of packed documents with holes."""
    model, mask = tiny_head(name).eval(), holes().bool()
    torch.manual_seed(1)
    ids, weights = torch.randint(50, (6, LENGTH)), torch.randn(6, LENGTH, 50, dtype=torch.float64)
    documents = (torch.arange(LENGTH) >= 18).long().expand(6, -1)
    for seq_idx in (None, documents):
        pieces = [mask] if seq_idx is None else [mask & (seq_idx == 0), mask & (seq_idx == 1)]
        out = model(ids, attention_mask=mask, seq_idx=seq_idx, use_cache=False).logits
        (out * weights)[mask].sum().backward()
        found = {key: p.grad for key, p in model.named_parameters()}
        model.zero_grad()
        for piece, row in itertools.product(pieces, range(6)):
            if (real := piece[row]).any():
                alone = model(ids[row, real][None], use_cache=False).logits[0]
                torch.testing.assert_close(out[row, real], alone, rtol=0, atol=1e-12)
                (alone * weights[row, real]).sum().backward()
        torch.testing.assert_close(found, {key: p.grad for key, p in model.named_parameters()})
        model.zero_grad()


@pytest.mark.slow  # compiles three graphs
def test_graphs_refuse_padding_that_they_cannot_move() -> None:
    """Padding on either side is right in them."""
    model, ids = example("mega-lm")
    call, mask, rows = torch.compile(model, backend="eager"), holes(), ids[:2, :LENGTH]
    alone = [model(row[real.bool()][None]).logits[0] for row, real in zip(rows, mask[2:4], strict=True)]
    for use_cache in (True, False):
        check(call(rows, attention_mask=mask[2:4], use_cache=use_cache).logits, alone, mask[2:4])
    with pytest.raises(RuntimeError, match="padding between tokens, in a compiled model"):
        call(rows, attention_mask=mask[:2], use_cache=False)
    before = model(ids[:2, :8]).past_key_values
    with pytest.raises(RuntimeError, match="padding after the first token of a stream"):
        call(rows, attention_mask=mask[2:4], past_key_values=before)
