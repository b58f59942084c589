"""Sources, tokenizers and token files."""

from __future__ import annotations

import errno
import json
import lzma
import math
import os
import random
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from lagwise.data import TrainingWindows, load_tokenizer, open_source, prepare, read_documents, reading, token_bytes
from lagwise.data import tokens as tokens_module
from lagwise.data.tokenizers import pieces
from lagwise.files import lock

TEXT = "A line of text, with ünïcödé in it.\n" * 200


def split_texts(name: str) -> dict[str, str]:
    source = open_source(name)
    return {split: "".join(source.documents(split)) for split in ("train", "valid", "test")}


class TestSources:
    def test_a_text_file_is_split_at_lines_without_loss(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("".join(f"line {i}\n" for i in range(1000)))
        parts = split_texts(str(tmp_path / "a.txt"))
        assert parts["train"] + parts["valid"] + parts["test"] == (tmp_path / "a.txt").read_text()
        assert 0.04 < len(parts["valid"]) / len(parts["train"]) < 0.07

    @pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".jsonl.xz"])
    def test_records_are_documents(self, tmp_path: Path, suffix: str) -> None:
        documents = [f"document {i}" for i in range(100)]
        path = tmp_path / f"a{suffix}"
        if suffix == ".parquet":
            from pyarrow import parquet, table

            parquet.write_table(table({"text": documents}), path)
        else:
            lines = "\n".join(json.dumps({"text": d}) for d in documents)
            path.write_bytes(lzma.compress(lines.encode()) if suffix.endswith("xz") else lines.encode())
        source = open_source(str(path))
        found = [d for split in ("train", "valid", "test") for d in source.documents(split)]
        assert found == documents

    def test_file_names_determine_the_splits_of_a_folder(self, tmp_path: Path) -> None:
        for name in ("my-train", "my.val", "my_test"):
            (tmp_path / f"{name}.txt").write_text(name)
        assert split_texts(str(tmp_path)) == {"train": "my-train", "valid": "my.val", "test": "my_test"}

    def test_a_text_without_lines_is_split_at_spaces(self, tmp_path: Path) -> None:
        text = " ".join(f"word{i}" for i in range(5000))
        (tmp_path / "a.txt").write_text(text)
        parts = split_texts(str(tmp_path / "a.txt"))
        assert parts["train"] + parts["valid"] + parts["test"] == text
        assert parts["train"].endswith(" ")
        assert 0.04 < len(parts["test"]) / len(text) < 0.06

    def test_few_records_are_split_individually(self, tmp_path: Path) -> None:
        records = ["a" * 1000, "b" * 1000]
        (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": r}) for r in records) + "\n\n")
        source = open_source(str(tmp_path / "a.jsonl"))
        assert [sorted(set(d)) for d in source.documents("train")] == [["a"], ["b"]]
        assert [len(d) for d in source.documents("test")] == [50, 50]

    def test_folders_may_name_the_splits(self, tmp_path: Path) -> None:
        for split in ("train", "test"):
            (tmp_path / split).mkdir()
            (tmp_path / split / "0.txt").write_text(split)
        assert split_texts(str(tmp_path)) == {"train": "train", "valid": "test", "test": "test"}
        (tmp_path / "stray.txt").write_text("?")
        with pytest.raises(ValueError, match=r"stray\.txt"):
            open_source(str(tmp_path))

    def test_other_folders_are_split_by_file(self, tmp_path: Path) -> None:
        for i in range(60):
            (tmp_path / f"{i}.txt").write_text(f"<{i}>")
        source = open_source(str(tmp_path))
        files = [f for s in source.files.values() for f in s]
        assert sorted(files) == sorted(tmp_path.iterdir())
        assert all(source.files.values())
        (tmp_path / "60.txt").write_text("one more moves no other")
        again = open_source(str(tmp_path))
        assert all(set(source.files[s]) <= set(again.files[s]) for s in source.files)

    def test_the_standard_library(self) -> None:
        source = open_source("stdlib")
        files = [f for split in source.files.values() for f in split]
        assert len(files) == len(set(files))
        sizes = {split: sum(f.stat().st_size for f in files) for split, files in source.files.items()}
        assert sizes["train"] > 4e6
        assert min(sizes.values()) > 2e5
        assert not any("site-packages" in f.parts for f in files)

    def test_the_fingerprint_is_of_the_content(self, tmp_path: Path) -> None:
        for name, text in (("a.txt", TEXT), ("b.txt", TEXT + "!")):
            (tmp_path / name).write_text(text)
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "a.txt").write_text(TEXT)
        one, other, moved = (
            open_source(str(p)).fingerprint() for p in (tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "sub/a.txt")
        )
        assert one == moved
        assert one != other

    def test_hub_data_sets_by_name(self, tmp_path: Path) -> None:
        """A folder stands in for the hub, since `datasets` loads both by name."""
        for split, count in (("train", 40), ("test", 6)):
            lines = "".join(json.dumps({"text": f"{split} {i}"}) + "\n" for i in range(count))
            (tmp_path / f"{split}.jsonl").write_text(lines)
        source = open_source(f"hub:{tmp_path}")
        assert list(source.documents("train")) == [f"train {i}" for i in range(40)]
        assert list(source.documents("valid")) == list(source.documents("test")) == [f"test {i}" for i in range(6)]
        assert source.fingerprint() == open_source(f"hub:{tmp_path}").fingerprint()
        with pytest.raises(ValueError, match="cannot load data set"):
            open_source(f"hub:{tmp_path}/nothing")

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("empty.txt", b"", "is empty"),
            ("binary.txt", b"ELF\0\1\2", "looks binary"),
            ("latin.txt", "größe".encode("latin1"), "not UTF-8.*byte 2.*iconv"),
            ("cut.txt.xz", lzma.compress(TEXT.encode())[:60], "truncated"),
            ("bad.jsonl", b'{"text": "fine"}\n{"txt": 1}\n', "line 2"),
            ("bad2.jsonl", b'{"text": 5}\n', "must be a string"),
            ("surrogate.jsonl", b'{"text": "\\ud800"}\n', "line 1.*Unicode"),
            ("bad.parquet", b"PAR1 not really", "parquet"),
        ],
    )
    def test_errors_name_the_file_and_the_problem(
        self, tmp_path: Path, name: str, content: bytes, message: str
    ) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message) as error:
            split_texts(str(tmp_path / name))
        assert name in str(error.value)

    @pytest.mark.parametrize("name", ["bomb.txt.xz", "bomb.jsonl.xz", "lines.jsonl.xz"])
    def test_a_decompression_bomb_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.setattr(reading, "memory", lambda: 8 * 10**6)
        line = b'{"text": "' + b"a" * 10**5 + b'"}\n'
        content = line * 50 if name.startswith("lines") else b"a" * 5 * 10**6
        (tmp_path / name).write_bytes(lzma.compress(content, preset=0))
        assert (tmp_path / name).stat().st_size < 10**5
        with pytest.raises(ValueError, match=r"holds over .* GB of text"):
            split_texts(str(tmp_path / name))

    def test_missing_paths_and_empty_folders(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="hub:nowhere"):
            open_source("nowhere")
        with pytest.raises(ValueError, match="in folder"):
            open_source(str(tmp_path))


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


