"""Time forward passes of long-context encoders against ModernBERT, on texts without padding.

    python benchmarks/encoder_speed.py OUT.json [--lengths 512,1024,...] [--batches 1,8] [--dtypes float32,bfloat16]

The encoder of the recipe encoder-base (and with ``--tnn-roberta`` that of tnn-roberta, with the published expansion of
3) is compared with transformers' `ModernBertModel` in its base configuration, with random weights and the fastest
attention on a CPU (sdpa). Each model computes hidden states of the same random tokens. The encoder is first checked
against dense Toeplitz matrices in float64 at 256 tokens. Models are timed in turn; results are medians with quartiles.
A ratio above 1 means that the encoder is faster. The file is written after each row.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn
from transformers import ModernBertConfig, ModernBertModel, PreTrainedModel

from lagwise.models import LagwiseConfig, LagwiseModel
from lagwise.process import keep_freed_memory, share_cores
from lagwise.training import load_recipe
from lagwise_papers.bench.timing import interleaved, save_results

CHECKED_LENGTH, TOLERANCE = 256, 1e-4
_SLOW = 60.0  # seconds of a pass above which fewer repeats are timed


def encoder(recipe_name: str) -> LagwiseModel:
    """Build the backbone of a recipe; RuntimeError if it differs from dense matrices in float64."""
    recipe = load_recipe(recipe_name)
    torch.manual_seed(0)
    config = LagwiseConfig(**{"vocab_size": recipe.data.vocab_size, **recipe.model, "causal": False})
    model = LagwiseModel(config).eval()
    dense = _dense(config)
    dense.load_state_dict(model.state_dict())
    ids = torch.randint(config.vocab_size, (1, CHECKED_LENGTH))
    with torch.inference_mode():
        exact = dense.double()(ids).last_hidden_state
        error = float((model(ids).last_hidden_state - exact).abs().max() / exact.abs().max())
    if not error <= TOLERANCE:
        raise RuntimeError(f"{recipe_name} is off by {error:.1e} of the largest value; wrong results are not timed")
    return model


def _dense(config: LagwiseConfig) -> LagwiseModel:
    assert config.block is not None
    mixer = {**config.block["token_mixer"], "engine": "dense"}
    changed = LagwiseConfig(**{**config.to_dict(), "block": {**config.block, "token_mixer": mixer}})
    return LagwiseModel(changed).eval()


@torch.inference_mode()
def forward(model: nn.Module, ids: torch.Tensor) -> None:
    model(ids)


def main(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    names = ["encoder-base", *(["tnn-roberta"] if args.tnn_roberta else [])]
    ours = {name: encoder(name) for name in names}
    peer = ModernBertModel(ModernBertConfig(attn_implementation="sdpa")).eval()
    models: dict[str, PreTrainedModel] = {**ours, "ModernBERT-base": peer}
    sizes = {name: model.num_parameters() for name, model in models.items()}
    rows = []
    for batch in map(int, args.batches.split(",")):
        for dtype in args.dtypes.split(","):
            for model in models.values():
                model.to(getattr(torch, dtype))
            for length in map(int, args.lengths.split(",")):
                ids = torch.randint(30000, (batch, length))
                methods = {name: partial(forward, model, ids) for name, model in models.items()}
                first = interleaved(methods, repeats=2, warmup=0)
                slow = first["ModernBERT-base"].median > _SLOW
                seconds = first if slow else interleaved(methods, repeats=args.repeats, warmup=0)
                rows.append({"dtype": dtype, "batch": batch, "length": length, "seconds": seconds})
                medians = {name: round(seconds[name].median, 2) for name in models}
                print(dtype, batch, length, medians, flush=True)
                save_results(args.out, " ".join(["python", *sys.argv]), {"parameters": sizes, "rows": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="results file")
    parser.add_argument("--lengths", default="512,1024,2048,4096,8192", help="tokens per text")
    parser.add_argument("--batches", default="1,8", help="batch sizes")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="dtypes of weights and activations")
    parser.add_argument("--tnn-roberta", action="store_true", help="also time the published sizes")
    parser.add_argument("--repeats", type=int, default=5, help="timed passes of each model (5)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (2)")
    args = parser.parse_args()
    keep_freed_memory()
    share_cores()
    torch.set_num_threads(args.threads)
    main(args)
