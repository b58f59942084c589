"""Classes of images."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lagwise.data.image_files import ImageData, open_images, prepare_images
from lagwise.data.images import (
    CHANGES,
    ImageExamples,
    ImageReader,
    Mixing,
    collate_images,
    height_and_width,
    shuffled_images,
    thumbnail,
    torchvision_transforms,
)
from lagwise.data.labels import read_labels_for
from lagwise.data.options import DataOptions
from lagwise.data.rows import rows_to_evaluate
from lagwise.models import LagwiseForImageClassification, LagwiseLinearForImageClassification
from lagwise.models.embeddings import patch_side
from lagwise.models.loading import read_config
from lagwise.models.memory import check_images_memory
from lagwise.tables import Share, Weight, known, refuse
from lagwise.tasks.base import LinearRows, Records, Sizes, Table, finite, outputs
from lagwise.tasks.figures import Figures, Log, image_gallery
from lagwise.tasks.labelled import Labelled, LabelledRows, class_fields, class_names

_IMAGES_PER_BATCH = 64  # images of an evaluation at a time
_MISTAKES, _SIDE = 24, 96  # a report's images, and their longer side in pixels


class ImageClassification(Labelled):
    """A class for each image.

    Data: images as in `lagwise.data.image_files.prepare_images`.

    Options:
        image: the column of the images, where the data have columns.
        label: the column of the labels.
        size: the side, or [height, width], to which images are resized; by default that of the first image.
        channels: 3 for colour, 1 for grey.
        crop: share of the shorter side that is kept, between 0 and 1: images are resized to task.size / crop on the
            shorter side, and the centre is cut out. By default they are resized to task.size, whatever their shape.
        augment: random augmentations of training images: crop, resized_crop, flip, randaugment, randaugment_deit,
            erase; needs torchvision.
        mixup, cutmix: parameters of the Beta distributions by which images of a batch are mixed; 0 for none.
        label_smoothing: share of the true class's probability that is spread over all classes.
        mean, std: of the pixels of each channel, between 0 and 1; a run keeps those of its training images.
        wide: whether the model has a first answer's map of how much patches are like those of training images beside
            its layers (`Wide`): fitted before they are trained, and joined with them in the end, with a share of the
            logits that held-out images choose.

    Metrics: accuracy, the headline, and macro F1.
    """

    _needs = "classification needs images to learn from; give a folder of them with `source`"
    head = LagwiseForImageClassification
    linear_head = LagwiseLinearForImageClassification
    inputs = "patches"
    _unit = "image"

    def __init__(
        self,
        data: DataOptions,
        *,
        image: str = "image",
        label: str = "label",
        size: int | list[int] | None = None,
        crop: float | None = None,
        channels: int = 3,
        augment: list[str] | None = None,
        mixup: Weight = 0.0,
        cutmix: Weight = 0.0,
        label_smoothing: Share = 0.0,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        wide: bool = False,
    ):
        super().__init__(data, label_smoothing)
        for name in augment or []:
            known(name, CHANGES, "`augment`")
        self.image, self.label, self.channels = image, label, channels
        self.size = None if size is None else height_and_width(size)
        self.changes, self.mixup, self.cutmix = augment or [], mixup, cutmix
        self.mean, self.std, self.crop, self.wide = mean, std, crop, wide
        whole = "a value for each of {} channels, got {!r}".format
        refuse(
            ("resized_crop" in self.changes[1:], f"resized_crop must be the first of `augment`, got {augment}"),
            (
                crop is not None and not 0 < crop <= 1,
                f"`crop` must be greater than 0 and at most 1, got {crop!r}",
            ),
            (
                crop is not None and (self.size is None or self.size[0] != self.size[1]),
                f"`crop` needs a `size`, the side of a square, got {size}",
            ),
            (channels not in (1, 3), f"`channels` must be 1 or 3, got {channels!r}"),
            (mean is not None and len(mean) != channels, f"`mean` must have {whole(channels, mean)}"),
            (std is not None and len(std) != channels, f"`std` must have {whole(channels, std)}"),
            (std is not None and min(std) <= 0, f"`std` must be greater than 0, got {std!r}"),
        )

    def fields(self) -> dict[str, Any]:
        return {"causal": False}

    def lengths(self) -> dict[str, int]:
        return {}

    def check_config(self, config: Any) -> None:
        super().check_config(config)
        patch, channels = patch_side(config), config.inputs.get("channels", 3) if isinstance(config.inputs, dict) else 3
        height, width = self.size or (0, 0)
        refuse(
            (
                channels != self.channels,
                f"`channels` {self.channels} and the model's `inputs.channels` {channels} must be the same; give both",
            ),
            (
                height % patch or width % patch,
                f"images of {height} x {width} cannot be cut into patches of {patch}: give a `size` of multiples "
                f"of {patch}, such as {max(patch, height // patch * patch)}, or the model another `inputs.size`",
            ),
        )

    def _open(self, run: Path | None, progress: bool) -> LabelledImages:
        if run is None and (self.changes or self.mixup or self.cutmix):
            torchvision_transforms()  # before the images are checked, which takes long
        images = prepare_images(self.source, size=self.size, channels=self.channels, progress=progress)
        return LabelledImages(self, images)

    def _open_other(self, source: str, run: Path, progress: bool) -> LabelledImages:
        images = LabelledImages(self)
        images.label_names = names = class_names(read_config(run))
        rows: Any = rows_to_evaluate(self.rows(source).read(), source)
        if "label" not in rows.column_names:
            raise ValueError(f"{source!r} has no labelled images to evaluate on")
        labels = read_labels_for(rows["label"][:], names, lambda i: rows["file"][i])
        images._scored, images._labels = {"test": ImageExamples(rows, images.reader)}, {"test": labels}
        return images

    def reader(self, images: ImageData | None = None) -> ImageReader:
        """Return the reader of images for a model, with the options of a trained run or else as these data need."""
        data: Any = images or self
        return ImageReader(tuple(data.size), tuple(self.mean or data.mean), tuple(self.std or data.std), self.crop)

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        tables = super().tables(evaluation)
        if sizes := evaluation.get("sizes"):
            names = [name for name in sizes[0] if name != "size"]
            rows = [(" x ".join(map(str, each["size"])), *(f"{each[name]:.4f}" for name in names)) for each in sizes]
            tables.append(Table("Test scores by size", ("size", *(name.replace("_", " ") for name in names)), rows))
        return tables

    def figures(self, metrics: Log, evaluation: Mapping[str, Any] | None) -> Figures:
        figures = super().figures(metrics, evaluation)
        if evaluation and evaluation["mistakes"]:
            figures["mistakes"] = lambda: image_gallery(
                [base64.b64decode(each["image" if "image" in each else "picture"]) for each in evaluation["mistakes"]],
                [f"{each['predicted']}, not {each['true']}" for each in evaluation["mistakes"]],
                title="Most confident mistakes",
            )
        return figures

    def rows(self, source: str) -> Any:
        return open_images(source, image=self.image, label=self.label)

    def columns(self) -> tuple[str, ...]:
        return ("image",)

    def _encoded(self, model: Any, tokenizer: Any, rows: Records) -> ImageExamples:
        return ImageExamples(rows, self.reader())

    def _batches(
        self, model: Any, tokenizer: Any, rows: ImageExamples, indices: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], np.ndarray]]:
        for start in range(0, len(indices), _IMAGES_PER_BATCH):
            chosen = indices[start : start + _IMAGES_PER_BATCH]
            pixels = collate_images([rows[i] for i in chosen])["pixel_values"]
            logits = model(pixel_values=pixels.to(model.device)).logits.float().cpu().numpy()
            yield chosen, finite(logits, "logits")


class LabelledImages(LabelledRows):
    """The images of a task, with a class each. images: None for other data than the task's own."""

    task: ImageClassification
    label_names: tuple[str, ...]
    _max_mistakes = _MISTAKES

    def __init__(self, task: ImageClassification, images: ImageData | None = None):
        super().__init__(task, None, images)
        self.reader = task.reader(images)
        if images is not None:
            self._scored = {split: ImageExamples(rows, self.reader) for split, rows in self._scored.items()}

    def fields(self) -> dict[str, Any]:
        return {**class_fields(self.rows.label_names), "problem_type": "single_label_classification"}

    def linear_rows(self) -> LinearRows:
        """Raise ValueError for more images than the memory holds."""
        height, width = self.rows.size
        splits = [ImageExamples(self.rows.splits[split], self.reader) for split in ("train", "valid")]
        check_images_memory(sum(map(len, splits)), self.task.channels, height, width)
        inputs = {"name": "patches", "size": 1, "channels": self.task.channels, "image": [height, width]}
        train, valid = (list(DataLoader(each, _IMAGES_PER_BATCH, collate_fn=collate_images)) for each in splits)
        return LinearRows(train, valid, {**self.fields(), "inputs": inputs})

    def resolved(self) -> dict[str, Any]:
        return {"size": list(self.reader.size), "mean": list(self.reader.mean), "std": list(self.reader.std)}

    def save_preprocessing(self, folder: Path, limit: int | None) -> None:
        self.reader.processor().save_pretrained(folder)

    def sizes(self, batch_size: int) -> Sizes:
        height, width = self.rows.size
        return Sizes(-(-len(self.rows.splits["train"]) // batch_size), 1.0, height * width, "images")

    def training_examples(self, steps: int, batch_size: int, seed: int) -> Dataset:
        if self.task.mixup or self.task.cutmix:
            self.mixing = Mixing(len(self.label_names), mixup=self.task.mixup, cutmix=self.task.cutmix, seed=seed)
        examples = ImageExamples(self.rows.splits["train"], self.reader, self.task.changes, seed)
        return shuffled_images(examples, steps * batch_size, seed)

    def validation_examples(self, tokens: int) -> Dataset:
        return ImageExamples(self.rows.splits["valid"], self.reader)

    def collate(self, rows: Sequence[Mapping[str, Any]], training: bool = True) -> dict[str, Tensor]:
        mixes = training and (self.task.mixup or self.task.cutmix)
        return self.mixing(rows) if mixes else collate_images(rows)

    def evaluate(
        self, model: Any, *, lengths: Sequence[int] | None = None, max_tokens: int | None = None, progress: bool = True
    ) -> dict[str, Any]:
        """Return the scores of the valid and test images; for test also the confusion matrix and scores by class, and
        the scores with images resized to other sizes. lengths: their longer sides in pixels."""
        sizes = [self._resized(side, model.config) for side in lengths or ()]
        result = super().evaluate(model, max_tokens=max_tokens, progress=progress)
        for size in sizes:
            rows = ImageExamples(self._scored["test"].rows, replace(self.reader, size=size))
            logits = [each for _, each in outputs(self.task, model, None, rows, desc="scoring", progress=progress)]
            scores = self.metrics(0.0, np.stack(logits), self._labels["test"])
            result.setdefault("sizes", []).append({"size": list(size), **scores})
        return result

    def _resized(self, longer: int, config: Any) -> tuple[int, int]:
        """The size (height, width) of the trained shape whose longer side is given."""
        height, width = self.reader.size
        patch, scale = patch_side(config), longer / max(height, width)
        size = round(height * scale), round(width * scale)
        smallest = 1 if getattr(config, "wide", None) is None else config.wide["side"]
        subject = f"`lengths` are longer sides of images in pixels; {longer}"
        refuse(
            (min(size) < smallest, f"{subject} is less than a patch of {smallest}"),
            (
                any(side % patch or not side for side in size),
                f"{subject} gives {size[0]} x {size[1]}, which cannot be cut into patches of {patch}",
            ),
        )
        return size

    def _shown(self, rows: ImageExamples, i: int) -> dict[str, Any]:
        """A thumbnail: a PNG file in base64."""
        return {"image": thumbnail(rows.rows[i]["image"], self.task.channels, _SIDE)}
