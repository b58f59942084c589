"""Sequence classifiers, bidirectional or causal, and pooling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForSequenceClassification
from lagwise.models.configuration import PAIRS

TCN = {"name": "tcn", "kernel_size": 3, "dilation": 3, "depth": 3}
BLOCKS: dict[str, dict[str, Any]] = {
    "tnn": {"name": "prenorm"},
    "tcn-mlp": {"name": "prenorm", "token_mixer": TCN, "channel_mixer": {"name": "mlp"}},
    "mega": {"name": "mega", "query_size": 8, "chunk": 11},
    "tcnca": {"name": "mega", "memory": TCN, "query_size": 8, "chunk": 11, "function": "laplace", "position": "simple"},
}
every_block = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)


def make(block: dict[str, Any], *, causal: bool = False, **fields: Any) -> LagwiseForSequenceClassification:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_labels": 3, **fields}
    config = LagwiseConfig(block=block, causal=causal, **sizes)
    return LagwiseForSequenceClassification(config).eval()


def test_packed_rows_are_refused() -> None:
    model, ids = make(BLOCKS["tnn"]), torch.randint(20, (1, 5))
    for packed in ({"seq_idx": ids // 10}, {"cu_seqlens": torch.tensor([0, 2, 5])}, {"position_ids": ids * 0}):
        with pytest.raises(ValueError, match="packed rows"):
            model(ids, **packed)


@pytest.mark.parametrize("pooling", ["mean", "first", "last", "ends"])
@pytest.mark.parametrize("block", ["tnn", "mega"])
def test_pooling_ignores_padding(pooling: str, block: str) -> None:
    model = make(BLOCKS[block], pooling=pooling)
    ids = torch.randint(0, 256, (2, 30))
    hidden = model.model(ids).last_hidden_state
    indices = {"first": [0], "last": [-1], "ends": [0, -1]}.get(pooling)
    pooled = hidden.mean(1) if indices is None else hidden[:, indices].flatten(1)
    torch.testing.assert_close(model(ids).logits, model.classifier(pooled))
    padded = torch.cat([torch.full((2, 4), 257), ids, torch.full((2, 3), 257)], dim=1)
    mask = torch.tensor([[0] * 4 + [1] * 30 + [0] * 3] * 2)
    torch.testing.assert_close(model(padded, attention_mask=mask).logits, model(ids).logits, rtol=1e-4, atol=1e-5)


def test_invalid_configurations_are_refused() -> None:
    with pytest.raises(ValueError, match="a language model must be causal, got causal=False"):
        LagwiseForCausalLM(LagwiseConfig(hidden_size=8, num_hidden_layers=1, causal=False))
    with pytest.raises(ValueError, match="causal must be true or false, got 'no'"):
        LagwiseConfig(causal="no")
    model = make(BLOCKS["mega"])
    with pytest.raises(ValueError, match=r"attention_mask must be \(batch, length\) = \(2, 4\), got \(2, 5\)"):
        model(torch.ones(2, 4, dtype=torch.long), attention_mask=torch.ones(2, 5))
    with pytest.raises(ValueError, match="a language model reads tokens"):
        LagwiseForCausalLM(LagwiseConfig(hidden_size=8, num_hidden_layers=1, inputs="values"))
    with pytest.raises(ValueError, match="a row without any token"):
        model(torch.ones(2, 4, dtype=torch.long), attention_mask=torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]]))


def bert_style_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that adds [CLS] and [SEP], pads on the right and returns token_type_ids."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, [("[CLS]", 2), ("[SEP]", 3)])
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", model_input_names=names)


@pytest.mark.cpu  # the loader of a trainer draws rows with a generator of the host
def test_pipelines_and_the_trainer_with_a_bert_style_tokenizer(tmp_path: Path) -> None:
    tokenizer = bert_style_tokenizer()
    model = make(BLOCKS["tnn"], vocab_size=8, id2label={0: "no", 1: "yes", 2: "maybe"}, type_vocab_size=2)
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer)
    results = classify(["a good film", "bad", {"text": "a film", "text_pair": "good"}], batch_size=3)
    assert all(result["label"] in ("no", "yes", "maybe") for result in results)
    encoded = tokenizer("a film", "good", return_tensors="pt")
    assert encoded["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1]]
    assert results[2]["score"] == pytest.approx(model(**encoded).logits.softmax(-1).max().item(), abs=1e-5)
    rows = [{**tokenizer("a good film" if i % 2 else "bad"), "label": i % 2} for i in range(8)]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=4, per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True
    )
    trainer = Trainer(model, arguments, train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer))
    assert torch.isfinite(torch.tensor(trainer.train().training_loss))


@pytest.mark.parametrize("pooling", PAIRS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_pair_is_processed_as_two_separate_texts(side: str, pooling: str) -> None:
    model = make(BLOCKS["tnn"], vocab_size=20, type_vocab_size=2, pooling=pooling).double()
    sizes = ((3, 4), (1, 6), (5, 1))
    ids, types, mask = torch.zeros(3, 7, dtype=torch.long), torch.zeros(3, 7, dtype=torch.long), torch.zeros(3, 7)
    pairs = []
    for row, (one, other) in enumerate(sizes):
        pairs.append((torch.randint(20, (1, one)), torch.randint(20, (1, other))))
        start = 0 if side == "right" else 7 - one - other
        ids[row, start : start + one + other] = torch.cat(pairs[-1], dim=1)
        types[row, start + one : start + one + other] = 1
        mask[row, start : start + one + other] = 1
    found = model(ids, token_type_ids=types, attention_mask=mask).logits
    for logits, texts in zip(found, pairs, strict=True):
        u, v = (
            model.model(text, token_type_ids=torch.full_like(text, i)).last_hidden_state.mean(1)
            for i, text in enumerate(texts)
        )
        joined = {"pair": [(u - v).abs(), u * v], "signed_pair": [u * v, u - v]}[pooling]
        features = torch.cat([u, v, *joined], dim=-1)
        torch.testing.assert_close(logits, model.classifier(features)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("pooling", "sizes"), [("mean", [(8, 6)]), ("pair", [(32, 6), (6, 3)])])
def test_a_classifier_has_the_layers_of_long_range_arena(pooling: str, sizes: list[tuple[int, int]]) -> None:
    model = make(BLOCKS["tnn"], hidden_size=8, vocab_size=20, pooling=pooling, classifier_hidden_size=6)
    layers = [module for module in model.hidden if isinstance(module, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == sizes
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    model.hidden.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    logits = model(torch.randint(20, (2, 6)), token_type_ids=torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)).logits
    [(expected, hidden)] = seen
    for layer in layers:
        expected = torch.relu(expected @ layer.weight.T + layer.bias)
    torch.testing.assert_close(hidden, expected)
    torch.testing.assert_close(logits, model.classifier(expected))
    plain = make(BLOCKS["tnn"], hidden_size=8)
    assert not [name for name in plain.state_dict() if name.startswith("hidden")]  # saved runs keep their weights
    with pytest.raises(ValueError, match="classifier_hidden_size must be"):
        LagwiseConfig(classifier_hidden_size=-1)


def test_inputs_that_are_not_pairs_are_refused() -> None:
    model, ids = make(BLOCKS["tnn"], pooling="pair"), torch.randint(20, (2, 5))
    with pytest.raises(ValueError, match="needs token_type_ids"):
        model(ids)
    with pytest.raises(ValueError, match="no token of type 1"):
        model(ids, token_type_ids=torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]))
    with pytest.raises(ValueError, match="packed rows"):
        model(ids, token_type_ids=torch.ones_like(ids), seq_idx=torch.zeros_like(ids))
