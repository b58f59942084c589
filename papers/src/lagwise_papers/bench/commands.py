"""``lagwise bench``: speed, memory and quality, of one's own models and against other methods."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lagwise.cli.terminal import at_least, integers, number_option, path_option, run_argument, text_option, within

Lengths = Annotated[str, typer.Option(help="Sequence lengths, separated by commas.")]
Channels = Annotated[int, number_option("Channels per layer.", at_least(1))]
Tokens = Annotated[int, number_option("Tokens per batch; the batch size is this divided by the length.", at_least(1))]
Repeats = Annotated[int, number_option("Timed repeats of each method.", at_least(2))]
Threads = Annotated[int, number_option("CPU threads.", within(1, 1024, brackets="[]"))]
Direction = Annotated[str, typer.Option(help="causal, two-sided or both.")]
Layers = Annotated[
    list[str] | None,
    typer.Option(help="`module:factory` of another causal layer; factory(channels, length) returns a module."),
]
Memory = Annotated[bool, typer.Option(help="Also measure peak memory, in separate processes.")]
Tasks = Annotated[str, text_option("Tasks, separated by commas.")]
Prompts = Annotated[int, number_option("Prompts from the run's test text.", at_least(1))]
PromptTokens = Annotated[int, number_option("Tokens per prompt.", at_least(1))]
NewTokens = Annotated[int, number_option("New tokens per prompt.", at_least(1))]
Out = Annotated[Path | None, path_option("Write the results as JSON, and a plot next to it if there is one.")]

_DIRECTIONS = {"both": (True, False), "causal": (True,), "two-sided": (False,)}
_ARENA_TASKS = "listops,text,retrieval,image,pathfinder,path-x"
_ARENA_MODELS = "transformer,tnn,fd-tnn,ski-tnn,mega,tcnca,tcn-mlp,tnn-2d,ski-tnn-2d"

app = typer.Typer(help="Measure speed and memory: of your own models, and against other methods.", no_args_is_help=True)


def _command() -> str:
    """Write the command line, with the setting of the environment that changes timings."""
    setting = os.environ.get("LAGWISE_KEEP_MEMORY")
    return (f"LAGWISE_KEEP_MEMORY={setting} " if setting else "") + shlex.join(["lagwise", *sys.argv[1:]])


def _save(out: Path | None, results: Any, figure: Any = None) -> None:
    from lagwise_papers.bench.timing import save_results

    if out is None:
        return
    save_results(out, _command(), results)
    typer.echo(f"written: {out}")
    if figure is not None:
        figure.savefig(plot := out.with_suffix(".png"), dpi=130)
        typer.echo(f"written: {plot}")


@app.command()
def tcn(
    length: Annotated[int, typer.Argument(callback=at_least(2), help="Tokens that the stack must cover.")],
    channels: Channels = 256,
    tokens: Tokens = 8192,
    repeats: Repeats = 5,
    causal: Annotated[bool, typer.Option(help="Causal, or centred as for classification.")] = True,
) -> None:
    """Find the cheapest stack of dilated convolutions that covers a length, by timing stacks on this machine.

    lagwise bench tcn 8192
    """
    from lagwise.cli.terminal import print_table
    from lagwise_papers.bench.tcn_shapes import choose_tcn

    choices = choose_tcn(length, channels=channels, tokens=tokens, causal=causal, repeats=repeats)
    best = choices[0].seconds.median
    rows = [
        (*choice.shape, choice.parameters, f"{choice.seconds.median * 1e3:.1f}", f"{best / choice.seconds.median:.2f}x")
        for choice in choices
    ]
    print_table(f"Stacks that cover {length} tokens", ("K", "f", "D", "taps", "step ms", "speed"), rows)
    k, f, d = choices[0].shape
    typer.echo(f"In a recipe: {{name: tcn, kernel_size: {k}, dilation: {f}, depth: {d}}}")


@app.command()
def stream_signal(
    run: Annotated[Path, run_argument("Folder of a trained model of signals.")],
    rate: Annotated[float, number_option("Sampling rate in Hz.", at_least(0))],
    seconds: Annotated[float, number_option("Seconds of signal per chunk size.", at_least(0))] = 60.0,
    chunks: Annotated[str, typer.Option(help="Samples per push, separated by commas.")] = "1,36,360",
    threads: Threads = 1,
    out: Out = None,
) -> None:
    """Measure the latency of a stream of signals, and its speed relative to real time.

    lagwise bench stream-signal runs/ecg --rate 360 --chunks 1,12,360
    """
    import torch

    from lagwise.cli.terminal import print_table
    from lagwise.models import load_model
    from lagwise_papers.bench.signal_speed import table_rows, time_signal

    sizes = integers(chunks, "--chunks")
    model, _ = load_model(run)
    torch.set_num_threads(threads)
    results = time_signal(model, rate, seconds, sizes)
    head = ("samples", "seconds", "push ms", "99% ms", "worst ms", "with a step", "x real time", "of one core")
    print_table(f"Pushes at {rate:g} samples per second, {threads} thread(s)", head, table_rows(results, rate))
    _save(out, results)


@app.command()
def toeplitz(
    lengths: Lengths = "512,2048,8192",
    channels: Channels = 512,
    tokens: Tokens = 8192,
    repeats: Repeats = 15,
    threads: Threads = 2,
    peer: Layers = None,
    out: Out = None,
    memory: Memory = True,
) -> None:
    """Time training steps of the causal Toeplitz layer against a literal implementation of the published algorithm.

    lagwise bench toeplitz --lengths 512,2048,8192 --out results.json
    """
    from lagwise.cli.terminal import print_table
    from lagwise_papers.bench.harness import Comparison
    from lagwise_papers.bench.peers import load_peer
    from lagwise_papers.bench.toeplitz import table_rows, time_layers, where_time_goes

    sizes = integers(lengths, "--lengths")
    comparison = Comparison(channels, tokens, repeats, memory, threads)
    rows = time_layers(sizes, comparison, {name: load_peer(name) for name in peer or []})
    head = ("length", "batch", "method", "ms", "quartiles", "times ours", "step memory")
    print_table("Forward and backward of one layer", head, table_rows(rows))
    parts = {n: where_time_goes(n, channels=channels, tokens=tokens, repeats=repeats) for n in sizes}
    print_table(
        "Time by part (ms)",
        ("length", *next(iter(parts.values()))),
        ((n, *(f"{t.median * 1e3:.1f}" for t in timing.values())) for n, timing in parts.items()),
    )
    _save(out, {"layers": rows, "parts": parts})


@app.command()
def ops(
    lengths: Lengths = "512,1024,2048,4096,8192,16384,32768",
    channels: Channels = 512,
    tokens: Tokens = 8192,
    repeats: Repeats = 7,
    threads: Threads = 2,
    direction: Direction = "both",
    peer: Layers = None,
    out: Out = None,
    memory: Memory = True,
) -> None:
    """Time TNN, FD-TNN and SKI-TNN layers with their engines, against each other and the published algorithm.

    lagwise bench ops --lengths 512,4096,32768 --out ops.json
    """
    from lagwise.cli.terminal import print_table
    from lagwise.tables import known
    from lagwise_papers.bench import ops as run
    from lagwise_papers.bench.harness import Comparison
    from lagwise_papers.bench.peers import load_peer

    rows = run.time_ops(
        integers(lengths, "--lengths"),
        Comparison(channels, tokens, repeats, memory, threads),
        directions=_DIRECTIONS[known(direction, _DIRECTIONS, "direction")],
        peers={name: load_peer(name) for name in peer or []},
    )
    head = ("", "length", "method", "forward ms", "step ms", "speed", "memory", "error")
    print_table("One layer: forward, and forward with backward", head, run.table_rows(rows))
    _save(out, {"rows": rows}, run.figure(rows) if out else None)


@app.command("ema-vs-tcn")
def ema_vs_tcn(
    lengths: Lengths = "8192,16384,32768,65536,131072",
    channels: Channels = 64,
    repeats: Repeats = 5,
    threads: Threads = 2,
    direction: Direction = "causal",
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
    from lagwise_papers.bench.harness import Comparison

    # One sequence at a time; some of these methods take many seconds.
    comparison = Comparison(channels, 1, repeats, memory, threads, warmup=1)
    results = {}
    for causal in _DIRECTIONS[known(direction, _DIRECTIONS, "direction")]:
        name = "causal" if causal else "two-sided"
        results[name] = run.time_ema_tcn(integers(lengths, "--lengths"), comparison, causal=causal, peer=peer)
        head = ("length", "method", "ms", "back", "ms/tcn", "back/tcn", "memory", "error")
        print_table(f"One sequence, {name}: forward and backward", head, run.table_rows(results[name]))
    _save(out, results, run.figure(results) if out else None)


@app.command()
def generate(
    lengths: Annotated[
        str, typer.Option(help="Context lengths in tokens, separated by commas.")
    ] = "512,1024,2048,4096,8192,16384,32768,65536,131072",
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,16",
    what: Annotated[str, typer.Option(help="layers, models or both.")] = "both",
    channels: Channels = 256,
    repeats: Annotated[int, number_option("Timed turns of each method, of 64 tokens.", at_least(2))] = 5,
    threads: Threads = 2,
    most_tokens: Annotated[int, number_option("Skip contexts with more tokens over all sequences.", at_least(1))] = 1
    << 18,
    baselines: Annotated[bool, typer.Option(help="Also time ring buffers, n states and recomputation.")] = True,
    out: Out = None,
) -> None:
    """Measure tokens per second after contexts of each length, against ring buffers, recomputation and attention.

    lagwise bench generate --lengths 1024,16384,131072 --batches 1 --out generate.json
    """
    from lagwise.cli.terminal import print_table
    from lagwise.tables import known
    from lagwise_papers.bench import generate as run

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
            max_tokens=most_tokens,
            baselines=baselines,
        )
        head = ("context", "method", "tokens/s", "99% ms", "/recompute", "/ring", "/cache", "memory")
        for batch in sorted({row.batch for row in results[each]}):
            rows = run.table_rows([row for row in results[each] if row.batch == batch])
            print_table(f"Streaming, {each}, batch {batch}", head, rows)
    _save(out, results, run.figure(results) if out else None)


@app.command()
def forecast(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of ETTh1.csv ... illness, as .csv, .csv.xz or .csv.gz.")
    ],
    data: Annotated[
        str, typer.Option(help="Names of data sets, separated by commas.")
    ] = "ETTh1,ETTh2,ETTm1,ETTm2,weather,exchange,illness",
    model: Annotated[
        list[str] | None, typer.Option(help="A row of the table; repeat for several.", show_default="all")
    ] = None,
    out: Out = None,
) -> None:
    """Score closed-form forecasters on all test windows of the usual long-horizon data sets.

    lagwise bench forecast data/ --data ETTh1,ETTm1 --out forecast.json
    """
    from lagwise.cli.terminal import print_table
    from lagwise_papers.bench.forecasting import coverage_rows, run_benchmarks, table_rows

    rows = run_benchmarks(folder, data.split(","), model or ())
    print_table("Mean squared error, averaged over horizons", *table_rows(rows))
    print_table("Share of test values within 90% intervals, averaged over horizons", *coverage_rows(rows))
    _save(out, {"cells": rows})


@app.command()
def glue(
    data: Annotated[str, text_option("Folder with GLUE's files, or `hub:nyu-mll/glue`.")],
    out: Annotated[Path, path_option("Folder for the fine-tunings and glue.json.")],
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN]...", help="Folders of pretrained runs.", show_default=False)
    ] = None,
    tasks: Tasks = "sst2,cola,stsb,mrpc,rte",
    seeds: Annotated[int, number_option("Fine-tunings of each run on each task.", at_least(1))] = 3,
    untrained: Annotated[
        list[Path] | None, path_option("Run whose model is also trained from scratch. May be given several times.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE for every recipe, such as `training.learning_rate=1e-4`."),
    ] = None,
) -> None:
    """Fine-tune pretrained runs on GLUE tasks with several seeds, and compare their scores on the dev sets with each
    other, with the most common class, and with TF-IDF.

    The checkpoint is chosen on a tenth of the training rows. The same command resumes an interrupted comparison and
    skips finished fine-tunings:

    lagwise bench glue runs/tnn-mlm runs/transformer-mlm --untrained runs/tnn-mlm --data glue/ --out runs/glue
    """
    from lagwise.cli.terminal import plain, print_table
    from lagwise_papers.bench.glue import compare_glue, table_head, table_rows
    from lagwise_papers.bench.timing import save_results

    file = out / "glue.json"
    results = compare_glue(
        runs or [],
        data,
        out,
        tasks=[task.strip() for task in tasks.split(",")],
        seeds=seeds,
        untrained=untrained or [],
        overrides=change or [],
        report=lambda results: save_results(file, _command(), results),
    )
    print_table(
        "Scores on the dev sets in percent: mean and standard deviation", table_head(results), table_rows(results)
    )
    typer.echo(f"written: {plain(str(file))}")


@app.command()
def lra(
    tasks: Tasks = _ARENA_TASKS,
    models: Annotated[str, text_option("Names as in `model=NAME`, with `-2d` for images as grids.")] = _ARENA_MODELS,
    rows: Annotated[int | None, number_option("Batch size; by default that of the task.", at_least(1))] = None,
    repeats: Repeats = 5,
    threads: Threads = 2,
    memory: Memory = True,
    out: Out = None,
) -> None:
    """Measure speed and memory of forward passes and training steps on inputs with the shapes of Long Range Arena.

    Models have two layers of 64 channels and are compared with a Transformer of that size. Each is first checked
    against itself in float64.

    lagwise bench lra --tasks text,image --rows 8 --out lra.json
    """
    from lagwise.cli.terminal import print_table
    from lagwise_papers.bench.arena import BASE, Speed, table_rows, time_models
    from lagwise_papers.bench.timing import save_results

    done: list[Speed] = []

    def report(speed: Speed) -> None:
        done.append(speed)
        if out:
            save_results(out, _command(), done)

    words = [word.strip() for word in models.split(",")]
    time_models(
        [task.strip() for task in tasks.split(",")],
        list(dict.fromkeys([BASE, *words])),
        rows=rows,
        repeats=repeats,
        threads=threads,
        memory=memory,
        report=report,
        progress=True,
    )
    head = ("task", "model", "parameters", "batch", "forward/s", "", "steps/s", "", "memory", "")
    print_table("Long Range Arena's shapes, compared with the Transformer", head, table_rows(done))
    if out:
        typer.echo(f"written: {out}")


@app.command()
def serve(
    run: Annotated[Path, run_argument("Folder of a trained language model.")],
    clients: Annotated[str, typer.Option(help="Numbers of concurrent clients, separated by commas.")] = "1,8,64",
    prompts: Prompts = 16,
    prompt_tokens: PromptTokens = 64,
    tokens: NewTokens = 64,
    repeats: Repeats = 3,
    threads: Threads = 1,
    peer: Annotated[bool, typer.Option(help="Also time `transformers serve` with a Transformer of equal size.")] = True,
    batched: Annotated[bool, typer.Option(help="Also time its continuous batching.")] = True,
    compile: Annotated[bool, typer.Option(help="Also time `lagwise serve --compile`.")] = False,
    out: Out = None,
) -> None:
    """Measure tokens per second and latency of `lagwise serve` with many clients, against `transformers serve`.

    lagwise bench serve runs/mega-lm --out serve.json
    """
    import torch

    from lagwise.cli.terminal import print_table
    from lagwise.models.loading import load_language_model
    from lagwise_papers.bench.serving import make_transformer, measure, run_prompts, started, table_rows

    counts = integers(clients, "--clients")
    torch.set_num_threads(threads)
    model, tokenizer = load_language_model(run)
    texts = [str(tokenizer.decode(ids.tolist())) for ids in run_prompts(run, prompts, prompt_tokens)]
    transformer = make_transformer(model, tokenizer) if peer else None
    if compile:  # now, because the start of the servers has a time limit
        model.compile_step(None, report=lambda line: typer.echo(line, err=True))
    options = {"peer": transformer, "tokenizer": tokenizer, "batched": batched, "compiled": compile}
    with started(run, max(counts), threads, **options) as servers:
        rows = measure(servers, texts, clients=counts, new_tokens=tokens, repeats=repeats)
    sizes = {type(each).__name__: each.num_parameters() for each in (model, transformer) if each is not None}
    head = ("server", "clients", "tokens/s", "lagwise/", "first p50", "first p99", "whole p50", "whole p99")
    print_table(", ".join(f"{name}: {size:,} parameters" for name, size in sizes.items()), head, table_rows(rows))
    _save(out, {"parameters": sizes, "rows": rows})
