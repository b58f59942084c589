"""Random changes of training images, by torchvision."""

from __future__ import annotations

import importlib
import importlib.abc
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_folders import arrays, folder_of
from PIL import Image

from lagwise.data.image_files import open_images, prepare_images
from lagwise.data.images import CHANGES, ImageExamples, ImageReader, Mixing, torchvision_transforms


def prepared(tmp_path: Path, side: int = 6) -> Any:
    root = folder_of(tmp_path / "data", *arrays(side=side))
    return prepare_images(open_images(str(root)), cache=tmp_path / "cache", progress=False)


def torchvision() -> None:
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):  # RuntimeError where it was built for another torch
        pytest.skip("torchvision is not there")


def test_images_are_resized_before_they_are_cropped(tmp_path: Path) -> None:
    torchvision()
    rows = prepared(tmp_path, 10).splits["train"]
    for side in (4, 64):
        reader = ImageReader((side, side), (0.0,) * 3, (1.0,) * 3)
        for names in (["crop", "flip"], ["resized_crop"]):
            assert ImageExamples(rows, reader, names)[0]["pixel_values"].shape == (3, side, side)


@pytest.mark.parametrize("name", CHANGES)
def test_augmentation_depends_only_on_the_seed_and_the_index(tmp_path: Path, name: str) -> None:
    torchvision()
    data = prepared(tmp_path, 16)
    rows = data.splits["train"]
    plain = ImageExamples(rows, data.reader)
    one, other = (ImageExamples(rows, data.reader, [name], seed=5) for _ in range(2))
    state = torch.random.get_rng_state()
    found = [one.example(0, place)["pixel_values"] for place in range(12)]
    assert torch.equal(torch.random.get_rng_state(), state)
    for place in (11, 3):
        assert torch.equal(other.example(0, place)["pixel_values"], found[place])
    assert any(not torch.equal(each, plain[0]["pixel_values"]) for each in found)
    assert all(each.shape == plain[0]["pixel_values"].shape for each in found)


def test_deits_randaugment_is_strong_in_three_of_four_images() -> None:
    """Each of two operations has a probability of a half, and one of 14 operations changes nothing."""
    torchvision()
    v2 = torchvision_transforms()
    torch.manual_seed(0)
    image = Image.fromarray(np.random.default_rng(0).integers(40, 200, (32, 32, 3), dtype=np.uint8))
    shift = v2.RandAugment(num_ops=1, magnitude=27)._AUGMENTATION_SPACE["TranslateX"][0](31, 32, 32)[27]
    assert shift == pytest.approx(0.9 * 32 * 150 / 331, rel=1e-4)
    change = CHANGES["randaugment_deit"](v2, (32, 32))
    same = sum(change(image).tobytes() == image.tobytes() for _ in range(400))
    assert same / 400 == pytest.approx((0.5 + 0.5 / 14) ** 2, abs=0.08)
    grey = image.convert("L")
    assert all(change(grey).mode == "L" for _ in range(30))


def test_mixed_images_have_mixed_labels(tmp_path: Path) -> None:
    torchvision()
    data = prepared(tmp_path)
    examples = ImageExamples(data.splits["train"], data.reader)
    batch = Mixing(2, mixup=0.8, cutmix=1.0)([examples[i] for i in range(8)])
    assert batch["labels"].shape == (8, 2)
    torch.testing.assert_close(batch["labels"].sum(1), torch.ones(8))
    again = Mixing(2, mixup=0.8, cutmix=1.0)([examples[i] for i in range(8)])
    assert torch.equal(again["pixel_values"], batch["pixel_values"])


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.13.0"])
@pytest.mark.parametrize("error", [ImportError("No module"), RuntimeError("operator torchvision::nms does not exist")])
def test_the_error_without_torchvision_gives_advice(
    monkeypatch: pytest.MonkeyPatch, version: str, error: Exception
) -> None:
    """Missing, or built for another torch, which is a RuntimeError of the import."""

    class Failing(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: Any) -> None:
            if name.startswith("torchvision"):
                raise error

    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Failing(), *sys.meta_path])
    monkeypatch.setattr(torch, "__version__", version)
    index = " --index-url https://download.pytorch.org/whl/cpu" if version.endswith("cpu") else ""
    with pytest.raises(ImportError, match=re.escape(f"(pip install torchvision{index}): {error}; or train without")):
        ImageExamples([], ImageReader((6, 8), (0.0,), (1.0,)), ["flip"])  # type: ignore[arg-type]
