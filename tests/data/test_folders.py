"""The splits and classes that the names of folders and files tell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import wavfile

from lagwise.data import RowSource, open_rows, open_source, prepare_labelled
from lagwise.data.find import split_word
from lagwise.data.image_files import open_images, prepare_images


def texts(root: Path, *folders: str, count: int = 2) -> str:
    for folder in folders:
        for i in range(count):
            path = root / folder / f"{i}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"text {i} of {folder}")
    return str(root)


def labels(name: str) -> dict[str, list[str]]:
    return {split: sorted(set(rows["label"])) for split, rows in open_rows(name).read().items()}


@pytest.mark.parametrize(
    ("name", "split"),
    [
        *((word, "train") for word in ("train", "Training", "TRAIN_set", "trainset", "training data", "x_train.npz")),
        *((word, "valid") for word in ("val", "Val.2", "dev-split", "validation", "validset", "valImages")),
        *((word, "test") for word in ("test", "TEST-1", "testing", "test data", "testsets", "eval", "evaluation2")),
        *((word, None) for word in ("trainer", "latest", "contest", "trained", "value", "device", "evaluate", "data")),
    ],
)
def test_words_of_splits(name: str, split: str | None) -> None:
    assert split_word(Path(name)) == split


def test_a_folder_of_a_split_may_have_one_of_its_own_name(tmp_path: Path) -> None:
    name = texts(tmp_path, *(f"{w}/{w}/{c}" for w in ("training_set", "test_set") for c in ("cats", "dogs")))
    assert labels(name) == {"train": ["cats", "dogs"], "test": ["cats", "dogs"]}


def test_folders_in_class_folders_are_no_classes(tmp_path: Path) -> None:
    name = texts(tmp_path / "1", "cat/s1", "cat/s2", "dog/s1/day 1", "dog")
    assert labels(name) == {"train": ["cat", "dog"]}
    name = texts(tmp_path / "2", *(f"all/{s}/images/{c}/s{i}" for s in ("train", "val") for c in "ab" for i in "12"))
    assert labels(name) == {"train": ["a", "b"], "valid": ["a", "b"]}


def test_splits_in_class_folders(tmp_path: Path) -> None:
    source = open_rows(texts(tmp_path, "cat/train", "cat/test", "dog/train", "dog/test"))
    assert {split: len(rows) for split, rows in source.read().items()} == {"train": 4, "test": 4}
    assert labels(str(tmp_path)) == {"train": ["cat", "dog"], "test": ["cat", "dog"]}
    assert source.notes == ()


@pytest.mark.parametrize(
    "folders", [("cat", "dog", "test"), ("cat/a", "cat/testing", "dog/a"), ("a/1", "b/1", "Val/c")]
)
def test_a_split_beside_other_folders_is_refused(tmp_path: Path, folders: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"such as '.*' are named as splits of the texts, but '.*' is in none of"):
        open_rows(texts(tmp_path, *folders))


def test_test_files_alone_are_not_trained_on(tmp_path: Path) -> None:
    assert list(labels(texts(tmp_path / "1", "test/cat", "test/dog"))) == ["test"]
    (tmp_path / "test.csv").write_text("text,label\nx,a\n")
    assert open_rows(str(tmp_path / "test.csv")).split_names == ("train",)
    (tmp_path / "reviews.csv").write_text("text,label\nx,a\n")
    with pytest.raises(ValueError, match=r"such as 'test\.csv', but 'reviews\.csv' does not"):
        open_rows(str(tmp_path))


def test_files_of_other_kinds_are_counted(tmp_path: Path) -> None:
    texts(tmp_path, "cat", "dog")
    assert open_rows(str(tmp_path)).notes == ()
    for name in ("cat/a.pdf", "cat/b.PDF", "dog/c.doc", "README", ".hidden"):
        (tmp_path / name).write_text("x")
    expected = ("4 files are not read: 2 .pdf, 1 without a suffix, 1 .doc (first 'README')",)
    assert open_rows(str(tmp_path)).notes == expected
    assert tuple(open_source(str(tmp_path)).notes) == expected
    for name in ("cat", "dog"):
        (tmp_path / name / "0.png").write_text("x")
    notes = open_images(str(tmp_path)).notes
    assert notes[0].startswith("8 files are not read: 4 .txt, 2 .pdf")


def test_a_title_with_the_word_of_a_split_names_none(tmp_path: Path) -> None:
    for name in ("Emma", "Persuasion", "Dracula", "A Test of Wills"):
        (tmp_path / f"{name}.txt").write_text(f"{name}\n" * 50)
    source = open_source(str(tmp_path))
    assert sum(len(files) for files in source.files.values()) == 4
    assert any("'A Test of Wills.txt' is not taken for a test split" in note for note in source.notes)
    for name in ("train", "test", "Emma-test"):
        (tmp_path / f"{name}.txt").write_text("some text\n" * 50)
        with pytest.raises(ValueError, match=r"say which files are train, valid and test.*Dracula"):
            open_source(str(tmp_path))
        (tmp_path / f"{name}.txt").unlink()


def put(path: Path, number: int = 0) -> None:
    """Write a text, a sound or an image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".txt":
        path.write_text(f"{path.name} {number}")
    elif path.suffix.lower() == ".wav":
        wavfile.write(path, 8000, np.full(9, number, np.int16))
    else:
        Image.fromarray(np.full((4, 4), number, np.uint8)).save(path)


