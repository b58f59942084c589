"""Token files, and the training windows made of them."""

from __future__ import annotations

import itertools
import random
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lagwise.data import TrainingWindows, load_tokenizer, open_source, prepare
from lagwise.data import tokenizers as tokenizers_module
from lagwise.data import tokens as tokens_module
from lagwise.data.tokenizers import split_text


def killed_at(batch: int) -> Callable[..., list[np.ndarray]]:
    """Encode, but for a batch at which the process is killed."""
    encode, numbers = tokens_module.encode_texts, itertools.count(1)

    def killed(given: list[str], *args: Any) -> list[np.ndarray]:
        if next(numbers) == batch:
            raise KeyboardInterrupt
        return encode(given, *args)

    return killed


class TestTokenFiles:
    def test_decoding_restores_the_text(self, text_file: Path) -> None:
        for tokenizer in ("bytes", "bpe"):
            data = prepare(str(text_file), tokenizer, vocab_size=300, progress=False)
            source = open_source(str(text_file))
            for split in ("train", "valid", "test"):
                text, ids = "".join(source.documents(split)), data.splits[split]
                assert ids[-1] == data.tokenizer.eos_token_id
                assert data.tokenizer.decode(ids, skip_special_tokens=True) == text
                assert data.text_bytes[split] == len(text.encode())

    def test_long_documents_are_encoded_in_pieces_without_loss(self) -> None:
        text = "\n\n".join(f"Paragraph {i}.\n  indented\n" for i in range(20000))
        found = list(split_text(text, 1 << 16))
        assert len(found) > 5
        assert "".join(found) == text
        assert max(map(len, split_text("x" * 200_000, 1000))) <= 2000
        assert "".join(split_text("x" * 200_000, 1000)) == "x" * 200_000

    @pytest.mark.parametrize("space", [" ", "\n", "  ", " \n", "\n  ", "\t "])
    def test_encoding_in_pieces_keeps_words_whole(self, space: str) -> None:
        tokenizer = load_tokenizer("bytes").backend_tokenizer.pre_tokenizer
        text = space.join(["word", "it's", "x2", "...", "ü"] * 50)
        whole = [word for word, _ in tokenizer.pre_tokenize_str(text)]
        cut = [[word for word, _ in tokenizer.pre_tokenize_str(piece)] for piece in split_text(text, 20)]
        assert len(cut) > 20
        assert [word for piece in cut for word in piece] == whole

    def test_a_bpe_is_trained_on_parts_of_a_long_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The time grows with the square of a word's length: one of 300,000 letters would take over a minute."""
        most: list[int] = []
        monkeypatch.setattr(tokenizers_module, "split_text", lambda text, n: most.append(n) or split_text(text, n))
        text = "".join(random.Random(0).choices("abcdefgh", k=9000))
        tokenizer = load_tokenizer("bpe", vocab_size=400, texts=iter([text]))
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
        assert most[0] <= 4096

    def test_token_files_are_reused(self, text_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = prepare(str(text_file), "bytes", progress=False)
        monkeypatch.setattr(tokens_module, "_encode", lambda *a: pytest.fail("encoded again"))
        assert prepare(str(text_file), "bytes", progress=False).folder == first.folder

    @pytest.mark.parametrize("damage", ["a token", "half of the file", "text_bytes", "meta", "the tokenizer"])
    def test_damaged_token_files_are_rebuilt(self, tmp_path: Path, text_file: Path, damage: str) -> None:
        whole = prepare(str(text_file), "bytes", cache=tmp_path, progress=False)
        expected = {split: ids.tolist() for split, ids in whole.splits.items()}
        tokens, meta = whole.folder / "train.bin", whole.folder / "meta.json"
        if damage == "a token":
            ids = np.fromfile(tokens, dtype=np.uint16)
            ids[100] ^= 1
            ids.tofile(tokens)
        elif damage == "half of the file":
            tokens.write_bytes(tokens.read_bytes()[: tokens.stat().st_size // 4 * 2])
        elif damage == "text_bytes":
            meta.write_text(meta.read_text().replace(str(whole.text_bytes["train"]), "0"))
        elif damage == "meta":
            meta.write_text("[1]")
        else:
            (whole.folder / "tokenizer" / "tokenizer.json").unlink()
        with pytest.warns(UserWarning, match="damaged"):
            again = prepare(str(text_file), "bytes", cache=tmp_path, progress=False)
        assert again.folder == whole.folder
        assert again.text_bytes == whole.text_bytes
        assert {split: ids.tolist() for split, ids in again.splits.items()} == expected

    def test_two_processes_encode_a_text_once(
        self, tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        encode, calls = tokens_module._encode, []
        monkeypatch.setattr(tokens_module, "_encode", lambda *a: (calls.append(a), time.sleep(0.2), encode(*a))[-1])
        with warnings.catch_warnings(), ThreadPoolExecutor(2) as pool:
            warnings.simplefilter("ignore")  # that one waits for the other
            tasks = [pool.submit(prepare, str(text_file), "bytes", cache=tmp_path, progress=False) for _ in range(2)]
            one, other = (task.result() for task in tasks)
        assert one.folder == other.folder
        assert len(calls) == 1

    def test_too_little_text_for_three_splits(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("ab")
        with pytest.raises(ValueError, match=r"too short: .* the (valid|test) split"):
            prepare(str(tmp_path / "a.txt"), "bytes", cache=tmp_path, progress=False)


class TestWindows:
    def test_an_epoch_has_every_window_once(self) -> None:
        tokens = np.arange(1000, dtype=np.uint16)
        windows = TrainingWindows(tokens, 10, 1000, seed=0)
        epoch = [windows[i]["input_ids"] for i in range(windows.per_epoch)]
        starts = sorted(int(w[0]) for w in epoch)
        assert len(epoch) == 99
        assert np.diff(starts).tolist() == [10] * 98
        assert all(w.tolist() == list(range(w[0], w[0] + 10)) for w in epoch)

    def test_one_window_is_enough_and_less_is_an_error(self) -> None:
        tokens = np.arange(10, dtype=np.uint16)
        assert TrainingWindows(tokens, 10, 3, 0)[2]["input_ids"].tolist() == list(range(10))
        with pytest.raises(ValueError, match="10 tokens, fewer than one sequence of 11"):
            TrainingWindows(tokens, 11, 3, 0)
