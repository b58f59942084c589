"""Measure how far every mixer and kernel is from the contract: its formula, padding, packing, streams, and the future.

    python papers/benchmarks/contract.py OUT.json [--channels 64] [--length 1000]

Each error is the largest difference of an output, relative to the largest output, in float32 and in float64:

- formula: from the dense reference of the tests, in float64, on 100 tokens;
- padding: of a row with large numbers at padding on both sides, from the row alone;
- packing: of documents in one row, from the documents alone;
- streaming: of chunks of 1 to 200 tokens, from the whole sequence;
- future: before a change of later tokens, from the unchanged sequence.

Grid mixers are compared with their formula only. Mixers are those of `family_steps.py`, with its options. The
reference of the spectral kernel takes its eigenvectors from the matrix itself, which rounds them to 1e-7.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from family_steps import directions, formula_error, future_error, relative, token_mixers

from lagwise.mixers import MIXERS, Mixer
from lagwise.tables import build
from lagwise.testing import streamed
from lagwise_papers.bench.timing import save_results

_CHUNKS = (1, 1, 7, 200, 1, 64, 129)


def errors(mixer: Mixer, length: int, dtype: torch.dtype) -> Iterator[tuple[str, float]]:
    """Yield the errors of a mixer of this precision, by name."""
    yield "formula", formula_error(mixer, length, dtype)
    if mixer.needs_grid:
        return
    x = torch.randn(1, length, mixer.channels, dtype=dtype)
    start, end = length // 10, length - length // 5
    position = torch.arange(length)[None]
    mask = (position >= start) & (position < end)
    padded = torch.where(mask[..., None], x, 1e3 * torch.randn_like(x))
    yield "padding", relative(mixer(padded, mask=mask)[:, start:end], mixer(x[:, start:end]))
    documents = x.split([length // 3, length // 2, length - length // 3 - length // 2], 1)
    seq_idx = torch.cat([torch.full(document.shape[:2], i) for i, document in enumerate(documents)], 1)
    yield "packing", relative(mixer(x, seq_idx=seq_idx), torch.cat([mixer(document) for document in documents], 1))
    if not mixer.causal:
        return
    if mixer.streams:
        yield "streaming", relative(streamed(mixer, x, _CHUNKS), mixer(x))
    yield "future", future_error(mixer, x)


@torch.no_grad()
def main(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    rows: dict[str, dict[str, object]] = {}
    for name, spec in token_mixers(args.length).items():
        rows[name] = {"causal": directions(name)[0]}
        for dtype in (torch.float32, torch.float64):
            torch.manual_seed(0)
            mixer = build(MIXERS, spec, args.channels, what="mixer", causal=directions(name)[0]).to(dtype)
            rows[name][str(dtype).removeprefix("torch.")] = dict(errors(mixer, args.length, dtype))
        print(name, rows[name], flush=True)
    save_results(args.out, " ".join(["python", *sys.argv]), {"length": args.length, "rows": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="results file")
    parser.add_argument("--channels", type=int, default=64, help="channels of the mixers (64)")
    parser.add_argument("--length", type=int, default=1000, help="tokens (1000)")
    main(parser.parse_args())
