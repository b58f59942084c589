"""Measure the memory and the time that the vector of one long text takes, beside transformers' own encoders.

    python benchmarks/embed_memory.py OUT.json [--lengths 8192 40000 400000 4000000]

Models have random weights, the hidden size 64 and two layers (best-lm: its four blocks once), and the text is random
bytes, in float32 and one thread. `lagwise.embed` reads it; encoders of transformers read it whole, in one forward pass
with their default attention, as they must for a vector of the whole. Seconds are of the CPU, and memory is what is
needed beyond the model, in a process for each measurement that may have 12 GiB of addresses and 90 seconds; texts
longer than one that failed are left out. Results are saved after each measurement, and a further run goes on from them.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, BertConfig, ModernBertConfig

import lagwise
from lagwise.files import one_line
from lagwise.process import denormals_as_zero, share_cores
from lagwise.training import load_recipe
from lagwise_papers.bench.harness import in_new_process, process_bytes
from lagwise_papers.bench.timing import save_results

OURS = ("best-lm", "mega-lm", "tnn-mlm")
PEERS = {"ModernBERT": ModernBertConfig, "BERT": BertConfig}
_GIGABYTES, _SECONDS = 12, 90
_SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def make_model(name: str, length: int) -> Any:
    torch.manual_seed(0)
    if name in PEERS:
        special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 257)
        config = PEERS[name](**_SIZES, vocab_size=258, max_position_embeddings=length, **special)
        return AutoModel.from_config(config).eval()
    fields: dict[str, Any] = {**load_recipe(name).model, "vocab_size": 258, "hidden_size": 64}
    fields["num_hidden_layers"] = 1 if fields["block"]["name"] == "chain" else 2
    return lagwise.LagwiseModel(lagwise.LagwiseConfig(**fields, causal=not name.endswith("mlm"))).eval()


@torch.no_grad()
def vector(name: str, model: Any, ids: torch.Tensor) -> torch.Tensor:
    if name in PEERS:
        return model(input_ids=ids[None]).last_hidden_state.mean(1)
    return lagwise.embed(model, None, [ids.numpy()])  # type: ignore[arg-type]


@denormals_as_zero()
def measured(name: str, length: int) -> dict[str, Any]:
    """Measure CPU seconds and bytes, after a short text that allocates buffers; or say why there are none."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (_GIGABYTES << 30,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + _SECONDS,) * 2)
    model = make_model(name, length)
    vector(name, model, torch.arange(256))
    ids = torch.randint(256, (length,), generator=torch.Generator().manual_seed(1))
    before, began = process_bytes("VmRSS"), time.process_time()
    try:
        embedding = vector(name, model, ids)
    except (RuntimeError, MemoryError) as error:
        return {"failed": one_line(error)}
    assert embedding.isfinite().all()
    return {"seconds": time.process_time() - began, "memory": max(0, process_bytes("VmHWM") - before)}


def main(args: argparse.Namespace) -> None:
    results: dict[str, Any] = json.loads(args.out.read_text())["results"] if args.out.is_file() else {}
    for length in args.lengths:
        for name in (*OURS, *PEERS):
            rows = results.setdefault(name, {})
            if str(length) in rows or any("failed" in row for row in rows.values()):  # a longer text takes more
                continue
            try:
                rows[str(length)] = in_new_process(measured, name, length)
            except BrokenProcessPool:
                rows[str(length)] = {"failed": f"over {_SECONDS} CPU seconds, or killed for its memory"}
            save_results(args.out, " ".join(["python", *sys.argv]), results)
            print(name, length, rows[str(length)], flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="results file")
    parser.add_argument("--lengths", type=int, nargs="+", default=[8192, 40_000, 400_000, 4_000_000], help="bytes")
    share_cores()
    main(parser.parse_args())
