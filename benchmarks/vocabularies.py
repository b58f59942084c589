"""Bytes or tokens: the best language model of some minutes on one thread, by the size of its vocabulary.

    python benchmarks/vocabularies.py RUNS --texts novels=FOLDER,... --minutes 5,10,20 --vocabularies 0,2048,4096

Each text is a folder with train.txt, valid.txt and test.txt. A vocabulary of 0 stands for bytes, another size for a BPE
of the text's own. The number of steps is what fits into the minutes by the measured cost of a step (RUNS/costs.json).
Runs are tested on all bytes of the test file at 512 tokens, and at as many tokens as have about 14,336 bytes. Finished
runs are skipped and interrupted ones resumed. `--set KEY=VALUE` changes the recipe of all runs, under `--name`.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from lagwise_papers.bench.run_queue import cadence, finish, keep, planned, scores, together

_EVALUATIONS = 5
_BYTES_OF_CONTEXT = 14_336
_BYTES_PER_TOKEN = {0: 1.0, 1024: 2.4, 2048: 2.9, 4096: 3.4, 8192: 3.9}  # roughly, for the longer context


def overrides(text: Path, vocabulary: int, changes: list[str]) -> list[str]:
    """Return the overrides of the recipe for a text and a vocabulary."""
    words = ["data.tokenizer=bpe", f"data.vocab_size={vocabulary}"] if vocabulary else ["data.tokenizer=bytes"]
    return [f"data.source={text}", *words, *changes]


def train(run: Path, key: str, new: list[str], vocabulary: int, plan: dict[str, Any], results: Path) -> None:
    long = round(_BYTES_OF_CONTEXT / _BYTES_PER_TOKEN.get(vocabulary, 4.0))
    evaluation = ["--lengths", f"512,{long}", "--tokens", "1000000"]
    done = finish(run, ["--recipe", "best-lm", *new, *cadence(plan["steps"], _EVALUATIONS)], evaluation)
    curve = [(each["step"], each["eval_loss"]) for each in done["evaluations"]]
    row = {**plan, "curve": curve, "scores": scores(run)["test"]}
    keep(results, key, row)
    print(key, plan["steps"], *(f"{score['bits_per_byte']:.4f}" for score in row["scores"]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder for the runs")
    parser.add_argument("--texts", required=True, help="NAME=FOLDER, separated by commas")
    parser.add_argument("--minutes", default="10", help="minutes per run, separated by commas (10)")
    parser.add_argument("--vocabularies", default="0,1024,2048,4096,8192", help="sizes; 0 for bytes")
    parser.add_argument("--set", nargs="*", default=[], help="KEY=VALUE of the recipe, for all runs")
    parser.add_argument("--name", default="", help="what the runs with these changes are called")
    parser.add_argument("--workers", type=int, default=2, help="concurrent runs (2)")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/vocabularies-cpu.json"))
    arguments = parser.parse_args()
    calls = []
    for minutes in arguments.minutes.split(","):
        for name, _, folder in (pair.partition("=") for pair in arguments.texts.split(",")):
            sizes = [int(size) for size in arguments.vocabularies.split(",")]
            jobs = {size: ("best-lm", overrides(Path(folder).resolve(), size, arguments.set)) for size in sizes}
            arguments.runs.mkdir(parents=True, exist_ok=True)
            named_jobs = {str(size): job for size, job in jobs.items()}
            plan = planned(named_jobs, float(minutes), arguments.runs / "costs.json", _EVALUATIONS)
            for size, (_, new) in jobs.items():
                key = "/".join([name, minutes, str(size), *([arguments.name] if arguments.name else [])])
                run = arguments.runs / key.replace("/", "-")
                calls.append(partial(train, run, key, new, size, plan[str(size)], arguments.results))
    together(arguments.workers, calls)


if __name__ == "__main__":
    main()
