"""Properties of all heads: forward, signature, saved folders, padding."""

from __future__ import annotations

import inspect
import sys

import pytest
import torch
from transformers import DataCollatorForLanguageModeling
from transformers.utils.generic import find_labels

from lagwise import (
    LagwiseConfig,
    LagwiseForCausalLM,
    LagwiseForImageClassification,
    LagwiseForMaskedLM,
    LagwiseForPrediction,
    LagwiseForSignalRegression,
    LagwiseForTokenClassification,
)
from lagwise.data.tokenizers import load_tokenizer, with_mask
from lagwise.models.modeling import LagwiseModel
from lagwise.models.registry import HEADS
from lagwise.models.remote_code import CLASSES

TARGETS = {
    LagwiseForMaskedLM: torch.tensor([[-100, 4, 9, -100], [7, -100, -100, 3]]),
    LagwiseForTokenClassification: torch.tensor([[0, 1, -100, 1], [1, 0, 0, -100]]),
}
_OTHERS = {"LagwiseConfig", "LagwiseModel", "LagwiseForPrediction", "LagwiseForSignalRegression"}  # no texts
IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


@pytest.fixture(autouse=True)
def _ids_are_on_the_device(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(sys.modules[__name__], "IDS", IDS.to(device))


def tiny(**changes: object) -> LagwiseConfig:
    return LagwiseConfig(**{"vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 2, "causal": False, **changes})


def logits_of(out: object) -> list[torch.Tensor]:
    return [value for name, value in out.items() if name.endswith("logits")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - _OTHERS))
def test_the_signature_lists_the_columns_that_a_head_reads_and_its_labels(name: str) -> None:
    """The Trainer of transformers removes every other column of a data set, and knows from these that there are
    labels."""
    head, names = HEADS[name], set(inspect.signature(HEADS[name].forward).parameters)
    inputs = {"pixel_values"} if "Image" in name else {"input_ids", "token_type_ids"}
    if "Image" not in name:
        inputs |= {"position_ids"} if "Sequence" in name else {"position_ids", "seq_idx"}
    assert names >= {*inputs, "attention_mask", "inputs_embeds"}
    assert find_labels(head) == ["labels"]
    known = inspect.signature(LagwiseModel.forward).parameters.keys() | {"self", "num_items_in_batch", "labels"}
    assert names - known <= {"logits_to_keep", "skip_logits", "cu_seqlens"}


@pytest.mark.parametrize("head", TARGETS, ids=lambda h: h.__name__)
class TestHeads:
    def test_the_loss_is_the_mean_over_labelled_entries(self, head: type) -> None:
        torch.manual_seed(0)
        model, labels = head(tiny()), TARGETS[head].to(IDS.device)
        out = model(IDS, labels=labels)
        expected = torch.nn.functional.cross_entropy(out.logits.flatten(0, -2), labels.flatten())
        torch.testing.assert_close(out.loss, expected)

    def test_outputs_on_request(self, head: type) -> None:
        model = head(tiny())
        assert isinstance(model(IDS, return_dict=False), tuple)
        out = model.base_model(IDS, output_hidden_states=True)
        assert len(out.hidden_states) == 3
        assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
        assert model(IDS).hidden_states is None
        model.config.output_hidden_states = True
        assert len(model(IDS).hidden_states) == 3
        model.config.return_dict = False
        assert isinstance(model(IDS), tuple)

    def test_token_types_are_ignored_unless_they_have_an_embedding(self, head: type) -> None:
        types = torch.tensor([[0, 0, 1, 1]] * 2)
        for kinds in (0, 2):
            model = head(tiny(type_vocab_size=kinds)).eval()
            with_types, without = logits_of(model(IDS, token_type_ids=types))[0], logits_of(model(IDS))[0]
            assert torch.equal(with_types, without) == (kinds == 0)


def test_a_sparse_masked_language_model_computes_only_labelled_logits() -> None:
    dense = LagwiseForMaskedLM(tiny())
    sparse = LagwiseForMaskedLM(tiny(sparse_prediction=True))
    sparse.load_state_dict(dense.state_dict())
    labels = TARGETS[LagwiseForMaskedLM]
    one, other = dense(IDS, labels=labels), sparse(IDS, labels=labels)
    torch.testing.assert_close(one.loss, other.loss)
    torch.testing.assert_close(one.logits[labels != -100], other.logits)
    assert sparse(IDS).logits.shape == (2, 4, 12)
    one.loss.backward()
    other.loss.backward()
    for a, b in zip(dense.parameters(), sparse.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_a_causal_masked_language_model_is_refused() -> None:
    with pytest.raises(ValueError, match="sees both sides of a mask"):
        LagwiseForMaskedLM(tiny(causal=True))
    with pytest.raises(ValueError, match="reads tokens"):
        LagwiseForMaskedLM(tiny(inputs={"name": "values", "features": 2}))


def test_collators_of_transformers_mask_whole_words() -> None:
    tokenizer = with_mask(load_tokenizer("bytes"))
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.5, return_tensors="pt")
    batch = collate([tokenizer("the words of a text"), tokenizer("another")])
    out = LagwiseForMaskedLM(tiny(vocab_size=len(tokenizer)))(**batch)
    assert out.loss.isfinite()
    assert (batch["input_ids"] == tokenizer.mask_token_id).any()


def test_stochastic_depth_keeps_the_mean_and_does_not_affect_inference() -> None:
    torch.manual_seed(0)
    model = LagwiseModel(tiny(stochastic_depth=0.6)).double()
    plain = LagwiseModel(tiny()).double()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model.eval()(IDS).last_hidden_state, plain.eval()(IDS).last_hidden_state)
    layer, x = model.layers[1].train(), torch.randn(4000, 3, 8, dtype=torch.float64)
    y, whole = layer(x), layer.block(x)
    dropped = (y == x).all((1, 2))
    assert float(dropped.double().mean()) == pytest.approx(0.6, abs=0.03)
    torch.testing.assert_close((y - x)[~dropped], (whole - x)[~dropped] / 0.4)
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])  # would be merged into one row
    seen = {model.train()(IDS, attention_mask=mask).last_hidden_state[0, 0, 0].item() for _ in range(20)}
    assert len(seen) <= 4


