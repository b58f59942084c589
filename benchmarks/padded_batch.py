"""Time training steps of classifiers on a padded batch of texts with very different lengths.

    python benchmarks/padded_batch.py OUT.json [--data FILE.jsonl[.xz]] [--before SRC] [--threads N]

The batch has the first 16 rows of a file (column ``text``, as bytes, cut to 4000), or random bytes with log-normal
lengths of mean 1325, padded on the right. Steps are forward and backward passes in float32 of two-sided classifiers
with 4 layers of 64 channels and expansion 2: tnn, ski-tnn and mega. After a check that logits agree, three methods are
timed in turn: this code; this code with layers that process padding too; and, with ``--before``, an earlier version
from its ``src`` folder, in a separate process. A ratio above 1 means that this code is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lagwise.models import LagwiseConfig, LagwiseForSequenceClassification
from lagwise.process import keep_freed_memory, share_cores

ROWS, LONGEST, PADDING = 16, 4000, 256
_MEAN, _SPREAD = 1325, 0.78  # lengths of IMDb's reviews in bytes: mean, and standard deviation of the logarithm
_GLU = {"name": "glu", "expansion": 2}


def _gtu(kernel: dict[str, Any], engine: str = "auto") -> dict[str, Any]:
    mixer = {"name": "gtu", "expansion": 2, "kernel": kernel, "engine": engine}
    return {"name": "prenorm", "token_mixer": mixer, "channel_mixer": _GLU}


BLOCKS: dict[str, dict[str, Any]] = {
    "tnn": _gtu({"name": "rpe", "layers": 3, "hidden": 32}),
    "ski-tnn": _gtu({"name": "warped"}, "ski"),
    "mega": {
        "name": "mega",
        "memory": {"name": "ema", "dimension": 16},
        "query_size": 32,
        "value_size": 128,
        "chunk": 128,
        "channel_mixer": {"name": "mlp", "expansion": 2},
    },
}


def classifier(name: str) -> LagwiseForSequenceClassification:
    torch.manual_seed(0)
    config = LagwiseConfig(hidden_size=64, num_hidden_layers=4, block=BLOCKS[name], causal=False, num_labels=2)
    return LagwiseForSequenceClassification(config).eval()  # no dropout; gradients are still computed


def texts(path: Path | None) -> list[Tensor]:
    """Rows of token ids."""
    if path is None:
        lengths = torch.empty(ROWS).log_normal_(math.log(_MEAN) - _SPREAD**2 / 2, _SPREAD).long().clamp(1, LONGEST)
        return [torch.randint(256, (n,)) for n in lengths.tolist()]
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line)["text"].encode()[:LONGEST] for line, _ in zip(lines, range(ROWS), strict=False)]
    return [torch.tensor(list(row)) for row in rows]


def padded(rows: list[Tensor]) -> dict[str, Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(len(rows)) % 2}


def step(model: LagwiseForSequenceClassification, batch: dict[str, Tensor]) -> Tensor:
    model.zero_grad()
    out = model(**batch)
    out.loss.backward()
    return out.logits.detach()


@contextlib.contextmanager
def on_padding_too() -> Iterator[None]:
    """Make layers process padding too."""
    from lagwise.ops import Layout

    compact = Layout.compact
    Layout.compact = None  # type: ignore[assignment]
    try:
        yield
    finally:
        Layout.compact = compact


class Before:
    """The same steps with an earlier version, in a separate process that reads model names from its standard input."""

    def __init__(self, source: Path, folder: Path):
        command = [sys.executable, __file__, str(folder), "--serve", "--threads", str(torch.get_num_threads())]
        environment = {**os.environ, "PYTHONPATH": str(source)}
        self.folder = folder
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def step(self, name: str) -> Tensor:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(name, file=self.process.stdin, flush=True)
        if self.process.stdout.readline() != f"{name}\n":
            raise RuntimeError(f"the earlier version exited with status {self.process.wait()}")
        return torch.load(self.folder / "logits", weights_only=True)


def serve(folder: Path) -> None:
    """Run a step for each model name on standard input."""
    models = {}
    batch = torch.load(folder / "batch", weights_only=True)
    for line in sys.stdin:
        name = line.strip()
        if name not in models:
            models[name] = classifier(name)
            models[name].load_state_dict(torch.load(folder / name, weights_only=True))
        torch.save(step(models[name], batch), folder / "logits")
        print(name, flush=True)


def main(out: Path, data: Path | None, source: Path | None, folder: Path) -> None:
    from lagwise_papers.bench.timing import interleaved, save_results

    torch.manual_seed(0)
    rows = texts(data)
    batch = padded(rows)
    lengths = [len(row) for row in rows]
    torch.save(batch, folder / "batch")
    before = None if source is None else Before(source, folder)
    share = sum(lengths) / batch["input_ids"].numel()
    print(f"{len(rows)} rows of {min(lengths)} to {max(lengths)} tokens, {share:.0%} of the padded batch\n")
    names = ["this code", "on padding too", *([] if before is None else ["before"])]
    print(f"| model | {' ms | '.join(names)} ms | {' | '.join(f'than {name}' for name in names[1:])} |")
    print("|---" * (2 * len(names)) + "|")
    results = {}
    for name in BLOCKS:
        model = classifier(name)
        torch.save(model.state_dict(), folder / name)

        def whole(model: LagwiseForSequenceClassification = model) -> Tensor:
            with on_padding_too():
                return step(model, batch)

        methods: dict[str, Callable[[], Tensor]] = {"this code": lambda model=model: step(model, batch)}
        methods["on padding too"] = whole
        if before is not None:
            methods["before"] = lambda name=name: before.step(name)
        logits = {method: run() for method, run in methods.items()}
        for other in logits.values():
            torch.testing.assert_close(other, logits["this code"], rtol=1e-3, atol=1e-4)
        seconds = interleaved(methods, repeats=7, warmup=1)  # type: ignore[arg-type]
        results[name] = seconds
        base = seconds["this code"].median
        ratios = " | ".join(f"{seconds[each].median / base:.2f}x" for each in names[1:])
        print(f"| {name} | {' | '.join(f'{seconds[n].median * 1e3:.0f}' for n in names)} | {ratios} |", flush=True)
    command = f"python benchmarks/padded_batch.py {out}"
    command += "" if data is None else f" --data {data.name}"
    command += "" if source is None else " --before SRC"
    command += f" --threads {torch.get_num_threads()}"
    save_results(out, command, {"lengths": lengths, "seconds": results})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="results file")
    parser.add_argument("--data", type=Path, help="JSON lines with a field text, optionally .xz")
    parser.add_argument("--before", type=Path, help="src folder of an earlier version")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (2)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    keep_freed_memory()
    share_cores()
    torch.set_num_threads(arguments.threads)
    if arguments.serve:
        serve(arguments.out)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(arguments.out, arguments.data, arguments.before, Path(scratch))
