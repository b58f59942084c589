"""Write forecasts as a table and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lagwise.figures import close
from lagwise.files import one_line, saved_whole
from lagwise.forecasting.estimator import LagForecaster
from lagwise.forecasting.plotting import forecast_figure
from lagwise.forecasting.tables import SeriesTable

if TYPE_CHECKING:
    import pandas as pd


def check_names(names: Sequence[str]) -> None:
    """ValueError if a series has the name that an end of another one's intervals gets."""
    taken = {f"{name}_{end}": name for name in names for end in ("lower", "upper")}
    if both := next((name for name in names if name in taken), None):
        raise ValueError(f"series {both!r} has the name that intervals of {taken[both]!r} get; rename or omit it")


def write_forecast(table: SeriesTable, forecaster: LagForecaster, out: Path) -> tuple[pd.DataFrame, Path | str]:
    """Write the forecast of the rows after a table, by a forecaster fitted to it.

    ``out`` gets the columns NAME, NAME_lower and NAME_upper for each series NAME, at times written as in the table, and
    a .png file of the same name the plot. Returns what was written, and the path of the plot or why there is none.
    ValueError as `check_names`, and for forecasts too large for floating-point numbers.
    """
    import pandas as pd

    check_names(list(table.frame.columns))
    values = forecaster.predict()
    lower, upper = forecaster.predict_interval()
    if not np.isfinite(values).all():
        name = table.frame.columns[int(np.isfinite(values).all(0).argmin())]
        raise ValueError(f"forecasts of series {name!r} exceed floating-point numbers; divide it by its largest value")
    times = table.next_times(len(values))
    columns = {}
    for i, name in enumerate(table.frame.columns):
        columns |= {name: values[:, i], f"{name}_lower": lower[:, i], f"{name}_upper": upper[:, i]}
    made = pd.DataFrame(columns, index=pd.Index(table.write(times), name=table.frame.index.name))
    picture = out.with_suffix(".png")
    with saved_whole(out.parent, out.name) as partial:
        made.to_csv(partial / out.name)
    if find_spec("matplotlib") is None:
        return made, "for a plot, pip install 'lagwise[plot]'"
    try:
        with saved_whole(out.parent, picture.name) as partial:
            figure = forecast_figure(table.frame, times, values, (lower, upper), forecaster.coverage)
            figure.savefig(partial / picture.name, dpi=130)
            close(figure)
    except (OSError, ValueError, OverflowError) as error:  # matplotlib cannot draw the largest numbers
        return made, f"no plot ({one_line(error)})"
    return made, picture
