"""``lagwise import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import path
from lagwise.cli.terminal import plain


def import_model(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", parser=path, help="Folder of a model with config.json and safetensors.")
    ],
    out: Annotated[Path, typer.Option(parser=path, help="Folder for the result.")],
) -> None:
    """Convert a MEGA model that transformers saved.

    It takes `MegaForCausalLM` and `MegaForMaskedLM`, which transformers 5 no longer has. The logits are the same.

    lagwise import mega-wikitext --out runs/mega-wikitext
    """
    from lagwise.runs.importing import import_run

    result = import_run(folder, out)
    typer.echo(plain(f"{result['model']}, {result['parameters']:,} parameters: {out}"))
    if "no_tokenizer" in result:
        typer.echo(plain(f"Without a tokenizer: {result['no_tokenizer']}"), err=True)