class TestTokenFiles:
    def test_decoding_restores_the_text(self, text_file: Path) -> None:
        for tokenizer in ("bytes", "bpe"):
            data = prepare(str(text_file), tokenizer, vocab_size=300, progress=False)
            parts = split_texts(str(text_file))
            for split, text in parts.items():
                ids = data.splits[split]
                assert ids[-1] == data.tokenizer.eos_token_id
                assert data.tokenizer.decode(ids, skip_special_tokens=True) == text
                assert data.text_bytes[split] == len(text.encode())

    def test_long_documents_are_encoded_in_pieces_without_loss(self) -> None:
        text = "\n\n".join(f"Paragraph {i}.\n  indented\n" for i in range(20000))
        found = list(pieces(text, 1 << 16))
        assert len(found) > 5
        assert "".join(found) == text
        assert max(map(len, pieces("x" * 200_000, 1000))) <= 2000
        assert "".join(pieces("x" * 200_000, 1000)) == "x" * 200_000

    @pytest.mark.parametrize("space", [" ", "\n", "  ", " \n", "\n  ", "\t "])
    def test_encoding_in_pieces_keeps_words_whole(self, space: str) -> None:
        tokenizer = load_tokenizer("bytes").backend_tokenizer.pre_tokenizer
        text = space.join(["word", "it's", "x2", "...", "ü"] * 50)
        whole = [word for word, _ in tokenizer.pre_tokenize_str(text)]
        cut = [[word for word, _ in tokenizer.pre_tokenize_str(piece)] for piece in pieces(text, 20)]
        assert len(cut) > 20
        assert [word for piece in cut for word in piece] == whole

    def test_bpe_training_on_a_long_line_is_fast(self) -> None:
        """As a single word these letters would take over a minute."""
        text = "".join(random.Random(0).choices("abcdefgh", k=300_000))
        tokenizer = load_tokenizer("bpe", vocab_size=2000, texts=iter([text]))
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text

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

    def test_leftover_files_of_a_killed_process_are_removed(self, tmp_path: Path, text_file: Path) -> None:
        dead, alive = (tmp_path / "tokens" / f".saving-{name}" for name in ("dead", "alive"))
        for folder in (dead, alive):
            folder.mkdir(parents=True)
        with lock(tmp_path / "tokens" / "alive.lock"):
            prepare(str(text_file), "bytes", cache=tmp_path, progress=False)
        assert alive.is_dir()
        assert not dead.exists()

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

    def test_changed_text_is_encoded_again(self, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_text(TEXT)
        before = prepare(str(path), "bytes", progress=False).folder
        path.write_text(TEXT.replace("text", "test"))
        assert prepare(str(path), "bytes", progress=False).folder != before

    def test_a_full_disk_leaves_no_files_and_gives_advice(
        self, tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*args: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(tokens_module, "_encode", full)
        with pytest.raises(OSError, match="LAGWISE_CACHE"):
            prepare(str(text_file), "bytes", cache=tmp_path, progress=False)
        assert not [path for path in (tmp_path / "tokens").iterdir() if path.suffix != ".lock"]

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

    def test_examples_depend_only_on_seed_and_index(self) -> None:
        tokens = np.arange(1000, dtype=np.uint16)
        one, same, other = (TrainingWindows(tokens, 10, 500, seed) for seed in (1, 1, 2))
        starts = {i: int(one[i]["input_ids"][0]) for i in (300, 5, 299, 0)}
        assert starts == {i: int(same[i]["input_ids"][0]) for i in starts}
        assert starts != {i: int(other[i]["input_ids"][0]) for i in starts}

    def test_one_window_is_enough_and_less_is_an_error(self) -> None:
        tokens = np.arange(10, dtype=np.uint16)
        assert TrainingWindows(tokens, 10, 3, 0)[2]["input_ids"].tolist() == list(range(10))
        with pytest.raises(ValueError, match="10 tokens, fewer than one sequence of 11"):
            TrainingWindows(tokens, 11, 3, 0)


def test_documents_of_a_python_file() -> None:
    assert "def test_documents_of_a_python_file" in next(read_documents(Path(__file__)))
