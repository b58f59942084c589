"""Pathfinder and Path-X: what the generated images hold, what reveals their labels, and the published folders."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

from lagwise.data.image_files import open_images, prepare_images
from lagwise_papers.data import pathfinder
from lagwise_papers.data.generated import generate
from lagwise_papers.data.pathfinder import CONTOUR, DISTRACTOR, PARAMETERS

every_side = pytest.mark.parametrize("side", [32, pytest.param(128, marks=pytest.mark.slow)])


@cache
def drawn(side: int) -> tuple[np.ndarray, np.ndarray, pathfinder._Drawing, np.ndarray]:
    """Images, labels, shapes and marks of the first block."""
    with pytest.MonkeyPatch.context() as patch:
        marks, placed = pathfinder._marks, []

        def recorded(drawing: pathfinder._Drawing, *rest: Any) -> np.ndarray:
            placed.append((drawing, marks(drawing, *rest)))
            return placed[-1][1]

        patch.setattr(pathfinder, "_marks", recorded)
        return (*pathfinder.images(0, 0, side=side), *placed.pop())


def published(folder: Path, count: int = 10, label: int = 0) -> Path:
    """A set of black images in the published format."""
    (folder / "imgs" / "0").mkdir(parents=True)
    (folder / "metadata").mkdir()
    for i in range(count):
        (folder / "imgs" / "0" / f"sample_{i}.png").write_bytes(pathfinder.encoded(np.zeros((32, 32), np.uint8)))
    lines = [f"imgs/0 sample_{i}.png {i} {label}\n" for i in range(count)]
    (folder / "metadata" / "0.npy").write_text("".join(lines))
    return folder


def by_grey_values(images: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy of a linear model on the sorted grey values."""
    values = np.sort(images.reshape(len(images), -1).astype(float) / 255, axis=1)[:, ::-1][:, :2048]
    return cross_val_score(LogisticRegression(max_iter=200), values, labels, cv=5).mean()


