"""Models with the API of transformers."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from lagwise.data import load_tokenizer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, StreamingCache, load_model
from lagwise.training.recipe import load_recipe

KERNEL = {"name": "rpe", "hidden": 8, "layers": 1}
TNN: dict[str, Any] = {"block": {"name": "prenorm", "token_mixer": {"name": "gtu", "expansion": 2, "kernel": KERNEL}}}
GTU_ONLY: dict[str, Any] = {"block": {**TNN["block"], "channel_mixer": {"name": "none"}}}
ATTENTION_GLU: dict[str, Any] = {"block": {"name": "prenorm", "token_mixer": {"name": "attention", "heads": 2}}}
LEARNED_DECAY: dict[str, Any] = {
    "block": {
        "name": "prenorm",
        "token_mixer": {"name": "gtu", "kernel": {**KERNEL, "learn_decay": True, "inputs": "sincos"}},
    }
}
TRANSFORMER: dict[str, Any] = {
    "norm": "layer",
    "position_embedding": "learned",
    "max_position_embeddings": 300,
    "block": {
        "name": "prenorm",
        "norm": "layer",
        "token_mixer": {"name": "attention", "heads": 2, "position": "none"},
        "channel_mixer": {"name": "mlp"},
    },
}
TCN = {"name": "tcn", "kernel_size": 3, "dilation": 3, "depth": 3}
MEGA: dict[str, Any] = {
    "norm": "layer",
    "block": {"name": "mega", "memory": {"name": "ema", "dimension": 4}, "query_size": 8, "chunk": 11},
}
TCNCA: dict[str, Any] = {"norm": "layer", "block": {"name": "mega", "memory": TCN, "query_size": 8, "chunk": 11}}
TCNCA_SIMPLE: dict[str, Any] = {
    "block": {
        "name": "chain",
        "blocks": [
            {"name": "prenorm", "token_mixer": TCN, "channel_mixer": {"name": "none"}},
            {"name": "prenorm", "token_mixer": {"name": "chunked_attention", "chunk": 11, "heads": 2}},
        ],
    }
}
ALL: dict[str, dict[str, Any]] = {
    "tnn": TNN,
    "gtu-only": GTU_ONLY,
    "attention-glu": ATTENTION_GLU,
    "learned-decay": LEARNED_DECAY,
    "transformer": TRANSFORMER,
    "mega": MEGA,
    "tcnca": TCNCA,
    "tcnca-simple": TCNCA_SIMPLE,
}
every_model = pytest.mark.parametrize("fields", ALL.values(), ids=ALL)


def make(fields: dict[str, Any]) -> LagwiseForCausalLM:
    model = LagwiseForCausalLM(LagwiseConfig(hidden_size=16, num_hidden_layers=2, **fields)).eval()
    with torch.no_grad():  # a fresh model only repeats its input: sharpen it, so that equal outputs mean something
        for module in model.model.layers.modules():
            if type(module) is torch.nn.Linear:
                module.weight.mul_(20)
    return model


def prompt(rows: int = 2, length: int = 40) -> torch.Tensor:
    return torch.randint(0, 256, (rows, length))


@pytest.mark.covers("TNN table 13")
def test_published_size() -> None:
    """TNN table 2 has 48.68M: 48,667,136 trained parameters, with the final norm, and 7 x 1536 fixed decay rates."""
    recipe = load_recipe("tnn-wikitext-103")
    with torch.device("meta"):
        model = LagwiseForCausalLM(LagwiseConfig(**recipe.model))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == 48_667_136
    rates = sum(layer.block.token_mixer.toeplitz.channels for layer in model.model.layers)
    assert rates == 10_752
    assert round((trained + rates) / 1e6, 2) == 48.68


@pytest.mark.parametrize("recipe", ["mega-enwik8", "tcnca-enwik8"])
def test_the_enwik8_models_have_39_million_parameters(recipe: str) -> None:
    """TCNCA table 1."""
    with torch.device("meta"):
        model = LagwiseForCausalLM(LagwiseConfig(**load_recipe(recipe).model))
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == 39


@every_model
def test_save_and_load_through_the_auto_classes(fields: dict, tmp_path: Path) -> None:
    model, ids = make(fields), prompt()
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


@pytest.mark.parametrize("fields", [MEGA, TCNCA], ids=["mega", "tcnca"])
def test_missing_weights_are_initialized(fields: dict, tmp_path: Path) -> None:
    """Transformers builds models without initializing memory."""
    model = make(fields)
    model.save_pretrained(tmp_path)
    there = model.state_dict()
    kept = {name: t for name, t in there.items() if "memory" not in name and name != "lm_head.weight"}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, parameter in loaded.named_parameters():
        if "memory" in name:
            assert 0.1 * there[name].std() < parameter.std() < 10 * there[name].std(), name


def test_kernel_networks_keep_their_own_initialization() -> None:
    """With the model's narrow initialization and zero biases every lag would have the same tap."""
    model = LagwiseForCausalLM(LagwiseConfig(hidden_size=16, num_hidden_layers=1, **TNN))
    kernel = model.model.layers[0].block.token_mixer.toeplitz.kernel
    assert kernel.network.first.bias.abs().max() > 0.1
    raw = kernel.taps(50) / kernel.taps(50).abs().max()
    assert raw.diff(dim=1).abs().max() > 0.01


