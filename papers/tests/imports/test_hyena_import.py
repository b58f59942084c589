"""HyenaDNA models in their authors' format give the logits of their formulas, and of their code, as lagwise models."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from peer_layers import PARTS, hyena_operator, hyena_shapes, hyena_tables, layer_norm, linear
from safetensors.torch import save_file
from torch import Tensor

import lagwise
from lagwise.models import load_model
from lagwise.runs import embed_run, predict_run
from lagwise_papers.imports import import_run
from lagwise_papers.imports.hyena import from_hyena_dna

WIDTH, INNER, LAYERS, LENGTH, HIDDEN, FEATURES, DEPTH = 6, 10, 2, 40, 8, 5, 2
VALUES: dict[str, Any] = {
    "architectures": ["HyenaDNAForCausalLM"],
    "model_type": "hyenadna",
    "activation_freq": 10,
    "d_inner": INNER,
    "d_model": WIDTH,
    "emb_dim": FEATURES,
    "filter_order": HIDDEN,
    "hyena_order": 2,
    "max_seq_len": LENGTH,
    "n_layer": LAYERS,
    "num_inner_mlps": DEPTH,
    "pad_token_id": 4,
    "pad_vocab_size_multiple": 8,
    "short_filter_order": 3,
    "vocab_size": 12,
}
BACKBONE = "hyena.backbone"


def weights(*, classes: int = 0) -> dict[str, Tensor]:
    """Random weights by the names of their files."""
    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {f"{BACKBONE}.embeddings.word_embeddings.weight": (16, WIDTH)}
    norms = [f"{BACKBONE}.ln_f"]
    for i in range(LAYERS):
        layer = f"{BACKBONE}.layers.{i}"
        norms += [f"{layer}.norm1", f"{layer}.norm2"]
        shapes |= {f"{layer}.mixer.{k}": v for k, v in hyena_shapes(WIDTH, HIDDEN, DEPTH, FEATURES).items()}
        shapes |= {f"{layer}.mlp.fc1.weight": (INNER, WIDTH), f"{layer}.mlp.fc1.bias": (INNER,)}
        shapes |= {f"{layer}.mlp.fc2.weight": (WIDTH, INNER), f"{layer}.mlp.fc2.bias": (WIDTH,)}
    shapes |= {f"{norm}.{part}": (WIDTH,) for norm in norms for part in PARTS}
    shapes |= {"score.weight": (classes, WIDTH)} if classes else {"lm_head.weight": (16, WIDTH)}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    tables = hyena_tables(WIDTH, LENGTH, FEATURES)
    return tensors | {f"{BACKBONE}.layers.{i}.mixer.{k}": v.clone() for i in range(LAYERS) for k, v in tables.items()}


def hidden(tensors: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Their last hidden states of one sequence."""
    own = {name.removeprefix(f"{BACKBONE}."): value.double() for name, value in tensors.items()}
    x = own["embeddings.word_embeddings.weight"][ids]
    for i in range(LAYERS):
        layer = {k.removeprefix(f"layers.{i}."): v for k, v in own.items() if k.startswith(f"layers.{i}.")}
        mixer = {k.removeprefix("mixer."): v for k, v in layer.items() if k.startswith("mixer.")}
        x = x + hyena_operator(mixer, layer_norm(layer, "norm1", x), layers=DEPTH, shift=0.05)
        inner = linear(layer, "mlp.fc1", layer_norm(layer, "norm2", x))
        x = x + linear(layer, "mlp.fc2", F.gelu(inner, approximate="tanh"))
    return layer_norm(own, "ln_f", x)


def saved(folder: Path, values: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_logits_equal_their_formulas_and_stream(tmp_path: Path, device: torch.device) -> None:
    tensors = weights()
    result = import_run(saved(tmp_path / "theirs", VALUES, tensors), tmp_path / "run")
    assert result["model"] == "LagwiseForCausalLM"
    assert "no_tokenizer" not in result
    model, tokenizer = load_model(tmp_path / "run", device=device)
    ids = torch.randint(0, 12, (1, LENGTH))
    expected = hidden(tensors, ids[0]) @ tensors["lm_head.weight"].double().t()
    with torch.no_grad():
        logits = model(ids).logits[0].double()
        cache, parts = None, []
        for start, end in ((0, 17), (17, 18), (18, LENGTH)):
            out = model(ids[:, start:end], past_key_values=cache)
            cache = out.past_key_values
            parts.append(out.logits[0].double())
        padded = torch.cat([torch.full((1, 3), 4), ids[:, :20]], 1)
        left = model(padded, attention_mask=(torch.arange(23) >= 3)[None].long()).logits[0, 3:].double()
    scale = float(expected.abs().max())
    for actual in (logits, torch.cat(parts)):
        torch.testing.assert_close(actual, expected, rtol=0, atol=4e-5 * scale)
    torch.testing.assert_close(left, expected[:20], rtol=0, atol=2e-5 * scale)
    with pytest.raises(ValueError, match=f"at most {LENGTH} tokens"):
        model(torch.zeros(1, LENGTH + 1, dtype=torch.long))
    assert tokenizer is not None
    assert tokenizer("ACGTN?")["input_ids"] == [7, 8, 9, 10, 11, 6]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, len(tokenizer)) == (1, 4, 12)
    assert model.generate(ids[:, :3], max_new_tokens=4, do_sample=False).shape[1] <= 7