def by_distance(marks: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy of the best threshold on the distance of the marks."""
    joined = labels[np.argsort(np.linalg.norm(marks[:, 0] - marks[:, 1], axis=-1))]
    return 0.5 + np.abs(np.cumsum(2 * joined - 1)).max() / len(joined)


@pytest.mark.slow
def test_images_show_the_distractors_that_fit() -> None:
    images, _, drawing, _ = drawn(32)
    distractors = (drawing.centres[:, 2 * CONTOUR :: DISTRACTOR, 0] > 0).sum(1)
    assert {*distractors} <= set(range(6))
    assert distractors.mean() > 3.5  # not all of them fit
    paddle = [image.sum() / 255 for image in images]  # grey values in proportion to the shapes
    shapes = 2 * CONTOUR + DISTRACTOR * distractors
    assert np.corrcoef(paddle, shapes)[0, 1] > 0.9


@pytest.mark.slow
@every_side
def test_contours_have_the_published_geometry(side: int) -> None:
    _, labels, shapes, marks = drawn(side)
    turn = {32: 90, 128: 50}[side]
    made = PARAMETERS[side]
    for number in range(32):
        centres, angles, margin = shapes.centres[number], shapes.angles[number], shapes.margins[number]
        reach = made.length / 2 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        contours = [slice(0, 2 * CONTOUR, 2), slice(1, 2 * CONTOUR, 2)]
        starts, ends = ([at[c][i] for c in contours] for at, i in ((centres - reach, 0), (centres + reach, -1)))
        assert np.linalg.norm(starts[0] - starts[1]) == pytest.approx(made.seeds)
        first = [cdist(marks[number, :1], [start]).item() < 1e-9 for start in starts].index(True)
        second = [cdist(marks[number, 1:], [end]).item() < 1e-9 for end in ends].index(True)
        assert (first == second) == labels[number]
        for contour in contours:
            turns = np.angle(np.exp(1j * np.diff(angles[contour])))
            assert np.abs(turns).max() <= np.radians(turn) + 1e-9
            gap = (centres - reach)[contour][1:] - (centres + reach)[contour][:-1]
            assert np.linalg.norm(gap, axis=1) == pytest.approx(2 * margin * np.cos(turns / 2))
        whole = np.concatenate([centres - reach, centres, centres + reach])
        owner = np.tile(np.arange(len(centres)), 3)
        apart = owner[:, None] != owner  # and no neighbours in a contour
        after = np.where(owner < 2 * CONTOUR, 2, 1)
        apart &= np.abs(owner[:, None] - owner) > np.maximum(after[:, None], after)
        inside = whole[:, 0] > -50
        assert cdist(whole, whole)[apart & inside[:, None] & inside].min() >= 2 * margin - 1e-9


@pytest.mark.slow
@every_side
def test_grey_values_and_the_distance_of_the_marks_do_not_reveal_the_label(side: int) -> None:
    images, labels, _, marks = drawn(side)
    assert by_grey_values(images, labels) < 0.6  # three deviations of chance are 0.094
    assert by_distance(marks, labels) < 0.6


@pytest.mark.slow
def test_pathfinder_is_written_and_read_in_the_published_format(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    generate("lra-pathfinder", folder, rows=20, seed=0, texts=None, progress=False)
    root = folder / "curv_contour_length_14"
    assert (root / "metadata" / "0.npy").read_text().splitlines()[3].split()[:3] == ["imgs/0", "sample_3.png", "3"]
    data = prepare_images(open_images(str(folder)), channels=1, cache=tmp_path / "c", progress=False)
    assert {split: len(rows) for split, rows in data.splits.items()} == {"train": 16, "valid": 2, "test": 2}
    assert (data.label_names, data.size) == (("apart", "joined"), (32, 32))
    images, labels, *_ = drawn(32)  # an image depends only on the seed, the part and its index
    assert data.splits["train"]["label"][:] == labels[:16].tolist()
    assert data.splits["train"][15]["image"] == pathfinder.encoded(images[15])
    last = pathfinder.images(0, 180_000 // pathfinder.BLOCK)[0][180_000 % pathfinder.BLOCK + 1]
    assert data.splits["test"][1]["image"] == pathfinder.encoded(last)
    (root / "imgs" / "0" / "sample_5.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"sample_5\.png is not a readable image"):
        prepare_images(open_images(str(folder)), cache=tmp_path / "c", progress=False)
    (root / "imgs" / "0" / "sample_5.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"0\.npy, line 6: no image"):
        open_images(str(folder))
    (root / "metadata" / "0.npy").write_text("imgs/0 sample_0.png\n")
    with pytest.raises(ValueError, match="a folder, a file, a number and a label"):
        open_images(str(folder))


def test_incomplete_metadata_are_refused(tmp_path: Path) -> None:
    folder = published(tmp_path / "curv_contour_length_14", count=16)
    table = folder / "metadata" / "0.npy"
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(lines[:5]))
    with pytest.raises(ValueError, match=r"11 images of .* are not in its metadata, first .*\.png"):
        open_images(str(folder))
    table.write_text("".join([*lines, lines[0]]))
    with pytest.raises(ValueError, match=r"0\.npy, line 17: .*sample_0\.png' is listed twice"):
        open_images(str(folder))
    table.write_text("")
    with pytest.raises(ValueError, match=r"0\.npy is empty"):
        open_images(str(folder))
    shutil.rmtree(table.parent)
    with pytest.raises(ValueError, match="Pathfinder's folder imgs, but not its folder metadata"):
        open_images(str(folder))


def test_of_the_published_difficulties_the_hard_one_is_read(tmp_path: Path) -> None:
    for number, name in enumerate(("curv_baseline", "curv_contour_length_9", "curv_contour_length_14")):
        published(tmp_path / name, label=number // 2)
    with pytest.warns(UserWarning, match=r"several sets .*curv_baseline.* only curv_contour_length_14 is read"):
        source = open_images(str(tmp_path))
    assert {file.parent.parent.parent.name for files in source.files.values() for file in files} == {
        "curv_contour_length_14"
    }
    assert [len(files) for files in source.files.values()] == [8, 1, 1]
    assert len(open_images(str(tmp_path / "curv_baseline")).files["train"]) == 8
    (tmp_path / "curv_contour_length_14").rename(tmp_path / "curv_contour_length_20")
    with pytest.raises(ValueError, match="several sets of Pathfinder images"):
        open_images(str(tmp_path))
