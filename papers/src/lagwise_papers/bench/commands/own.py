"""Commands of ``lagwise bench`` for one's own models: shapes of stacks, the speed of streams and of drafts."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from lagwise.cli.parsing import at_least, integers, number_option, path_option, run_argument, within

Out = Annotated[Path | None, path_option("Write the results as JSON.")]


def tcn(
    length: Annotated[int, typer.Argument(callback=at_least(2), help="Tokens that the stack must cover.")],
    channels: Annotated[int, number_option("Channels per layer.", at_least(1))] = 256,
    tokens: Annotated[
        int, number_option("Tokens per batch; the batch size is this divided by the length.", at_least(1))
    ] = 8192,
    repeats: Annotated[int, number_option("Timed repeats of each method.", at_least(2))] = 5,
    causal: Annotated[bool, typer.Option(help="Causal, or centred as for classification.")] = True,
    anew: Annotated[bool, typer.Option(help="Ignore cached timings.")] = False,
) -> None:
    """Find the cheapest stack of dilated convolutions that covers a length, by timing stacks on this machine.

    lagwise bench tcn 8192
    """
    from lagwise.cli.terminal import print_table
    from lagwise_papers.bench.tcn_shapes import choose_tcn

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


def stream_signal(
    run: Annotated[Path, run_argument("Folder of a trained model of signals.")],
    rate: Annotated[float, number_option("Sampling rate in Hz.", at_least(0))],
    seconds: Annotated[float, number_option("Seconds of signal per chunk size.", at_least(0))] = 60.0,
    chunks: Annotated[str, typer.Option(help="Samples per push, separated by commas.")] = "1,36,360",
    threads: Annotated[int, number_option("CPU threads.", within(1, 1024, brackets="[]"))] = 1,
    out: Out = None,
) -> None:
    """Measure the latency of a stream of signals, and its speed relative to real time.

    lagwise bench stream-signal runs/ecg --rate 360 --chunks 1,12,360
    """
    import torch

    from lagwise.cli.terminal import print_table
    from lagwise.models import load_model
    from lagwise_papers.bench.signal_speed import table_rows, time_signal

    wanted = integers(chunks, "--chunks")
    model, _ = load_model(run)
    torch.set_num_threads(threads)
    results = time_signal(model, rate, seconds, wanted)
    head = ("samples", "seconds", "push ms", "99% ms", "worst ms", "with a step", "x real time", "of one core")
    print_table(f"Pushes at {rate:g} samples per second, {threads} thread(s)", head, table_rows(results, rate))
    _save(out, [asdict(each) for each in results])


def drafts(
    run: Annotated[Path, run_argument("Folder of a trained language model.")],
    draft: Annotated[Path, path_option("Folder of a smaller model with the same tokenizer.")],
    sizes: Annotated[str, typer.Option(help="Maximum tokens per draft, separated by commas.")] = "2,4,8",
    prompts: Annotated[int, number_option("Prompts from the run's test text.", at_least(1))] = 8,
    prompt_tokens: Annotated[int, number_option("Tokens per prompt.", at_least(1))] = 256,
    tokens: Annotated[int, number_option("New tokens per prompt.", at_least(1))] = 128,
    repeats: Annotated[int, number_option("Timed turns of each method.", at_least(2))] = 5,
    threads: Annotated[int, number_option("CPU threads.", within(1, 1024, brackets="[]"))] = 1,
    out: Out = None,
) -> None:
    """Measure tokens per second of greedy decoding with a draft model, with prompt lookup, and without drafts.

    lagwise bench drafts runs/mega-lm --draft runs/mega-small --out drafts.json
    """
    import torch

    from lagwise.cli.terminal import print_table
    from lagwise.models.loading import default_device, load_language_model
    from lagwise_papers.bench.drafts import run_prompts, table_rows, time_drafts

    torch.set_num_threads(threads)
    model, assistant = (load_language_model(each, device=default_device())[0] for each in (run, draft))
    chosen = run_prompts(run, prompts, prompt_tokens)
    rows = time_drafts(model, assistant, chosen, sizes=integers(sizes, "--sizes"), new_tokens=tokens, repeats=repeats)
    head = ("draft", "tokens", "tokens/s", "/none", "forwards/token", "same text")
    sizes_of = [sum(p.numel() for p in each.parameters()) for each in (model, assistant)]
    print_table(f"Model of {sizes_of[0]:,} parameters, draft of {sizes_of[1]:,}", head, table_rows(rows))
    parameters = dict(zip(("model", "draft"), sizes_of, strict=True))
    _save(out, {"parameters": parameters, "rows": [asdict(row) for row in rows]})


def _save(out: Path | None, results: Any) -> None:
    from lagwise_papers.bench.timing import save_results

    if out is not None:
        save_results(out, "lagwise " + " ".join(sys.argv[1:]), results)
        typer.echo(f"written: {out}")
