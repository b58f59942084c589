"""``lagwise bench serve``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import at_least, path, whole_numbers, within


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", parser=path, help="Folder of a trained language model.")],
    clients: Annotated[str, typer.Option(help="Clients at once, separated by commas.")] = "1,8,64",
    prompts: Annotated[int, typer.Option(callback=at_least(1), help="Prompts, from the test text of the run.")] = 16,
    prompt_tokens: Annotated[int, typer.Option(callback=at_least(1), help="Tokens of each.")] = 64,
    tokens: Annotated[int, typer.Option(callback=at_least(1), help="Tokens to add to each.")] = 64,
    repeats: Annotated[int, typer.Option(callback=at_least(2), help="Timed turns of each server.")] = 3,
    threads: Annotated[int, typer.Option(callback=within(1, 1024, brackets="[]"), help="CPU threads of each.")] = 1,
    peer: Annotated[bool, typer.Option(help="Beside `transformers serve`, with a Transformer of equal size.")] = True,
    batched: Annotated[bool, typer.Option(help="Beside its continuous batching too.")] = True,
    compile: Annotated[bool, typer.Option(help="Beside `lagwise serve --compile`, which compiles first.")] = False,
    out: Annotated[Path | None, typer.Option(parser=path, help="Write the results as JSON.")] = None,
) -> None:
    """Tokens a second and waiting times of `lagwise serve` with many clients, beside `transformers serve`.

    lagwise bench serve runs/mega-lm --out serve.json
    """
    import torch

    from lagwise.bench.harness import save_results
    from lagwise.bench.prompts import run_prompts
    from lagwise.bench.serving import make_transformer, measure, started, table_rows
    from lagwise.cli.terminal import print_table
    from lagwise.models.loading import load_language_model

    counts = whole_numbers(clients, "--clients")
    torch.set_num_threads(threads)
    model, tokenizer = load_language_model(run)
    chosen = [str(tokenizer.decode(ids.tolist())) for ids in run_prompts(run, prompts, prompt_tokens)]
    transformer = make_transformer(model, tokenizer) if peer else None
    if compile:  # once, and not by a server that is waited for
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
