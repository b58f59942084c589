"""Tokenizers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from lagwise.data import load_tokenizer, prepare, token_bytes
from lagwise.data.tokenizers import with_mask, with_pairs, without_template

TEXT = "A line of text, with ünïcödé in it.\n" * 200


class TestTokenizers:
    def test_bytes_are_their_own_ids(self) -> None:
        tokenizer = load_tokenizer("bytes")
        text = "héllo → 日本\n\ttabs"
        assert tokenizer(text)["input_ids"] == list(text.encode())
        assert tokenizer.decode(list(text.encode())) == text
        assert (len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id) == (258, 256, 257)

    def test_bpe_is_trained_and_saved(self, tmp_path: Path) -> None:
        tokenizer = load_tokenizer("bpe", vocab_size=280, texts=iter([TEXT]))
        assert len(tokenizer) == 280
        ids = tokenizer(TEXT)["input_ids"]
        assert len(ids) < len(TEXT.encode()) / 2
        assert tokenizer.decode(ids) == TEXT
        tokenizer.save_pretrained(tmp_path)
        assert load_tokenizer(str(tmp_path))(TEXT)["input_ids"] == ids

    def test_an_uncased_bpe_has_one_token_for_both_cases_and_none_for_rare_words(self, tmp_path: Path) -> None:
        texts = ["Good film, GOOD end. Über-film!\n"] * 6 + ["a quixotic one"]
        tokenizer = load_tokenizer("bpe-uncased", vocab_size=1000, texts=iter(texts))
        ids = tokenizer("film GOOD ÜBER")["input_ids"]
        assert ids == tokenizer("film good über")["input_ids"]
        assert tokenizer.decode(ids) == "film good über"
        assert len(tokenizer(" good")["input_ids"]) == 1 < len(tokenizer(" quixotic")["input_ids"])
        assert len(tokenizer) < 300
        assert len(load_tokenizer("bpe", vocab_size=1000, texts=iter(texts))(" quixotic")["input_ids"]) == 1
        tokenizer.save_pretrained(tmp_path)
        assert load_tokenizer(str(tmp_path))("film GOOD ÜBER")["input_ids"] == ids

    def test_gpt2_files(self, tmp_path: Path) -> None:
        trained = load_tokenizer("bpe", vocab_size=300, texts=iter([TEXT]))
        state = json.loads(trained.backend_tokenizer.to_str())["model"]
        (tmp_path / "vocab.json").write_text(json.dumps(state["vocab"]))
        merges = [" ".join(m) for m in state["merges"]]
        (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
        assert load_tokenizer(str(tmp_path))(TEXT)["input_ids"] == trained(TEXT)["input_ids"]

    def test_token_bytes_sum_to_the_text_size(self) -> None:
        tokenizer = load_tokenizer("bpe", vocab_size=300, texts=iter([TEXT]))
        sizes = token_bytes(tokenizer, math.nan)
        assert sizes[tokenizer(TEXT)["input_ids"]].sum() == len(TEXT.encode())
        assert sizes[tokenizer.eos_token_id] == 0

    def test_other_tokenizers_use_average_bytes_per_token(self, tmp_path: Path) -> None:
        """A word tokenizer assigns no bytes to spaces, so each token counts as the text's average."""
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast

        words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        words.train_from_iterator([TEXT], trainers.WordPieceTrainer(vocab_size=80, special_tokens=["[UNK]", "[SEP]"]))
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", eos_token="[SEP]").save_pretrained(tmp_path)
        (tmp_path / "a.txt").write_text(TEXT)
        data = prepare(str(tmp_path / "a.txt"), str(tmp_path), progress=False)
        sizes = token_bytes(data.tokenizer, data.bytes_per_token("train"))
        assert sizes[data.splits["train"]].sum() == pytest.approx(data.text_bytes["train"], rel=0.01)

    def test_special_tokens_in_the_text_are_encoded_as_text(self, tmp_path: Path) -> None:
        text = "before <|endoftext|> after\n" * 200
        (tmp_path / "a.txt").write_text(text)
        for tokenizer in ("bytes", "bpe", "bpe-uncased"):
            data = prepare(str(tmp_path / "a.txt"), tokenizer, vocab_size=280, progress=False)
            ids = data.splits["train"]
            assert (ids == data.tokenizer.eos_token_id).sum() == 1
            assert data.tokenizer.decode(ids[:-1]).startswith("before <|endoftext|> after")

    def test_unknown_tokenizers(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"'words', 'characters', .*or a folder"):
            load_tokenizer("word")
        with pytest.raises(ValueError, match="no tokenizer in folder"):
            load_tokenizer(str(tmp_path))
        with pytest.raises(ValueError, match="at least 258"):
            load_tokenizer("bpe", vocab_size=100, texts=iter([TEXT]))


