"""Trainings on streamed text: stopped and gone on with exactly, shared between processes, and written nowhere."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from processes import resume_quietly, run_together, train_until
from run_results import assert_equal_runs, losses
from typer.testing import CliRunner

from lagwise.cli.main import app
from lagwise.data import open_stream
from lagwise.tasks.language_modelling import PlainText
from lagwise.training import Recipe, load_recipe, resume, train


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, count in {"train-1": 60, "train-2": 50, "valid": 12, "test": 12}.items():
        rows = (json.dumps({"text": f"{name} {i} " + " ".join(str(i * k) for k in range(40))}) for i in range(count))
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def streamed(tiny_recipe: Recipe, corpus: Path) -> Recipe:
    tiny_recipe.data.source, tiny_recipe.data.streaming, tiny_recipe.data.shuffle_tokens = str(corpus), True, 500
    return tiny_recipe


@pytest.mark.parametrize(
    ("workers", "masked"),
    [(0, False), (0, True), *(pytest.param(2, masked, marks=pytest.mark.slow) for masked in (False, True))],
)
def test_a_stopped_training_goes_on_exactly(streamed: Recipe, tmp_path: Path, masked: bool, workers: int) -> None:
    streamed.training.workers, streamed.training.accumulate = workers, 2
    if masked:
        streamed.task = {"name": "masked_language_modelling"}
        streamed.model |= {"causal": False}
    whole = train(streamed, tmp_path / "whole", progress=False)
    run = tmp_path / "run"
    with pytest.raises(SystemExit):
        train_until(streamed, run, 5)
    resume(run, progress=False)
    assert losses(run) == losses(whole)
    assert len(set(losses(whole).values())) == 6
    assert_equal_runs(run, whole)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_two_processes_share_a_stream(streamed: Recipe, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert run_together(train_until, streamed, whole) == [0, 0]
    assert run_together(train_until, streamed, run, 5) == [0, 0]
    assert {path.name for path in run.glob("checkpoint-3/stream_*")} == {"stream_0.json", "stream_1.json"}
    with pytest.raises(ValueError, match=r"shared by 2 process\(es\) of 1 worker\(s\), not 1 of 1"):
        resume(run, progress=False)
    assert run_together(resume_quietly, run) == [0, 0]
    assert losses(run) == losses(whole)


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_processes_that_share_sequences_read_the_same(streamed: Recipe, tmp_path: Path) -> None:
    one = train(streamed, tmp_path / "one", progress=False)
    streamed.training.sequence_parallel = 2
    assert run_together(train_until, streamed, tmp_path / "two") == [0, 0]
    assert_equal_runs(tmp_path / "two", one)


def test_nothing_is_written_but_the_run(
    streamed: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: Path
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("LAGWISE_CACHE", str(cache))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    run = train(streamed, tmp_path / "run", progress=False)
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    kernels = cache / "native"  # compiled, of no data
    elsewhere = [path for path in written if not path.is_relative_to(run) and not path.is_relative_to(kernels)]
    assert sum(path.stat().st_size for path in elsewhere) == 0, elsewhere  # there may be locks
    texts = [json.loads(line)["text"][:40].encode() for line in (corpus / "train-1.jsonl").read_text().splitlines()]
    content = b"".join(path.read_bytes() for path in written)
    assert not any(text in content for text in texts)
    result = CliRunner().invoke(app, ["evaluate", str(run), "--lengths", "32"])
    assert result.exit_code == 0, result.output
    assert "validation" in result.output


def test_a_changed_corpus_is_refused(streamed: Recipe, tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(SystemExit):
        train_until(streamed, tmp_path / "run", 5)
    with open(corpus / "train-2.jsonl", "a") as file:
        file.write('{"text": "more"}\n')
    with pytest.raises(ValueError, match="have changed since it began"):
        resume(tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("recipe", "overrides", "reason"),
    [
        ("classify", [], r"`streaming` does not apply to the task SequenceClassification"),
        ("tnn-lm", ["training.epochs=1"], "give `steps` instead of `epochs`"),
        ("tnn-lm", ["data.lengths=[256,512]"], "`lengths` does not go with `streaming`"),
        ("tnn-lm", ["training.carry_states=4"], "`carry_states` does not go with `streaming`"),
        ("tnn-lm", ["data.tokenizer=bpe"], r"'bpe' is made of the whole text.*run's folder as `tokenizer`"),
    ],
)
def test_what_needs_the_whole_text_is_refused(
    recipe: str, overrides: list[str], reason: str, corpus: Path, tmp_path: Path
) -> None:
    asked = load_recipe(recipe, [f"data.source={corpus}", "data.streaming=true", *overrides])
    with pytest.raises(ValueError, match=reason):
        train(asked, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_notes_say_what_is_held_out(streamed: Recipe, corpus: Path) -> None:
    from lagwise.training import check_recipe

    (note, *_) = check_recipe(streamed).open(progress=False).notes()
    assert "held out: the first 1,048,576 characters of each of valid and test" in note
    assert len(open_stream(str(corpus), "bytes").splits["valid"]) > 1000


def test_memory_does_not_hold_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one long text, no more is read than a buffer of it."""
    from lagwise.data import reading, streams

    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {i} of a long text\n" for i in range(50_000)))
    monkeypatch.setattr(reading, "_CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr(streams, "HELD_OUT", 1000)
    monkeypatch.setattr(streams, "_ROW_CHARACTERS", 500)
    read = []
    decoded = reading._decoded

    def counted(parts: Any, path: Path) -> Any:
        for part in decoded(parts, path):
            read.append(len(part))
            yield part

    monkeypatch.setattr(reading, "_decoded", counted)
    text = streams.open_stream(str(path), "bytes")
    made: Any = PlainText.__new__(PlainText)
    size = {"length": 16, "batch_size": 2, "shuffled": 320, "seed": 0, "reader": 0, "readers": 1}
    stream = streams.TextStream(text, made.training_example, made.collate, **size)
    assert len([*itertools.islice(iter(stream), 20)]) == 20
    assert sum(read) < 100_000
