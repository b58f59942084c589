"""Evaluation of models with known scores."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lagwise.data import load_tokenizer
from lagwise.evaluation import compressor_bits_per_byte, evaluate
from lagwise.evaluation.perplexity import Score
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.runs import evaluate_run
from lagwise.tasks import LanguageModelling
from lagwise.training import Recipe, train


class Oracle(nn.Module):
    """Predicts ``previous token + 1`` with a known probability, and counts the tokens that it reads."""

    def __init__(self, probability: float, vocab: int = 8):
        super().__init__()
        self.confidence = nn.Parameter(torch.tensor(math.log(probability * (vocab - 1) / (1 - probability))))
        self.vocab = vocab
        self.length_limit: int | None = None
        self.rows: list[tuple[int, int]] = []
        self.base_model = self._hidden

    def _hidden(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        self.rows += [(input_ids.shape[1], int(row[0])) for row in input_ids]
        following = nn.functional.one_hot((input_ids + 1) % self.vocab, self.vocab)
        return SimpleNamespace(last_hidden_state=following * self.confidence)

    def to_logits(self, hidden: Tensor) -> Tensor:
        return hidden


@pytest.mark.parametrize("length", [1, 7, 100, 99999])
def test_every_token_but_the_first_is_scored_once(length: int) -> None:
    tokens = (np.arange(1001) % 8).astype(np.uint16)
    score = evaluate(Oracle(0.5), tokens, length, np.ones(8, dtype=np.int64))
    assert score.tokens == score.text_bytes == 1000
    assert score.bits_per_byte == pytest.approx(1.0)
    assert score.perplexity == pytest.approx(2.0)


def test_windows_cover_the_text() -> None:
    tokens = (np.arange(24) % 8).astype(np.uint16)
    oracle = Oracle(0.9)
    evaluate(oracle, tokens, 7, np.ones(8, dtype=np.int64))
    assert oracle.rows == [(7, 0), (7, 7), (7, 6), (2, 5)]


def test_separators_count_as_loss_but_not_as_bytes() -> None:
    tokens = np.array([0, 1, 7, 0, 1, 7], dtype=np.uint16)  # 7 ends a document
    sizes = np.array([1] * 7 + [0])
    score = evaluate(Oracle(0.5), tokens, 10, sizes)
    assert (score.tokens, score.text_bytes) == (5, 3)


def test_nothing_to_predict_and_nan() -> None:
    with pytest.raises(ValueError, match="at least 2 tokens"):
        evaluate(Oracle(0.5), np.zeros(1, dtype=np.uint16), 4, np.ones(8))
    broken = Oracle(0.5)
    broken.confidence.data.fill_(math.nan)
    with pytest.raises(FloatingPointError, match="damaged"):
        evaluate(broken, np.zeros(9, dtype=np.uint16), 4, np.ones(8))


def test_compressors_on_known_text() -> None:
    noise = np.random.default_rng(0).bytes(20_000)
    for name, value in compressor_bits_per_byte(noise).items():
        assert 8 < value < 8.6, name
    assert compressor_bits_per_byte(b"a" * 20_000)["gzip"] < 0.1
    with pytest.raises(ValueError, match="no text"):
        compressor_bits_per_byte(b"")


@pytest.mark.covers("TNN table 15")
def test_evaluating_a_run(tiny_run: Path, tmp_path: Path, text_file: Path) -> None:
    result = evaluate_run(tiny_run, [32, 64], progress=False)
    assert [s["length"] for s in result["test"]] == [32, 64]
    assert result["test"][0]["tokens"] == result["test"][1]["tokens"]
    assert set(result["compressors"]) == {"gzip, 32-byte windows", "gzip", "bz2", "xz"}
    assert (tiny_run / "evaluation.json").is_file()
    other = tmp_path / "other.txt"
    other.write_text(text_file.read_text().upper())
    elsewhere = evaluate_run(tiny_run, [32], source=str(other), progress=False)
    assert elsewhere["data"] == str(other)
    assert elsewhere["test"][0]["bits_per_byte"] != result["test"][0]["bits_per_byte"]
    with pytest.raises(ValueError, match="lengths must be"):
        evaluate_run(tiny_run, [0])


def test_overrides_that_keep_the_weights(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Another engine gives the same scores, a finer grid different ones. The run's own evaluation is not changed."""
    kernel = {"name": "frequency", "hidden": 16, "layers": 2, "inputs": "omega", "grid": 16}
    tiny_recipe.model["block"]["token_mixer"]["kernel"] = kernel
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    own = evaluate_run(run, [64], progress=False)["test"][0]["nats"]
    block = evaluate_run(run, [64], overrides=["model.block.token_mixer.engine=block"], progress=False)
    assert block["test"][0]["nats"] == pytest.approx(own, rel=1e-5)
    fine = evaluate_run(run, [64], overrides=["model.block.token_mixer.kernel.grid=64"], progress=False)
    assert fine["test"][0]["nats"] != own  # hardly, after a few steps
    assert "overrides" not in json.loads((run / "evaluation.json").read_text())
    saved = json.loads((run / "evaluation-block.token_mixer.kernel.grid=64.json").read_text())
    assert saved["overrides"] == ["model.block.token_mixer.kernel.grid=64"]
    with pytest.raises(ValueError, match="changes asked for need other weights"):
        evaluate_run(run, [64], overrides=["model.block.token_mixer.kernel.layers=3"], progress=False)
    with pytest.raises(ValueError, match=r"changes only fields of the model \(model\.key=value\)"):
        evaluate_run(run, [64], overrides=["training.steps=2"], progress=False)
    with pytest.raises(ValueError, match="did you mean 'grid'"):
        evaluate_run(run, [64], overrides=["model.block.token_mixer.kernel.gird=2"], progress=False)
    for unknown in ("model.bloc.token_mixer.engine=block", "model.init_from=elsewhere"):
        with pytest.raises(ValueError, match="unknown key in model"):
            evaluate_run(run, [64], overrides=[unknown], progress=False)
    many = [f"model.block.token_mixer.kernel.{key}" for key in ("grid=64", "hidden=16", "layers=2", "inputs=omega") * 2]
    evaluate_run(run, [64], overrides=many, progress=False)
    assert sorted(len(path.name) for path in run.glob("evaluation-*.json"))[0] == len("evaluation-.json") + 16


