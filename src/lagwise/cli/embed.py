"""``lagwise embed``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import at_least, number_option, one_of, path_option, run_argument
from lagwise.cli.terminal import plain
from lagwise.process import quick_imports
from lagwise.tables import counted


def embed(
    run: Annotated[Path, run_argument("Folder of a language model, an encoder or another model of text.")],
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES...",
            help="Texts: files (.txt and any other text, .jsonl and .parquet with `text`, FASTA), folders, or `-`.",
        ),
    ],
    out: Annotated[Path, path_option("The .parquet file of vectors.")] = Path("vectors.parquet"),
    pooling: Annotated[
        str, typer.Option(callback=one_of("mean", "last"), help="`mean` of the hidden states, or the `last`.")
    ] = "mean",
    window: Annotated[
        int | None,
        number_option("Tokens of a window, each with a vector.", at_least(1), show_default="a vector for each text"),
    ] = None,
    stride: Annotated[
        int | None, number_option("Tokens from a window to the next.", at_least(1), show_default="those of a window")
    ] = None,
) -> None:
    """Write a vector for each text, of any length: a book, a genome, a log.

    lagwise embed runs/best-lm books/*.txt --out books.parquet

    lagwise embed runs/encoder notes.jsonl --window 512 --stride 256 --out passages.parquet

    lagwise embed runs/hyena genome.fa.gz --out genome.parquet

    journalctl | lagwise embed runs/best-lm - --window 4096 --out log.parquet

    A language model reads a text in chunks, each from the states after the one before: the vector is that of the whole,
    and memory does not grow with the text. An encoder reads windows of 8,192 tokens that overlap by half. A vector is
    of length 1, so products of vectors are cosines. The table has the columns file, document, id, start, tokens and
    vector.

    Stopped, the same command goes on: nothing is lost, and nothing is written twice.
    """
    with quick_imports():
        from lagwise.runs import embed_run

    if "-" in files and sys.stdin.isatty():
        typer.echo("Reading one text from standard input; end with Ctrl-D.", err=True)
    try:
        counts = embed_run(run, files, out, pooling=pooling, window=window, stride=stride)
    except KeyboardInterrupt:
        typer.echo("\nStopped. The same command goes on.", err=True)
        raise
    if counts["empty"]:
        typer.echo(f"Without a vector: {counted(counts['empty'], 'empty text')}", err=True)
    earlier = f", {counts['earlier']:,} of them made before" if counts["earlier"] else ""
    typer.echo(f"{counted(counts['vectors'], 'vector')}{earlier}: {plain(shlex.quote(str(out)))}")
