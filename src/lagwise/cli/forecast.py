"""``lagwise forecast``."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Annotated

import typer

from lagwise.cli.terminal import at_least, number_option, path_option, plain, print_table, text_option, within
from lagwise.files import check_writable
from lagwise.process import quick_imports
from lagwise.tables import counted, known

_ROWS, _SERIES = 10, 5  # rows and series that are printed
_MODELS = 10  # models that are printed
_ENDINGS = r"(\.(csv|tsv|txt|jsonl|parquet|gz|bz2|xz|zip|zst))+$"  # endings of tables' names


def forecast(
    data: Annotated[Path, path_option("A .csv, .tsv, .txt, .jsonl or .parquet of series over time, also .gz etc.")],
    horizon: Annotated[int, number_option("Rows to forecast.", at_least(1))],
    time: Annotated[str | None, text_option("The column of times or dates.", show_default="the first column")] = None,
    id: Annotated[
        str | None,
        text_option(
            "In a table with a row for each series and time: the column that tells series apart, or several.",
            show_default="found where times repeat and it is clear",
        ),
    ] = None,
    target: Annotated[
        str | None, text_option("The column to forecast in such a table.", show_default="the only one with numbers")
    ] = None,
    columns: Annotated[
        str | None, text_option("Series to forecast, separated by commas.", show_default="all other columns")
    ] = None,
    date_order: Annotated[
        str | None,
        text_option(
            "What dates such as 01/02/2024 begin with: day, month or year.", show_default="what gives regular times"
        ),
    ] = None,
    decimal: Annotated[
        str | None, text_option("The decimal separator, . or ,", show_default="as the numbers show")
    ] = None,
    thousands: Annotated[
        str | None, text_option("The separator between thousands.", show_default="as the numbers show")
    ] = None,
    missing: Annotated[
        str | None,
        text_option("Numbers that stand for a missing value, such as -999, separated by commas.", show_default="none"),
    ] = None,
    model: Annotated[
        str | None,
        text_option(
            "smoothing, seasonal, ridge or toeplitz.",
            show_default="the best of several on held-out rows",
        ),
    ] = None,
    look_back: Annotated[
        int | None,
        number_option("Rows that a forecast is made from.", at_least(1), show_default="chosen in the same way"),
    ] = None,
    period: Annotated[
        int | None,
        number_option("Rows of a season, 1 for none.", at_least(1), show_default="those of a day, week or year"),
    ] = None,
    coverage: Annotated[
        float,
        number_option(
            "Share of values that intervals should cover; .8 gives the quantiles .1 and .9.",
            within(0, 1, brackets="()"),
        ),
    ] = 0.9,
    nonnegative: Annotated[bool, typer.Option("--non-negative", help="Replace forecasts below 0 by 0.")] = False,
    out: Annotated[
        Path | None,
        path_option("A .csv file for the forecasts; the plot is saved next to it.", show_default="DATA-forecast.csv"),
    ] = None,
) -> None:
    """Forecast your own series, with intervals and a plot.

    Tries exponential smoothing and other closed-form models with several look-backs, prints which has the lowest error
    on rows it was not fitted to, fits it to all rows, and forecasts the rows that follow.

    lagwise forecast --data my.csv --time date --horizon 96

    lagwise forecast --data my.parquet --horizon 24 --columns load,price --out tomorrow.csv

    lagwise forecast --data sales.csv --id store --time date --target sales --horizon 28 --coverage .8
    """
    with quick_imports():
        from lagwise.forecasting import choose_forecaster, read_series, reason, write_forecast
        from lagwise.forecasting.choosing import BASELINE
        from lagwise.forecasting.design import MODELS
        from lagwise.forecasting.times import plain_times, season
        from lagwise.forecasting.writing import check_names

    out = out or Path(f"{re.sub(_ENDINGS, '', data.name)}-forecast.csv")
    if out.suffix != ".csv" or not out.parent.is_dir():
        raise typer.BadParameter(f"--out must be a .csv file in an existing folder, got {str(out)!r}")
    if out.exists() and data.exists() and out.samefile(data):
        raise typer.BadParameter(f"--out would overwrite --data, {str(data)!r}")
    check_writable(out.parent, "out")  # before anything is fitted
    if model is not None:
        known(model, MODELS, "--model")
    if id is not None and columns is not None:
        raise typer.BadParameter(
            "--columns names the series of a table with a column for each; with --id give --target"
        )
    table = read_series(
        data,
        time,
        _names(columns),
        ids=_names(id),
        target=target,
        date_order=date_order,
        decimal=decimal,
        thousands=thousands,
        missing=_codes(missing),
    )
    check_names(list(table.frame.columns) if table.ids is None else [table.target])
    first, last = (plain_times([at])[0] for at in table.frame.index[[0, -1]])
    typer.echo(f"{counted(len(table.frame), 'row')} of {table.frame.shape[1]:,} series, {first} to {last}")
    for note in table.notes:
        typer.echo(plain("note: " + re.sub(r"`(\w+)`", lambda name: f"--{name[1].replace('_', '-')}", note)))
    rows = season(table.frame) if period is None else period
    if rows > 1:
        typer.echo(f"season: {rows} rows" + ("; --period gives another" if period is None else ""))
    ranked = choose_forecaster(
        table.values,
        horizon,
        model=model,
        look_back=look_back,
        period=rows,
        coverage=coverage,
        nonnegative=nonnegative,
        progress=True,
    )
    names = list(table.frame.columns)
    unit = "in the unit of the series" if len(names) == 1 else "in standard deviations, the mean of all series"
    baseline = next(each for each in ranked if each.name == BASELINE)
    printed = ranked[:_MODELS]
    printed += [] if baseline in printed else [baseline]
    some = f" (the best {_MODELS} of {len(ranked)})" if len(ranked) > _MODELS else ""
    print_table(
        f"Mean absolute error of forecasts of held-out rows, {unit}{some}",
        ("model", "error"),
        [(each.name, _number(each.errors[0] if len(names) == 1 else each.error)) for each in printed],
    )
    typer.echo(f"\n{plain(reason(ranked))}")
    forecasts, figure = write_forecast(table, ranked[0].forecaster, out)
    shown_names = names[:_SERIES] if table.ids is None else [table.target]
    parts = [f"first {_ROWS} rows"] if len(forecasts) > _ROWS else []
    parts += [f"{_SERIES} of {len(names)} series"] if table.ids is None and len(names) > _SERIES else []
    head = forecasts.head(_ROWS).reset_index()
    others = [name for name in head if name not in forecasts.columns]
    others += [] if table.ids is None else [str(table.frame.index.name)]
    print_table(
        "Forecast" + (f" ({', '.join(parts)}; all are in {out})" if parts else ""),
        (*map(str, others), *(text for name in shown_names for text in (name, f"{coverage:.0%} interval"))),
        [
            (*(str(row[name]) for name in others), *(text for name in shown_names for text in _cells(row, name)))
            for row in head.to_dict("records")
        ],
    )
    plot = f"; {figure}" if isinstance(figure, str) else f" and {figure}"
    typer.echo(plain(f"\nWritten: {out} ({counted(len(forecasts), 'row')} of {len(names):,} series){plot}"))


def _names(text: str | None) -> list[str] | None:
    """Split names at commas; a name with a comma stands in quotes, as in .csv."""
    return None if text is None else [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]


def _codes(text: str | None) -> list[float] | None:
    if text is None or text.strip() == "none":
        return None if text is None else []
    try:
        return [float(each) for each in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"--missing must be numbers separated by commas, or none, got {text!r}") from error


def _number(value: float) -> str:
    """Write a number with five significant digits, and all of larger whole parts."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.5g}"


def _cells(row: object, name: str) -> tuple[str, str]:
    values = [row[name], row[f"{name}_lower"], row[f"{name}_upper"]]  # type: ignore[index]
    value, lower, upper = map(_number, values)
    return value, f"{lower} to {upper}"
