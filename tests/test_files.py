"""Paths of files and folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from lagwise.files import beside, write_whole


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


def test_the_next_save_removes_what_a_killed_one_left_in_a_folder_and_beside_it(tmp_path: Path) -> None:
    (tmp_path / "run" / ".saving-inside").mkdir(parents=True)
    (tmp_path / ".saving-beside").mkdir()
    write_whole(tmp_path / "run" / "new", "text")
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["run", "run/new"]
