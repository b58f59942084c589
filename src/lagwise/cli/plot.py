"""``lagwise plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import run_argument
from lagwise.cli.terminal import plain
from lagwise.extras import require


def plot(run: Annotated[Path, run_argument("Folder of a trained run.")]) -> None:
    """Write a report of a run, with its plots, results and learned kernels: RUN/report.html, a single file that needs
    no network. Its plots are also in RUN/plots:

        lagwise plot runs/best-lm

    The learning curves of several runs are in their logs for TensorBoard:

        tensorboard --logdir runs
    """
    require("plot", "a report")
    from lagwise.analysis.report import plot_run

    for file in plot_run(run):
        typer.echo(plain(str(file)))
