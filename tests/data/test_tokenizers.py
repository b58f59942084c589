"""Tokenizers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from lagwise.data import load_tokenizer, prepare, token_bytes

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
        for tokenizer in ("bytes", "bpe"):
            data = prepare(str(tmp_path / "a.txt"), tokenizer, vocab_size=280, progress=False)
            ids = data.splits["train"]
            assert (ids == data.tokenizer.eos_token_id).sum() == 1
            assert data.tokenizer.decode(ids[:-1]).startswith("before <|endoftext|> after")

    def test_unknown_tokenizers(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="'bytes', 'bpe', 'words' or a folder"):
            load_tokenizer("word")
        with pytest.raises(ValueError, match="no tokenizer in folder"):
            load_tokenizer(str(tmp_path))
        with pytest.raises(ValueError, match="at least 258"):
            load_tokenizer("bpe", vocab_size=100, texts=iter([TEXT]))