def test_a_genome_has_a_vector(tmp_path: Path) -> None:
    """Of each record of a file, also of one that is longer than the model takes."""
    import_run(saved(tmp_path / "theirs", VALUES, weights()), tmp_path / "run")
    model, tokenizer = load_model(tmp_path / "run")
    records = {"chr1": "ACGTTGCA" * 20, "chr2": "GGN"}
    with gzip.open(tmp_path / "genome.fa.gz", "wt") as file:
        file.write("".join(f">{name} of something\n{text}\n" for name, text in records.items()))
    out = tmp_path / "genome.parquet"
    embed_run(tmp_path / "run", [str(tmp_path / "genome.fa.gz")], out, progress=False)
    rows = pq.read_table(out).to_pylist()
    assert [(row["id"], row["tokens"]) for row in rows] == [("chr1", 160), ("chr2", 3)]
    expected = lagwise.embed(model, tokenizer, [*records.values()])
    torch.testing.assert_close(torch.tensor([row["vector"] for row in rows]), expected)
    ids = torch.as_tensor(tokenizer(records["chr1"])["input_ids"])
    with torch.no_grad():
        parts = [model.model(ids[None, start : start + LENGTH])[0][0] for start in range(0, 160 - 20, 20)]
    mean = torch.cat([parts[0], *(part[20:] for part in parts[1:])]).mean(0)
    torch.testing.assert_close(F.normalize(mean, dim=0), expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stored", [True, False])
def test_an_output_layer_may_be_that_of_the_embeddings(stored: bool) -> None:
    tensors = weights()
    embedding = tensors[f"{BACKBONE}.embeddings.word_embeddings.weight"]
    tensors["lm_head.weight"] = embedding.clone()
    if not stored:
        del tensors["lm_head.weight"]
    model: Any = from_hyena_dna(VALUES, tensors)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    torch.testing.assert_close(model.lm_head.weight, embedding)


def test_a_classifier_is_a_run(tmp_path: Path) -> None:
    """It pools the last token, and its output layer has no bias."""
    tensors = weights(classes=3)
    values = {
        **VALUES,
        "architectures": ["HyenaDNAForSequenceClassification"],
        "id2label": {"0": "a", "1": "b", "2": "c"},
    }
    values["label2id"] = {"a": 0, "b": 1, "c": 2}
    import_run(saved(tmp_path / "theirs", values, tensors), tmp_path / "run", text=["sequence"])
    model, _ = load_model(tmp_path / "run")
    rows = [{"sequence": "ACGGTCA"}, {"sequence": "TT"}]
    predictions = predict_run(tmp_path / "run", rows, progress=False)
    for row, scores in zip(rows, predictions, strict=True):
        ids = torch.tensor(["ACGTN".index(letter) + 7 for letter in row["sequence"]])
        expected = (hidden(tensors, ids)[-1] @ tensors["score.weight"].double().t()).softmax(0)
        assert [scores[f"p({name})"] for name in "abc"] == pytest.approx(expected.tolist(), abs=1e-4)
    assert model.config.pooling == "last"


def changed(name: str, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    tensors = weights()
    tensors[f"{BACKBONE}.layers.1.mixer.{name}"] = change(tensors[f"{BACKBONE}.layers.1.mixer.{name}"])
    return tensors


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["HyenaDNAModel"]}, "unknown architecture of HyenaDNA: 'HyenaDNAModel'"),
        ({"model_type": "hyena"}, "model of type 'hyena', not 'hyenadna'"),
        ({"hyena_order": 3}, "hyena_order=3 cannot be imported; it must be 2"),
        ({"emb_dim": 4}, "emb_dim must be odd and at least 3, got 4"),
        ({"d_inner": 11}, "the weights do not fit config.json"),
    ],
)
def test_other_models_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hyena_dna({**VALUES, **values}, weights())


def test_weights_that_do_not_fit_are_named() -> None:
    for name, change, message in (
        ("filter_fn.pos_emb.z", lambda z: z + 0.01, "pos_emb.z is not that of its formula, but off by up to 0.01"),
        ("filter_fn.modulation.deltas", lambda d: -d, "modulation.deltas is not that of its formula"),
        ("filter_fn.bias", lambda b: b[:-1], "the weights do not fit config.json"),
    ):
        with pytest.raises(ValueError, match=message):
            from_hyena_dna(VALUES, changed(name, change))
    with pytest.raises(ValueError, match=r"HyenaDNA has no weight 'hyena.backbone.pooler.weight'"):
        from_hyena_dna(VALUES, {**weights(), "hyena.backbone.pooler.weight": torch.zeros(1)})


def test_other_folders_are_named(tmp_path: Path) -> None:
    """A model of another type, and the authors' older format, which is a pickle."""
    folder = saved(tmp_path / "theirs", {**VALUES, "model_type": "bert"}, weights())
    with pytest.raises(ValueError, match="of a model of type 'bert'; lagwise imports models of mega and hyenadna"):
        import_run(folder, tmp_path / "run")
    (folder / "config.json").write_text(json.dumps(VALUES))
    (folder / "model.safetensors").rename(folder / "weights.ckpt")
    with pytest.raises(FileNotFoundError, match=r"weights\.ckpt is a pickle"):
        import_run(folder, tmp_path / "run")
