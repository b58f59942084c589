"""``lagwise export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import one_of, path_option, run_argument
from lagwise.cli.terminal import plain
from lagwise.extras import require


def export(
    run: Annotated[Path, run_argument("Folder of a trained model.")],
    format: Annotated[
        str, typer.Option(callback=one_of("onnx", "pt2"), help="`onnx`, or `pt2` for torch.export.load.")
    ] = "onnx",
    what: Annotated[
        str | None,
        typer.Option(
            callback=one_of("forward", "step"),
            help="`step`: one token of a language model with its state; `forward`: whole rows.",
            show_default="step of language models, forward of others",
        ),
    ] = None,
    out: Annotated[Path | None, path_option("Folder for the files.", show_default="RUN-export")] = None,
) -> None:
    """Write a model to a file that runs without lagwise.

    The tokenizer is written to the same folder. The file's outputs are compared with the model's, and the file is
    removed if they differ.

    lagwise export runs/mega-lm

    lagwise export runs/best-lm --format pt2 --what forward

    lagwise export runs/classify

    A kernel of finite support streams with a ring buffer, which is slower than a state space. A kernel of infinite
    support must be converted to a state space first:

    lagwise convert runs/best-lm

    lagwise export runs/best-lm-recurrent
    """
    if format == "onnx":
        require("export", "an ONNX file")  # before PyTorch is imported, which takes seconds
    from lagwise.runs import export_run

    result = export_run(run, out, format=format, what=what)
    size = result["bytes"] / 2**20
    typer.echo(f"Outputs of {result['checked_tokens']:,} random inputs differ by {result['difference']:.1e} at most.")
    typer.echo(plain(f"Written: {result['out']} ({size:,.1f} MB)"))
