"""Vectors of texts of any length, and the command that writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize
from typer.testing import CliRunner

import lagwise
from lagwise.cli.main import app
from lagwise.data import load_tokenizer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM
from lagwise.runs import embed_run
from lagwise.runs.vectors import _Reader, vectors
from lagwise.training import LagClassifier
from lagwise.training.recipe import load_recipe

parquet = pytest.importorskip("pyarrow.parquet")
RECIPES = ("best-lm", "mega-lm", "tnn-lm", "transformer-alibi-lm")


def make(recipe: str, **fields: Any) -> Any:
    torch.manual_seed(3)
    of_recipe = load_recipe(recipe).model
    sizes = {"vocab_size": 258, "hidden_size": 24, "num_hidden_layers": 1, **fields}
    config = LagwiseConfig(**{**of_recipe, **sizes, "causal": not recipe.endswith("mlm")})
    return (LagwiseForCausalLM if config.causal else LagwiseForMaskedLM)(config).eval()


def ids(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, length)


@torch.no_grad()
def states(model: Any, tokens: np.ndarray) -> torch.Tensor:
    return model.model(torch.as_tensor(tokens)[None], use_cache=False).last_hidden_state[0]


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual.double(), normalize(expected.double(), dim=-1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_streamed_text_has_the_vector_of_the_whole(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every size of the pieces, in which the tokens arrive and in which they are read, beside others."""
    model = make(recipe).double()
    texts = [ids(300), ids(1, 1), ids(40, 2)]
    whole = [states(model, text) for text in texts]
    for size in (17, 299, 300):
        monkeypatch.setattr("lagwise.runs.vectors._TOGETHER", size)
        for pooling, expected in {"mean": [h.mean(0) for h in whole], "last": [h[-1] for h in whole]}.items():
            close(lagwise.embed(model, None, texts, pooling=pooling), torch.stack(expected))
            parts = [np.array_split(text, 5) for text in texts]
            embedded = [*vectors(model, enumerate(parts), pooling=pooling)]
            close(torch.stack([each.values for each in embedded]), torch.stack(expected))
            assert [(each.document, each.tokens) for each in embedded] == [(0, 300), (1, 1), (2, 40)]


