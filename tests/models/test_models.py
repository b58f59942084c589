"""Models with the API of transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tiny_models import LIMIT, RECIPES, VARIANTS, tiny
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from lagwise.data import load_tokenizer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM, StreamingCache, load_model
from lagwise.training.recipe import load_recipe

CHAIN: dict[str, Any] = {
    "name": "chain",
    "blocks": [
        {"name": "prenorm", "token_mixer": {"name": "tcn", "depth": 3}, "channel_mixer": {"name": "none"}},
        {"name": "prenorm", "token_mixer": {"name": "chunked_attention", "chunk": 11, "heads": 2}},
    ],
}
every_model = pytest.mark.parametrize("kind", [*RECIPES, *VARIANTS, "chain"])


def make(kind: str = "tnn-lm") -> LagwiseForCausalLM:
    fields = {"block": CHAIN} if kind == "chain" else {}
    return tiny("tnn-lm" if kind == "chain" else kind, sharp=True, **fields).float()


def prompt(rows: int = 2, length: int = 40) -> torch.Tensor:
    return torch.randint(0, 256, (rows, length))


@pytest.mark.covers("TNN §4.1 and table 13")
@pytest.mark.parametrize(
    ("recipe", "parameters", "tolerance"),
    [
        ("tnn-wikitext-103", 48_667_136, 0),  # TNN table 2: 48.68M with 7 x 1536 fixed decay rates
        ("tnn-roberta", 126_398_553 - 12 * 2304, 0),  # TNN table 3: 126.40M with fixed decay rates
        ("mega-enwik8", 39e6, 5e5),  # TCNCA table 1
        ("tcnca-enwik8", 39e6, 5e5),
        ("megalodon-200m", 220.6e6, 1e5),  # with a vocabulary of 32,000 as input and as output
        ("megalodon-1.3b", 1342.8e6, 1e5),
        ("megalodon-7b", 7385.8e6, 1e5),
    ],
)
def test_published_sizes(recipe: str, parameters: float, tolerance: float) -> None:
    causal = recipe != "tnn-roberta"
    with torch.device("meta"):
        head = LagwiseForCausalLM if causal else LagwiseForMaskedLM
        model = head(LagwiseConfig(**load_recipe(recipe).model, causal=causal))
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(parameters, abs=tolerance)
    if recipe == "tnn-wikitext-103":
        assert sum(layer.block.token_mixer.toeplitz.channels for layer in model.model.layers) == 10_752


@pytest.mark.sampled(3)
@every_model
def test_save_and_load_through_the_auto_classes(kind: str, tmp_path: Path) -> None:
    model, ids = make(kind), prompt()
    model.save_pretrained(tmp_path)
    files = {"config.json", "generation_config.json", "model.safetensors", "modeling_lagwise.py"}
    assert {f.name for f in tmp_path.iterdir()} == files
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert isinstance(loaded, LagwiseForCausalLM)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    with safe_open(tmp_path / "model.safetensors", "pt") as f:
        assert "lm_head.weight" not in f.keys()  # noqa: SIM118
    assert AutoConfig.from_pretrained(tmp_path).block == model.config.block
    backbone = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(backbone.embed_tokens.weight, model.model.embed_tokens.weight)
    low = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    assert low.dtype == torch.bfloat16
    assert low(ids).logits.isfinite().all()


@pytest.mark.parametrize("kind", ["mega-lm", "tcnca-lm"])
def test_missing_weights_are_initialized(kind: str, tmp_path: Path) -> None:
    """Transformers builds models without initializing memory."""
    model = make(kind)
    model.save_pretrained(tmp_path)
    there = model.state_dict()
    saved = {name: t for name, t in there.items() if "memory" not in name and name != "lm_head.weight"}
    save_file(saved, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, parameter in loaded.named_parameters():
        if "memory" in name:
            assert 0.1 * there[name].std() < parameter.std() < 10 * there[name].std(), name


def test_a_chain_without_saved_shares_begins_with_those_of_a_new_one(tmp_path: Path) -> None:
    links = [{"name": "prenorm", "token_mixer": {"name": "ema"}} for _ in range(3)]
    block = {"name": "chain", "blocks": links, "input_residual": True}
    model = LagwiseForCausalLM(LagwiseConfig(hidden_size=8, num_hidden_layers=1, block=block))
    model.save_pretrained(tmp_path)
    name = "model.layers.0.block.shares"
    saved = {key: t for key, t in model.state_dict().items() if key not in (name, "lm_head.weight")}
    save_file(saved, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.get_parameter(name).tolist() == [[1, 0], [1, 0]]
    with torch.no_grad():
        model.get_parameter(name).fill_(0.5)
    model.save_pretrained(tmp_path)
    assert (AutoModelForCausalLM.from_pretrained(tmp_path).get_parameter(name) == 0.5).all()


def test_kernel_networks_keep_their_own_initialization() -> None:
    """With the model's narrow initialization and zero biases every lag would have the same tap."""
    model = LagwiseForCausalLM(LagwiseConfig(hidden_size=16, num_hidden_layers=1))
    kernel = model.model.layers[0].block.token_mixer.toeplitz.kernel
    assert kernel.network.first.bias.abs().max() > 0.1
    raw = kernel.taps(50) / kernel.taps(50).abs().max()
    assert raw.diff(dim=1).abs().max() > 0.01


