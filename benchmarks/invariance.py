"""Time a language model with each row of a batch by itself (LAGWISE_INVARIANT=1) and with all rows together, and list
the operations whose bits depend on the number of rows.

    python benchmarks/invariance.py OUT.json

A MEGA and a TNN of 4 layers of 256 channels with random weights score texts of 512 tokens, and continue them token by
token, as a server does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, StreamingSession
from lagwise.ops import toeplitz_product
from lagwise.training.recipe import load_recipe
from lagwise_papers.bench.timing import interleaved, save_results

MODELS, ROWS, LENGTH, TOKENS = ("mega-lm", "tnn-lm"), (1, 8, 64), 512, 16
_WEIGHT, _TAPS = torch.randn(256, 256), torch.randn(256, 100)
OPERATIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "linear, a token a row": (lambda x: F.linear(x, _WEIGHT), (256,)),
    "linear, 7 tokens": (lambda x: F.linear(x, _WEIGHT), (7, 256)),
    "linear, 512 tokens": (lambda x: F.linear(x, _WEIGHT), (512, 256)),
    "batched product": (lambda x: x @ x.mT, (4, 128, 32)),
    "silu, 77 channels": (F.silu, (77,)),
    "sigmoid, 77 channels": (torch.sigmoid, (77,)),
    "softmax": (lambda x: x.softmax(-1), (77,)),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[-1:]), (256,)),
    "mean": (lambda x: x.mean(-1), (256,)),
    "real FFT": (lambda x: torch.view_as_real(torch.fft.rfft(x)), (16, 1000)),
    "Toeplitz product, fft": (lambda x: toeplitz_product(x, _TAPS, engine="fft"), (512, 256)),
    "Toeplitz product, direct": (lambda x: toeplitz_product(x, _TAPS[:, :9], engine="direct"), (512, 256)),
    "Toeplitz product, dense": (lambda x: toeplitz_product(x, _TAPS, engine="dense"), (128, 256)),
}


def changed(run: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> list[int]:
    """The numbers of rows, of at most 16, at which some rows have other bits than in a batch of 16."""
    x = torch.randn(16, *shape, generator=torch.Generator().manual_seed(0))
    return [n for n in range(1, 16) if not torch.equal(run(x[:n].clone()), run(x)[:n])]


def apart(on: bool, run: Callable[[], Any]) -> Callable[[], Any]:
    def switched() -> None:
        os.environ["LAGWISE_INVARIANT"] = str(int(on))
        with torch.inference_mode():
            run()

    return switched


def steps(model: LagwiseForCausalLM, ids: Tensor, on: bool) -> Callable[[], None]:
    """A session with a text in every row, which goes on a few tokens at every call."""
    session = StreamingSession(model)
    apart(on, lambda: [session.add(row[:64]) for row in ids])()

    def run() -> None:
        for _ in range(TOKENS):
            session.step(dict(zip(session.handles, session.logits.argmax(1).tolist(), strict=True)))

    return apart(on, run)


def main(out: Path) -> None:
    found = {name: changed(*each) for name, each in OPERATIONS.items()}
    print("numbers of rows with other bits:", found, flush=True)
    results: dict[str, Any] = {"operations": found}
    for name in MODELS:
        fields = {**load_recipe(name).model, "vocab_size": 258, "hidden_size": 256, "num_hidden_layers": 4}
        model = LagwiseForCausalLM(LagwiseConfig(**fields)).eval()
        for rows in ROWS:
            ids = torch.randint(256, (rows, LENGTH))
            runs = {f"score {on}": apart(on, lambda ids=ids, model=model: model(ids)) for on in (False, True)}
            runs |= {f"step {on}": steps(model, ids, on) for on in (False, True)}
            seconds = results[f"{name}, {rows}"] = interleaved(runs, repeats=5, warmup=1, clock=time.process_time)
            score, own, step, one = (seconds[run].median * 1e3 for run in runs)
            print(
                f"{name}, {rows}: {score:.0f} ms, {own / score:.2f}×; {step / TOKENS:.1f} ms, {one / step:.2f}×",
                flush=True,
            )
    save_results(out, f"python benchmarks/invariance.py {out}", results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
