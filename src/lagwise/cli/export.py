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
        str,
        typer.Option(
            callback=one_of("onnx", "pt2", "c", "executorch"),
            help="`onnx`, `pt2` for torch.export.load, `c` for C99 code without allocation, or `executorch`.",
        ),
    ] = "onnx",
    what: Annotated[
        str | None,
        typer.Option(
            callback=one_of("forward", "step"),
            help="`step`: one token of a language model or step of a signal, with its state; `forward`: whole rows.",
            show_default="step of language models and of c and executorch, forward of others",
        ),
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option(
            callback=one_of("int8"),
            help="`int8`: products of weights in 8-bit integers, of a step of a signal. Ranges are those of training "
            "rows; the change of the score on held-out data is printed.",
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

    A causal model of signals runs on a microcontroller, a step at a time, while it is recorded:

    lagwise export runs/chip --format c --quantize int8

    A kernel of finite support streams with a ring buffer, which is slower than a state space. A kernel of infinite
    support must be converted to a state space first:

    lagwise convert runs/best-lm

    lagwise export runs/best-lm-recurrent
    """
    if format in ("onnx", "c"):
        require("export", "an ONNX file")  # before PyTorch is imported, which takes seconds
    from lagwise.runs import export_run

    result = export_run(run, out, format=format, what=what, quantize=quantize)
    if "int8" in result:
        score = result["int8"]
        typer.echo(f"{score['metric']}: {score['int8']:.4g} in 8-bit integers, {score['float']:.4g} in float32.")
    if format == "c":
        from lagwise.models.c_code import size_lines

        for line in size_lines(result):
            typer.echo(line)
    elif "difference" in result:
        typer.echo(
            f"Outputs of {result['checked_tokens']:,} random inputs differ by {result['difference']:.1e} at most."
        )
    typer.echo(plain(f"Written: {result['out']} ({result['bytes'] / 2**20:,.1f} MB)"))
