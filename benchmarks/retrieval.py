"""Score a bag of bytes on pairs of texts: `python benchmarks/retrieval.py PAIRS --out FILE`.

PAIRS is a folder as `lagwise data lra-retrieval` writes it. The baseline is logistic regression on the shares of the
256 bytes in both texts, their differences, their products and their cosine. A model has to beat it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from lagwise.bench.harness import save_results
from lagwise.bench.text_baselines import bag_of_bytes, majority
from lagwise.data import open_format, read_labelled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", help="folder of new_aan_pairs.{train,eval,test}.tsv")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/retrieval-baseline-cpu.json"))
    given = parser.parse_args()
    rows = read_labelled(open_format(given.pairs, "aan"), ("text1", "text2"), "label")
    results: dict[str, object] = {"rows": {split: len(part) for split, part in rows.splits.items()}}
    for name, method in (("majority", majority), ("bag of bytes", bag_of_bytes)):
        begun = time.process_time()
        scores = method(rows)
        results[name] = {**scores, "cpu_seconds": time.process_time() - begun}
        print(f"{name:<14} test accuracy {scores['accuracy']:.4f}", flush=True)
    save_results(given.out, f"python benchmarks/retrieval.py {' '.join(sys.argv[1:])}", results)


if __name__ == "__main__":
    main()
