"""FASTA and FASTQ as labelled rows and running text, and classifiers of DNA."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from lagwise.data import load_tokenizer, open_rows, open_source, prepare_labelled
from lagwise.data.batches import BucketedExamples
from lagwise.data.examples import ChangedExamples
from lagwise.data.reading import read_table
from lagwise.runs import predict_run
from lagwise.training import load_recipe, make_task, train
from lagwise_papers.data.dna import complements, either_strand


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


def test_one_file_of_sequences_needs_another_column_of_labels(tmp_path: Path) -> None:
    (tmp_path / "genes.fa").write_text(records("ACGT"))
    with pytest.raises(ValueError, match=r"the 12 rows .* of the class 'genes'.*`label=COLUMN`.*host"):
        prepare_labelled(str(tmp_path / "genes.fa"), cache=tmp_path / "cache", progress=False)
    rows = open_rows(str(tmp_path / "genes.fa")).read()["train"]
    assert rows.column_names == ["text", "id", "description", "label", "host"]


def test_letters_and_their_complements() -> None:
    dna = load_tokenizer("dna")
    assert len(dna) == 7
    assert dna("acGTUunRx-")["input_ids"] == [0, 1, 2, 3, 3, 3, 4, 4, 4, 4]
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


def test_classes_of_dna_from_fasta(tmp_path: Path) -> None:
    """Both strands are read in training, and a run predicts the records of another file."""
    random, data = np.random.default_rng(0), tmp_path / "data"
    data.mkdir()
    for name in ("coding", "random"):
        lines = [f">{name}{i} x\n{''.join(random.choice(list('ACGT'), 30))}\n" for i in range(40)]
        (data / f"{name}.fa").write_text("".join(lines))
    small = ["model.hidden_size=16", "model.num_hidden_layers=1", "training.steps=2"]
    made = load_recipe("dna", [f"data.source={data}", *small])
    train(made, tmp_path / "run", progress=False)
    (tmp_path / "new.fa").write_text(">one\nACGT\n>two\nacgu\n")
    rows = predict_run(tmp_path / "run", source=str(tmp_path / "new.fa"), progress=False)
    assert [row["id"] for row in rows] == ["one", "two"]
    assert rows[0]["p(coding)"] == pytest.approx(rows[1]["p(coding)"])
    words = make_task(load_recipe("dna", [f"data.source={data}", "data.tokenizer=words"]))
    with pytest.raises(ValueError, match="reverse complements need a tokenizer with the letters A and T"):
        words.open(progress=False)
    earlier = tmp_path / "recipe.yaml"
    for both, name in (("true", "dna_classification"), ("false", "sequence_classification")):
        earlier.write_text(f"task: {{name: sequence_classification, kind: auto, reverse_complement: {both}}}\n")
        task = load_recipe(str(earlier), [f"data.source={data}"]).task
        assert (task["name"], task["kind"]) == (name, "auto")