@every_model
def test_gradient_checkpointing_does_not_change_gradients(fields: dict) -> None:
    model, ids = make(fields).train(), prompt()
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
    links = [{"name": "prenorm", "token_mixer": {"name": "short_conv"}} for _ in range(4)]
    model = make({"block": {"name": "chain", "blocks": links}}).train()
    kept = []
    for enable in (False, True):
        if enable:
            model.gradient_checkpointing_enable()
        tensors: dict[int, int] = {}

        def keep(tensor: torch.Tensor, tensors: dict[int, int] = tensors) -> torch.Tensor:
            tensors[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(prompt(), labels=prompt()).loss
        kept.append(sum(tensors.values()))
        loss.backward()
    assert kept[1] < kept[0] / 2


@every_model
def test_packed_loss_equals_the_separate_losses(fields: dict) -> None:
    model = make(fields)
    a, b = prompt(1, 20), prompt(1, 33)
    row = torch.cat([a, b], 1)
    seq_idx = torch.cat([torch.zeros(1, 20), torch.ones(1, 33)], 1).long()
    position_ids = torch.cat([torch.arange(20), torch.arange(33)])[None]
    separate = (19 * model(a, labels=a).loss + 32 * model(b, labels=b).loss) / 51
    for packing in ({"seq_idx": seq_idx}, {"position_ids": position_ids}):
        torch.testing.assert_close(model(row, labels=row, **packing).loss, separate, rtol=1e-5, atol=1e-5)
    packed = model(row, seq_idx=seq_idx).logits
    assert torch.equal(packed, model(row, position_ids=position_ids).logits)
    with pytest.raises(ValueError, match="cannot be streamed"):
        model(row, seq_idx=seq_idx, use_cache=True)
    torch.testing.assert_close(packed[:, :20], model(a, use_cache=False).logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(packed[:, 20:], model(b, use_cache=False).logits, rtol=1e-4, atol=1e-4)


def test_the_last_hidden_state_is_normalized() -> None:
    model, ids = make(TNN), prompt()
    out = model.model(ids, output_hidden_states=True)
    assert len(out.hidden_states) == 3
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)


class TestBadInput:
    def test_misspelt_arguments_are_refused(self) -> None:
        with pytest.raises(ValueError, match="unknown argument of forward: 'seq_ids'"):
            make(TNN)(prompt(), seq_ids=torch.zeros(2, 40))

    def test_continuing_after_right_padding(self) -> None:
        model, ids = make(TNN), prompt(2, 8)
        mask = torch.ones(2, 8)
        mask[1, 5:] = 0
        cache = model(ids, attention_mask=mask).past_key_values
        with pytest.raises(ValueError, match="pad on the left"):
            model(prompt(2, 1), past_key_values=cache)

    def test_a_failed_call_does_not_change_the_cache(self) -> None:
        model, cache = make(TRANSFORMER), StreamingCache(2)
        with pytest.raises(ValueError, match="at most 300"):
            model(prompt(2, 301), past_key_values=cache)
        assert model(prompt(3, 5), past_key_values=cache).logits.shape[0] == 3

    @pytest.mark.cpu  # CUDA asserts, after which the process is lost
    def test_ids_of_another_tokenizer(self) -> None:
        with pytest.raises(ValueError, match=r"input_ids must be in \[0, 258\), got .*400"):
            make(TNN)(torch.tensor([[1, 400]]))

    def test_empty_sequence(self) -> None:
        with pytest.raises(ValueError, match="length >= 1"):
            make(TNN)(torch.zeros(1, 0, dtype=torch.long))

    def test_nan_in_the_input(self) -> None:
        embeds = torch.zeros(1, 4, 16)
        embeds[0, 1, 2] = torch.nan
        with pytest.raises(ValueError, match="NaN or infinite"):
            make(TNN)(inputs_embeds=embeds)

    def test_longer_than_the_limit_whole_or_streamed(self) -> None:
        model = make(TRANSFORMER)
        with pytest.raises(ValueError, match="at most 300 tokens, got 301"):
            model(prompt(1, 301))
        cache = model(prompt(1, 300)).past_key_values
        with pytest.raises(ValueError, match="at most 300 tokens, got 301"):
            model(prompt(1, 1), past_key_values=cache)

    def test_mask_of_another_shape(self) -> None:
        with pytest.raises(ValueError, match="attention_mask must be"):
            make(TNN)(prompt(2, 8), attention_mask=torch.ones(2, 7))

    def test_cache_of_another_batch_or_model(self) -> None:
        cache = make(TNN)(prompt(2)).past_key_values
        with pytest.raises(ValueError, match="batch of 2, the input is a batch of 3"):
            make(TNN)(prompt(3, 1), past_key_values=cache)
        with pytest.raises(ValueError, match="StreamingCache"):
            make(TNN)(prompt(2, 1), past_key_values=StreamingCache(5))

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
    def test_configuration(self, fields: dict, message: str) -> None:
        with pytest.raises(Exception, match=message):
            LagwiseForCausalLM(LagwiseConfig(**{"hidden_size": 8, "num_hidden_layers": 1, **fields}))


class TestDamagedFolders:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        make(TNN).save_pretrained(tmp_path)
        load_tokenizer("bytes").save_pretrained(tmp_path)
        return tmp_path

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="there is no folder"):
            load_model(tmp_path / "nothing")
        with pytest.raises(FileNotFoundError, match=r"config\.json"):
            load_model(tmp_path)

    def test_truncated_weights(self, folder: Path) -> None:
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        with pytest.raises(ValueError, match="truncated or damaged"):
            load_model(folder)

    def test_a_pickle_is_never_loaded(self, folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
        with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin is a pickle"):
            load_model(folder)
        with pytest.raises(OSError, match="safetensors"):
            AutoModelForCausalLM.from_pretrained(folder)

    def test_weights_of_another_shape(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["num_hidden_layers"] = 3
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match="do not fit"):
            load_model(folder)

    def test_whole_folder_loads(self, folder: Path) -> None:
        copy = shutil.copytree(folder, folder / "copy")
        assert load_model(copy)[0].config.hidden_size == 16


@torch.no_grad()
def test_a_modified_copy_refuses_the_originals_cache() -> None:
    model = LagwiseForCausalLM(LagwiseConfig(hidden_size=8, num_hidden_layers=1, **TNN)).eval()
    cache = model(torch.randint(0, 256, (1, 5)), use_cache=True).past_key_values
    changed = copy.deepcopy(model)
    with pytest.raises(ValueError, match="filled by another model"):
        changed(torch.randint(0, 256, (1, 1)), past_key_values=cache)
    model(torch.randint(0, 256, (1, 1)), past_key_values=copy.deepcopy(cache))  # a branch of its own cache is fine


def test_return_dict_is_honoured() -> None:
    model, ids = (
        LagwiseForCausalLM(LagwiseConfig(hidden_size=8, num_hidden_layers=1, **TNN)).eval(),
        torch.randint(0, 256, (1, 5)),
    )
    assert torch.equal(model(ids, return_dict=False)[0], model(ids).logits)
    assert torch.equal(model.model(ids, return_dict=False)[0], model.model(ids).last_hidden_state)
