"""Dynamic evaluation of a language model: bits per byte of texts with and without learning after each score, by rate.

    python benchmarks/dynamic.py RUN --texts novels=FILE,enwik8=FILE

Each text is the beginning of a file, scored in windows of `--length` tokens.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from lagwise.data import token_bytes
from lagwise.evaluation import evaluate
from lagwise.models.loading import load_language_model
from lagwise.training.dynamic import dynamic_score
from lagwise_papers.bench.run_queue import keep


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="folder of a language model")
    parser.add_argument("--texts", required=True, help="NAME=FILE, separated by commas")
    parser.add_argument("--rates", default="3e-4,1e-3", help="learning rates (3e-4,1e-3)")
    parser.add_argument("--bytes", type=int, default=30_000, help="of each text (30000)")
    parser.add_argument("--length", type=int, default=512, help="tokens of a window (512)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/dynamic-cpu.json"))
    arguments = parser.parse_args()
    model, tokenizer = load_language_model(arguments.run)
    sizes = token_bytes(tokenizer, 1.0)
    for name, _, file in (pair.partition("=") for pair in arguments.texts.split(",")):
        text = Path(file).read_bytes()[: arguments.bytes].decode(errors="ignore")
        tokens = np.array([tokenizer.eos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]])
        for rate in (0.0, *map(float, arguments.rates.split(","))):
            start = time.process_time()
            if rate:
                score = dynamic_score(model, tokens, arguments.length, sizes, rate=rate)
            else:
                score = evaluate(model, tokens, arguments.length, sizes)
            row = {**score.to_dict(), "rate": rate, "cpu_seconds": time.process_time() - start}
            keep(arguments.results, f"{name}/{rate:g}", row)
            print(name, rate, f"{score.bits_per_byte:.4f}", flush=True)


if __name__ == "__main__":
    main()
