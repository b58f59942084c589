"""Measure the memory and the time that the vector of one long text takes, beside transformers' own encoders.

    python benchmarks/embed_memory.py OUT.json [--lengths 8192 40000 400000 4000000] [--gigabytes 16] [--seconds 120]

Models have random weights, the hidden size 64 and two layers (best-lm: its four blocks once), and the text is random
bytes, in float32 and one thread. `lagwise.embed` reads it; encoders of transformers read it whole, in one forward pass
with their default attention, as they must for a vector of the whole. Seconds are of the CPU, and memory is what is
needed beyond the model, in a process for each measurement that may have so many gigabytes of addresses and so many
seconds; texts longer than one that failed are left out. Results are saved after every measurement, and a further run
goes on from them.
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
from lagwise_papers.bench.harness import in_own_process, process_bytes
from lagwise_papers.bench.timing import save_results

OURS = ("best-lm", "mega-lm", "tnn-mlm")
PEERS = {"ModernBERT": ModernBertConfig, "BERT": BertConfig}
_SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def made(name: str, length: int) -> Any:
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
def measured(name: str, length: int, gigabytes: int, seconds: int) -> dict[str, Any]:
    """CPU seconds and bytes, after a short text, for which libraries allocate their buffers; or why there are none."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds,) * 2)
    model = made(name, length)
    vector(name, model, torch.arange(256))
    ids = torch.randint(256, (length,), generator=torch.Generator().manual_seed(1))
    before, began = process_bytes("VmRSS"), time.process_time()
    try:
        found = vector(name, model, ids)
    except (RuntimeError, MemoryError) as error:
        return {"failed": one_line(error)}
    assert found.isfinite().all()
    return {"seconds": time.process_time() - began, "memory": max(0, process_bytes("VmHWM") - before)}


def main(given: argparse.Namespace) -> None:
    results: dict[str, dict[str, Any]] = {}
    if given.out.is_file():
        results = json.loads(given.out.read_text())["results"]
    for length in given.lengths:
        for name in (*OURS, *PEERS):
            rows = results.setdefault(name, {})
            if str(length) in rows:
                continue
            if name in PEERS and any("failed" in row for row in rows.values()):
                continue  # a longer text takes more
            try:
                rows[str(length)] = in_own_process(measured, name, length, given.gigabytes, given.seconds)
            except BrokenProcessPool:
                rows[str(length)] = {"failed": f"over {given.seconds} CPU seconds, or killed for its memory"}
            save_results(given.out, " ".join(["python", *sys.argv]), results)
            print(name, length, rows[str(length)], flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="results file")
    parser.add_argument("--lengths", type=int, nargs="+", default=[8192, 40_000, 400_000, 4_000_000], help="bytes")
    parser.add_argument("--gigabytes", type=int, default=16, help="addresses that a process may have (16)")
    parser.add_argument("--seconds", type=int, default=120, help="CPU seconds that a process may take (120)")
    share_cores()
    main(parser.parse_args())
