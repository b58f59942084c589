"""Tests specific to the image task."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTImageProcessorPil

from lagwise.data.images import decode, encode_array
from lagwise.data.options import DataOptions
from lagwise.models import LagwiseForImageClassification
from lagwise.runs import evaluate_run, predict_run
from lagwise.tasks import ImageClassification, MaskedLanguageModelling
from lagwise.training import load_recipe, load_run, make_task, train


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Images of 8 x 8 of ten classes."""
    path = tmp_path_factory.mktemp("pictures") / "pictures.npz"
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    np.savez(path, image=images, label=np.arange(60) % 10)
    return str(path)


def trained(pictures: str, run: Path, *options: str) -> Path:
    alone = ["training.first_answer=none", "training.steps=1", "model.hidden_size=8", f"data.source={pictures}"]
    return train(load_recipe("tnn-digits", [*alone, *options]), run, progress=False)


def test_mixed_labels_count_once_per_image(pictures: str) -> None:
    """The Trainer counts every entry of the labels that is not -100."""
    data = ImageClassification(DataOptions(source=pictures)).open(progress=False)
    logits, labels = torch.randn(8, 10), torch.arange(8)
    shares = torch.nn.functional.one_hot(labels, 10).float()
    outputs = SimpleNamespace(logits=logits)
    plain = data.loss(outputs, labels, num_items_in_batch=16)  # two micro-batches of 8
    mixed = data.loss(outputs, shares, num_items_in_batch=160)
    torch.testing.assert_close(plain, mixed)
    torch.testing.assert_close(plain * 2, data.loss(outputs, labels))


def test_masked_metrics_have_a_row_for_each_sequence(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a text of a few words\n" * 50)
    data: Any = MaskedLanguageModelling(DataOptions(source=str(tmp_path / "text.txt"))).open(progress=False)
    labels = torch.tensor([[-100, 3, -100, 1], [-100, -100, -100, -100], [2, -100, -100, -100]])
    logits = torch.randn(3, 5, dtype=torch.float64)  # logits of the three hidden tokens
    sums, counts = data.reduce(logits, labels)
    assert (sums.shape, counts.tolist()) == ((3, 2), [2, 0, 1])
    loss = torch.nn.functional.cross_entropy(logits.float(), torch.tensor([3, 1, 2]))
    found = data.metrics(0.0, sums.numpy(), counts.numpy())
    assert abs(found["perplexity"] - float(loss.exp())) < 1e-5 * float(loss.exp())


def test_images_in_a_folder_are_predicted(pictures: str, tmp_path: Path) -> None:
    """Those directly in it have no label, whatever the folder is called."""
    run, new = trained(pictures, tmp_path / "run", "model.inputs.size=4"), tmp_path / "new"
    new.mkdir()
    for name in "ab":
        (new / f"{name}.png").write_bytes(encode_array(np.zeros((8, 8), dtype=np.uint8)))
    rows = predict_run(run, source=str(new), progress=False)
    assert [row["file"] for row in rows] == [str(new / "a.png"), str(new / "b.png")]
    assert not any("label" in row for row in rows)
    (new / "3").mkdir()
    (new / "b.png").rename(new / "3" / "b.png")
    rows = predict_run(run, source=str(new), progress=False)
    assert {Path(row["file"]).name: row["label"] for row in rows} == {"a.png": None, "b.png": "3"}
    with pytest.raises(ValueError, match=r"a\.png has no label"):
        evaluate_run(run, source=str(new), progress=False)


def test_images_of_other_sizes_are_scored(pictures: str, tmp_path: Path) -> None:
    run = trained(pictures, tmp_path / "run", "model.inputs.size=2")
    found = evaluate_run(run, [8, 12], progress=False)
    same, larger = found["sizes"]
    assert (same["size"], larger["size"]) == ([8, 8], [12, 12])
    assert all(same[name] == found["test"][name] for name in ("accuracy", "macro_f1"))

    task: Any = make_task(load_run(run))
    rows = task.open(run=run, progress=False).rows.splits["test"]
    true = rows["label"][:]
    model = LagwiseForImageClassification.from_pretrained(run).eval()
    images = [decode(row["image"], 3, "").resize((12, 12), resample=2) for row in rows]
    pixels = (np.stack([np.array(image) for image in images]) / 255 - task.mean) / task.std
    with torch.inference_mode():
        logits = model(pixel_values=torch.tensor(pixels, dtype=torch.float32).permute(0, 3, 1, 2)).logits
    right = (logits.argmax(-1).numpy() == np.array(true)).mean()
    assert larger["accuracy"] == pytest.approx(right)
    assert ("12 x 12", f"{right:.4f}") in [row[:2] for table in task.tables(found) for row in table.rows]

    with pytest.raises(ValueError, match=r"`lengths` are longer sides of images .* 9 gives 9 x 9, .* patches of 2"):
        evaluate_run(run, [8, 9], progress=False)


@pytest.mark.parametrize("changes", [{"augment": ["flip"]}, {"mixup": 0.8}, {"cutmix": 1.0}], ids=str)
def test_torchvision_is_needed_for_training_only(
    tmp_path: Path, pictures: str, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """The error comes before the images are read; a finished run is evaluated without torchvision."""
    monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_text("damaged")
    with pytest.raises(ImportError, match="torchvision is missing: install lagwise"):
        ImageClassification(DataOptions(source=str(tmp_path)), **changes).open(progress=False)
    ImageClassification(DataOptions(source=pictures), **changes).open(run=tmp_path, progress=False)


def test_a_run_crops_new_images(pictures: str, tmp_path: Path) -> None:
    """As its saved image processor does."""
    run = trained(pictures, tmp_path / "run", "task.size=8", "task.crop=0.5", "model.initializer_range=0.5")
    image = np.random.default_rng(0).integers(0, 256, (20, 40, 3), dtype=np.uint8)
    [found] = predict_run(run, [{"image": encode_array(image)}], progress=False)
    processor = ViTImageProcessorPil.from_pretrained(run)
    assert (processor.size.shortest_edge, processor.crop_size.height) == (16, 8)
    pixels = processor(Image.fromarray(image), return_tensors="pt").pixel_values
    model = LagwiseForImageClassification.from_pretrained(run).eval()
    with torch.inference_mode():
        shares = model(pixel_values=pixels).logits.softmax(-1)[0]
    assert [found[f"p({i})"] for i in range(10)] == pytest.approx(shares.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 8, "crop": 0.0}, r"`crop` must be greater than 0 and at most 1, got 0\.0"),
        ({"size": 8, "crop": 1.5}, r"`crop` must be .* at most 1, got 1\.5"),
        ({"crop": 0.9}, r"`crop` needs a `size`, the side of a square, got None"),
        ({"size": [8, 4], "crop": 0.9}, r"the side of a square, got \[8, 4\]"),
    ],
)
def test_wrong_crops(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageClassification(DataOptions(source="digits"), **options)


def test_given_means_and_deviations_are_used(pictures: str) -> None:
    task = ImageClassification(DataOptions(source=pictures), channels=1, size=8, mean=[0.5])
    data = task.open(progress=False)
    found = data.resolved()
    assert found["mean"] == [0.5]
    assert found["std"] == list(data.rows.std)
    assert data.reader.mean == (0.5,)
    with pytest.raises(ValueError, match=r"`mean` must have a value for each of 3 channels, got \[0.5\]"):
        ImageClassification(DataOptions(source="digits"), mean=[0.5])
    with pytest.raises(ValueError, match=r"`size` must be a side or \[height, width\]"):
        ImageClassification(DataOptions(source="digits"), size=0)
