"""``lagwise predict``."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import path_option, run_argument, text_option
from lagwise.cli.terminal import plain, read, write
from lagwise.process import quick_imports
from lagwise.tables import counted


def predict(
    run: Annotated[Path, run_argument("Folder of a trained run.")],
    source: Annotated[
        str | None,
        text_option(
            "A table (.csv, .tsv, .jsonl, .parquet, .npz), a folder of texts, sounds or images, `hub:NAME`.", "--data"
        ),
    ] = None,
    text: Annotated[list[str] | None, text_option("One row's text; may be given several times.")] = None,
    out: Annotated[
        Path | None,
        path_option(
            "A .csv file for the result, or, for sounds from sounds, a new folder.", show_default="standard output"
        ),
    ] = None,
) -> None:
    """Predict the classes, numbers, signals or next rows of new data.

    A classifier writes each row again, without the values of series, with the predicted class and the probability of
    every class; a regression, with the predicted number. A language model writes how well it predicts each text, in
    bits per byte. A forecaster writes the rows that follow a table of series over time. A model of signals writes a
    folder of sounds, or a line for each sample.

    lagwise predict runs/classify --data new.csv --out predicted.csv

    lagwise predict runs/forecast-tnn --data my.csv --out next.csv

    lagwise predict runs/tnn-cifar --data images/ --out predicted.csv

    lagwise predict runs/denoise --data noisy/ --out cleaned/

    lagwise predict runs/classify --text "I would see it again."

    Without `--data` and `--text`, every line of standard input is the text of a row:

    cat reviews.txt | lagwise predict runs/classify
    """
    if source == "-" or text == ["-"]:
        raise typer.BadParameter("leave out --data and --text to read lines of standard input")
    with quick_imports():
        from lagwise.data.row_writing import rows_as_csv
        from lagwise.runs import predict_run
        from lagwise.runs.evaluate import open_run
        from lagwise.runs.predict import check_output, save_predictions

    if source is not None and text:
        raise typer.BadParameter("give --data or --text, not both")
    task = open_run(run)[1]
    if out is not None:
        check_output(task, out, source)
    if out is not None and source is not None and out.exists() and Path(source).exists() and out.samefile(source):
        raise typer.BadParameter(f"--out would overwrite the rows of --data, {source!r}")
    if source is not None:
        rows = predict_run(run, source=source)
    else:
        columns = task.columns()
        if len(columns) != 1 or task.inputs != "tokens":
            raise ValueError(f"this run reads rows with {' and '.join(columns)}; give them with --data")
        if not text and sys.stdin.isatty():
            typer.echo("Reading one text per line from standard input; end with Ctrl-D.", err=True)
        lines = text or [line.rstrip("\n") for line in io.StringIO(read(sys.stdin))]
        rows = predict_run(run, [{columns[0]: line} for line in lines], progress=False)
    if out is None:
        write(rows_as_csv(task.table(rows)))
        return
    save_predictions(task, rows, out)
    typer.echo(f"{counted(len(rows), 'row')}: {plain(str(out))}", err=True)