def test_a_folder_of_another_program_is_scored_on_given_data(tmp_path: Path, text_file: Path) -> None:
    LagwiseForCausalLM(LagwiseConfig(hidden_size=8, num_hidden_layers=1)).save_pretrained(tmp_path / "model")
    load_tokenizer("bytes").save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="has no data of its own; give other data"):
        evaluate_run(tmp_path / "model", [32], progress=False)
    scored = evaluate_run(tmp_path / "model", [32], source=str(text_file), max_tokens=200, progress=False)
    assert scored["trained_at"] is None
    assert 7 < scored["test"][0]["bits_per_byte"] < 9  # a fresh model has 8, as all bytes are alike to it
    (table,) = LanguageModelling(Recipe().data).tables(scored)
    assert "trained at" not in table.title


def test_a_short_model_is_evaluated_at_its_limit(tiny_recipe: Recipe, tmp_path: Path) -> None:
    tiny_recipe.model["max_position_embeddings"] = 40
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    assert [score["length"] for score in evaluate_run(run, progress=False)["test"]] == [40]
    scored = evaluate_run(run, [32, 64], progress=False)
    assert ([score["length"] for score in scored["test"]], scored["left_out"]) == ([32], [64])
    with pytest.raises(ValueError, match="give other `lengths`"):
        evaluate_run(run, [64], progress=False)


def test_a_run_in_a_folder_with_a_tokenizers_name(
    tiny_recipe: Recipe, tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``bpe`` and ``bytes`` as folders are not taken for the tokenizers, nor these for the folders."""
    monkeypatch.chdir(tmp_path)
    tiny_recipe.data.tokenizer, tiny_recipe.data.vocab_size = "bpe", 300
    run = train(tiny_recipe, "bytes", progress=False)
    by_name = evaluate_run("bytes", [32], source=str(text_file), progress=False)["test"]
    assert by_name == evaluate_run(run.resolve(), [32], source=str(text_file), progress=False)["test"]
    assert by_name[0]["tokens"] < len(text_file.read_bytes()) / 20
    own = evaluate_run(run, [32], progress=False)["test"]
    assert own[0]["nats"] == pytest.approx(by_name[0]["nats"])
    assert own[0]["text_bytes"] == by_name[0]["text_bytes"]
    (tmp_path / "bpe").mkdir()
    again = train(tiny_recipe, "again", progress=False)
    assert evaluate_run(again, [32], progress=False)["test"] == evaluate_run(run, [32], progress=False)["test"]


def test_changed_data_are_an_error(tiny_recipe: Recipe, tmp_path: Path, text_file: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(text_file.read_text())
    tiny_recipe.data.source = str(text)
    run = train(tiny_recipe, tmp_path / "run", progress=False)
    text.write_text("new " + text_file.read_text())
    with pytest.raises(ValueError, match="has changed since"):
        evaluate_run(run, [32], progress=False)
    assert evaluate_run(run, [32], source=str(text), progress=False)["test"]
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**about, "lagwise": "0.1.0"}))
    with pytest.raises(ValueError, match=r"has changed since .*, or lagwise 0\.1\.0 split such data otherwise: its"):
        evaluate_run(run, [32], progress=False)


def test_a_very_bad_model_has_an_infinite_perplexity() -> None:
    score = Score(length=8, tokens=2, nats=3000.0, text_bytes=2)
    assert score.to_dict()["perplexity"] == math.inf
    assert score.to_dict()["bits_per_byte"] == pytest.approx(1500 / math.log(2))


@pytest.mark.parametrize("transform", ["none", "tanh", "gelu"])
def test_a_score_is_that_of_the_models_logits(tiny_recipe: Recipe, transform: str) -> None:
    model = LagwiseForCausalLM(LagwiseConfig(**tiny_recipe.model, head_transform=transform)).eval()
    ids = torch.randint(0, 256, (1, 30))
    expected = nn.functional.cross_entropy(model(ids[:, :-1]).logits[0].float(), ids[0, 1:], reduction="sum")
    scored = evaluate(model, ids[0].numpy(), 29, np.ones(258, dtype=np.int64))
    assert scored.nats == pytest.approx(expected.item(), rel=1e-5)
