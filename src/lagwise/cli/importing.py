"""``lagwise import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import existing_folder, path_option
from lagwise.cli.terminal import plain


def import_model(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", parser=existing_folder, help="Folder of a model with config.json and safetensors."
        ),
    ],
    out: Annotated[Path, path_option("Folder for the result.")],
    text: Annotated[
        list[str] | None,
        typer.Option(help="Column that a classifier reads (repeat it for several, which are joined)."),
    ] = None,
    labels: Annotated[str | None, typer.Option(help="Names of its classes in order, separated by commas.")] = None,
) -> None:
    """Convert a MEGA or HyenaDNA model that transformers saved.

    It takes MEGA, which transformers 5 no longer has: language models and classifiers of sequences and of tokens; and
    HyenaDNA's language models and classifiers, without their code.
    The logits are the same. A classifier of sequences is a run for lagwise predict.

    lagwise import mega-wikitext --out runs/mega-wikitext

    lagwise import hyenadna-tiny-1k-seqlen-hf --out runs/hyenadna

    lagwise import hosts --out runs/hosts --text sequence --labels human,swine,avian
    """
    from lagwise.runs.importing import import_run

    names = [name.strip() for name in labels.split(",")] if labels else ()
    result = import_run(folder, out, text=text or (), labels=names)
    typer.echo(plain(f"{result['model']}, {result['parameters']:,} parameters: {out}"))
    if "no_tokenizer" in result:
        typer.echo(plain(f"Without a tokenizer: {result['no_tokenizer']}"), err=True)
