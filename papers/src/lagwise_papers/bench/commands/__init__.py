"""``lagwise bench``: speed, memory and quality, of one's own models and against other methods."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lagwise.cli.parsing import at_least, integers, path, within
from lagwise_papers.bench.commands.glue import glue
from lagwise_papers.bench.commands.lra import lra
from lagwise_papers.bench.commands.own import drafts, stream_signal, tcn
from lagwise_papers.bench.commands.serve import serve

Channels = Annotated[int, typer.Option(callback=at_least(1), help="Channels per layer.")]
Tokens = Annotated[
    int, typer.Option(callback=at_least(1), help="Tokens per batch; the batch size is this divided by the length.")
]
Repeats = Annotated[int, typer.Option(callback=at_least(2), help="Timed repeats of each method.")]
Threads = Annotated[int, typer.Option(callback=within(1, 1024, brackets="[]"), help="CPU threads.")]
Memory = Annotated[bool, typer.Option(help="Also measure peak memory, in separate processes.")]
Out = Annotated[Path | None, typer.Option(parser=path, help="Write the results as JSON, and a plot next to it.")]

app = typer.Typer(help="Measure speed and memory: of your own models, and against other methods.", no_args_is_help=True)
for command in (tcn, stream_signal, drafts):
    app.command()(command)


@app.command()
def toeplitz(
    lengths: Annotated[str, typer.Option(help="Sequence lengths, separated by commas.")] = "512,2048,8192",
    channels: Channels = 512,
    tokens: Tokens = 8192,
    repeats: Repeats = 15,
    threads: Threads = 2,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="`module:factory` of another implementation; factory(channels, length) returns a module."),
    ] = None,
    out: Annotated[Path | None, typer.Option(parser=path, help="Write the results as JSON.")] = None,
    memory: Memory = True,
) -> None:
    """Time training steps of the causal Toeplitz layer against a literal implementation of the published algorithm.

    lagwise bench toeplitz --lengths 512,2048,8192 --out results.json
    """
    from lagwise.cli.terminal import print_table
    from lagwise_papers.bench.peers import load_peer
    from lagwise_papers.bench.timing import save_results
    from lagwise_papers.bench.toeplitz import table_rows, time_layers, where_time_goes

    wanted = integers(lengths, "--lengths")
    peers = {name: load_peer(name) for name in peer or []}
    rows = time_layers(
        wanted, channels=channels, tokens=tokens, repeats=repeats, threads=threads, peers=peers, memory=memory
    )
    head = ("length", "batch", "method", "ms", "quartiles", "times ours", "step memory")
    print_table("Forward and backward of one layer", head, table_rows(rows))
    parts = {n: where_time_goes(n, channels=channels, tokens=tokens, repeats=repeats) for n in wanted}
    print_table(
        "Time by part (ms)",
        ("length", *next(iter(parts.values()))),
        ((n, *(f"{t.median * 1e3:.1f}" for t in timing.values())) for n, timing in parts.items()),
    )
    if out:
        setting = os.environ.get("LAGWISE_KEEP_MEMORY")
        command = f"LAGWISE_KEEP_MEMORY={setting} " if setting else ""
        command += "lagwise " + " ".join(sys.argv[1:])
        save_results(out, command, {"layers": rows, "parts": parts})
        typer.echo(f"written: {out}")


@app.command()
def ops(
    lengths: Annotated[
        str, typer.Option(help="Sequence lengths, separated by commas.")
    ] = "512,1024,2048,4096,8192,16384,32768",
    channels: Channels = 512,
    tokens: Tokens = 8192,
    repeats: Repeats = 7,
    threads: Threads = 2,
    direction: Annotated[str, typer.Option(help="causal, two-sided or both.")] = "both",
    peer: Annotated[
        list[str] | None,
        typer.Option(help="`module:factory` of another causal layer; factory(channels, length) returns a module."),
    ] = None,
    out: Out = None,
    memory: Memory = True,
) -> None:
    """Time TNN, FD-TNN and SKI-TNN layers with their engines, against each other and the published algorithm.

    lagwise bench ops --lengths 512,4096,32768 --out ops.json
    """
    from lagwise.cli.terminal import print_table
    from lagwise.tables import known
    from lagwise_papers.bench import ops as run
    from lagwise_papers.bench.peers import load_peer
    from lagwise_papers.bench.timing import save_results

    choices = {"both": (True, False), "causal": (True,), "two-sided": (False,)}
    rows = run.time_ops(
        integers(lengths, "--lengths"),
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
        run.figure(rows).savefig(plot := out.with_suffix(".png"), dpi=130)
        typer.echo(f"written: {out} and {plot}")


@app.command("ema-vs-tcn")
def ema_vs_tcn(
    lengths: Annotated[
        str, typer.Option(help="Sequence lengths, separated by commas.")
    ] = "8192,16384,32768,65536,131072",
    channels: Channels = 64,
    repeats: Repeats = 5,
    threads: Threads = 2,
    direction: Annotated[str, typer.Option(help="causal, two-sided or both.")] = "causal",
    peer: Annotated[bool, typer.Option(help="Also time the package mega-pytorch (causal only).")] = True,
    out: Out = None,
    memory: Memory = True,
) -> None:
    """Time MEGA's moving average, by FFT and by scan, against TCNCA's dilated convolutions.

    lagwise bench ema-vs-tcn --lengths 8192,131072 --out ema-vs-tcn.json
    """
    from lagwise.cli.terminal import print_table
    from lagwise.tables import known
    from lagwise_papers.bench import ema_tcn as run
    from lagwise_papers.bench.timing import save_results

    choices = {"both": (True, False), "causal": (True,), "two-sided": (False,)}
    results = {}
    for causal in choices[known(direction, choices, "direction")]:
        name = "causal" if causal else "two-sided"
        results[name] = run.time_ema_tcn(
            integers(lengths, "--lengths"),
            channels=channels,
            causal=causal,
            repeats=repeats,
            threads=threads,
            peer=peer,
            memory=memory,
        )
        head = ("length", "method", "ms", "back", "ms/tcn", "back/tcn", "memory", "error")
        print_table(f"One sequence, {name}: forward and backward", head, run.table_rows(results[name]))
    if out:
        save_results(out, "lagwise " + " ".join(sys.argv[1:]), results)
        run.figure(results).savefig(plot := out.with_suffix(".png"), dpi=130)
        typer.echo(f"written: {out} and {plot}")


@app.command()
def generate(
    lengths: Annotated[
        str, typer.Option(help="Context lengths in tokens, separated by commas.")
    ] = "512,1024,2048,4096,8192,16384,32768,65536,131072",
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,16",
    what: Annotated[
        str, typer.Option(help="layers, models or both; or streams: whole texts of these lengths, against FutureFill.")
    ] = "both",
    channels: Channels = 256,
    repeats: Annotated[int, typer.Option(callback=at_least(2), help="Timed turns of each method, of 64 tokens.")] = 5,
    threads: Threads = 2,
    most_tokens: Annotated[
        int, typer.Option(callback=at_least(1), help="Skip contexts with more tokens over all sequences.")
    ] = 1 << 18,
    baselines: Annotated[
        bool, typer.Option(help="Also time ring buffers, n states and recomputation; for streams, FutureFill.")
    ] = True,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="`module:factory` of another exact online convolution, for --what streams; factory(taps, batch) "
            "returns an object with step(x). Taps are (channels, tokens), x and its result (batch, 1, channels)."
        ),
    ] = None,
    out: Out = None,
) -> None:
    """Measure tokens per second after contexts of each length, against ring buffers, recomputation and attention.

    lagwise bench generate --lengths 1024,16384,131072 --batches 1 --out generate.json

    lagwise bench generate --what streams --lengths 1024,16384,131072 --batches 1
    """
    if peer and what != "streams":
        raise ValueError("--peer is an online convolution and needs --what streams")
    if what == "streams":
        methods = {"channels": channels, "repeats": repeats, "threads": threads, "baselines": baselines}
        counts = (integers(lengths, "--lengths"), integers(batches, "--batches"))
        _generate_streams(*counts, most_tokens, peer or [], out, **methods)
        return
    from lagwise.cli.terminal import print_table
    from lagwise.tables import known
    from lagwise_papers.bench import generate as run
    from lagwise_papers.bench.timing import save_results

    choices = {"both": ("layers", "models"), "layers": ("layers",), "models": ("models",)}
    results = {}
    for each in choices[known(what, choices, "what")]:
        results[each] = run.time_generation(
            each,
            integers(lengths, "--lengths"),
            integers(batches, "--batches"),
            channels=channels,
            repeats=repeats,
            threads=threads,
            most_tokens=most_tokens,
            baselines=baselines,
        )
        head = ("context", "method", "tokens/s", "99% ms", "/recompute", "/ring", "/cache", "memory")
        for batch in sorted({row.batch for row in results[each]}):
            rows = run.table_rows([row for row in results[each] if row.batch == batch])
            print_table(f"Streaming, {each}, batch {batch}", head, rows)
    if out:
        save_results(out, "lagwise " + " ".join(sys.argv[1:]), results)
        run.figure(results).savefig(plot := out.with_suffix(".png"), dpi=130)
        typer.echo(f"written: {out} and {plot}")


def _generate_streams(
    lengths: list[int], batches: list[int], most_tokens: int, peers: list[str], out: Path | None, **methods: Any
) -> None:
    from lagwise.cli.terminal import print_table
    from lagwise_papers.bench.peers import load_peer
    from lagwise_papers.bench.timing import save_results
    from lagwise_papers.bench.whole_streams import StreamFactory, table_rows, time_streams

    loaded: dict[str, StreamFactory] = {name: load_peer(name) for name in peers}
    results = {}
    for batch in batches:
        short = [length for length in lengths if length * batch <= most_tokens]
        rows = time_streams(short, batch=batch, peers=loaded, **methods)
        head = ("tokens", "method", "tokens/s", "time / ours", "slowest ms", "memory")
        print_table(f"Whole texts token by token, batch {batch}", head, table_rows(rows))
        results[f"batch {batch}"] = rows
    if out:
        save_results(out, "lagwise " + " ".join(sys.argv[1:]), {"streams": results})
        typer.echo(f"written: {out}")


@app.command()
def forecast(
    folder: Annotated[
        Path, typer.Argument(parser=path, help="Folder of ETTh1.csv ... illness, as .csv, .csv.xz or .csv.gz.")
    ],
    data: Annotated[
        str, typer.Option(help="Names of data sets, separated by commas.")
    ] = "ETTh1,ETTh2,ETTm1,ETTm2,weather,exchange,illness",
    model: Annotated[
        list[str] | None, typer.Option(help="A row of the table; repeat for several.", show_default="all")
    ] = None,
    out: Annotated[Path | None, typer.Option(parser=path, help="Write the results as JSON.")] = None,
) -> None:
    """Score closed-form and kernel forecasters on all test windows of the usual long-horizon data sets.

    lagwise bench forecast data/ --data ETTh1,ETTm1 --out forecast.json
    """
    from lagwise.cli.terminal import print_table
    from lagwise_papers.bench.forecasting import coverage_rows, run_benchmarks, table_rows
    from lagwise_papers.bench.timing import save_results

    rows = run_benchmarks(folder, data.split(","), model or ())
    print_table("Mean squared error, averaged over horizons", *table_rows(rows))
    print_table("Share of test values within 90% intervals, averaged over horizons", *coverage_rows(rows))
    title = "Continuous ranked probability score of standardised series, averaged over horizons"
    print_table(title, *coverage_rows(rows, "crps"))
    if out:
        only = "".join(f" --model {shlex.quote(name)}" for name in model or ())
        save_results(out, f"lagwise bench forecast FOLDER --data {data}{only}", {"cells": rows})
        typer.echo(f"written: {out}")


app.command()(glue)
app.command()(lra)
app.command()(serve)
