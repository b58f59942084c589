"""Programs that follow a training, beside the log in its folder."""

from __future__ import annotations

import os
from pathlib import Path

from transformers.integrations import get_available_reporting_integrations

from lagwise.tables import shown


def check_reports(names: str) -> list[str]:
    """The names of `training.report_to`, for the Trainer. ValueError for one that is unknown or not installed."""
    found = [name.strip() for name in names.split(",") if name.strip() not in ("", "none")]
    available = get_available_reporting_integrations()
    for name in found:
        if name not in available and name != "tensorboard":  # which every recipe names, whether it is there or not
            raise ValueError(
                f"`report_to` {shown(name)} is unknown, or its package is not installed; available: "
                f"{', '.join(['none', *available])}"
            )
    return [name for name in found if name in available]


def reporters(names: str, out: Path) -> list[str]:
    """`check_reports`, and where TensorBoard's files go."""
    found = check_reports(names)
    if "tensorboard" in found:
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(out / "tensorboard")
    return found
