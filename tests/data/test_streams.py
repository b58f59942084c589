"""Streamed text: every row once, in disjoint shares, and gone on with exactly."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from lagwise.data import StreamLoader, TextStream, open_stream, streams
from lagwise.tasks.language_modelling import PlainText

LENGTH, END = 16, 256


@pytest.fixture(autouse=True)
def little_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HELD_OUT", 100)
    monkeypatch.setattr(streams, "_ROW_CHARACTERS", 64)


def documents(count: int = 40) -> list[str]:
    return [f"document {i}: " + " ".join(str(i * k) for k in range(1, 3 + i)) + "\n" for i in range(count)]


def one_text(folder: Path) -> str:
    (folder / "a.txt").write_text("".join(documents()))
    return str(folder / "a.txt")


def packed_files(folder: Path) -> str:
    """Two files for training, one packed, and files with the names of splits."""
    texts = documents()
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    with gzip.open(folder / "train-1.jsonl.gz", "wt") as file:
        file.writelines(lines[:15])
    (folder / "train-2.jsonl").write_text("".join(lines[15:36]))
    (folder / "valid.jsonl").write_text("".join(lines[36:38]))
    parquet.write_table(pa.table({"text": texts[38:]}), folder / "test.parquet")
    return str(folder)


def data_set(folder: Path) -> str:
    """A folder stands in for the hub, since `datasets` loads both by name."""
    for i in range(2):
        parquet.write_table(pa.table({"text": documents()[i::2], "other": [0] * 20}), folder / f"train-{i}.parquet")
    return f"hub:{folder}"


SOURCES = {make.__name__: make for make in (one_text, packed_files, data_set)}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return SOURCES[request.param](tmp_path)


def stream(source: str, reader: int = 0, readers: int = 1, *, shuffled: int = 8 * LENGTH, batch: int = 2) -> TextStream:
    data: Any = PlainText.__new__(PlainText)
    text = open_stream(source, "bytes")
    size = {"length": LENGTH, "batch_size": batch, "shuffled": shuffled, "seed": 3}
    return TextStream(text, data.training_example, data.collate, **size, reader=reader, readers=readers)


def windows(batches: Any, count: int) -> np.ndarray:
    """The tokens of some batches ``(windows, LENGTH)``."""
    return np.concatenate([batch["input_ids"].numpy() for batch in itertools.islice(iter(batches), count)])


def rows_of_an_epoch(made: TextStream) -> list[str]:
    """The text of the rows that a stream reads before it begins again."""
    found = []
    for place, ids in made._rows_from({"epoch": 0, "rows": None, "piece": -1, "tokens": 0}):
        if place["epoch"]:
            return found
        found.append(bytes(i for i in ids.tolist() if i < 256).decode())
    return found


def test_text_follows_text(tmp_path: Path) -> None:
    """Without a buffer, the windows are those of the text after what is held out, document by document."""
    made = stream(one_text(tmp_path), shuffled=1, batch=1)
    text = "".join(documents())
    held = [bytes(open_stream(str(tmp_path / "a.txt"), "bytes").splits[s][1:].tolist()) for s in ("valid", "test")]
    rest = text.encode().removeprefix(b"".join(held))
    assert all(100 <= len(each) <= 300 for each in held)
    tokens = windows(StreamLoader(made, 0), len(rest) // LENGTH).reshape(-1).tolist()
    assert bytes(i for i in tokens if i < 256) == rest[: len(tokens)][: sum(i < 256 for i in tokens)]
    (tmp_path / "files").mkdir()
    made = stream(packed_files(tmp_path / "files"), shuffled=1, batch=1)
    tokens = windows(StreamLoader(made, 0), 100).reshape(-1).tolist()
    pieces = bytes(i if i < 256 else 0 for i in tokens).split(b"\0")[1:-1]
    assert len(pieces) > 10
    assert {each.decode() for each in pieces} <= {*documents()[:36]}


@pytest.mark.parametrize("readers", [2, 3])
def test_readers_have_disjoint_rows(source: str, readers: int) -> None:
    alone = Counter(rows_of_an_epoch(stream(source)))
    shares = [Counter(rows_of_an_epoch(stream(source, reader, readers))) for reader in range(readers)]
    assert all(shares)
    assert sum(shares, Counter()) == alone
    assert all(not a & b for a, b in itertools.combinations(shares, 2))


def test_rows_of_other_documents_are_separate(tmp_path: Path) -> None:
    """A file of two readers, who have every other row; a document whose first row is held out as that of another."""
    held, long = "held out " * 12, "".join(str(i) for i in range(150))
    texts = [held, held + "for testing", "short", long, held + long, long[::-1]]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    end = bytes([0])
    for readers in (1, 2):
        for reader in range(readers):
            made = stream(str(tmp_path / "a.jsonl"), reader, readers)
            place = {"epoch": 0, "rows": None, "piece": -1, "tokens": 0}
            read = itertools.takewhile(lambda found: not found[0]["epoch"], made._rows_from(place))
            tokens = np.concatenate([ids for _, ids in read])
            found = bytes(np.where(tokens < 256, tokens, 0).astype(np.uint8).tolist()).split(end)[1:]
            assert len(found) > 2
            assert all(any(each.decode() in text for text in texts) for each in found)


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize("stop", [0, 1, 4, 7, 203])
def test_a_stream_goes_on_from_its_state(source: str, readers: int, stop: int) -> None:
    """Within a buffer and at its end, also in a later epoch."""
    whole = windows(StreamLoader(stream(source, readers - 1, readers), 0), stop + 9)
    loader = StreamLoader(stream(source, readers - 1, readers), 0)
    begun = [*itertools.islice(iter(loader), stop)]
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = StreamLoader(stream(source, readers - 1, readers), 0)
    resumed.load_state_dict(state)
    assert len(begun) == stop
    assert np.array_equal(windows(resumed, 9), whole[2 * stop :])


def test_workers_take_turns(tmp_path: Path) -> None:
    source = packed_files(tmp_path)
    whole = windows(StreamLoader(stream(source), 2), 9)
    loader = StreamLoader(stream(source), 2)
    assert len([*itertools.islice(iter(loader), 3)]) == 3
    resumed = StreamLoader(stream(source), 2)
    resumed.load_state_dict(loader.state_dict())
    assert np.array_equal(windows(resumed, 6), whole[6:])
    assert set(whole[:2].flat) != set(whole[2:4].flat)
    with pytest.raises(ValueError, match=r"1 process\(es\) of 2 worker\(s\), not 1 of 1"):
        StreamLoader(stream(source), 0).load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match=r"`workers` 3 are more than the 2 file\(s\)"):
        StreamLoader(stream(source), 3)


def test_the_buffer_shuffles(tmp_path: Path) -> None:
    source = one_text(tmp_path)
    plain, shuffled = (windows(StreamLoader(stream(source, shuffled=n), 0), 4) for n in (1, 8 * LENGTH))
    assert not np.array_equal(plain, shuffled)
    assert sorted(map(tuple, plain)) == sorted(map(tuple, shuffled))


def test_what_cannot_be_streamed(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("a few words\n" * 5)
    with pytest.raises(
        ValueError, match=r"holds out the first 100 characters for .* of '.*nothing is left to train on"
    ):
        open_stream(str(short), "bytes")
    with pytest.raises(ValueError, match="has no text for reader 3 of 3"):
        next(iter(stream(few_rows(tmp_path), 2, 3)))


def few_rows(folder: Path) -> str:
    (folder / "few").mkdir()
    for split, count in {"train": 2, "valid": 1, "test": 1}.items():
        (folder / "few" / f"{split}.jsonl").write_text('{"text": "some words"}\n' * count)
    return str(folder / "few")
