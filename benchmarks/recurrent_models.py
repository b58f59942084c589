"""Check the recurrent language models of the installed transformers with `lagwise.testing.check_model`.

    python benchmarks/recurrent_models.py OUT.json [MODEL ...]

Every model is tiny and has random weights in float32, drawn larger than for training, so that errors of its states
show in its logits. A Llama and lagwise's own models are checked beside them. It prints the table of the page "Checking
models" of the documentation.
"""

from __future__ import annotations

import argparse
import dataclasses
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

# The sizes of every model, by the names that configurations give them.
_SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "num_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": True,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "router_hidden_size": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_chunk_size": 4,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 1,
    "state_size": 8,
    "mamba_d_ssm": 64,
    "chunk_size": 4,
    "n_mamba_heads": 2,
    "mamba_dt_rank": 4,
    "block_size": 4,
    "attention_window_size": 8,
    "sliding_window": 8,
    "context_length": 128,
    "lru_width": 32,
}
_FULL, _LINEAR, _CONV = "full_attention", "linear_attention", "conv"
_HYBRID: dict[str, Any] = {"layer_types": [_LINEAR, _LINEAR, _LINEAR, _FULL]}
# What differs from these sizes, by the type of the model.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mamba": {},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "falcon_mamba": {},
    "rwkv": {},
    "xlstm": {"num_heads": 4, "chunk_size": 16, "autocast_kernel_dtype": "float32"},
    "recurrent_gemma": {"block_types": ["recurrent", "recurrent", "attention"]},
    "lfm2": {"layer_types": [_CONV, _CONV, _FULL, _CONV], "block_multiple_of": 16},
    "lfm2_moe": {"layer_types": [_CONV, _CONV, _FULL, _CONV]},
    "lfm3": {},
    "minimax": {"layer_types": [_LINEAR, _FULL, _LINEAR, _FULL]},
    "qwen3_next": _HYBRID,
    "qwen3_5_text": _HYBRID,
    "qwen3_5_moe_text": _HYBRID,
    "qwen4_exp_text": _HYBRID,
    "kimi_linear": {"num_key_value_heads": 4},
    "olmo_hybrid": {**_HYBRID, "num_key_value_heads": 4, "initializer_range": 0.02},
    "bailing_hybrid": {"num_key_value_heads": 4, "layer_group_size": 2},
    "lara_mini": {},
    "bamba": {"attn_layer_indices": [1]},
    "falcon_h1": {},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "zamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False, "num_key_value_heads": 4},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2, "num_key_value_heads": 4, "mamba_ngroups": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "mamba", "mlp"], "use_mamba_kernels": False},
    "zaya": {"num_experts_per_tok": 1},
    "inkling_text": {},
    "inkling2_text": {},
}
LAGWISE = (
    "tnn-lm",
    "fd-tnn-lm",
    "ski-tnn-lm",
    "mega-lm",
    "megalodon-lm",
    "tcnca-lm",
    "best-lm",
    "transformer-alibi-lm",
)
COLUMNS = {
    "padding on the left": "left",
    "padding on the right": "right",
    "padding in the middle": "middle",
    "packed documents": "packed",
    "one row and a batch": "batch",
    "inputs_embeds": "embeds",
    "saved and loaded": "saved",
    "prefill in chunks": "chunks",
    "token by token": "tokens",
    "a copied cache": "copy",
    "left padding, continued": "left +",
    "left padding, in chunks": "left, chunks",
    "right padding, continued": "right +",
    "middle padding, continued": "middle +",
    "generation": "generate",
    "generation, left padding": "left, generate",
    "beams": "beams",
    "drafts and rollback": "drafts",
}


def make(name: str) -> PreTrainedModel:
    """A tiny model with random weights."""
    torch.manual_seed(0)
    if name in LAGWISE:
        fields = {**load_recipe(name).model, "vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2}
        model: Any = LagwiseForCausalLM(LagwiseConfig(**fields, pad_token_id=0))
    else:
        fields = {each.name for each in dataclasses.fields(CONFIG_MAPPING[name])}
        sizes = {key: value for key, value in _SIZES.items() if key in fields}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**sizes, **MODELS[name]}))
    for part in model.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=_STD)
    return model.float().eval()


def check(name: str) -> dict[str, Any]:
    """The findings for a model, or why there are none."""
    try:
        report = check_model(make(name))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    print(report, flush=True)
    return {each.check: vars(each) for each in report.findings}


def table(results: dict[str, Any]) -> str:
    """A row for each model, a column for each check."""
    lines = [f"| model | {' | '.join(COLUMNS.values())} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, findings in results.items():
        if "error" not in findings:
            lines.append(f"| {name} | {' | '.join(_cell(findings[check]) for check in COLUMNS)} |")
    return "\n".join(lines)


def _cell(finding: dict[str, Any]) -> str:
    if finding["verdict"] == "WRONG":
        return f"**{finding['error']:.1g}**"
    return {"right": "·", "refused": "r", "fails": "**F**"}[finding["verdict"]]


def main(out: Path, names: list[str]) -> None:
    from lagwise_papers.bench.timing import save_results

    transformers.logging.set_verbosity_error()
    results = {name: check(name) for name in names}
    save_results(out, f"python benchmarks/recurrent_models.py {out}", results)
    print(f"\ntransformers {transformers.__version__}\n\n{table(results)}")
    for name, findings in results.items():
        if "error" in findings:
            print(f"{name}: {findings['error']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="results file")
    parser.add_argument("names", nargs="*", help="models to check (all)", metavar="MODEL")
    arguments = parser.parse_args()
    main(arguments.out, arguments.names or [*MODELS, *LAGWISE])
