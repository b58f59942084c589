"""``lagwise bench drafts``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import at_least, path, whole_numbers, within


def drafts(
    run: Annotated[Path, typer.Argument(metavar="RUN", parser=path, help="Folder of a trained language model.")],
    draft: Annotated[Path, typer.Option(parser=path, help="Folder of a smaller model with the same tokenizer.")],
    sizes: Annotated[str, typer.Option(help="Maximum tokens per draft, separated by commas.")] = "2,4,8",
    prompts: Annotated[int, typer.Option(callback=at_least(1), help="Prompts from the run's test text.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(callback=at_least(1), help="Tokens per prompt.")] = 256,
    tokens: Annotated[int, typer.Option(callback=at_least(1), help="New tokens per prompt.")] = 128,
    repeats: Annotated[int, typer.Option(callback=at_least(2), help="Timed turns of each method.")] = 5,
    threads: Annotated[int, typer.Option(callback=within(1, 1024, brackets="[]"), help="CPU threads.")] = 1,
    out: Annotated[Path | None, typer.Option(parser=path, help="Write the results as JSON.")] = None,
) -> None:
    """Measure tokens per second of greedy decoding with a draft model, with prompt lookup, and without drafts.

    lagwise bench drafts runs/mega-lm --draft runs/mega-small --out drafts.json
    """
    import torch

    from lagwise.bench.drafts import table_rows, time_drafts
    from lagwise.bench.harness import save_results
    from lagwise.bench.prompts import run_prompts
    from lagwise.cli.terminal import print_table
    from lagwise.models.loading import default_device, load_language_model

    torch.set_num_threads(threads)
    model, assistant = (load_language_model(each, device=default_device())[0] for each in (run, draft))
    chosen = run_prompts(run, prompts, prompt_tokens)
    rows = time_drafts(
        model, assistant, chosen, sizes=whole_numbers(sizes, "--sizes"), new_tokens=tokens, repeats=repeats
    )
    head = ("draft", "tokens", "tokens/s", "/none", "forwards/token", "same text")
    sizes_of = [sum(p.numel() for p in each.parameters()) for each in (model, assistant)]
    print_table(f"Model of {sizes_of[0]:,} parameters, draft of {sizes_of[1]:,}", head, table_rows(rows))
    if out:
        parameters = dict(zip(("model", "draft"), sizes_of, strict=True))
        results = {"parameters": parameters, "rows": [asdict(row) for row in rows]}
        save_results(out, "lagwise " + " ".join(sys.argv[1:]), results)
        typer.echo(f"written: {out}")
