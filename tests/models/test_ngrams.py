"""Embeddings of n-grams: their definition, the boundaries of texts, and streaming."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import in_chunks, tiny
from torch import Tensor

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseModel
from lagwise.models.ngrams import NgramEmbedding
from lagwise.ops import Layout

SIZES = {"ngram_sizes": [2, 4], "ngram_buckets": 50}


def model(**fields: Any) -> LagwiseForCausalLM:
    made = tiny("tnn-lm", sharp=True, **SIZES, **fields)
    assert made.model.embed_ngrams is not None
    torch.nn.init.normal_(made.model.embed_ngrams.table.weight)
    return made


def by_definition(embedding: NgramEmbedding, text: list[int]) -> Tensor:
    """The sum of the rows of the n-grams that end at each token of a text."""
    weight = embedding.table.weight
    found, rows = [], weight.unflatten(0, (len(embedding.sizes), -1))
    for end in range(len(text)):
        total = torch.zeros(weight.shape[1], dtype=weight.dtype)
        for table, size in zip(rows, embedding.sizes, strict=True):
            gram = [text[end - lag] + 1 if lag <= end else 0 for lag in range(size)]
            number = gram[0]
            for each in gram[1:]:
                number = (number * 1_103_515_245 + each) % (2**31 - 1)
            total = total + table[number % embedding.buckets]
        found.append(total)
    return torch.stack(found)


@pytest.mark.parametrize("sizes", [[2], [3, 2], [2, 5], [16]])
def test_values_and_gradients_are_those_of_the_definition(sizes: list[int]) -> None:
    embedding = NgramEmbedding(3, sizes=sizes, buckets=11).double()
    ids, weights = torch.randint(2**20, (2, 20)), torch.randn(2, 20, 3, dtype=torch.double)
    y, _ = embedding(ids, Layout(), None)
    expected = torch.stack([by_definition(embedding, row.tolist()) for row in ids])
    torch.testing.assert_close(y, expected)
    found, wanted = (torch.autograd.grad((out * weights).sum(), embedding.table.weight)[0] for out in (y, expected))
    torch.testing.assert_close(found, wanted)


def test_ngrams_do_not_cross_documents_or_padding() -> None:
    embedding = NgramEmbedding(3, sizes=[2, 4], buckets=101)
    ids = torch.randint(258, (1, 12))
    packed, _ = embedding(ids, Layout(seq_idx=torch.tensor([[0] * 5 + [1] * 2 + [0] * 5])), None)
    alone = [embedding(part, Layout(), None)[0] for part in ids.split([5, 2, 5], 1)]
    torch.testing.assert_close(packed, torch.cat(alone, 1))
    padded, _ = embedding(ids, Layout(torch.arange(12)[None] >= 4), None)
    torch.testing.assert_close(padded[:, 4:], embedding(ids[:, 4:], Layout(), None)[0])


@torch.no_grad()
def test_ngrams_matter_and_stream() -> None:
    ngrams, ids = model(), torch.randint(258, (2, 40))
    expected = ngrams(ids).logits
    changed = ids.clone()
    changed[:, 10] = (ids[:, 10] + 1) % 258
    others = ngrams.model.embed_ngrams(changed, Layout(), None)[0] != ngrams.model.embed_ngrams(ids, Layout(), None)[0]
    assert others.any(2).nonzero()[:, 1].unique().tolist() == [10, 11, 12, 13]  # as far as the longest n-gram
    torch.testing.assert_close(in_chunks(ngrams, ids, [1, 2, 20, 1, 16]), expected, rtol=0, atol=1e-10)


@torch.no_grad()
def test_packed_documents_equal_documents_alone() -> None:
    ngrams, ids = model(), torch.randint(258, (1, 30))
    packed = ngrams(ids, cu_seqlens=torch.tensor([0, 11, 30])).logits
    alone = [ngrams(part).logits for part in ids.split([11, 19], 1)]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("sizes", [[1], [2, 2], [17]])
def test_wrong_sizes(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="ngram_sizes must be different numbers from 2 to 16"):
        LagwiseModel(LagwiseConfig(ngram_sizes=sizes, num_hidden_layers=1))


def test_wrong_inputs() -> None:
    with pytest.raises(ValueError, match="ngram_buckets must be"):
        LagwiseModel(LagwiseConfig(ngram_sizes=[2], ngram_buckets=0, num_hidden_layers=1))
    with pytest.raises(ValueError, match="ngram_sizes need inputs 'tokens'"):
        LagwiseConfig(ngram_sizes=[2], inputs="values")
    with pytest.raises(ValueError, match="ngram_buckets must be at most"):
        LagwiseConfig(ngram_sizes=[2], ngram_buckets=2**40)


@torch.no_grad()
def test_refused_embeddings_leave_the_cache_as_it_was() -> None:
    ngrams, ids = model(position_embedding="sinusoidal"), torch.randint(258, (2, 20))
    cache = ngrams(ids[:, :10], use_cache=True).past_key_values
    with pytest.raises(ValueError, match=r"need input_ids .*, not inputs_embeds"):
        ngrams(inputs_embeds=torch.randn(2, 3, 16, dtype=torch.double), past_key_values=cache)
    found = ngrams(ids[:, 10:], past_key_values=cache).logits
    torch.testing.assert_close(found, ngrams(ids).logits[:, 10:], rtol=0, atol=1e-10)
