"""Paths of files and folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from lagwise.files import beside


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("runs/lm", "runs/lm-export"),
        ("lm", "lm-export"),
        ("/runs/lm.1", "/runs/lm.1-export"),
        (".", "{here}-export"),
        ("..", "{here.parent}-export"),
        ("lm/..", "{here}-export"),
    ],
)
def test_a_folder_beside_another_is_named_as_the_user_named_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, expected: str
) -> None:
    (tmp_path / "lm").mkdir()
    monkeypatch.chdir(tmp_path)
    assert beside(Path(folder), "-export") == Path(expected.format(here=tmp_path))
