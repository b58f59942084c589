"""Embeddings of n-grams, and of what followed the same tokens before: their definitions, the boundaries of texts, and
streaming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import in_chunks, tiny
from torch import Tensor

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseModel, export
from lagwise.models.ngrams import ContextEmbedding, MatchEmbedding, NgramEmbedding
from lagwise.ops import Layout

LINKS = [{"name": "prenorm", "token_mixer": {"name": "ema", "dimension": 2}} for _ in range(2)]
CHAIN = {"name": "chain", "blocks": LINKS, "block_embeddings": True}


def model(**fields: Any) -> LagwiseForCausalLM:
    made = tiny("tnn-lm", sharp=True, **fields)
    for embedding in made.model.context_embeddings:
        torch.nn.init.normal_(embedding.table.weight)
    return made


def ngrams_by_definition(embedding: NgramEmbedding, text: list[int]) -> Tensor:
    """The sum of the rows of the n-grams that end at each token of a text."""
    weight = embedding.table.weight
    totals, rows = [], weight.unflatten(0, (len(embedding.sizes), -1))
    for end in range(len(text)):
        total = torch.zeros(weight.shape[1], dtype=weight.dtype)
        for table, size in zip(rows, embedding.sizes, strict=True):
            gram = [text[end - lag] + 1 if lag <= end else 0 for lag in range(size)]
            number = gram[0]
            for each in gram[1:]:
                number = (number * 1_103_515_245 + each) % (2**31 - 1)
            total = total + table[number % embedding.buckets]
        totals.append(total)
    return torch.stack(totals)


def matches_by_definition(embedding: MatchEmbedding, text: list[int]) -> Tensor:
    """The sum over the sizes of the rows of what came next at the last place with the same tokens."""
    weight = embedding.table.weight
    totals, rows = [], weight.unflatten(0, (-1, len(embedding.sizes)))
    for end in range(1, len(text) + 1):
        total = torch.zeros(weight.shape[1], dtype=weight.dtype)
        for table, size in zip(rows.unbind(1), embedding.sizes, strict=True):
            gram = text[end - size : end]
            places = [s for s in range(size, end) if text[s - size : s] == gram]
            if end >= size and places:
                total = total + table[text[places[-1]] + 1]
        totals.append(total)
    return torch.stack(totals)


def check_definition(embedding: ContextEmbedding, by_definition: Any, ids: Tensor) -> None:
    """Compare values and gradients."""
    weights = torch.randn(*ids.shape, 3, dtype=torch.double)
    y, _ = embedding.double()(ids, Layout(), None)
    expected = torch.stack([by_definition(embedding, row.tolist()) for row in ids])
    assert (expected != 0).any()
    torch.testing.assert_close(y, expected)
    actual, exact = (torch.autograd.grad((out * weights).sum(), embedding.table.weight)[0] for out in (y, expected))
    torch.testing.assert_close(actual, exact)


@pytest.mark.parametrize("sizes", [[2], [3, 2], [2, 5], [16]])
def test_the_definition_of_ngrams(sizes: list[int]) -> None:
    check_definition(NgramEmbedding(3, sizes=sizes, buckets=11), ngrams_by_definition, torch.randint(2**20, (2, 20)))


@pytest.mark.parametrize("sizes", [[1], [2], [3, 2], [2, 5], [1, 3]])
@pytest.mark.parametrize("vocabulary", [2, 5, 300])
def test_the_definition_of_matches(sizes: list[int], vocabulary: int) -> None:
    embedding = MatchEmbedding(3, sizes=sizes, vocab_size=vocabulary)
    check_definition(embedding, matches_by_definition, torch.randint(min(vocabulary, 7), (3, 63)))


def test_an_entry_that_other_tokens_took_is_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MatchEmbedding, "BUCKETS", 1)  # so every place takes the only entry
    embedding = MatchEmbedding(3, sizes=[2], vocab_size=9)
    for text, ends in (([1, 2, 3, 1, 2], []), ([1, 1, 1, 4], [2])):
        ids = torch.tensor([text])
        whole, _ = embedding(ids, Layout(), None)
        assert whole.any(2).nonzero()[:, 1].tolist() == ends
        context = torch.zeros(1, embedding.state_size, dtype=torch.long, device=ids.device)
        for t, token in enumerate(ids.split(1, 1)):
            y, context = embedding(token, Layout(), context)
            torch.testing.assert_close(y, whole[:, t : t + 1])


@torch.no_grad()
def test_both_matter_and_stream() -> None:
    both, ids = model(ngram_sizes=[2, 4], ngram_buckets=50, match_sizes=[2, 3]), torch.randint(4, (2, 60))
    ids[:, 40:] = ids[:, :20]
    expected = both(ids).logits
    other = model(ngram_sizes=[2, 4], ngram_buckets=50, match_sizes=[2, 3])
    other.load_state_dict(both.state_dict())
    for embedding in other.model.context_embeddings:
        embedding.table.weight.zero_()
        assert (other(ids).logits - expected).abs().max() > 1e-3
    torch.testing.assert_close(in_chunks(both, ids, [1, 2, 30, 1, 26]), expected, rtol=0, atol=1e-10)
    mask = torch.tensor([[0] * 5 + [1] * 60] * 2)
    padded = both(torch.nn.functional.pad(ids, (5, 0)), attention_mask=mask).logits
    torch.testing.assert_close(padded[:, 5:], expected, rtol=0, atol=1e-10)
    packed = both(ids[:1], cu_seqlens=torch.tensor([0, 21, 60])).logits
    alone = [both(part).logits for part in ids[:1].split([21, 39], 1)]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=0, atol=1e-10)
    short = both(ids.int(), use_cache=False).logits  # ids of 32 bits
    torch.testing.assert_close(short, expected)


_ROWS = [[1, 2, 3, 1, 2, 0, 1, 2], [0, 1, 2, 3, 1, 2, 1, 2]]  # 0 is padding


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [([1] * 8, _ROWS), ([5, 3], _ROWS), ([6, 2], [[0, 1, 2, 3, 1, 2, 1, 2], [1, 2, 3, 1, 2, 1, 0, 2]])],
)
def test_padding_at_the_start_of_a_part_separates_no_tokens(sizes: list[int], rows: list[list[int]]) -> None:
    ids = torch.tensor(rows)
    mask = ids > 0
    for embedding in (MatchEmbedding(3, sizes=[2], vocab_size=9), NgramEmbedding(3, sizes=[2, 3], buckets=50)):
        context, parts = torch.zeros(2, embedding.state_size, dtype=torch.long, device=ids.device), []
        for chunk, real in zip(ids.split(sizes, 1), mask.split(sizes, 1), strict=True):
            y, context = embedding(chunk, Layout(real), context)
            parts.append(y)
        for row, own, real in zip(torch.cat(parts, 1), ids, mask, strict=True):
            torch.testing.assert_close(row[real], embedding(own[real][None], Layout(), None)[0][0])


def test_added_tokens(tmp_path: Path) -> None:
    grown = model(match_sizes=[2, 3], block=CHAIN, num_hidden_layers=2)
    ids = torch.randint(4, (2, 40))
    before, table = grown(ids).logits, grown.model.embed_matches.table.weight
    grown.resize_token_embeddings(258)
    assert grown.model.embed_matches.table.weight is table  # an optimizer may hold it
    grown.resize_token_embeddings(300, mean_resizing=False)
    torch.testing.assert_close(grown(ids).logits[..., :258], before)
    repeated = torch.tensor([[5, 6, 7, 280, 5, 6, 7]])
    expected = matches_by_definition(grown.model.embed_matches, repeated[0].tolist())
    torch.testing.assert_close(grown.model.embed_matches(repeated, Layout(), None)[0][0], expected)
    grown.save_pretrained(tmp_path)
    loaded = LagwiseForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(loaded(repeated).logits, grown(repeated).logits)
    grown.resize_token_embeddings(100)
    torch.testing.assert_close(grown(ids).logits, before[..., :100])


def test_ids_with_which_exports_are_checked_have_matches(device: torch.device) -> None:
    matches = model(match_sizes=[2, 3])
    embedded, _ = matches.model.embed_matches(export._random_ids(matches, 131).to(device), Layout(), None)
    assert embedded.any(2).sum() > 30


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block": CHAIN, "inputs": "values"}, "block_embeddings of a chain need inputs 'tokens', got 'values'"),
        ({"match_sizes": [0]}, "match_sizes must be different numbers from 1 to 16"),
        ({"match_sizes": [2], "inputs": "values"}, "match_sizes need inputs 'tokens'"),
        *(({"ngram_sizes": n}, "ngram_sizes must be different numbers from 2 to 16") for n in ([1], [2, 2], [17])),
        ({"ngram_sizes": [2], "ngram_buckets": 0}, "ngram_buckets must be"),
        ({"ngram_sizes": [2], "ngram_buckets": 2**40}, "ngram_buckets must be at most"),
        ({"ngram_sizes": [2], "inputs": "values"}, "ngram_sizes need inputs 'tokens'"),
    ],
    ids=str,
)
def test_wrong_options_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LagwiseModel(LagwiseConfig(num_hidden_layers=1, **fields))


@torch.no_grad()
@pytest.mark.parametrize("sizes", ["ngram_sizes", "match_sizes"])
def test_refused_embeddings_leave_the_cache_as_it_was(sizes: str) -> None:
    causal, ids = model(position_embedding="sinusoidal", **{sizes: [2, 4]}), torch.randint(258, (2, 20))
    cache = causal(ids[:, :10], use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"need input_ids .*, not inputs_embeds"):
        causal(inputs_embeds=torch.randn(2, 3, 16, dtype=torch.double), past_key_values=cache)
    after = causal(ids[:, 10:], past_key_values=cache).logits
    torch.testing.assert_close(after, causal(ids).logits[:, 10:], rtol=0, atol=1e-10)