@pytest.mark.parametrize("head", [HEADS[name] for name in CLASSES if name in HEADS], ids=lambda h: h.__name__)
def test_a_saved_model_loads_with_its_own_weights(head: type, tmp_path) -> None:
    """transformers would take a weight of the head for one of the backbone of the same name, and the reverse; without
    training both have the same values."""
    inputs = {
        LagwiseForPrediction: {"name": "values", "features": 2},
        LagwiseForImageClassification: {"name": "patches", "size": 2},
        LagwiseForSignalRegression: {"name": "values", "features": 2},
    }
    fields = {"inputs": inputs.get(head, "tokens"), "causal": head is LagwiseForCausalLM}
    model = head(tiny(**fields, block={"name": "mega", "chunk": 4}, norm="layer", head_transform="gelu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(tmp_path)
    loaded = head.from_pretrained(tmp_path).state_dict()
    assert loaded.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(loaded[name], value), name


def test_the_configuration_has_a_length_limit_only_if_there_is_one(tmp_path) -> None:
    """Other programs compare the attribute with numbers."""
    assert not hasattr(tiny(), "max_position_embeddings")
    assert tiny(max_position_embeddings=7).length_limit == 7
    for limit in (None, 7):
        tiny(max_position_embeddings=limit).save_pretrained(tmp_path)
        found = LagwiseConfig.from_pretrained(tmp_path)
        assert (found.length_limit, hasattr(found, "max_position_embeddings")) == (limit, limit is not None)


def test_an_encoder_makes_sentence_embeddings(tmp_path) -> None:
    """sentence-transformers loads a saved run; padding does not change embeddings, and the model trains and saves."""
    sentences = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    tokenizer = with_mask(load_tokenizer("bytes"))
    torch.manual_seed(0)
    LagwiseForMaskedLM(tiny(vocab_size=len(tokenizer))).save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    model = sentences.SentenceTransformer(modules=[Transformer(str(tmp_path / "run")), Pooling(8)], device="cpu")
    texts = ["short", "a text that is much longer than the other one"]
    together = model.encode(texts, convert_to_tensor=True)
    for text, embedding in zip(texts, together, strict=True):
        torch.testing.assert_close(model.encode(text, convert_to_tensor=True), embedding, rtol=1e-4, atol=1e-5)
    model.save(str(tmp_path / "saved"))
    again = sentences.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert torch.equal(again.encode(texts, convert_to_tensor=True), together)


def test_fill_mask_and_token_classification_pipelines(tmp_path) -> None:
    from transformers import pipeline

    tokenizer = with_mask(load_tokenizer("bpe", vocab_size=300, texts=iter(["the cat sat on the mat " * 50])))
    LagwiseForMaskedLM(tiny(vocab_size=len(tokenizer))).save_pretrained(tmp_path / "masked")
    tokenizer.save_pretrained(tmp_path / "masked")
    found = pipeline("fill-mask", model=str(tmp_path / "masked"))(f"the {tokenizer.mask_token} sat", top_k=3)
    assert len(found) == 3
    assert all("sat" in each["sequence"] for each in found)
    labels = {"id2label": {0: "O", 1: "ANIMAL"}, "label2id": {"O": 0, "ANIMAL": 1}}
    LagwiseForTokenClassification(tiny(vocab_size=len(tokenizer), **labels)).save_pretrained(tmp_path / "tokens")
    tokenizer.save_pretrained(tmp_path / "tokens")
    tagged = pipeline("token-classification", model=str(tmp_path / "tokens"), ignore_labels=[])("the cat sat")
    assert "".join(each["word"] for each in tagged).replace("Ġ", " ") == "the cat sat"
    assert {each["entity"] for each in tagged} <= {"O", "ANIMAL"}