def opened(root: Path, what: str) -> RowSource:
    return open_images(str(root)) if what == "images" else open_rows(str(root))


@pytest.mark.parametrize(("what", "suffix"), [("texts", ".txt"), ("sounds", ".wav"), ("images", ".png")])
class TestFilesThatAreARow:
    def test_folders_are_splits_and_classes(self, what: str, suffix: str, tmp_path: Path) -> None:
        for number, place in enumerate(("train/test/0", "train/train/1", "Val/train/2", "Val/test/3")):
            put(tmp_path / f"{place}{suffix}", number)
        for hidden in ("__MACOSX/train/x", "Val/test/._3", ".git/x"):
            put(tmp_path / f"{hidden}{suffix}")
        (tmp_path / f"Val/train/2{suffix}").rename(tmp_path / f"Val/train/2{suffix.upper()}")
        source = opened(tmp_path, what)
        found = {split: rows["label"][:] for split, rows in source.read().items()}
        assert found == {"train": ["test", "train"], "valid": ["test", "train"]}
        key = source.key()
        assert opened(tmp_path, what).key() == key
        (tmp_path / "train" / "test").rename(tmp_path / "train" / "other")
        assert opened(tmp_path, what).key() != key

    @pytest.mark.parametrize(
        ("place", "message"),
        [
            ("test/1", "'.*test/1{}' is in none of their class folders; move it away"),
            ("extra/a/1", "'.*extra/a/1{}' is in none of their class folders; move it away"),
        ],
    )
    def test_stray_files_are_named(self, what: str, suffix: str, place: str, message: str, tmp_path: Path) -> None:
        for name in ("train/a/0", "train/b/0"):
            put(tmp_path / f"{name}{suffix}")
        (tmp_path / "train" / "c").mkdir()  # an empty folder is no class
        opened(tmp_path, what)
        put(tmp_path / f"{place}{suffix}")
        with pytest.raises(ValueError, match=message.format(re.escape(suffix))):
            opened(tmp_path, what)

    def test_empty_files_and_folders_of_splits_alone_are_refused(self, what: str, suffix: str, tmp_path: Path) -> None:
        for number in range(8):
            put(tmp_path / "data" / ("train", "test")[number % 2] / f"{number}{suffix}", number)
        reading = {"texts": {"text": "text"}, "sounds": {"text": "file"}, "images": {}}[what]
        prepare: Any = prepare_images if what == "images" else prepare_labelled
        with pytest.raises(ValueError, match="the folders 'test', 'train' are named as splits, not as classes"):
            prepare(opened(tmp_path / "data", what), **reading, cache=tmp_path / "cache", progress=False)
        (tmp_path / "data" / "test" / f"1{suffix}").write_bytes(b"")
        with pytest.raises(ValueError, match=f"1{suffix} is empty"):
            opened(tmp_path / "data", what)
