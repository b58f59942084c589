"""``lagwise bench lra``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import at_least, not_empty, path

_TASKS = "listops,text,retrieval,image,pathfinder,path-x"
_MODELS = "transformer,tnn,fd-tnn,ski-tnn,mega,tcnca,tcn-mlp,tnn-2d,ski-tnn-2d"


def lra(
    tasks: Annotated[str, typer.Option(callback=not_empty, help="Tasks, separated by commas.")] = _TASKS,
    models: Annotated[
        str, typer.Option(callback=not_empty, help="Names as in `model=NAME`, with `-2d` for images as grids.")
    ] = _MODELS,
    rows: Annotated[
        int | None, typer.Option(callback=at_least(1), help="Batch size; by default that of the task.")
    ] = None,
    repeats: Annotated[int, typer.Option(callback=at_least(2), help="Timed repeats of each model.")] = 5,
    threads: Annotated[int, typer.Option(callback=at_least(1), help="CPU threads.")] = 2,
    memory: Annotated[bool, typer.Option(help="Also measure peak memory, in separate processes.")] = True,
    out: Annotated[Path | None, typer.Option(parser=path, help="Write the results as JSON.")] = None,
) -> None:
    """Measure speed and memory of forward passes and training steps on inputs with the shapes of Long Range Arena.

    Models have two layers of 64 channels and are compared with a Transformer of that size. Each is first checked
    against itself in float64.

    lagwise bench lra --tasks text,image --rows 8 --out lra.json
    """
    from lagwise.cli.terminal import print_table
    from lagwise_papers.bench.arena import BASE, Speed, table_rows, time_models
    from lagwise_papers.bench.timing import save_results

    done: list[Speed] = []

    def report(speed: Speed) -> None:
        done.append(speed)
        if out:
            save_results(out, "lagwise " + " ".join(sys.argv[1:]), done)

    words = [word.strip() for word in models.split(",")]
    time_models(
        [task.strip() for task in tasks.split(",")],
        list(dict.fromkeys([BASE, *words])),
        rows=rows,
        repeats=repeats,
        threads=threads,
        memory=memory,
        report=report,
        progress=True,
    )
    head = ("task", "model", "parameters", "batch", "forward/s", "", "steps/s", "", "memory", "")
    print_table("Long Range Arena's shapes, compared with the Transformer", head, table_rows(done))
    if out:
        typer.echo(f"written: {out}")
