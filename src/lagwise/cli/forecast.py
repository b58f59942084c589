"""``lagwise forecast``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.parsing import at_least, not_empty, path, within
from lagwise.cli.terminal import plain, print_table

_ROWS, _SERIES = 10, 5  # of forecasts that are printed
_ENDINGS = r"(\.(csv|parquet|gz|bz2|xz|zip|zst))+$"  # of names of tables


def forecast(
    data: Annotated[
        Path, typer.Option(parser=path, help="A .csv, .tsv or .txt (also .gz, .xz) or .parquet of series over time.")
    ],
    horizon: Annotated[int, typer.Option(callback=at_least(1), help="Rows to forecast.")],
    time: Annotated[
        str | None,
        typer.Option(callback=not_empty, help="The column of times or dates.", show_default="the first column"),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            callback=not_empty, help="Series to forecast, separated by commas.", show_default="all other columns"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            callback=not_empty,
            help="ridge, toeplitz, rpe, frequency, modal or s4d.",
            show_default="the best of several on a held-out end",
        ),
    ] = None,
    look_back: Annotated[
        int | None,
        typer.Option(
            callback=at_least(1), help="Rows that a forecast is made from.", show_default="chosen in the same way"
        ),
    ] = None,
    coverage: Annotated[
        float, typer.Option(callback=within(0, 1, brackets="()"), help="Share of values that intervals should cover.")
    ] = 0.9,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            help="A .csv file for the forecasts; the plot is saved next to it.",
            show_default="DATA-forecast.csv",
        ),
    ] = None,
) -> None:
    """Forecast your own series, with intervals and a plot.

    Tries closed-form models and look-backs, prints which has the lowest error on the last fifth of the rows, fits it to
    all rows, and forecasts the rows that follow.

    lagwise forecast --data my.csv --time date --horizon 96

    lagwise forecast --data my.parquet --horizon 24 --columns load,price --out tomorrow.csv
    """
    from lagwise.forecasting import choose_forecaster, read_series, reason, write_forecast
    from lagwise.forecasting.times import plain_times
    from lagwise.forecasting.writing import check_names

    out = out or Path(f"{re.sub(_ENDINGS, '', data.name)}-forecast.csv")
    if out.suffix != ".csv" or not out.parent.is_dir():
        raise typer.BadParameter(f"--out must be a .csv file in an existing folder, got {str(out)!r}")
    if out.exists() and data.exists() and out.samefile(data):
        raise typer.BadParameter(f"--out would overwrite --data, {str(data)!r}")
    table = read_series(data, time, None if columns is None else columns.split(","))
    check_names(list(table.frame.columns))
    first, last = (plain_times([at])[0] for at in table.frame.index[[0, -1]])
    typer.echo(f"{len(table.frame):,} rows of {table.frame.shape[1]} series, {first} to {last}")
    for note in table.notes:
        typer.echo(plain(f"note: {note}"))
    ranked = choose_forecaster(table.frame, horizon, model=model, look_back=look_back, coverage=coverage, progress=True)
    print_table(
        "Mean squared error on the held-out end (standardised)",
        ("model", "error", "parameters"),
        [(each.name, f"{each.error:.4f}", f"{each.forecaster.n_parameters_:,}") for each in ranked],
    )
    typer.echo(f"\n{plain(reason(ranked))}")
    made, picture = write_forecast(table, ranked[0].forecaster, out)
    names = list(table.frame.columns)
    parts = [f"first {_ROWS} rows"] if len(made) > _ROWS else []
    parts += [f"{_SERIES} of {len(names)} series"] if len(names) > _SERIES else []
    print_table(
        "Forecast" + (f" ({', '.join(parts)}; all are in {out})" if parts else ""),
        (str(made.index.name), *(text for name in names[:_SERIES] for text in (name, f"{coverage:.0%} interval"))),
        [
            (str(at), *(text for name in names[:_SERIES] for text in _cells(row, name)))
            for at, row in made.head(_ROWS).iterrows()
        ],
    )
    plot = "; for a plot, pip install 'lagwise[plot]'" if picture is None else f" and {picture}"
    typer.echo(plain(f"\nWritten: {out} ({len(made)} rows of {len(names)} series){plot}"))


def _cells(row: object, name: str) -> tuple[str, str]:
    values = [row[name], row[f"{name}_lower"], row[f"{name}_upper"]]  # type: ignore[index]
    value, lower, upper = (f"{each:.5g}" for each in values)
    return value, f"{lower} to {upper}"
