"""A run of every task, shared by the tests that do not change it."""

from __future__ import annotations

from pathlib import Path

import pytest
from every_task import recipe

from lagwise.training import train


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of every case, trained on first use; its data are in the folder ``data`` beside it."""
    folder = tmp_path_factory.mktemp("runs")

    class Runs(dict):
        def __missing__(self, name: str) -> Path:
            place = folder / name.replace(" ", "-")
            self[name] = train(recipe(name, place / "data"), place / "run", progress=False)
            return self[name]

    return Runs()
