"""Check the recurrent language models of the installed transformers with `lagwise.testing.check_model`.

    python benchmarks/recurrent_models.py OUT.json [MODEL ...]

Every model is tiny and has random weights in float32, drawn larger than for training, so that errors of its states
show in its logits. A Llama and lagwise's own models are checked beside them. It prints the table of the page "Checking
models" of the documentation.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.testing import check_model
from lagwise.training.recipe import load_recipe

_STD = 0.3  # of weights
_LIMIT = 60  # seconds for a model

# The sizes of every model, and the names that configurations give them.
_NAMES = {
    1: "bos_token_id first_k_dense_replace indexer_kv_heads n_group n_groups num_dense_layers split_ngram_parts "
    "topk_group",
    2: "eos_token_id heads_per_ngram indexer_n_heads linear_num_key_heads n_mamba_heads num_experts_per_tok "
    "num_key_value_heads",
    4: "block_size chunk_size indexer_compress_ratio linear_num_heads linear_num_value_heads mamba_chunk_size "
    "mamba_dt_rank mamba_n_heads mamba_num_heads n_routed_experts num_attention_heads num_experts num_heads "
    "num_hidden_layers num_local_experts qk_rope_head_dim",
    8: "attention_window_size hc_lowrank head_dim indexer_head_dim kv_lora_rank linear_head_dim linear_key_head_dim "
    "linear_value_head_dim mamba_d_state qk_nope_head_dim router_hidden_size sliding_window ssm_state_size "
    "state_size v_head_dim",
    16: "mamba_d_head mamba_head_dim moe_intermediate_size moe_shared_expert_intermediate_size "
    "shared_expert_intermediate_size shared_intermediate_size",
    32: "hidden_size lru_width",
    48: "intermediate_size",
    64: "indexer_budget mamba_d_ssm",
    128: "context_length ngram_vocab_size_base unpadded_vocab_size vocab_size",
    512: "max_position_embeddings",
}
_SIZES = {name: size for size, names in _NAMES.items() for name in names.split()} | {"pad_token_id": 0}
_FULL, _LINEAR, _CONV = "full_attention", "linear_attention", "conv"
_HYBRID: dict[str, Any] = {"layer_types": [_LINEAR, _LINEAR, _LINEAR, _FULL]}
_ATTENTION: dict[str, Any] = {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}
# What differs from these sizes, by the type of the model.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mamba": {},
    "mamba2": {"head_dim": 16},
    "falcon_mamba": {},
    "rwkv": {},
    "xlstm": {"hidden_size": 128, "chunk_size": 16, "autocast_kernel_dtype": "float32"},
    "recurrent_gemma": {"block_types": ["recurrent", "recurrent", "attention"]},
    "lfm2": {"layer_types": [_CONV, _CONV, _FULL, _CONV], "block_multiple_of": 16},
    "lfm2_moe": {"layer_types": [_CONV, _CONV, _FULL, _CONV]},
    "lfm3": {},
    "minimax": {**_HYBRID, "sliding_window": None},
    "qwen3_next": _HYBRID,
    "qwen3_5_text": _HYBRID,
    "qwen3_5_moe_text": _HYBRID,
    "qwen4_exp_text": {**_HYBRID, "ple_layer_ids": [2]},
    "kimi_linear": {**_HYBRID, "num_key_value_heads": 4},
    "olmo_hybrid": {**_HYBRID, "num_key_value_heads": 4, "initializer_range": 0.02},
    "bailing_hybrid": {"num_key_value_heads": 4, "layer_group_size": 2},
    "lara_mini": {},
    "bamba": {"attn_layer_indices": [1]},
    "falcon_h1": {},
    "jamba": _ATTENTION,
    "zamba": {**_ATTENTION, "num_hidden_layers": 5, "num_key_value_heads": 4},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2, "num_key_value_heads": 4, "mamba_ngroups": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "mamba", "mlp"], "use_mamba_kernels": False},
    "zaya": {"num_experts_per_tok": 1},
    "inkling_text": {},
    "inkling2_text": {},
}
LAGWISE = (
    *("tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "mega-lm", "megalodon-lm", "tcnca-lm", "best-lm"),
    "transformer-alibi-lm",
)
# Short names of the checks, in their order.
COLUMNS = (
    *("left", "right", "middle", "packed", "batch", "embeds", "saved", "chunks", "tokens", "copy", "left +"),
    *("left, chunks", "right +", "middle +", "generate", "left, generate", "beams", "drafts"),
)


def make(name: str) -> PreTrainedModel:
    """A tiny model with random weights."""
    torch.manual_seed(0)
    if name in LAGWISE:
        fields = {**load_recipe(name).model, "vocab_size": 128, "hidden_size": 48, "num_hidden_layers": 2}
        model: Any = LagwiseForCausalLM(LagwiseConfig(**fields, pad_token_id=0))
    else:
        fields = {each.name for each in dataclasses.fields(CONFIG_MAPPING[name])}
        sizes = {key: value for key, value in _SIZES.items() if key in fields}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**sizes, **MODELS[name]}))
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=_STD)
    return model.float().eval()


class _Late(BaseException):
    """Raised after `_LIMIT`: no check takes it for a finding."""


def _late(*_: Any) -> None:
    raise _Late(f"not done after {_LIMIT} s")


def check(name: str) -> dict[str, str]:
    """Collect the findings for a model: verdicts with errors or messages; or why there are none."""
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(_LIMIT)
    try:
        report = check_model(make(name))
    except (Exception, _Late) as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        signal.alarm(0)
    print(f"{name}: {report}", flush=True)
    return {each.check: f"{each.verdict} {each.message or f'{each.error:.1e}'}" for each in report.findings}


def table(models: dict[str, dict[str, str]]) -> str:
    """A row for each model, a column for each check."""
    lines = [f"| model | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, findings in models.items():
        if "error" not in findings:
            lines.append(f"| {name} | {' | '.join(map(_cell, findings.values()))} |")
    return "\n".join(lines)


def _cell(finding: str) -> str:
    verdict, _, detail = finding.partition(" ")
    return {"right": "·", "refused": "r", "fails": "**F**"}.get(verdict) or f"**{float(detail):.1g}**"


def main(out: Path, names: list[str]) -> None:
    from lagwise_papers.bench.timing import save_results

    transformers.logging.set_verbosity_error()
    models = {name: check(name) for name in names}
    save_results(out, f"python benchmarks/recurrent_models.py {out}", models)
    print(f"\ntransformers {transformers.__version__}\n\n{table(models)}")
    for name, findings in models.items():
        if "error" in findings:
            print(f"{name}: {findings['error']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="results file")
    parser.add_argument("names", nargs="*", help="models to check (all)", metavar="MODEL")
    arguments = parser.parse_args()
    main(arguments.out, arguments.names or [*MODELS, *LAGWISE])
