"""``lagwise watch``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lagwise.cli.parsing import existing_file, number_option, path_option, run_argument, text_option, within
from lagwise.cli.terminal import plain, write
from lagwise.process import Stopped, quick_imports


def watch(
    run: Annotated[Path, run_argument("Folder of a model trained on such lines, or on such samples.")],
    file: Annotated[
        Path | None,
        typer.Argument(parser=existing_file, metavar="[FILE]", help="Follow this file; else read standard input."),
    ] = None,
    alarms: Annotated[float, number_option("Alarms per usual line, at most.", within(0, 1, brackets="()"))] = 1e-3,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            parser=existing_file, help="Held-out lines for the threshold.", show_default="the run's test text"
        ),
    ] = None,
    state: Annotated[Path | None, path_option("A file to continue from, if it exists, and to keep up to date.")] = None,
    by: Annotated[str | None, text_option("A field of JSON lines, each value of which has a stream.")] = None,
    learn: Annotated[
        float | None,
        number_option("Learn from lines after their scores, at this rate, such as 1e-4.", within(0, 1, brackets="(]")),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON lines.")] = False,
) -> None:
    """Show how surprising each line is: its bits per byte, a threshold, and ALARM where it is exceeded. By a model that
    predicts a signal, a line is a sample, and its score the distance from its prediction in standard deviations.

    Each line is read after all lines before it, in constant memory. The threshold is that of held-out lines: of others
    like them, at most the asked share exceeds it. A file is followed until Ctrl-C, and from the state on if there is
    one, whatever stopped the command before.

    lagwise train --data yesterday.log --out runs/log

    lagwise watch runs/log < today.log

    lagwise watch runs/log /var/log/syslog --state syslog.state --alarms 1e-4

    lagwise train --recipe denoise --data sensor.csv --out runs/next task.ahead=1 task.stride=1
    task.delay=0 task.window=0 task.loss=mse

    read-sensor | lagwise watch runs/next
    """
    with quick_imports():
        from lagwise.runs.watch import Watch, watch_run, written

    def show(rows: list[dict[str, Any]]) -> None:
        write("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows) if as_json else written(rows))

    watched = Watch(run, alarms=alarms, calibrate=calibrate, by=by, learn=learn, state=state, progress=True)
    source = sys.stdin.fileno() if file is None else file
    try:
        watch_run(watched, source, show, state=state, report=lambda line: typer.echo(plain(line), err=True))
    except Stopped as stop:
        raise typer.Exit(128 + stop.number) from None  # as a shell reports it
