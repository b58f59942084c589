"""The demo, after an interruption and beside other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lagwise.cli import demo
from lagwise.training.run import _check_unused


def test_an_interrupted_demo_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def interrupted(recipe: object, out: Path) -> None:
        _check_unused(out)  # as training does
        (out / "recipe.yaml").touch()
        begun.append(out)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            demo.run_demo(tmp_path / "demo", [], write=print)
    assert len(begun) == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").touch()
    with pytest.raises(ValueError, match="is not an earlier demo"):
        demo.run_demo(tmp_path / "other", [], write=print)
    assert (tmp_path / "other" / "precious").exists()
