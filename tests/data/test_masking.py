"""Which tokens are masked, with which replacement, and that this depends only on the seed and the position."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from lagwise.data.masking import MaskedExamples, Masking, collate_documents, document_of
from lagwise.data.tokenizers import load_tokenizer, with_mask, word_edges, word_tokenizer

TEXT = "The whale, that is to say, the grey one's tail; 1851 naïve sailors saw it again and again. " * 40


@pytest.fixture(scope="module")
def by_bytes():
    return with_mask(load_tokenizer("bytes"))


@pytest.fixture(scope="module")
def bpe():
    return with_mask(load_tokenizer("bpe", vocab_size=300, texts=iter([TEXT])))


def ids_of(tokenizer, text: str = TEXT) -> np.ndarray:
    return np.asarray(tokenizer(text, add_special_tokens=False)["input_ids"])


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("options", [{}, {"whole_words": False}, {"rate": 0.4}], ids=str)
def test_shares_of_replacements(bpe, options) -> None:
    masking, ids = Masking(bpe, **options), np.tile(ids_of(bpe), 20)
    hidden, labels = masking(ids, random())
    chosen = labels != -100
    assert chosen.mean() == pytest.approx(options.get("rate", 0.15), abs=0.005)
    assert (labels[chosen] == ids[chosen]).all()
    assert (hidden[~chosen] == ids[~chosen]).all()
    masked, same = hidden[chosen] == bpe.mask_token_id, hidden[chosen] == ids[chosen]
    assert masked.mean() == pytest.approx(0.8, abs=0.02)
    assert same.mean() == pytest.approx(0.1, abs=0.02)
    assert not np.isin(hidden[chosen & (hidden != bpe.mask_token_id)], bpe.all_special_ids).any()


def words_of(tokenizer, text: str) -> list[str]:
    """The words of a text as used by masking."""
    ids = ids_of(tokenizer, text)
    continues, extends = word_edges(tokenizer)
    groups: list[list[int]] = []
    for i, token in enumerate(ids):
        if i and extends[ids[i - 1]] and continues[token]:
            groups[-1].append(token)
        else:
            groups.append([token])
    return [tokenizer.decode(group) for group in groups]


def test_words_are_runs_of_letters_and_of_a_bpe_begin_with_their_space(by_bytes, bpe) -> None:
    assert words_of(by_bytes, "A naïve fox,1851!") == ["A", " ", "naïve", " ", "fox", ",", "1851", "!"]
    assert words_of(bpe, "saw it. again") == ["saw", " it", ".", " again"]


def test_marked_word_pieces_continue_a_word() -> None:
    vocabulary = {word: i for i, word in enumerate(["un", "##believ", "##able", "fox", "[UNK]"])}
    pieces = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix="##"))
    tokenizer = with_mask(PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="[UNK]"))
    continues, extends = word_edges(tokenizer)
    assert continues[:4].tolist() == [False, True, True, False]
    assert extends[:4].all()
    assert not extends[tokenizer.all_special_ids].any()


def test_words_are_masked_as_a_whole(bpe) -> None:
    masking, ids = Masking(bpe), ids_of(bpe)
    continues, extends = word_edges(bpe)
    joined = extends[ids[:-1]] & continues[ids[1:]]
    assert joined.mean() > 0.2
    chosen = masking(ids, random())[1] != -100
    assert (chosen[1:] == chosen[:-1])[joined].all()
    single = Masking(bpe, whole_words=False)(ids, random())[1] != -100
    assert not (single[1:] == single[:-1])[joined].all()


def test_text_without_spaces_has_the_same_share_of_masked_tokens_and_short_text_one(by_bytes) -> None:
    assert (Masking(by_bytes)(np.asarray([65, 32]), random())[1] != -100).sum() == 1
    ids = ids_of(by_bytes, "鲸鱼在海里游泳，水手们看着它。" * 100)
    assert (Masking(by_bytes)(ids, random())[1] != -100).mean() == pytest.approx(0.15, abs=0.01)


def test_special_tokens_are_never_masked(by_bytes) -> None:
    ids = np.where(np.arange(400) % 3 == 0, by_bytes.eos_token_id, 65)
    for whole_words in (False, True):
        labels = Masking(by_bytes, rate=0.9, whole_words=whole_words)(ids, random())[1]
        assert (labels[::3] == -100).all()
        assert (labels == 65).any()


def test_a_rate_is_a_share(by_bytes) -> None:
    with pytest.raises(ValueError, match=r"rate must be in \(0, 1\)"):
        Masking(by_bytes, rate=1.0)


class TestExamples:
    def sequences(self, by_bytes) -> list[dict[str, torch.Tensor]]:
        ids = torch.from_numpy(ids_of(by_bytes)[:60]).long().view(3, 20).clone()
        ids[1, 7] = by_bytes.eos_token_id
        return [{"input_ids": row} for row in ids]

    def test_an_example_depends_only_on_its_index_and_the_seed(self, by_bytes) -> None:
        sequences = self.sequences(by_bytes)
        one, other, third = (MaskedExamples(sequences, Masking(by_bytes), by_bytes.eos_token_id, s) for s in (3, 3, 4))
        backwards = [other[i] for i in (2, 1, 0)][::-1]
        for i in range(3):
            for name in one[i]:
                assert torch.equal(one[i][name], backwards[i][name])
        assert any(not torch.equal(one[i]["labels"], third[i]["labels"]) for i in range(3))

    def test_several_documents_are_kept_apart(self, by_bytes) -> None:
        examples = MaskedExamples(self.sequences(by_bytes), Masking(by_bytes), by_bytes.eos_token_id, 0)
        batch = collate_documents([examples[0], examples[1]])
        assert batch["seq_idx"].tolist() == [[0] * 20, [0] * 8 + [1] * 12]
        assert "seq_idx" not in collate_documents([examples[0], examples[2]])

    def test_the_end_of_text_token_belongs_to_its_document(self) -> None:
        assert document_of(np.asarray([5, 9, 9, 4, 9]), 9).tolist() == [0, 0, 1, 2, 2]


def test_a_mask_token_is_added_once_and_keeps_the_other_ids(bpe) -> None:
    assert with_mask(bpe).get_vocab() == bpe.get_vocab()
    plain = load_tokenizer("bytes")
    assert len(with_mask(plain)) == len(plain) + 1
    assert plain.mask_token is None
    filled = bpe.decode(bpe("saw <|mask|> again", add_special_tokens=False)["input_ids"])
    assert filled == "saw<|mask|> again"  # the mask stands for the space before the word too


def test_words_of_a_vocabulary_of_words_are_single() -> None:
    """Even if some look like the pieces of a WordPiece vocabulary, as in Markdown."""
    tokenizer = with_mask(word_tokenizer([f"w{i}" for i in range(50)] + ["##", "##1"]))
    continues, extends = word_edges(tokenizer)
    assert not continues.any()
    assert not extends.any()
