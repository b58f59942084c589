"""Commands of ``lagwise bench``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.bench_serve import serve
from lagwise.cli.drafts import drafts
from lagwise.cli.glue import glue
from lagwise.cli.lra import lra
from lagwise.cli.parsing import at_least, path, whole_numbers, within

Channels = Annotated[int, typer.Option(callback=at_least(1), help="Channels of a layer.")]
Tokens = Annotated[
    int, typer.Option(callback=at_least(1), help="Tokens in a batch; the batch size is this over the length.")
]
Repeats = Annotated[int, typer.Option(callback=at_least(2), help="Timed repeats of each method.")]
Threads = Annotated[int, typer.Option(callback=within(1, 1024, brackets="[]"), help="CPU threads.")]
Memory = Annotated[bool, typer.Option(help="Also measure peak memory, in separate processes.")]
Out = Annotated[Path | None, typer.Option(parser=path, help="Write the results as JSON, and a picture next to it.")]

bench = typer.Typer(
    help="Measure speed and memory against peers, in one run; results are checked first.", no_args_is_help=True
)
bench.command()(glue)
bench.command()(drafts)
bench.command()(lra)
bench.command()(serve)


@bench.callback()
def _group() -> None:
    """Measure speed and memory against peers, in one run; results are checked first."""


@bench.command()
def toeplitz(
    lengths: Annotated[str, typer.Option(help="Sequence lengths, separated by commas.")] = "512,2048,8192",
    channels: Channels = 512,
    tokens: Tokens = 8192,
    repeats: Repeats = 15,
    threads: Threads = 2,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="`module:factory` of another implementation; factory(channels, length) gives a module."),
    ] = None,
    out: Annotated[Path | None, typer.Option(parser=path, help="Write the results as JSON.")] = None,
    memory: Memory = True,
) -> None:
    """Training step of the causal Toeplitz layer against the published algorithm written out literally.

    lagwise bench toeplitz --lengths 512,2048,8192 --out results.json
    """
    from lagwise.bench.harness import save_results
    from lagwise.bench.peers import load_peer
    from lagwise.bench.toeplitz import table_rows, time_layers, where_time_goes
    from lagwise.cli.terminal import print_table

    wanted = whole_numbers(lengths, "--lengths")
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


@bench.command()
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
        typer.Option(help="`module:factory` of another causal layer; factory(channels, length) gives a module."),
    ] = None,
    out: Out = None,
    memory: Memory = True,
) -> None:
    """TNN, FD-TNN and SKI-TNN layers with their engines against each other and the published algorithm, each checked.

    lagwise bench ops --lengths 512,4096,32768 --out ops.json
    """
    from lagwise.bench import ops as run
    from lagwise.bench.harness import save_results
    from lagwise.bench.peers import load_peer
    from lagwise.cli.terminal import print_table
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


@bench.command("ema-vs-tcn")
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
    """MEGA's moving average, by FFT and by scan, against TCNCA's dilated convolutions; results are checked first.

    lagwise bench ema-vs-tcn --lengths 8192,131072 --out ema-vs-tcn.json
    """
    from lagwise.bench import ema_tcn as run
    from lagwise.bench.harness import save_results
    from lagwise.cli.terminal import print_table
    from lagwise.tables import known

    choices = {"both": (True, False), "causal": (True,), "two-sided": (False,)}
    results = {}
    for causal in choices[known(direction, choices, "direction")]:
        name = "causal" if causal else "two-sided"
        results[name] = run.time_ema_tcn(
            whole_numbers(lengths, "--lengths"),
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
        run.figure(results).savefig(picture := out.with_suffix(".png"), dpi=130)
        typer.echo(f"written: {out} and {picture}")


@bench.command()
def tcn(
    length: Annotated[int, typer.Argument(callback=at_least(2), help="Tokens that the stack must cover.")],
    channels: Channels = 256,
    tokens: Tokens = 8192,
    repeats: Repeats = 5,
    causal: Annotated[bool, typer.Option(help="Causal, or centred for classification.")] = True,
    anew: Annotated[bool, typer.Option(help="Ignore earlier timings.")] = False,
) -> None:
    """Find the cheapest dilated convolutions that cover a length, by timing them here.

    lagwise bench tcn 8192
    """
    from lagwise.bench.tcn_shapes import choose_tcn
    from lagwise.cli.terminal import print_table

    choices = choose_tcn(length, channels=channels, tokens=tokens, causal=causal, repeats=repeats, anew=anew)
    rows = [
        (*choice.shape, choice.parameters, f"{choice.seconds.median * 1e3:.1f}", f"{best / choice.seconds.median:.2f}x")
        for best in (choices[0].seconds.median,)
        for choice in choices
    ]
    head = ("K", "f", "D", "taps", "step ms", "speed")
    print_table(f"Stacks that cover {length} tokens", head, rows)
    k, f, d = choices[0].shape
    typer.echo(f"In a recipe: {{name: tcn, kernel_size: {k}, dilation: {f}, depth: {d}}}")


@bench.command()
def generate(
    lengths: Annotated[
        str, typer.Option(help="Tokens of context, separated by commas.")
    ] = "512,1024,2048,4096,8192,16384,32768,65536,131072",
    batches: Annotated[str, typer.Option(help="Sequences streamed together, separated by commas.")] = "1,16",
    what: Annotated[str, typer.Option(help="layers, models or both.")] = "both",
    channels: Channels = 256,
    repeats: Annotated[int, typer.Option(callback=at_least(2), help="Timed turns of each method, of 64 tokens.")] = 5,
    threads: Threads = 2,
    most_tokens: Annotated[
        int, typer.Option(callback=at_least(1), help="Skip contexts with more tokens over all sequences.")
    ] = 1 << 18,
    baselines: Annotated[bool, typer.Option(help="Also time ring buffers, n states and recomputing all.")] = True,
    out: Out = None,
) -> None:
    """Tokens a second after contexts of every length, beside ring buffers, recomputing and a key-value cache.

    lagwise bench generate --lengths 1024,16384,131072 --batches 1 --out generate.json
    """
    from lagwise.bench import generate as run
    from lagwise.bench.harness import save_results
    from lagwise.cli.terminal import print_table
    from lagwise.tables import known

    choices = {"both": ("layers", "models"), "layers": ("layers",), "models": ("models",)}
    results = {}
    for each in choices[known(what, choices, "what")]:
        results[each] = run.time_generation(
            each,
            whole_numbers(lengths, "--lengths"),
            whole_numbers(batches, "--batches"),
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
        run.figure(results).savefig(picture := out.with_suffix(".png"), dpi=130)
        typer.echo(f"written: {out} and {picture}")


@bench.command()
def stream_signal(
    run: Annotated[Path, typer.Argument(metavar="RUN", parser=path, help="Folder of a trained classifier of signals.")],
    rate: Annotated[float, typer.Option(callback=at_least(0), help="Samples a second.")],
    seconds: Annotated[float, typer.Option(callback=at_least(0), help="Signal to stream, for each size.")] = 60.0,
    chunks: Annotated[str, typer.Option(help="Samples of a push, separated by commas.")] = "1,36,360",
    threads: Threads = 1,
    out: Out = None,
) -> None:
    """Latency of pushes of samples, and how many times faster than the signal, checked against the whole output first.

    lagwise bench stream-signal runs/ecg --rate 360 --chunks 1,12,360
    """
    from dataclasses import asdict

    import torch

    from lagwise.bench.harness import save_results
    from lagwise.bench.signals import table_rows, time_signal
    from lagwise.cli.terminal import print_table
    from lagwise.models import load_model

    wanted = whole_numbers(chunks, "--chunks")
    model, _ = load_model(run)
    torch.set_num_threads(threads)
    results = time_signal(model, rate, seconds, wanted)
    head = ("samples", "seconds", "push ms", "99% ms", "worst ms", "with a step", "x real time", "of one core")
    print_table(f"Pushes at {rate:g} samples a second, {threads} thread(s)", head, table_rows(results, rate))
    if out:
        save_results(out, "lagwise " + " ".join(sys.argv[1:]), [asdict(each) for each in results])
        typer.echo(f"written: {out}")


@bench.command()
def forecast(
    folder: Annotated[
        Path, typer.Argument(parser=path, help="Folder of ETTh1.csv ... illness, as .csv, .csv.xz or .csv.gz.")
    ],
    data: Annotated[
        str, typer.Option(help="Names of data sets, separated by commas.")
    ] = "ETTh1,ETTh2,ETTm1,ETTm2,weather,exchange,illness",
    out: Annotated[Path | None, typer.Option(parser=path, help="Write the results as JSON.")] = None,
) -> None:
    """Closed-form and kernel forecasters on the usual long-horizon data sets, every test window scored.

    lagwise bench forecast data/ --data ETTh1,ETTm1 --out forecast.json
    """
    from lagwise.bench.forecasting import coverage_rows, run_benchmarks, table_rows
    from lagwise.bench.harness import save_results
    from lagwise.cli.terminal import print_table

    rows = run_benchmarks(folder, data.split(","))
    print_table("Mean squared error, mean of the horizons", *table_rows(rows))
    print_table("Share of test values within 90% intervals, mean of the horizons", *coverage_rows(rows))
    if out:
        save_results(out, f"lagwise bench forecast FOLDER --data {data}", {"cells": rows})
        typer.echo(f"written: {out}")
