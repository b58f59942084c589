"""Texts in a folder for each class, as IMDb is published."""

from __future__ import annotations

from pathlib import Path

import pytest

from lagwise.data import open_rows


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def imdb(tmp_path: Path) -> Path:
    """The layout of IMDb's own archive."""
    for split in ("train", "test"):
        for word in ("pos", "neg"):
            write(tmp_path / split / f"urls_{word}.txt", "http://example.org\n")
            for i in range(12):
                write(tmp_path / split / word / f"{i}_7.txt", f"{split} {word} {i}: größe")
    write(tmp_path / "train" / "unsup" / "0_0.txt", "no label")
    write(tmp_path / "imdbEr.txt", "-0.1\n")
    write(tmp_path / "README", "about the data")
    return tmp_path


class TestClassFolders:
    def test_the_published_archive_is_read_as_it_is(self, imdb: Path) -> None:
        source = open_rows(str(imdb))
        assert source.split_names == ("train", "test")
        rows = source.read()
        assert rows["train"].column_names == ["text", "label", "file"]
        assert {split: len(table) for split, table in rows.items()} == {"train": 24, "test": 24}
        assert rows["test"][0] == {"text": "test neg 0: größe", "label": "neg", "file": "test/neg/0_7.txt"}

    def test_texts_beside_tables_are_no_rows(self, tmp_path: Path) -> None:
        write(tmp_path / "rows.csv", "text,label\nx,a\ny,b\n")
        write(tmp_path / "a" / "about.txt", "not a row")
        assert open_rows(str(tmp_path)).read()["train"]["text"][:] == ["x", "y"]

    def test_texts_without_classes_can_be_predicted_from(self, tmp_path: Path) -> None:
        write(tmp_path / "unsup" / "1.txt", "x")
        write(tmp_path / "unsup" / "2.txt", "y")
        assert open_rows(str(tmp_path / "unsup")).read(["text", "file"])["train"]["text"][:] == ["x", "y"]


class TestLinks:
    def test_linked_folders_are_read(self, imdb: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        for place in ("test", "train/pos"):
            (imdb / place).rename(elsewhere / Path(place).name)
            (imdb / place).symlink_to(elsewhere / Path(place).name)
        assert {split: len(rows) for split, rows in open_rows(str(imdb)).read().items()} == {"train": 24, "test": 24}

    def test_a_link_to_a_folder_above_is_not_followed(self, imdb: Path) -> None:
        (imdb / "train" / "pos" / "all").symlink_to(imdb)
        assert len(open_rows(str(imdb)).files["train"]) == 24


def test_a_class_may_be_named_unsup(tmp_path: Path) -> None:
    for word in ("sup", "unsup"):
        write(tmp_path / word / "1.txt", word)
    assert open_rows(str(tmp_path)).read()["train"]["label"][:] == ["sup", "unsup"]


def test_the_folder_where_one_is_gives_the_class(imdb: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(imdb / "train" / "pos")
    here, above = open_rows("."), open_rows(str(imdb / "train" / "pos"))
    assert set(here.read()["train"]["label"]) == {"pos"}
    assert here.key() == above.key()
