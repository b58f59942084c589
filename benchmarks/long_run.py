"""Generate a million bytes with a converted model in eight streams, to check that memory and states remain stable.

    python benchmarks/long_run.py OUT.json RUN-recurrent

Bytes are sampled at temperature 0.8 from the 40 most likely ones. Every 40,000 bytes the script records the memory of
the process and the streams, the largest value in a state, whether all values are finite, and the last text of the first
stream.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import trange

from lagwise.models import StreamingCache, load_model
from lagwise.process import keep_freed_memory
from lagwise_papers.bench.harness import process_bytes
from lagwise_papers.bench.streams import state_bytes
from lagwise_papers.bench.timing import save_results

STREAMS, STEPS, NOTED = 8, 125_000, 5_000


@torch.inference_mode()
def main(out: Path, run: Path) -> None:
    torch.manual_seed(0)
    model, tokenizer = load_model(run)
    encoded: Any = tokenizer("The history of ", return_tensors="pt", add_special_tokens=False)
    cache = StreamingCache(model.config.num_hidden_layers)
    logits = model(encoded["input_ids"].expand(STREAMS, -1), past_key_values=cache, logits_to_keep=1).logits[:, -1]
    rows, tokens, start = [], [], time.perf_counter()
    for step in trange(1, STEPS + 1, unit="step"):
        likeliest, ids = (logits / 0.8).softmax(-1).topk(40)
        token = ids.gather(1, torch.multinomial(likeliest, 1))
        tokens.append(int(token[0]))
        logits = model(token, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        if step == 1_000 or step % NOTED == 0:
            memory: list[Any] = [layer.state.memory for layer in cache.layers]  # type: ignore[union-attr]
            rows.append(
                {
                    "tokens": step * STREAMS,
                    "seconds": time.perf_counter() - start,
                    "process_bytes": process_bytes("VmRSS"),
                    "state_bytes": state_bytes(cache),
                    "largest": max(float(each.abs().max()) for each in memory),
                    "finite": bool(logits.isfinite().all()),
                    "text": str(tokenizer.decode(tokens[-160:])),
                }
            )
    save_results(out, f"python benchmarks/long_run.py {out} {run.name}", {"rows": rows})


if __name__ == "__main__":
    keep_freed_memory()
    main(Path(sys.argv[1]), Path(sys.argv[2]))