class TestTemplates:
    """What tokenizers from elsewhere add around a text, and the tokenizers of runs do not."""

    @staticmethod
    def wordpiece(kind: str) -> Any:
        from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
        from transformers import PreTrainedTokenizerFast

        words: Any = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        words.train_from_iterator([TEXT], trainers.WordPieceTrainer(vocab_size=80, special_tokens=special))
        begin, end = ("[CLS]", 1), ("[SEP]", 2)
        words.post_processor = {
            "both": processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[begin, end]),
            "end": processors.TemplateProcessing(single="$A [SEP]", special_tokens=[end]),
            "pairs": processors.TemplateProcessing(single="$A", pair="$A [SEP] $B", special_tokens=[end]),
            "bert": processors.BertProcessing(end, begin),
            "roberta": processors.RobertaProcessing(end, begin),
        }[kind]
        named = dict(zip(("unk_token", "bos_token", "eos_token", "mask_token"), special, strict=True))
        return PreTrainedTokenizerFast(tokenizer_object=words, **named)

    @staticmethod
    def llama(**options: bool) -> Any:
        from transformers import LlamaTokenizer

        letters = sorted({"\u2581", *TEXT} - {" ", "\n"})
        vocab = {token: i for i, token in enumerate(("<unk>", "<s>", "</s>", *letters))}
        return LlamaTokenizer(vocab=vocab, merges=[], **options)

    @pytest.mark.parametrize(
        "made",
        [
            *(pytest.param(lambda kind=k: TestTemplates.wordpiece(kind), id=k) for k in ("both", "end", "pairs")),
            *(pytest.param(lambda kind=k: TestTemplates.wordpiece(kind), id=k) for k in ("bert", "roberta")),
            pytest.param(lambda: TestTemplates.llama(), id="llama"),
            pytest.param(lambda: TestTemplates.llama(add_bos_token=True), id="llama with <s>"),
            pytest.param(lambda: TestTemplates.llama(add_eos_token=True), id="llama with </s>"),
            pytest.param(lambda: TestTemplates.llama(add_bos_token=True, add_eos_token=True), id="llama with both"),
        ],
    )
    def test_saved_tokenizers_add_nothing(self, made: Callable[[], Any], tmp_path: Path) -> None:
        from transformers import AutoTokenizer

        given = made()
        given.save_pretrained(tmp_path / "given")
        own = without_template(load_tokenizer(str(tmp_path / "given")))
        saved = {}
        for name, each in {"own": own, "masked": with_mask(own), "paired": with_pairs(own)}.items():
            each.save_pretrained(tmp_path / name)
            saved[name] = AutoTokenizer.from_pretrained(tmp_path / name)
        first, second = (given(text, add_special_tokens=False)["input_ids"] for text in ("A line", "of text"))
        for name in ("own", "masked"):
            assert saved[name]("A line")["input_ids"] == first
            assert saved[name]("A line", "of text")["input_ids"] == first + second
        paired = saved["paired"]("A line", "of text")
        assert paired["input_ids"] == [*first, given.eos_token_id, *second]
        assert paired["token_type_ids"] == [0] * (len(first) + 1) + [1] * len(second)
        again = load_tokenizer(str(tmp_path / "given"))
        assert again("A line")["input_ids"] == given("A line")["input_ids"]  # the given one stays as it was


@pytest.mark.parametrize("name", ["bytes", "bpe", "bpe-uncased"])
def test_words_of_a_row_have_the_tokens_of_running_text(name: str, tmp_path: Path) -> None:
    rows = [["the", "lamp", "is", "on", "the", "table"], ["the", "river"]]
    made = load_tokenizer(name, vocab_size=300, texts=iter([" ".join(row) for row in rows] * 20))
    made.save_pretrained(tmp_path)
    for options in ({}, {"add_prefix_space": True}):
        loaded: Any = AutoTokenizer.from_pretrained(tmp_path, **options)
        texts = [loaded(" ".join(row))["input_ids"] for row in rows]
        assert loaded(rows, is_split_into_words=True)["input_ids"] == texts
        assert loaded(rows[0], is_split_into_words=True)["input_ids"] == texts[0]
        assert loaded.decode(texts[0]).startswith(" ") == bool(options)
        pair = loaded(rows[0], rows[1], is_split_into_words=True)["input_ids"]
        assert pair == texts[0] + texts[1]
    words = made(rows[0], is_split_into_words=True, return_offsets_mapping=True)
    ends = {word: end for word, (_, end) in zip(words.word_ids(), words["offset_mapping"], strict=True)}
    assert ends == {i: len(word) for i, word in enumerate(rows[0])}


def test_tokenizers_of_letters() -> None:
    texts = iter(["bba a\n", "éb"])
    learned = load_tokenizer("characters", vocab_size=6, texts=texts)
    assert len(learned) == 6  # unknown, b, a, one of those that occur once, end of text and padding
    assert learned("bab")["input_ids"] == [1, 2, 1]
    assert learned.decode(learned("bab")["input_ids"]) == "bab"
    assert learned("z")["input_ids"] == [learned.unk_token_id]
    with pytest.raises(ValueError, match="give texts"):
        load_tokenizer("characters")
