"""Embeddings of what followed the same tokens before: their definition, the boundaries of texts, and streaming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import in_chunks, tiny
from torch import Tensor

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseModel, export
from lagwise.models.ngrams import MatchEmbedding, no_context
from lagwise.ops import Layout


def model(**fields: Any) -> LagwiseForCausalLM:
    made = tiny("tnn-lm", sharp=True, match_sizes=[2, 3], **fields)
    torch.nn.init.normal_(made.model.embed_matches.table.weight)
    return made


def by_definition(embedding: MatchEmbedding, text: list[int]) -> Tensor:
    """The sum over the sizes of the rows of what came next at the last place with the same tokens."""
    weight = embedding.table.weight
    found, rows = [], weight.unflatten(0, (-1, len(embedding.sizes)))
    for end in range(1, len(text) + 1):
        total = torch.zeros(weight.shape[1], dtype=weight.dtype)
        for table, size in zip(rows.unbind(1), embedding.sizes, strict=True):
            gram = text[end - size : end]
            places = [s for s in range(size, end) if text[s - size : s] == gram]
            if end >= size and places:
                total = total + table[text[places[-1]] + 1]
        found.append(total)
    return torch.stack(found)


@pytest.mark.parametrize("sizes", [[1], [2], [3, 2], [2, 5], [1, 3]])
@pytest.mark.parametrize("vocabulary", [2, 5, 300])
def test_values_and_gradients_are_those_of_the_definition(sizes: list[int], vocabulary: int) -> None:
    embedding = MatchEmbedding(3, sizes=sizes, vocab_size=vocabulary).double()
    ids, weights = torch.randint(min(vocabulary, 7), (3, 63)), torch.randn(3, 63, 3, dtype=torch.double)
    y, _ = embedding(ids, Layout(), None)
    expected = torch.stack([by_definition(embedding, row.tolist()) for row in ids])
    assert (expected != 0).any()
    torch.testing.assert_close(y, expected)
    found, wanted = (torch.autograd.grad((out * weights).sum(), embedding.table.weight)[0] for out in (y, expected))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("sizes", [[1, 1, 61], [20, 1, 1, 30, 11], [63]])
@pytest.mark.parametrize("matched", [[1], [2, 4]])
def test_chunks_find_what_the_whole_text_finds(sizes: list[int], matched: list[int]) -> None:
    embedding, ids = MatchEmbedding(3, sizes=matched, vocab_size=3), torch.randint(3, (2, 63))
    whole, _ = embedding(ids, Layout(), None)
    known, parts = no_context([embedding], 2, ids.device), []
    for chunk in ids.split(sizes, 1):
        y, known = embedding(chunk, Layout(), known)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_an_entry_that_other_tokens_took_is_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MatchEmbedding, "BUCKETS", 1)  # so every place takes the only entry
    embedding = MatchEmbedding(3, sizes=[2], vocab_size=9)
    for text, ends in (([1, 2, 3, 1, 2], []), ([1, 1, 1, 4], [2])):
        ids = torch.tensor([text])
        whole, _ = embedding(ids, Layout(), None)
        assert whole.any(2).nonzero()[:, 1].tolist() == ends
        known = no_context([embedding], 1, ids.device)
        for t, token in enumerate(ids.split(1, 1)):
            y, known = embedding(token, Layout(), known)
            torch.testing.assert_close(y, whole[:, t : t + 1])


def test_matches_do_not_cross_documents_or_padding() -> None:
    embedding, ids = MatchEmbedding(3, sizes=[2, 3], vocab_size=2), torch.randint(2, (1, 30))
    packed, _ = embedding(ids, Layout(seq_idx=torch.tensor([[0] * 12 + [1] * 2 + [0] * 16])), None)
    alone = [embedding(part, Layout(), None)[0] for part in ids.split([12, 2, 16], 1)]
    torch.testing.assert_close(packed, torch.cat(alone, 1))
    padded, _ = embedding(ids, Layout(torch.arange(30)[None] >= 4), None)
    torch.testing.assert_close(padded[:, 4:], embedding(ids[:, 4:], Layout(), None)[0])
    assert not padded[:, :4].any()


@torch.no_grad()
def test_matches_matter_and_stream() -> None:
    matches, ids = model(ngram_sizes=[3]), torch.randint(4, (2, 60))
    ids[:, 40:] = ids[:, :20]
    expected = matches(ids).logits
    other = model(ngram_sizes=[3])
    other.load_state_dict(matches.state_dict())
    other.model.embed_matches.table.weight.zero_()
    assert (other(ids).logits - expected).abs().max() > 1e-3
    torch.testing.assert_close(in_chunks(matches, ids, [1, 2, 30, 1, 26]), expected, rtol=0, atol=1e-10)
    mask = torch.tensor([[0] * 5 + [1] * 60] * 2)
    padded = matches(torch.nn.functional.pad(ids, (5, 0)), attention_mask=mask).logits
    torch.testing.assert_close(padded[:, 5:], expected, rtol=0, atol=1e-10)


@torch.no_grad()
def test_generation_repeats_what_came_next() -> None:
    """A model whose only knowledge is the embedding of matches continues a text that repeats itself."""
    copies = tiny("tnn-lm", match_sizes=[2], tie_word_embeddings=False)
    for name, parameter in copies.model.named_parameters():
        if name.startswith(("layers", "embed_tokens")):
            parameter.zero_()
    vocabulary, width = copies.lm_head.weight.shape
    vectors = torch.nn.functional.normalize(torch.randn(vocabulary, width, dtype=torch.double), dim=1)
    copies.model.embed_matches.table.weight.copy_(torch.nn.functional.pad(vectors, (0, 0, 1, 0)))
    copies.lm_head.weight.copy_(vectors)
    period = [7, 3, 9, 1, 200]
    text = copies.generate(torch.tensor([period + period[:2]]), max_new_tokens=20, do_sample=False)[0]
    assert text.tolist() == [period[i % 5] for i in range(27)]


def test_padding_between_tokens_is_the_same_whole_and_in_parts() -> None:
    embedding, ids = MatchEmbedding(3, sizes=[2], vocab_size=9), torch.tensor([[1, 2, 3, 1, 2, 0, 1, 2]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 1, 1]]).bool()
    whole, _ = embedding(ids, Layout(mask), None)
    assert whole.any(2).nonzero()[:, 1].tolist() == [4, 6]
    for sizes in ([1] * 8, [5, 3], [6, 2], [7, 1]):
        known, parts = no_context([embedding], 1, ids.device), []
        for chunk, real in zip(ids.split(sizes, 1), mask.split(sizes, 1), strict=True):
            y, known = embedding(chunk, Layout(real), known)
            parts.append(y)
        torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_ids_may_have_32_bits() -> None:
    found, ids = model(ngram_sizes=[2]), torch.randint(4, (2, 40))
    torch.testing.assert_close(found(ids.int(), use_cache=False).logits, found(ids, use_cache=False).logits)


def test_added_tokens(tmp_path: Path) -> None:
    grown = model()
    ids = torch.randint(4, (2, 40))
    before, table = grown(ids).logits, grown.model.embed_matches.table.weight
    grown.resize_token_embeddings(258)
    assert grown.model.embed_matches.table.weight is table  # an optimizer may hold it
    grown.resize_token_embeddings(300, mean_resizing=False)
    torch.testing.assert_close(grown(ids).logits[..., :258], before)
    repeated = torch.tensor([[5, 6, 7, 280, 5, 6, 7]])
    expected = by_definition(grown.model.embed_matches, repeated[0].tolist())
    torch.testing.assert_close(grown.model.embed_matches(repeated, Layout(), None)[0][0], expected)
    grown.save_pretrained(tmp_path)
    loaded = LagwiseForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(loaded(repeated).logits, grown(repeated).logits)
    grown.resize_token_embeddings(100)
    torch.testing.assert_close(grown(ids).logits, before[..., :100])


def test_ids_with_which_exports_are_checked_have_matches(device: torch.device) -> None:
    matches = model()
    found, _ = matches.model.embed_matches(export._random_ids(matches, 131).to(device), Layout(), None)
    assert found.any(2).sum() > 30


def test_wrong_inputs() -> None:
    with pytest.raises(ValueError, match="match_sizes must be different numbers from 1 to 16"):
        LagwiseModel(LagwiseConfig(match_sizes=[0], num_hidden_layers=1))
    with pytest.raises(ValueError, match="match_sizes need inputs 'tokens'"):
        LagwiseConfig(match_sizes=[2], inputs="values")
    with pytest.raises(ValueError, match=r"need input_ids .*, not inputs_embeds"):
        model()(inputs_embeds=torch.randn(2, 3, 16, dtype=torch.double))
