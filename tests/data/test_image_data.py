"""Labelled images: sources, decoding, and errors."""

from __future__ import annotations

import io
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from image_folders import ROWS, arrays, folder_of
from PIL import Image

from lagwise.data.image_files import open_images, prepare_images
from lagwise.data.images import (
    ImageExamples,
    ImageReader,
    decode,
    encode_array,
    shuffled_images,
)


def prepared(name: Path | str, tmp_path: Path, **options):
    return prepare_images(open_images(str(name)), cache=tmp_path / "cache", progress=False, **options)


def png(pixels: np.ndarray, bits: int, kind: int) -> bytes:
    """A PNG file of a colour type of its specification, which PIL does not write with 16 bits."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.astype(f">u{bits // 8}").tobytes() for row in pixels)
    parts = ((b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)), (b"IDAT", zlib.compress(rows)))
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))  # noqa: E731
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in (*parts, (b"IEND", b"")))


def test_one_folder_per_class(tmp_path: Path) -> None:
    data = prepared(folder_of(tmp_path / "data", *arrays()), tmp_path)
    assert data.label_names == ("cat", "dog")
    assert data.size == (6, 8)
    assert {split: len(rows) for split, rows in data.splits.items()} == {"train": 8, "valid": 2, "test": 2}
    assert "2 classes of images of 6 x 8" in data.describe()
    images = arrays()[0][[row["label"] for row in data.splits["train"]]]  # any images of the right shape
    assert images.shape[1:] == (6, 8, 3)
    train = np.stack([np.asarray(decode(row["image"], 3, "it")) for row in data.splits["train"]]) / 255
    assert data.mean == pytest.approx(train.mean((0, 1, 2)), abs=1e-5)
    assert data.std == pytest.approx(train.std((0, 1, 2)), abs=1e-5)


@pytest.mark.parametrize(
    "names",
    [
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("x_train", "y_train", "x_test", "y_test"),
    ],
)
def test_arrays_of_several_splits(tmp_path: Path, names: tuple[str, ...]) -> None:
    images, labels = arrays(1)
    np.savez(tmp_path / "p.npz", **dict(zip(names, (images[:8], labels[:8], images[8:], labels[8:]), strict=True)))
    data = prepared(tmp_path / "p.npz", tmp_path, channels=1)
    assert [len(data.splits[split]) for split in ("train", "valid", "test")] == [6, 2, 4]
    assert data.label_names == ("0", "1")
    assert len(data.mean) == 1
    first = data.splits["test"][0]
    assert (np.asarray(decode(first["image"], 1, "it")) == images[8]).all()


def test_a_table_with_encoded_images(tmp_path: Path) -> None:
    from datasets import Dataset

    images, labels = arrays()
    encoded = [encode_array(image) for image in images]
    for column in (encoded, [{"bytes": each, "path": None} for each in encoded]):
        Dataset.from_dict({"image": column, "label": labels.tolist()}).to_parquet(tmp_path / "p.parquet")
        data = prepared(tmp_path / "p.parquet", tmp_path)
        assert sum(len(rows) for rows in data.splits.values()) == ROWS


@pytest.mark.parametrize("crop", [None, 0.875])
@pytest.mark.parametrize(("height", "width", "channels"), [(17, 40, 3), (33, 20, 3), (11, 11, 1)])
def test_decoding_and_cropping_equal_the_saved_image_processor(
    tmp_path: Path, height: int, width: int, channels: int, crop: float | None
) -> None:
    """Images that are not square keep their shape where they are cropped; smaller ones than the size are enlarged."""
    from transformers import ViTImageProcessorPil

    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))
    image = image.convert("RGB" if channels == 3 else "L")
    reader = ImageReader((14, 14), (0.4,) * channels, (0.2,) * channels, crop=crop)
    file = io.BytesIO()
    image.save(file, "PNG")
    found = reader(file.getvalue(), "it")
    reader.processor().save_pretrained(tmp_path)
    theirs = ViTImageProcessorPil.from_pretrained(tmp_path)(image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(found, theirs.float(), rtol=0, atol=1e-5)
    if crop is None:
        return
    resized = image.resize(
        (16 * width // min(height, width), 16 * height // min(height, width)), Image.Resampling.BICUBIC
    )
    left, top = (resized.width - 14) // 2, (resized.height - 14) // 2
    pixels = np.asarray(resized).reshape(resized.height, resized.width, channels)[top : top + 14, left : left + 14]
    torch.testing.assert_close(found * 0.2 + 0.4, torch.tensor(pixels / 255).permute(2, 0, 1).float())


def test_images_are_rotated_by_their_exif_orientation() -> None:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(arrays()[0][0]).save(file, "PNG", exif=exif)
    assert decode(file.getvalue(), 3, "it").size == (6, 8)


def test_an_epoch_has_every_image_once_in_a_new_order(tmp_path: Path) -> None:
    data = prepared(folder_of(tmp_path / "data", *arrays()), tmp_path)
    examples = ImageExamples(data.splits["train"], data.reader)
    shuffled, again = (shuffled_images(examples, 20, seed) for seed in (3, 3))
    epochs = [[shuffled[i]["pixel_values"].sum().item() for i in range(8 * e, 8 * e + 8)] for e in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]
    assert again[13]["pixel_values"].sum().item() == epochs[1][5]


class TestWrongData:
    def check(self, name: Path, tmp_path: Path, message: str, **options) -> None:
        with pytest.raises(ValueError, match=message):
            prepared(name, tmp_path, **options)

    def test_a_file_that_is_no_image_of_eight_bits_is_named(self, tmp_path: Path) -> None:
        root = folder_of(tmp_path / "data", *arrays())
        path = root / "cat" / "04.png"
        for data in (path.read_bytes()[:50], b"not an image"):
            path.write_bytes(data)
            self.check(root, tmp_path, r"cat/04\.png is not a readable image")
        Image.fromarray(np.full((6, 8), 40_000, dtype=np.uint16)).save(path)
        self.check(root, tmp_path, "more than 8 bits per channel")
        path.unlink()
        Image.new("LAB", (8, 6)).save(path.with_suffix(".tif"))
        self.check(root, tmp_path, r"cat/04\.tif is not a readable image", channels=1)

    def test_one_class_and_too_few_images_are_named_before_they_are_decoded(self, tmp_path: Path) -> None:
        root = folder_of(tmp_path / "data", *arrays())
        first, *others = sorted(root.iterdir())
        (first / "damaged.png").write_text("not an image")
        keep = sorted(others[0].iterdir())[:1]
        for path in {*others[0].iterdir()} - {*keep}:
            path.unlink()
        self.check(root, tmp_path, rf"data': too few different rows .*: 1 of '{others[0].name}'")
        for folder in others:
            shutil.rmtree(folder)
        self.check(root, tmp_path, rf"data': all \d+ labels are '{first.name}'")

    @pytest.mark.parametrize(("kind", "samples"), [(2, 3), (4, 2), (6, 4)])
    def test_colours_of_sixteen_bits_are_refused(self, kind: int, samples: int) -> None:
        """Of which PIL keeps the upper 8: 1000 of a camera's 1023 would become 3."""
        with pytest.raises(ValueError, match="it has more than 8 bits per channel"):
            decode(png(np.full((4, 4, samples), 1000), 16, kind), 3, "it")
        eight = np.asarray(decode(png(np.full((4, 4, samples), 255), 8, kind), 3, "it"))
        assert (eight == 255).all()

    def test_files_that_are_in_no_class(self, tmp_path: Path) -> None:
        root = folder_of(tmp_path / "data", *arrays())
        (root / "cat" / "00.png").rename(root / "1.png")
        self.check(root, tmp_path, r"1 of 12 rows have no label, the first is .*data/1\.png")
        for folder in (root / "cat", root / "dog"):
            shutil.rmtree(folder)
        self.check(root, tmp_path, "train of .* has no labels; put the images of each class into a folder of its own")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda i, y: {"image": i.astype(np.float32), "label": y}, "of uint8, got"),
            (lambda i, y: {"image": np.concatenate([i, i], axis=3), "label": y}, "1 or 3"),
            (lambda i, y: {"image": i, "label": y[:-1]}, "12 images and 11 labels"),
            (lambda i, y: {"image": i, "other": i, "label": y}, "more than one array"),
            (lambda i, y: {"label": y}, "must be an array .* got none"),
            (lambda i, y: {"image": i}, "has no labels"),
            (lambda i, y: {"x_test": i, "y_test": y}, "no images to train on, only test"),
        ],
    )
    def test_arrays(self, tmp_path: Path, change: Callable, message: str) -> None:
        np.savez(tmp_path / "p.npz", **change(*arrays()))
        self.check(tmp_path / "p.npz", tmp_path, message)

    def test_a_table_without_images(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("image,label\ncat.png,1\ndog.png,0\n")
        self.check(tmp_path / "t.csv", tmp_path, "holds str, not an encoded image")
        (tmp_path / "u.csv").write_text("picture,label\ncat.png,1\n")
        self.check(tmp_path / "u.csv", tmp_path, "no column 'image'")


def test_what_a_reader_should_know_is_noted(tmp_path: Path) -> None:
    images, labels = arrays()
    root = folder_of(tmp_path / "data" / "Training", images, labels).parent
    folder_of(root / "Testing", images[:4:2], labels[:4:2])  # two cats, which are in train too
    for name in ("a.gif", "b.png", "c.tif", "d.webp"):
        first, *more = (Image.fromarray(image) for image in images[4:7])
        first.save(root / "Training" / "cat" / name, save_all=True, append_images=more)
    (root / "about.md").write_text("x")
    notes = prepared(root, tmp_path).notes
    assert notes[0] == "1 file is not read: 1 .md (first 'about.md')"
    assert notes[1] == "valid made from 10 % of train"
    assert notes[2].startswith("2 of 2 rows of test are also in train or valid")
    assert notes[3] == "test has no image of 'dog'"


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_drawing_on_a_transparent_ground_stays_visible(mode: str, channels: int) -> None:
    drawing = np.zeros((4, 4, 4), np.uint8)
    drawing[1:3, 1:3, 3] = 255  # black, and black below the transparent ground
    file, image = io.BytesIO(), Image.fromarray(drawing)
    if mode == "P":  # one colour for the drawing, and another for the ground
        image = Image.fromarray(drawing[..., 3] // 255).convert("P")
        image.putpalette([0, 0, 0, 0, 0, 0])
        image.save(file, "PNG", transparency=0)
    else:
        image.convert(mode).save(file, "PNG")
    pixels = np.asarray(decode(file.getvalue(), channels, "it")).reshape(4, 4, channels)
    np.testing.assert_array_equal(pixels, np.where(drawing[..., 3:] > 0, 0, 255).repeat(channels, 2))


def test_labels_in_a_table_above_the_images(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for i in range(6):
        Image.fromarray(np.full((4, 4), i, np.uint8)).save(tmp_path / "images" / f"{i}.png")
    lines = [f"images/{i}.png,{i},{'ab'[i % 2]}" for i in range(5)]
    (tmp_path / "labels.csv").write_text("\n".join(["file_name,number,kind", *lines]))
    source = open_images(str(tmp_path), label="kind")
    assert source.read()["train"]["label"][:] == [*"ababa"]
    assert "1 file is not read: 1 .png (first 'images/5.png')" in source.notes
    with pytest.raises(ValueError, match=r"labels\.csv has no column 'label' \(columns: file_name, number, kind\)"):
        open_images(str(tmp_path))