@pytest.mark.parametrize("recipe", ["tnn-mlm", "transformer-learned-lm"])
def test_texts_longer_than_a_model_takes_are_read_in_windows_that_overlap(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token counts once, in the window with the most context."""
    model = make(recipe, **({} if recipe == "tnn-mlm" else {"max_position_embeddings": 64})).double()
    monkeypatch.setattr("lagwise.runs.vectors._SPAN", 64)
    text, lead = ids(150), 16 if recipe == "tnn-mlm" else 32
    windows = [states(model, text[start : start + 64]) for start in (0, 32, 64, 96)]
    middle = [windows[0][: lead + 32], *(each[lead : lead + 32] for each in windows[1:3]), windows[3][lead:]]
    assert sum(map(len, middle)) == 150
    for size in (1 << 14, 40):
        monkeypatch.setattr("lagwise.runs.vectors._TOGETHER", size)
        close(lagwise.embed(model, None, [text, text[:64]])[0], torch.cat(middle).mean(0))
        close(lagwise.embed(model, None, [text[:64], text], pooling="last")[1], windows[3][-1])


@pytest.mark.parametrize("recipe", ["best-lm", "tnn-mlm"])
def test_windows_have_the_vectors_that_they_have_alone(recipe: str) -> None:
    model, texts = make(recipe).double(), [ids(100), ids(30, 1), ids(0), ids(64, 2)]
    embedded = [*vectors(model, enumerate([text] for text in texts), window=30, stride=20)]
    starts = [(0, 0), (0, 20), (0, 40), (0, 60), (0, 80), (1, 0), (3, 0), (3, 20), (3, 40)]
    assert [(each.document, each.start) for each in embedded] == starts
    for each in embedded:
        own = texts[each.document][each.start :][:30]
        assert each.tokens == len(own)
        close(each.values, states(model, own).mean(0))
    rest = [*vectors(model, enumerate([text] for text in texts), window=30, stride=20, begin=60)]
    assert [(each.document, each.start) for each in rest] == starts[3:]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make("mega-lm").save_pretrained(folder)
    load_tokenizer("bytes").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("window", [None, 16])
def test_a_stopped_run_goes_on(run: Path, window: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost or written twice, and what is complete is not computed again."""
    texts = [f"{i} " * (20 + i) for i in range(12)]
    (tmp_path / "in").mkdir()
    for name, own in {"in/a.jsonl": texts[:5], "in/b.jsonl": ["", *texts[5:]]}.items():
        (tmp_path / name).write_text("".join(json.dumps({"text": t, "id": f"n{len(t)}"}) + "\n" for t in own))
    given: dict[str, Any] = {"sources": [str(tmp_path / "in")], "window": window, "progress": False}
    whole, out = tmp_path / "whole.parquet", tmp_path / "in" / "out.parquet"  # a table there is no text
    embed_run(run, out=whole, **given)
    monkeypatch.setattr("lagwise.runs.vectors._WAITING", 1)
    monkeypatch.setattr("lagwise.runs.embed._SECONDS", -1.0)
    read, calls = _Reader._hidden, list[int]()

    def stopping(*args: Any, **inputs: Any) -> Any:
        calls.append(1)
        if len(calls) in (4, 8):
            raise KeyboardInterrupt
        return read(*args, **inputs)

    monkeypatch.setattr("lagwise.runs.vectors._Reader._hidden", stopping)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            embed_run(run, out=out, **given)
        assert not out.exists()
    with pytest.raises(FileExistsError, match=r"out.parquet.parts' has vectors of other texts"):
        embed_run(run, out=out, **{**given, "pooling": "last"})
    result = embed_run(run, out=out, **given)
    expected, table = parquet.read_table(whole), parquet.read_table(out)
    assert result == {"vectors": len(expected), "earlier": 6, "empty": 1}
    assert table.drop(["vector"]).equals(expected.drop(["vector"]))
    result, others = (np.stack(each["vector"].to_numpy()) for each in (table, expected))
    np.testing.assert_allclose(result, others, atol=1e-6)
    assert [each.name for each in out.parent.glob("out*")] == ["out.parquet"]
    assert embed_run(run, out=out, **given)["earlier"] == len(table)  # nothing is left to do
    if window is None:
        assert table["id"].to_pylist() == [f"n{len(text)}" for text in texts]
        assert table["document"].to_pylist() == [1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 7, 8]
        assert len(calls) == 14


def test_standard_input_and_files_have_the_same_vectors(run: Path, tmp_path: Path) -> None:
    text, out, other = "Ça va. " * 3000, tmp_path / "in.parquet", tmp_path / "file.parquet"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    told = CliRunner().invoke(app, ["embed", str(run), "-", "--out", str(out)], input=text.encode())
    assert told.output.endswith(f"1 vector: {out}\n")
    embed_run(run, [str(tmp_path / "a.txt")], other, progress=False)
    one, two = (parquet.read_table(each).to_pylist()[0] for each in (out, other))
    assert one.pop("file") == "-"
    assert two.pop("file") == str(tmp_path / "a.txt")
    assert one == two
    assert one["tokens"] == 24_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["binary.txt"], "binary.txt looks binary (a zero byte at 3), not text"),
        (["latin.txt"], "latin.txt is not UTF-8"),
        (["empty.txt"], "empty.txt is empty"),
        (["blank.jsonl"], "there is no text in"),
        (["none.txt"], "there is no file or folder"),
        (["good.txt", "--out", "vectors.csv"], "`out` must be a .parquet file"),
        (["good.txt", "--out", "/proc/vectors.parquet"], "`out` cannot be '/proc'"),
        (["good.txt", "--stride", "8"], "`stride` must be at most `window`"),
        (["good.txt", "--out", "taken.parquet"], "taken.parquet' has vectors of other texts"),
        (["-"], "standard input is empty"),
    ],
)
def test_bad_input_is_named_before_anything_is_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"binary.txt": b"abc\0", "latin.txt": b"abc\xe9 d", "empty.txt": b"", "good.txt": b"good"}
    files |= {"blank.jsonl": b'{"text": ""}\n', "taken.parquet": b"mine"}
    for name, content in files.items():
        Path(name).write_bytes(content)
    told = CliRunner().invoke(app, ["embed", str(run), *arguments], input=b"")
    assert message in str(told.exception)
    assert {path.name for path in tmp_path.iterdir()} == {*files}


def test_models_without_states_of_tokens_are_refused(tmp_path: Path) -> None:
    classifier = LagClassifier().fit(["good fun", "so dull", "good", "dull"], ["+", "-", "+", "-"])
    with pytest.raises(ValueError, match=r"LinearForSequenceClassification has no hidden states"):
        lagwise.embed(classifier.model_, classifier.tokenizer_, ["good"])
    values = LagwiseConfig(hidden_size=8, num_hidden_layers=1, inputs="values")
    with pytest.raises(ValueError, match="reads values, not text"):
        lagwise.embed(lagwise.LagwiseModel(values), None, [[1]])
    with pytest.raises(ValueError, match=r"token ids must be integers of 64 bits, got \[1, 9223372036854775808\]"):
        lagwise.embed(lagwise.LagwiseModel(LagwiseConfig()), None, [[1, 2**63]])
    with pytest.raises(ValueError, match="text 1 has no tokens"):
        lagwise.embed(make("mega-lm"), load_tokenizer("bytes"), ["a", "", "b"])
