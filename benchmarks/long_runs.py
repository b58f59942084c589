"""Measure whether memory and open files stay constant in long training, streams, sessions and serving.

    python benchmarks/long_runs.py OUT.json TEXT RUN-recurrent [--jobs train,stream,sessions,serve]

`train` takes 10,000 steps of a small tnn-lm on TEXT, `stream` samples a million tokens in eight streams, `sessions`
opens and closes 100 sessions, and `serve` sends 10,000 requests, of which one in ten is broken off. The process that
works is looked at about fifty times; growth is between the medians of the second fifth and the last. A plot is drawn.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from tqdm.auto import trange

from lagwise.models import StreamingCache, StreamingSession, load_model
from lagwise.process import keep_freed_memory
from lagwise_papers.bench.serving import Server, running
from lagwise_papers.bench.timing import save_results

AMOUNTS = {"train": 10_000, "stream": 1_000_000, "sessions": 100, "serve": 10_000}
UNITS = {"train": "steps", "stream": "tokens", "sessions": "sessions", "serve": "requests"}
STREAMS, SAMPLES, CLIENTS = 8, 50, 8


def sample(process: int, amount: int) -> dict[str, int]:
    """Measure memory in bytes and open files of a process, after an amount of its work."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    memory = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))
    return {"amount": amount, "memory": memory, "files": len(os.listdir(f"/proc/{process}/fd"))}


def train(text: Path, run: Path) -> Iterator[dict[str, int]]:
    out = Path(tempfile.mkdtemp()) / "run"
    steps = AMOUNTS["train"]
    words = ["model.hidden_size=64", "model.num_hidden_layers=2", "data.length=128", "data.tokenizer=bytes"]
    plan = (f"steps={steps}", "batch_size=4", f"evaluate_every={steps // SAMPLES}", "save_every=1000")
    words += [f"training.{option}" for option in plan]
    command = ["lagwise", "train", "--recipe", "tnn-lm", "--data", str(text), "--out", str(out), *words]
    with subprocess.Popen([sys.executable, "-m", *command]) as process:
        log, due = out / "metrics.jsonl", 0
        while process.poll() is None:
            lines = log.read_text().splitlines() if log.exists() else []
            if lines and (step := json.loads(lines[-1])["step"]) >= due:
                due = step + steps // SAMPLES
                yield sample(process.pid, step)
            time.sleep(1)
    assert process.returncode == 0


@torch.inference_mode()
def stream(text: Path, run: Path) -> Iterator[dict[str, int]]:
    model, tokenizer = load_model(run)
    prompt: Any = tokenizer("The history of ", return_tensors="pt", add_special_tokens=False)
    cache = StreamingCache(model.config.num_hidden_layers)
    logits = model(prompt["input_ids"].expand(STREAMS, -1), past_key_values=cache, logits_to_keep=1).logits[:, -1]
    for step in trange(1, AMOUNTS["stream"] // STREAMS + 1, unit="step"):
        likeliest, ids = (logits / 0.8).softmax(-1).topk(40)
        token = ids.gather(1, torch.multinomial(likeliest, 1))
        logits = model(token, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        if step % (AMOUNTS["stream"] // STREAMS // SAMPLES) == 0:
            assert logits.isfinite().all()
            yield sample(os.getpid(), step * STREAMS)


def sessions(text: Path, run: Path) -> Iterator[dict[str, int]]:
    model, _ = load_model(run)
    chance = random.Random(0)
    for number in trange(1, AMOUNTS["sessions"] + 1, unit="session"):
        session = StreamingSession(model)
        handles = [session.add([chance.randrange(256) for _ in range(chance.randrange(1, 500))]) for _ in range(8)]
        for _ in range(50):
            session.step({handle: chance.randrange(256) for handle in handles})
        session.drop(*handles[:4])
        yield sample(os.getpid(), number)


def serve(text: Path, run: Path) -> Iterator[dict[str, int]]:
    part = AMOUNTS["serve"] // SAMPLES
    command = ("lagwise", "serve", str(run))
    with running("lagwise", command, run.name, 1) as server, ThreadPoolExecutor(CLIENTS) as pool:
        for done in trange(part, AMOUNTS["serve"] + 1, part, unit="request"):
            list(pool.map(lambda number: request(server, number), range(done - part, done)))
            yield sample(server.process, done)


def request(server: Server, number: int) -> None:
    """Ask for a completion; every tenth client leaves without reading it."""
    words = {"model": server.model, "prompt": f"The {number} ", "max_tokens": 4 + number % 13}
    body = json.dumps({**words, "stream": number % 10 == 0})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200
    if number % 10:
        assert json.loads(answer.read())["choices"][0]["text"] is not None
    connection.close()


def growth(rows: list[dict[str, int]], name: str) -> float:
    """Compute how much more the last fifth of the samples has than the second one, as medians."""
    fifth = max(1, len(rows) // 5)
    first, last = ([row[name] for row in part] for part in (rows[fifth : 2 * fifth], rows[-fifth:]))
    return statistics.median(last) - statistics.median(first)


def draw(out: Path, results: dict[str, Any]) -> None:
    figure, axes = plt.subplots(1, len(results), figsize=(3 * len(results), 2.6), layout="constrained", squeeze=False)
    for axis, (job, result) in zip(axes[0], results.items(), strict=True):
        amounts = [row["amount"] for row in result["rows"]]
        axis.plot(amounts, [row["memory"] / 2**20 for row in result["rows"]], color="#0b6e4f")
        axis.set(xlabel=UNITS[job], ylabel="memory, MiB", title=job, ylim=(0, 800))
        files = axis.twinx()
        files.plot(amounts, [row["files"] for row in result["rows"]], color="#9aa0a6")
        files.set(ylabel="open files", ylim=(0, 60))
    figure.savefig(out.with_suffix(".png"), dpi=100)


def main(args: argparse.Namespace) -> None:
    results = json.loads(args.out.read_text())["results"] if args.out.is_file() else {}
    for name in args.jobs.split(","):
        job = {"train": train, "stream": stream, "sessions": sessions, "serve": serve}[name]
        rows = list(job(args.text, args.run))
        results[name] = {"rows": rows, **{f"{what} growth": growth(rows, what) for what in ("memory", "files")}}
        save_results(args.out, f"python benchmarks/long_runs.py {args.out} TEXT {args.run.name}", results)
        print(name, {key: value for key, value in results[name].items() if key != "rows"}, flush=True)
    draw(args.out, results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="a results file, whose other jobs are kept")
    parser.add_argument("text", type=Path, help="a text to train on")
    parser.add_argument("run", type=Path, help="a converted language model of bytes")
    parser.add_argument("--jobs", default=",".join(AMOUNTS), help="jobs, separated by commas (all)")
    keep_freed_memory()
    main(parser.parse_args())
