"""Which folders the demo replaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from lagwise.cli import demo


def test_only_finished_demos_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(recipe: object, out: Path) -> None:
        out.mkdir()
        (out / "recipe.yaml").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(tmp_path / "demo", [], write=print)
    with pytest.raises(ValueError, match=r"one that did not finish.*lagwise train --resume"):
        demo.run_demo(tmp_path / "demo", [], write=print)
    assert (tmp_path / "demo" / "recipe.yaml").exists()
    (tmp_path / "demo" / ".lagwise-demo").touch()
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(tmp_path / "demo", [], write=print)
