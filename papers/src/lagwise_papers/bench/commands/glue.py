"""``lagwise bench glue``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import at_least, not_empty, path


def glue(
    data: Annotated[str, typer.Option(callback=not_empty, help="Folder with GLUE's files, or `hub:nyu-mll/glue`.")],
    out: Annotated[Path, typer.Option(parser=path, help="Folder for the fine-tunings and glue.json.")],
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", parser=path, help="Folders of pretrained runs.", show_default=False),
    ] = None,
    tasks: Annotated[
        str, typer.Option(callback=not_empty, help="Tasks, separated by commas.")
    ] = "sst2,cola,stsb,mrpc,rte",
    seeds: Annotated[int, typer.Option(callback=at_least(1), help="Fine-tunings of each run on each task.")] = 3,
    untrained: Annotated[
        list[Path] | None,
        typer.Option(parser=path, help="Run whose model is also trained from scratch. May be given several times."),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE for every recipe, such as `training.learning_rate=1e-4`."),
    ] = None,
) -> None:
    """Fine-tune pretrained runs on GLUE tasks with several seeds, and compare their scores on the dev sets with each
    other, with the most common class, and with TF-IDF.

    The checkpoint is chosen on a tenth of the training rows. The same command resumes an interrupted comparison and
    skips finished fine-tunings:

    lagwise bench glue runs/tnn-mlm runs/transformer-mlm --untrained runs/tnn-mlm --data glue/ --out runs/glue
    """
    from lagwise.cli.terminal import plain, print_table
    from lagwise_papers.bench.glue import Results, compare_glue, table_head, table_rows
    from lagwise_papers.bench.timing import save_results

    file, command = out / "glue.json", "lagwise " + " ".join(sys.argv[1:])

    def report(results: Results) -> None:
        save_results(file, command, results)

    results = compare_glue(
        runs or [],
        data,
        out,
        tasks=[task.strip() for task in tasks.split(",")],
        seeds=seeds,
        untrained=untrained or [],
        overrides=change or [],
        report=report,
    )
    print_table(
        "Scores on the dev sets in percent: mean and standard deviation", table_head(results), table_rows(results)
    )
    typer.echo(f"written: {plain(str(file))}")
