"""Inputs of models: tokens, values and images; positions, norms and padding."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from lagwise.models import LagwiseConfig, LagwiseForSequenceClassification, LagwiseModel, StreamingCache
from lagwise.models.inputs import check_precision
from lagwise.ops import Layout

INPUTS: dict[str, tuple[Any, str, torch.Size]] = {
    "tokens": ("tokens", "input_ids", torch.Size((2, 12))),
    "values": ({"name": "values", "features": 3}, "input_values", torch.Size((2, 12, 3))),
    "patches": ({"name": "patches", "channels": 1, "size": 4}, "pixel_values", torch.Size((2, 1, 12, 16))),
}
every_input = pytest.mark.parametrize("kind", INPUTS)


def make(kind: str, **fields: Any) -> LagwiseForSequenceClassification:
    torch.manual_seed(0)
    options = {"hidden_size": 16, "num_hidden_layers": 2, "causal": False, "num_labels": 3, "inputs": INPUTS[kind][0]}
    return LagwiseForSequenceClassification(LagwiseConfig(**{**options, **fields})).eval()


def example(kind: str) -> dict[str, torch.Tensor]:
    _, name, shape = INPUTS[kind]
    return {name: torch.randint(0, 256, shape) if kind == "tokens" else torch.randn(shape)}


@every_input
@pytest.mark.parametrize("position", ["none", "sinusoidal", "learned"])
def test_every_head_supports_every_input(kind: str, position: str, tmp_path: Path) -> None:
    model = make(kind, position_embedding=position, max_position_embeddings=64 if position == "learned" else None)
    inputs = example(kind)
    out = model(**inputs, labels=torch.tensor([0, 2]))
    assert out.logits.shape == (2, 3)
    out.loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(loaded(**inputs).logits, out.logits)
    assert model.bfloat16()(**inputs).logits.dtype == torch.bfloat16


@every_input
def test_wrong_inputs_are_named(kind: str) -> None:
    model, (_, name, shape) = make(kind), INPUTS[kind]
    other = next(example(each) for each in INPUTS if each != kind)
    with pytest.raises(ValueError, match=f"give exactly one of {name} and inputs_embeds, got {next(iter(other))}"):
        model(**other)
    with pytest.raises(ValueError, match="got none"):
        model()
    with pytest.raises(ValueError, match=rf"{name} must be \(batch"):
        model(**{name: example(kind)[name][0]})
    if kind != "tokens":
        with pytest.raises(ValueError, match=f"{name} has NaN or infinite values"):
            model(**{name: torch.full(shape, float("nan"))})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 1, 10, 12), "height and width of pixel_values must be multiples of the patch's 4 pixels"),
        ((1, 3, 8, 8), r"channels=1, .*got \(1, 3, 8, 8\); this model reads grey .*task\.channels=3"),
    ],
)
def test_images_that_do_not_fit_are_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make("patches")(pixel_values=torch.zeros(shape))


def test_patches_are_read_row_by_row() -> None:
    model = make("patches").model
    pixels = torch.zeros(1, 1, 8, 12)
    pixels[:, :, 4:, :4] = 1  # the first patch of the second row
    differs = (model.embed_tokens(pixels) - model.embed_tokens(torch.zeros(1, 1, 8, 12))).abs().sum(-1)[0] > 0
    assert differs.tolist() == [False, False, False, True, False, False]


def test_sinusoids_equal_their_formula() -> None:
    model = make("values", position_embedding="sinusoidal").model
    x = torch.zeros(1, 5, 3)
    added = model._with_positions(model.embed_tokens(x), Layout(), None) - model.embed_tokens(x)
    angle = 3 * 10000 ** (-2 / 8)
    torch.testing.assert_close(added[0, 3, 2].item(), float(torch.tensor(angle).sin()))
    torch.testing.assert_close(added[0, 3, 10].item(), float(torch.tensor(angle).cos()))


def test_scaled_embeddings_and_their_dropout() -> None:
    plain, scaled = make("tokens"), make("tokens", scale_embeddings=True, embedding_dropout=0.5)
    ids = example("tokens")["input_ids"]
    first = plain.model(ids, output_hidden_states=True).hidden_states[0]
    torch.testing.assert_close(scaled.model(ids, output_hidden_states=True).hidden_states[0], 4 * first)
    dropped = scaled.train().model(ids, output_hidden_states=True).hidden_states[0]
    assert 0.3 < (dropped == 0).float().mean() < 0.7


EXACT = {"name": "rms", "epsilon": 1e-16}
NORMS = ("rms", EXACT, "scale", "layer", {"name": "layer", "affine": False}, "batch", "none")


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_padding_does_not_affect_norms(norm: Any, training: bool) -> None:
    """Also for batches with so much padding that layers run only on tokens, and with little padding."""
    block = {"name": "prenorm", "norm": norm}
    model = make("tokens", block=block, norm=norm).double().train(training)
    ids = torch.randint(0, 256, (2, 20))
    alone = model(ids).logits
    for left, right in ((1, 0), (0, 1), (9, 30)):
        padded = torch.cat([torch.full((2, left), 257), ids, torch.full((2, right), 257)], dim=1)
        mask = torch.tensor([[0] * left + [1] * 20 + [0] * right] * 2)
        torch.testing.assert_close(model(padded, attention_mask=mask).logits, alone, rtol=0, atol=1e-9)


def test_batch_norm_learns_the_statistics_of_real_tokens() -> None:
    model = make("values", block={"name": "prenorm", "norm": "batch"}).train()
    x, mask = torch.randn(4, 10, 3), torch.ones(4, 10)
    mask[:, 9] = 0
    x[:, 9] = 1e6
    model(input_values=x, attention_mask=mask)
    norm = model.model.layers[0].block.token_norm
    tokens = model.model.embed_tokens(x[:, :9]).flatten(0, 1)
    torch.testing.assert_close(norm.running_mean, 0.1 * tokens.mean(0))


@pytest.mark.parametrize("block", ["prenorm", "mega"])
def test_batch_norms_convert_to_synchronized_ones(block: str) -> None:
    """They keep their weights and names, and skip padding as before."""
    model = make("values", block={"name": block, "norm": "batch"}, norm="batch").double()
    synchronized = torch.nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    names = {name for name, part in synchronized.named_modules() if isinstance(part, torch.nn.SyncBatchNorm)}
    assert names == {name for name, part in model.named_modules() if isinstance(part, torch.nn.BatchNorm1d)}
    assert names
    x, mask = torch.randn(4, 10, 3, dtype=torch.float64), torch.ones(4, 10)
    mask[:, 7:] = 0
    for training in (True, False):
        outputs = [each.train(training)(input_values=x, attention_mask=mask).logits for each in (model, synchronized)]
        torch.testing.assert_close(*outputs)
    torch.testing.assert_close(synchronized.state_dict(), model.state_dict())
    assert float(model.model.norm.running_mean.abs().max()) > 0


def test_unknown_norms_are_named() -> None:
    with pytest.raises(ValueError, match="unknown norm: 'layers'; did you mean 'layer'"):
        make("tokens", norm="layers")
    with pytest.raises(ValueError, match="epsilon of a norm must be a positive number, got 0"):
        make("tokens", norm={"name": "rms", "epsilon": 0})


def test_a_signal_far_from_zero_keeps_its_digits_in_bfloat16() -> None:
    inputs = {"name": "values", "features": 1, "mean": [1000.0], "std": [1.0]}
    model, x = make("values", inputs=inputs), 1000 + torch.randn(2, 30, 1)
    exact = model(input_values=x).logits
    error = (model.bfloat16()(input_values=x).logits - exact).norm() / exact.norm()
    assert error < 0.05


def test_numbers_far_from_zero_keep_their_digits_under_autocast(device: torch.device) -> None:
    model = make("values", problem_type="regression", num_labels=1, label_mean=2000.0, label_std=5.0)
    exact = model(**(inputs := {"input_values": torch.randn(4, 10, 3)})).logits
    with torch.autocast(device.type, torch.bfloat16):
        found = model(**inputs).logits
    assert exact.std() > 0.01
    torch.testing.assert_close(found, exact, rtol=0, atol=0.1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"token_type_ids": torch.full((2, 12), 7)}, r"token_type_ids must be in \[0, 2\), got 7 to 7"),
        ({"token_type_ids": torch.zeros(2, 5, dtype=torch.long)}, r"token_type_ids must be .* \(2, 12\), got \(2, 5\)"),
        ({"token_type_ids": torch.zeros(1, 1, dtype=torch.long)}, r"got \(1, 1\)"),
        ({"input_ids": torch.zeros(2, 12)}, "input_ids must be integers, got torch.float32"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(2, 12)}, r"inputs_embeds must be \(batch, length, 16\)"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(2, 12, 3)}, r"got \(2, 12, 3\)"),
    ],
    ids=str,
)
def test_wrong_types_and_embeddings_are_named(given: dict[str, Any], message: str) -> None:
    model, cache = make("tokens", type_vocab_size=2, causal=True), StreamingCache(2)
    with pytest.raises(ValueError, match=message):
        model.model(**{**example("tokens"), **given}, past_key_values=cache)
    model.model(torch.zeros(1, 3, dtype=torch.long), past_key_values=cache)  # an error leaves the cache as it was


def by_row(**options: Any) -> LagwiseForSequenceClassification:
    """A model that reads each series on its own scale."""
    return make("values", inputs={"name": "values", "features": 2, "stride": 4, "by_row": True, **options})


def own_scale(embedding: Any, row: torch.Tensor) -> torch.Tensor:
    """The whole steps of a series by the formula, in float64."""
    row = row.double()
    mean, std = row.mean(0), row.std(0, correction=0)
    size = torch.cat([(std / torch.tensor(embedding.std)).log10(), (mean / std).asinh()])
    whole = ((row - mean) / std)[: len(row) // 4 * 4]
    steps = torch.stack([torch.cat([step.flatten(), size]) for step in whole.split(4)])
    return steps @ embedding.weight.double().T + embedding.bias.double()


def test_series_on_their_own_scale_have_the_steps_of_the_formula() -> None:
    torch.manual_seed(1)
    embedding, x = by_row(std=[2.0, 3.0]).model.embed_tokens, 1e-3 * torch.randn(3, 12, 2) + 5e-3
    for row, own in zip(x, embedding(x), strict=True):
        torch.testing.assert_close(own.double(), own_scale(embedding, row), rtol=1e-3, atol=1e-4)
    filled = torch.cat([x[:1, :10], torch.zeros(1, 2, 2)], 1)  # ends within its third step
    torch.testing.assert_close(embedding(filled)[0, :2].double(), own_scale(embedding, x[0, :10]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("gaps", [False, True])
def test_the_own_scale_of_a_series_depends_on_no_padding(gaps: bool) -> None:
    model = by_row(gaps=gaps)
    torch.manual_seed(1)
    x = torch.randn(2, 16, 2) * torch.tensor([[[1e-4]], [[1e4]]]) + 7
    if gaps:
        x[0, 3, 1] = torch.nan
    x[0, 10:] = 0
    alone = model(input_values=x[:1, :12]).logits
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    torch.testing.assert_close(model(input_values=x, attention_mask=mask).logits[:1], alone)
    shifted = torch.cat([torch.full((1, 8, 2), 9.0), x[:1, :12]], 1)
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    torch.testing.assert_close(model(input_values=shifted, attention_mask=mask).logits, alone)


def test_constant_series_and_causal_models_on_their_own_scale() -> None:
    model = by_row()
    for value in (0.0, 1e-6, 1e6):
        assert torch.isfinite(model(input_values=torch.full((1, 8, 2), value)).logits).all()
    with pytest.raises(ValueError, match="by_row needs a two-sided model"):
        LagwiseModel(LagwiseConfig(hidden_size=8, num_hidden_layers=1, inputs={"name": "values", "by_row": True}))
    with pytest.raises(ValueError, match="by_row needs one series in each row"):
        model(input_values=torch.randn(1, 8, 2), seq_idx=torch.tensor([[0, 1]]))


def test_parts_in_float64_are_refused_on_devices_without() -> None:
    apple = torch.device("mps")
    check_precision(make("tokens"), apple)
    block = {"name": "prenorm", "token_mixer": {"name": "lru"}}
    model = LagwiseModel(LagwiseConfig(hidden_size=8, num_hidden_layers=2, block=block))
    check_precision(model, torch.device("cuda"))
    with pytest.raises(ValueError, match=r"LRUMixer \(layers\.0\..*\) computes in float64, which Apple's GPUs"):
        check_precision(model, apple)
