"""Commands of ``lagwise bench``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import whole_numbers

bench = typer.Typer(help="Measure speed and memory beside peers, in one run, checked first.", no_args_is_help=True)


@bench.callback()
def _group() -> None:
    """Measure speed and memory beside peers, in one run, checked first."""


@bench.command()
def toeplitz(
    lengths: Annotated[str, typer.Option(help="Sequence lengths, separated by commas.")] = "512,2048,8192",
    channels: Annotated[int, typer.Option(help="Channels of the layer.")] = 512,
    tokens: Annotated[int, typer.Option(help="Tokens in a batch; the batch size is this over the length.")] = 8192,
    repeats: Annotated[int, typer.Option(help="Timed repeats of each method.")] = 15,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="`module:factory` of another implementation; factory(channels, length) gives a module."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the results as JSON.")] = None,
    memory: Annotated[bool, typer.Option(help="Also measure peak memory, in processes of their own.")] = True,
) -> None:
    """Training step of the causal Toeplitz layer against the published algorithm written out literally.

    lagwise bench toeplitz --lengths 512,2048,8192 --out results.json
    """
    from lagwise.bench.harness import save_results
    from lagwise.bench.peers import load_peer
    from lagwise.bench.toeplitz import table_rows, time_layers, where_time_goes
    from lagwise.cli.tables import print_table

    wanted = whole_numbers(lengths, "--lengths")
    peers = {name: load_peer(name) for name in peer or []}
    rows = time_layers(
        wanted, channels=channels, tokens=tokens, repeats=repeats, threads=threads, peers=peers, memory=memory
    )
    head = ("length", "batch", "method", "ms", "quartiles", "times ours", "step memory")
    print_table("Forward and backward of one layer", head, table_rows(rows))
    parts = {n: where_time_goes(n, channels=channels, tokens=tokens, repeats=repeats) for n in wanted}
    print_table(
        "Where our time goes (ms)",
        ("length", *next(iter(parts.values()))),
        ((n, *(f"{t.median * 1e3:.1f}" for t in timing.values())) for n, timing in parts.items()),
    )
    if out:
        setting = os.environ.get("LAGWISE_KEEP_MEMORY")
        command = f"LAGWISE_KEEP_MEMORY={setting} " if setting else ""
        command += "lagwise " + " ".join(sys.argv[1:])
        save_results(out, command, {"layers": rows, "parts": parts})
        typer.echo(f"written: {out}")


@bench.command()
def ops(
    lengths: Annotated[
        str, typer.Option(help="Sequence lengths, separated by commas.")
    ] = "512,1024,2048,4096,8192,16384,32768",
    channels: Annotated[int, typer.Option(help="Channels of the layer.")] = 512,
    tokens: Annotated[int, typer.Option(help="Tokens in a batch; the batch size is this over the length.")] = 8192,
    repeats: Annotated[int, typer.Option(help="Timed repeats of each method.")] = 7,
    threads: Annotated[int, typer.Option(help="CPU threads.")] = 2,
    direction: Annotated[str, typer.Option(help="causal, two-sided or both.")] = "both",
    peer: Annotated[
        list[str] | None,
        typer.Option(help="`module:factory` of another causal layer; factory(channels, length) gives a module."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the results as JSON, and a picture beside it.")] = None,
    memory: Annotated[bool, typer.Option(help="Also measure peak memory, in processes of their own.")] = True,
) -> None:
    """TNN, FD-TNN and SKI-TNN layers with their engines against each other and the published algorithm, each checked.

    lagwise bench ops --lengths 512,4096,32768 --out ops.json
    """
    from lagwise.bench import ops as run
    from lagwise.bench.harness import save_results
    from lagwise.bench.peers import load_peer
    from lagwise.cli.tables import print_table
    from lagwise.tables import known

    choices = {"both": (True, False), "causal": (True,), "two-sided": (False,)}
    rows = run.time_ops(
        whole_numbers(lengths, "--lengths"),
        channels=channels,
        tokens=tokens,
        repeats=repeats,
        threads=threads,
        directions=choices[known(direction, choices, "direction")],
        peers={name: load_peer(name) for name in peer or []},
        memory=memory,
    )
    head = ("", "length", "method", "forward ms", "step ms", "speed", "memory", "error")
    print_table("One layer: forward, and forward with backward", head, run.table_rows(rows))
    if out:
        save_results(out, "lagwise " + " ".join(sys.argv[1:]), {"rows": rows})
        run.figure(rows).savefig(picture := out.with_suffix(".png"), dpi=130)
        typer.echo(f"written: {out} and {picture}")
