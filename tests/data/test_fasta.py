"""FASTA and FASTQ as labelled rows."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from lagwise.data import load_tokenizer, open_rows, open_source, prepare_labelled
from lagwise.data.batches import BucketedExamples, either_strand
from lagwise.data.examples import ChangedExamples
from lagwise.data.letters import complements
from lagwise.data.row_files import read_table


def records(letters: str, count: int = 12, length: int = 20) -> str:
    random = np.random.default_rng(ord(letters[0]))
    return "".join(
        f">{letters}{i} a record [host=h{i % 2}]\n{''.join(random.choice(list(letters), length))}\n"
        for i in range(count)
    )


def test_records_of_fasta(tmp_path: Path) -> None:
    path = tmp_path / "virus.v2.FASTA.gz"
    path.write_bytes(gzip.compress(b"\n>a1 Homo sapiens [host=Sus scrofa]\r\nACG\r\nTT a\n\n;note\n>b2\nGG\n>c3\n"))
    table = read_table(path)
    assert table.to_pydict() == {
        "text": ["ACGTTa", "GG", ""],
        "id": ["a1", "b2", "c3"],
        "description": ["Homo sapiens [host=Sus scrofa]", "", ""],
        "label": ["virus.v2"] * 3,
        "host": ["Sus scrofa", None, None],
    }
    (tmp_path / "bad.fa").write_text("ACGT\n>a\n")
    with pytest.raises(ValueError, match=r"bad\.fa, line 1: a sequence without a header"):
        read_table(tmp_path / "bad.fa")


def test_records_of_fastq(tmp_path: Path) -> None:
    """A line of qualities may begin with @ or +."""
    path = tmp_path / "reads.fq"
    path.write_text("@r1 x\nACGT\n+\n@+II\n@r2\nAC\nGT\n+r2\nII\n+@\n")
    assert read_table(path, ["text", "id"]).to_pydict() == {"text": ["ACGT", "ACGT"], "id": ["r1", "r2"]}
    path.write_text("@r1\nACGT\n+\nII\n")
    with pytest.raises(ValueError, match=r"line 1: the record has 4 letters and 2 qualities"):
        read_table(path)
    path.write_text(">r1\nACGT\n")
    with pytest.raises(ValueError, match=r"begins with '@'"):
        read_table(path)


@pytest.mark.parametrize("folders", [True, False])
def test_files_or_folders_are_classes(folders: bool, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name, letters in (("swine", "ACGT"), ("1", "AC")):
        file = data / name / "x.fna" if folders else data / f"{name}.fa"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(records(letters))
    rows = prepare_labelled(str(data), tokenizer="dna", length=16, cache=tmp_path / "cache", progress=False)
    assert (rows.kind, set(rows.label_names or ())) == ("classification", {"swine", "1"})
    assert sum(rows.cut.values()) == 24
    hosts = prepare_labelled(str(data), label="host", tokenizer="dna", cache=tmp_path / "cache", progress=False)
    assert hosts.label_names == ("h0", "h1")


def test_other_letters_than_those_of_dna_are_noted(tmp_path: Path) -> None:
    def notes(texts: list[str]) -> str:
        lines = "".join(f"{text}{i},{'ab'[i % 2]}\n" for i, text in enumerate(texts))
        (tmp_path / "rows.csv").write_text(f"text,label\n{lines}")
        options = {"tokenizer": "dna", "cache": tmp_path / "cache", "progress": False}
        return " ".join(prepare_labelled(str(tmp_path / "rows.csv"), **options).notes)

    assert "of the characters in train are none of A, C, G, T, U and N" in notes(["a quiet film"] * 20)
    assert "none of" not in notes(["ACGUnacgtNNNNNNNNNNNN" * 9 + "R"] * 20)


def test_one_file_of_sequences_needs_another_column_of_labels(tmp_path: Path) -> None:
    (tmp_path / "genes.fa").write_text(records("ACGT"))
    with pytest.raises(ValueError, match=r"all 12 sequences are of the class 'genes'.*`label=host`"):
        prepare_labelled(str(tmp_path / "genes.fa"), cache=tmp_path / "cache", progress=False)
    assert open_rows(str(tmp_path / "genes.fa")).columns == ("text", "id", "description", "label", "host")


def test_tokenizers_of_letters(tmp_path: Path) -> None:
    dna = load_tokenizer("dna")
    assert dna("acGTUunRx-")["input_ids"] == [0, 1, 2, 3, 3, 3, 4, 4, 4, 4]
    assert len(dna) == 7
    texts = iter(["bba a\n", "éb"])
    learned = load_tokenizer("characters", vocab_size=6, texts=texts)
    assert len(learned) == 6  # unknown, b, a, one of those that occur once, end of text and padding
    assert learned("bab")["input_ids"] == [1, 2, 1]
    assert learned.decode(learned("bab")["input_ids"]) == "bab"
    assert learned("z")["input_ids"] == [learned.unk_token_id]
    (tmp_path / "vocab.txt").write_text("A\nb\n")
    for name in (str(tmp_path), str(tmp_path / "vocab.txt")):
        own = load_tokenizer(name)
        assert own("aAbB?")["input_ids"] == [0, 0, 1, 1, own.unk_token_id]
        own.save_pretrained(tmp_path / "saved")
        assert load_tokenizer(str(tmp_path / "saved"))("aAbB?")["input_ids"] == own("aAbB?")["input_ids"]
    (tmp_path / "vocab.txt").write_text("A\nA\n")
    with pytest.raises(ValueError, match="'A' more than once"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(ValueError, match="give texts"):
        load_tokenizer("characters")


def test_complements() -> None:
    dna = load_tokenizer("dna")
    ids = np.array(dna("AACGTN")["input_ids"])
    assert dna.decode(complements(dna)[ids[::-1]]) == "NACGTT"
    with pytest.raises(ValueError, match="the letters A and T"):
        complements(load_tokenizer("characters", texts=iter(["xyz"])))


def test_sequences_are_documents_of_running_text(tmp_path: Path) -> None:
    """Without headers and line breaks, which a tokenizer of DNA would read as unknown letters."""
    (tmp_path / "train.fa").write_text(">a one\nACG\nT\n>b\nGG\n")
    (tmp_path / "valid.fq.gz").write_bytes(gzip.compress(b"@r\nAC\n+\nII\n"))
    source = open_source(str(tmp_path))
    assert [list(source.documents(split)) for split in ("train", "valid")] == [["ACGT", "GG"], ["AC"]]


def test_half_of_the_examples_are_reverse_complements(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in ("a", "b"):
        (data / f"{name}.fa").write_text(records("ACGT", count=40) if name == "a" else records("GA", count=40))
    rows = prepare_labelled(str(data), tokenizer="dna", cache=tmp_path / "cache", progress=False)
    examples = BucketedExamples(rows.splits["train"], 8, steps=10, seed=1)
    other = torch.from_numpy(complements(load_tokenizer("dna")))
    both = ChangedExamples(examples, partial(either_strand, complements=other), 1, 1)
    turned = 0
    for index in range(len(examples)):
        plain, read = examples[index], both[index]
        assert read["label"] == plain["label"]
        assert (read["input_ids"] == both[index]["input_ids"]).all()
        if (read["input_ids"] != plain["input_ids"]).any():
            turned += 1
            assert (read["input_ids"] == 3 - plain["input_ids"].flip(0)).all()  # A, C, G, T
    assert 0.3 < turned / len(examples) < 0.7
