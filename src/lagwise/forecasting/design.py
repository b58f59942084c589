"""Validate the options of a forecaster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lagwise.forecasting.moments import LEVELS, PENALTIES, parameter_count
from lagwise.forecasting.smoothing import Smoothing
from lagwise.tables import check_integer, known, shown

CLOSED_FORM = ("ridge", "toeplitz")
SIMPLE = ("seasonal", "smoothing")  # fitted without windows; their option is the period, in rows
MODELS = CLOSED_FORM + SIMPLE


@dataclass(frozen=True)
class Design:
    """Design of a map to fit; `LagForecaster` explains the fields. kernels is the horizon for ``ridge``."""

    spec: Mapping[str, Any]
    look_backs: tuple[int, ...]
    horizon: int
    level: str
    kernels: int
    penalties: tuple[float, ...]
    folds: int = 1

    @property
    def look_back(self) -> int:
        """The longest look-back."""
        return max(self.look_backs)

    @property
    def width(self) -> int:
        """The rows of a window with its targets."""
        return self.look_back + self.horizon

    @property
    def windowless(self) -> bool:
        """Whether nothing is fitted to windows."""
        return self.spec["name"] in SIMPLE or self.penalties == (math.inf,)

    @property
    def parameters(self) -> int:
        """The number of parameters in the map of one group of series."""
        if self.spec["name"] == "smoothing":
            return Smoothing(1.0, 0.0, 0.9, 0.0, self.spec["period"]).parameters
        if self.windowless:
            return 0
        sizes = (parameter_count(n, self.horizon, kernels=self.kernels) for n in self.look_backs)
        return sum(sizes)


def make_design(forecaster: Any) -> Design:
    """Validate a forecaster's parameters. ValueError names a parameter that is out of range."""
    model, penalty = forecaster.model, forecaster.penalty
    spec = dict(model) if isinstance(model, Mapping) else {"name": model}
    name = known(spec.get("name"), MODELS, "model")
    for key in spec:
        known(key, ("name", "period") if name in SIMPLE else ("name",), f"option of model {name!r}")
    if name in SIMPLE:
        spec = {"period": check_integer("period", plain(spec.get("period", 1))), **spec}
    horizon, kernels = (check_integer(option, plain(getattr(forecaster, option))) for option in ("horizon", "kernels"))
    look_back = plain(forecaster.look_back)
    look_backs = [look_back] if isinstance(look_back, int | str) else [plain(each) for each in look_back]
    if not look_backs:
        raise ValueError(f"look_back must be a number or several, got {shown(look_back)}")
    if horizon % kernels:
        raise ValueError(f"kernels must divide the horizon of {horizon}, got {kernels}")
    if name == "ridge":
        if kernels != 1:
            raise ValueError(f"kernels does not apply to the model 'ridge', got {kernels}")
        kernels = horizon
    if penalty is not None and not penalty >= 0:
        raise ValueError(f"penalty must be at least 0, got {penalty!r}")
    folds = check_integer("folds", plain(forecaster.folds))
    if folds > 1 and (name not in CLOSED_FORM or penalty is not None):
        raise ValueError(
            f"folds choose the penalty of 'ridge' and 'toeplitz'; give folds=1 with model {name!r} and penalty "
            f"{penalty!r}, got {folds}"
        )
    if not 0 < forecaster.coverage < 1:
        raise ValueError(f"coverage must be in (0, 1), got {forecaster.coverage!r}")
    return Design(
        spec=spec,
        look_backs=tuple(check_integer("look_back", each) for each in look_backs),
        horizon=horizon,
        level=known(forecaster.level, LEVELS, "level"),
        kernels=kernels,
        penalties=(PENALTIES if name in CLOSED_FORM else (0.0,)) if penalty is None else (float(penalty),),
        folds=folds,
    )


def plain(value: Any) -> Any:
    """Convert numpy integers, as a grid search passes them, to Python integers."""
    return int(value) if isinstance(value, np.integer) else value


def held_out_rows(design: Design, validation: float, rows: int) -> int:
    """Count the rows to hold out, from ``validation`` as a share or a number."""
    validation = plain(validation)
    if isinstance(validation, float):
        if not 0 <= validation < 1:
            raise ValueError(f"validation must be a share in [0, 1) or a number of rows, got {validation!r}")
        validation = max(design.horizon, round(validation * rows)) if validation else 0
    if validation != 0 and check_integer("validation", validation) < design.horizon:
        raise ValueError(f"validation must be at least the horizon of {design.horizon} rows, got {validation}")
    if validation == 0 and len(design.penalties) > 1:
        raise ValueError("penalty=None is chosen on held-out rows; give a penalty, or validation above 0")
    return validation
