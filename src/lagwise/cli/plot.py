"""``lagwise plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import existing_folder, path_option
from lagwise.cli.terminal import plain
from lagwise.extras import require


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", parser=existing_folder, help="Folders of trained runs.")],
    out: Annotated[
        Path | None, path_option("Folder for a comparison.", show_default="comparison beside the first run")
    ] = None,
) -> None:
    """Write a report of a run, with its plots, results and learned kernels, or compare several runs of a task.

    The report of one run is RUN/report.html, a single file that needs no network; its plots are also in RUN/plots:

        lagwise plot runs/best-lm

    Of several runs: learning curves on shared axes, results side by side, and the settings that differ:

        lagwise plot runs/best-lm runs/mega

        lagwise plot runs/best-lm runs/mega --out reports/best-and-mega
    """
    require("plot", "a report")
    if len(runs) > 1:
        from lagwise.analysis.report import compare_runs

        written = compare_runs(runs, out)
    else:
        from lagwise.analysis.report import plot_run

        if out is not None:
            raise typer.BadParameter("--out is for several runs; a run's report goes into its folder")
        written = plot_run(runs[0])
    for file in written:
        typer.echo(plain(str(file)))
