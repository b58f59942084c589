"""``lagwise plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import path
from lagwise.cli.terminal import plain


def plot(
    run: Annotated[
        Path, typer.Argument(metavar="RUN|theory", parser=path, help="Folder of a trained run, or `theory`.")
    ],
    out: Annotated[
        Path | None, typer.Option(parser=path, help="Folder for the pictures.", show_default="plots/theory")
    ] = None,
) -> None:
    """Draw learning curve, extrapolation and learned kernels into RUN/plots, and gather them in RUN/report.html.

    lagwise plot runs/tnn-lm

    With `theory`: the theorems of SKI-TNN beside measurements, into plots/theory.

    lagwise plot theory
    """
    if str(run) == "theory" and not run.is_dir():
        from lagwise.analysis.plots import plot_theory

        written = plot_theory(out or Path("plots") / "theory")
    else:
        from lagwise.analysis.report import plot_run

        if out is not None:
            raise typer.BadParameter("--out is for `theory`; a run's pictures go into its own folder")
        written = plot_run(run)
    for file in written:
        typer.echo(plain(str(file)))