@pytest.mark.sampled(3)
@every_model
def test_gradient_checkpointing_does_not_change_gradients(kind: str) -> None:
    model, ids = make(kind).train(), prompt()
    grads = []
    for enable in (False, True):
        if enable:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_gradient_checkpointing_recomputes_the_blocks_of_a_chain_one_by_one() -> None:
    links = [{"name": "prenorm", "token_mixer": {"name": "ema"}} for _ in range(4)]
    model = tiny("tnn-lm", block={"name": "chain", "blocks": links}).train()
    saved_bytes = []
    for enable in (False, True):
        if enable:
            model.gradient_checkpointing_enable()
        tensors: dict[int, int] = {}

        def keep(tensor: torch.Tensor, tensors: dict[int, int] = tensors) -> torch.Tensor:
            tensors[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(prompt(), labels=prompt()).loss
        saved_bytes.append(sum(tensors.values()))
        loss.backward()
    assert saved_bytes[1] < saved_bytes[0] / 2


@pytest.mark.cpu  # on CUDA, an id outside the vocabulary is an assertion, after which the process is lost
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"seq_ids": torch.zeros(1, 4)}, "unknown argument of forward: 'seq_ids'"),
        ({"input_ids": torch.tensor([[1, 400]])}, r"input_ids must be in \[0, 258\), got .*400"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "length >= 1"),
        ({"input_ids": torch.ones(1, LIMIT + 1, dtype=torch.long)}, f"at most {LIMIT} tokens, got {LIMIT + 1}"),
        (
            {"input_ids": None, "inputs_embeds": torch.full((1, 4, 16), torch.nan)},
            "NaN or infinite",
        ),
        ({"attention_mask": torch.ones(1, 3)}, "attention_mask must be"),
        ({"seq_idx": torch.zeros(1, 4, dtype=torch.long), "use_cache": True}, "cannot be streamed"),
        ({"past_key_values": StreamingCache(5)}, "a StreamingCache of 3 layers, got one of 5"),
    ],
    ids=lambda each: each if isinstance(each, str) else next(iter(each)),
)
def test_wrong_inputs_are_named(inputs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make("transformer-learned-lm")(**{"input_ids": torch.ones(1, 4, dtype=torch.long), **inputs})


def test_a_limit_applies_to_streams_and_a_failed_call_does_not_change_the_cache() -> None:
    model, cache = make("transformer-learned-lm"), StreamingCache(2)
    with pytest.raises(ValueError, match=f"at most {LIMIT}"):
        model(prompt(2, LIMIT + 1), past_key_values=cache)
    assert model(prompt(3, LIMIT), past_key_values=cache).logits.shape[0] == 3
    with pytest.raises(ValueError, match=f"at most {LIMIT} tokens, got {LIMIT + 1}"):
        model(prompt(3, 1), past_key_values=cache)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 0}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"norm": "group"}, "norm"),
        ({"block": {"name": "prenrm"}}, "did you mean 'prenorm'"),
        ({"block": {"name": "prenorm", "token_mixer": {"name": "gtu", "kernels": {}}}}, "did you mean 'kernel'"),
        ({"block": "tnn"}, "mapping"),
        ({"position_embedding": "learned"}, "max_position_embeddings"),
    ],
)
def test_wrong_configurations_are_named(fields: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        LagwiseForCausalLM(LagwiseConfig(**{"hidden_size": 8, "num_hidden_layers": 1, **fields}))


def _truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(OSError, match="safetensors"):
        AutoModelForCausalLM.from_pretrained(folder)


def _add_a_layer(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "there is no folder"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json"),
        (_truncate, "truncated or damaged"),
        (_pickle, r"pytorch_model\.bin is a pickle"),
        (_add_a_layer, "do not fit"),
    ],
)
def test_damaged_folders(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    make().save_pretrained(folder)
    load_tokenizer("bytes").save_pretrained(folder)
    assert load_model(folder)[0].config.hidden_size == 16
    damage(folder)
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        load_model(folder)
