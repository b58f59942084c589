"""``lagwise bench serve``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import at_least, integers, path, within


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", parser=path, help="Folder of a trained language model.")],
    clients: Annotated[str, typer.Option(help="Numbers of concurrent clients, separated by commas.")] = "1,8,64",
    prompts: Annotated[int, typer.Option(callback=at_least(1), help="Prompts from the run's test text.")] = 16,
    prompt_tokens: Annotated[int, typer.Option(callback=at_least(1), help="Tokens per prompt.")] = 64,
    tokens: Annotated[int, typer.Option(callback=at_least(1), help="New tokens per prompt.")] = 64,
    repeats: Annotated[int, typer.Option(callback=at_least(2), help="Timed turns of each server.")] = 3,
    threads: Annotated[int, typer.Option(callback=within(1, 1024, brackets="[]"), help="CPU threads per server.")] = 1,
    peer: Annotated[bool, typer.Option(help="Also time `transformers serve` with a Transformer of equal size.")] = True,
    batched: Annotated[bool, typer.Option(help="Also time its continuous batching.")] = True,
    compile: Annotated[bool, typer.Option(help="Also time `lagwise serve --compile`.")] = False,
    out: Annotated[Path | None, typer.Option(parser=path, help="Write the results as JSON.")] = None,
) -> None:
    """Measure tokens per second and latency of `lagwise serve` with many clients, against `transformers serve`.

    lagwise bench serve runs/mega-lm --out serve.json
    """
    import torch

    from lagwise.cli.terminal import print_table
    from lagwise.models.loading import load_language_model
    from lagwise_papers.bench.drafts import run_prompts
    from lagwise_papers.bench.serving import make_transformer, measure, started, table_rows
    from lagwise_papers.bench.timing import save_results

    counts = integers(clients, "--clients")
    torch.set_num_threads(threads)
    model, tokenizer = load_language_model(run)
    chosen = [str(tokenizer.decode(ids.tolist())) for ids in run_prompts(run, prompts, prompt_tokens)]
    transformer = make_transformer(model, tokenizer) if peer else None
    if compile:  # before the servers start, whose start has a time limit
        model.compile_step(None, report=lambda line: typer.echo(line, err=True))
    options = {"peer": transformer, "tokenizer": tokenizer, "batched": batched, "compiled": compile}
    with started(run, max(counts), threads, **options) as servers:
        rows = measure(servers, chosen, clients=counts, new_tokens=tokens, repeats=repeats)
    sizes = {
        each.__class__.__name__: sum(p.numel() for p in each.parameters())
        for each in (model, transformer)
        if each is not None
    }
    head = ("server", "clients", "tokens/s", "lagwise/", "first p50", "first p99", "whole p50", "whole p99")
    print_table(", ".join(f"{name}: {size:,} parameters" for name, size in sizes.items()), head, table_rows(rows))
    if out:
        results = {"parameters": sizes, "rows": [asdict(row) for row in rows]}
        save_results(out, "lagwise " + " ".join(sys.argv[1:]), results)
        typer.echo(f"written: {out}")
