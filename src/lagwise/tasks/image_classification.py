"""Classes of pictures."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from lagwise.data.labelled_pictures import PictureData, pictures_key, prepare_pictures
from lagwise.data.labels import known_labels
from lagwise.data.options import DataOptions
from lagwise.data.picture_files import PictureSource, open_pictures
from lagwise.data.pictures import (
    Mixing,
    PictureExamples,
    PictureReader,
    ShuffledPictures,
    check_changes,
    check_crop,
    collate_pictures,
    height_and_width,
    thumbnail,
    torchvision_transforms,
)
from lagwise.data.rows import rows_to_evaluate
from lagwise.progress import progress_bar
from lagwise.tasks.base import Table, Task, finite, require_none
from lagwise.tasks.classes import class_columns, class_counts, class_fields, class_names
from lagwise.tasks.classification_results import result_figures, result_tables, worst_rows
from lagwise.tasks.figures import pictures
from lagwise.tasks.scores import classification_scores

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import PreTrainedModel

_BATCH = 64  # pictures of an evaluation at a time
_MISTAKES, _SIDE = 24, 96  # of a report: pictures, and their longer side in pixels


class ImageClassification(Task):
    """A class for each picture.

    Data: pictures as in `lagwise.data.labelled_pictures.prepare_pictures`.

    Options:
        image: the column of the pictures, where the data have columns.
        label: the column of the labels.
        size: the side, or [height, width], to which pictures are resized; by default that of the first picture.
        channels: 3 for colour, 1 for grey.
        crop: share of the shorter side that is kept, between 0 and 1: pictures are resized to task.size / crop on the
            shorter side, and the centre is cut out. By default they are resized to task.size, whatever their shape.
        augment: random augmentations of training pictures: crop, resized_crop, flip, randaugment, randaugment_deit,
            erase; needs torchvision.
        mixup, cutmix: parameters of the Beta distributions by which pictures of a batch are mixed; 0 for none.
        label_smoothing: share of the true class's probability that is spread over all classes.
        mean, std: of the pixels of each channel, between 0 and 1; a run keeps those of its training pictures.

    Metrics: accuracy, the headline, and macro F1.
    """

    headline: ClassVar[str] = "accuracy"
    headline_label: ClassVar[str] = "accuracy"
    greater_is_better: ClassVar[bool] = True
    next_command: ClassVar[str] = "lagwise predict {run} --data folder/"
    speed_unit: ClassVar[str] = "pictures"
    inputs = "patches"

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
        mixup: float = 0.0,
        cutmix: float = 0.0,
        label_smoothing: float = 0.0,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ):
        super().__init__(data)
        if not data.source:
            raise ValueError("classification needs pictures to learn from; give a folder of them with --data")
        if channels not in (1, 3):
            raise ValueError(f"task.channels must be 1 or 3, got {channels!r}")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"task.label_smoothing must be in [0, 1), got {label_smoothing!r}")
        for name, value in (("mixup", mixup), ("cutmix", cutmix)):
            if value < 0:
                raise ValueError(f"task.{name} must be at least 0, got {value!r}")
        check_changes(augment or [])
        self.image, self.label, self.channels = image, label, channels
        self.size = None if size is None else height_and_width(size)
        self.changes, self.mixup, self.cutmix = augment or [], mixup, cutmix
        self.label_smoothing, self.mean, self.std, self.crop = label_smoothing, mean, std, crop
        for name, given in (("mean", mean), ("std", std)):
            if given is not None and len(given) != channels:
                raise ValueError(f"task.{name} must have a value for each of {channels} channels, got {given!r}")
        if std is not None and not all(value > 0 for value in std):
            raise ValueError(f"task.std must be greater than 0, got {std!r}")
        check_crop(crop, self.size)
        self.pictures: PictureData
        self.label_names: tuple[str, ...]
        self.scored: dict[str, Any]  # pictures to evaluate on, by split

    @property
    def model_class(self) -> type[PreTrainedModel]:
        from lagwise.models import LagwiseForImageClassification

        return LagwiseForImageClassification

    @property
    def linear_class(self) -> type[PreTrainedModel]:
        from lagwise.models import LagwiseLinearForImageClassification

        return LagwiseLinearForImageClassification

    def fixed_fields(self) -> dict[str, Any]:
        return {"causal": False}

    def lengths(self) -> dict[str, int]:
        return {}

    def check_config(self, config: Any) -> None:
        from lagwise.models.embeddings import patch_side

        super().check_config(config)
        patch, channels = patch_side(config), config.inputs.get("channels", 3) if isinstance(config.inputs, dict) else 3
        if channels != self.channels:
            raise ValueError(
                f"task.channels {self.channels} and model.inputs.channels {channels} must be the same; give both"
            )
        if self.size is not None and any(side % patch for side in self.size):
            height, width = self.size
            raise ValueError(
                f"pictures of {height} x {width} cannot be cut into patches of {patch}: give a task.size of multiples "
                f"of {patch}, such as {max(patch, height // patch * patch)}, or another model.inputs.size"
            )

    def identity(self) -> str:
        return pictures_key(self._source(), self.size, self.channels)

    def open(self, *, run: Path | None = None, source: str | None = None, progress: bool = True) -> None:
        if source is not None:
            assert run is not None
            self._open_other(run, source)
            return
        if run is None and (self.changes or self.mixup or self.cutmix):
            torchvision_transforms()  # before the pictures are checked, which takes long
        self.pictures = prepare_pictures(self._source(), size=self.size, channels=self.channels, progress=progress)
        self.label_names = self.pictures.label_names
        self.scored = {split: self.pictures.splits[split] for split in ("valid", "test")}

    def _open_other(self, run: Path, source: str) -> None:
        """Pictures of another source (its test split, or all), with the labels of a run."""
        from lagwise.models.loading import read_config

        config: Any = read_config(run)
        self.label_names = class_names(config)
        rows: Any = rows_to_evaluate(self.open_rows(source).read(), source)
        if "label" not in rows.column_names:
            raise ValueError(f"{source!r} has no labelled pictures to evaluate on")
        labels = known_labels(rows["label"][:], self.label_names, lambda i: rows["file"][i])
        self.scored = {"test": rows.remove_columns("label").add_column("label", labels)}

    def fields(self) -> dict[str, Any]:
        return {**class_fields(self.pictures.label_names), "problem_type": "single_label_classification"}

    def linear_fields(self) -> dict[str, Any]:
        return {
            **self.fields(),
            "inputs": {"name": "patches", "size": 1, "channels": self.channels, "picture": [*self.pictures.size]},
        }

    def linear_batches(self, split: str) -> Iterator[dict[str, Tensor]]:
        examples = PictureExamples(self.pictures.splits[split], self._reader())
        for start in range(0, len(examples), _BATCH):
            yield collate_pictures([examples[i] for i in range(start, min(start + _BATCH, len(examples)))])

    def resolved(self) -> dict[str, Any]:
        found = self.pictures
        return {"size": list(found.size), "mean": list(self.mean or found.mean), "std": list(self.std or found.std)}

    def save_preprocessing(self, folder: Path, limit: int | None) -> None:
        self._reader().processor().save_pretrained(folder)

    def notes(self) -> Sequence[str]:
        return [*self.pictures.describe().splitlines(), *class_counts(self.pictures.counts["train"])]

    def steps_per_epoch(self, batch_size: int) -> int:
        return -(-len(self.pictures.splits["train"]) // batch_size)

    def training_examples(self, steps: int, batch_size: int, seed: int) -> Dataset:
        if self.mixup or self.cutmix:
            self.mixing = Mixing(len(self.label_names), mixup=self.mixup, cutmix=self.cutmix, seed=seed)
        examples = PictureExamples(self.pictures.splits["train"], self._reader(), self.changes, seed)
        return ShuffledPictures(examples, steps * batch_size, seed)

    def validation_examples(self, tokens: int) -> Dataset:
        return PictureExamples(self.pictures.splits["valid"], self._reader())

    def tokens_per_example(self) -> float:
        return 1.0

    def longest_example(self) -> int:
        height, width = self.pictures.size
        return height * width

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        if self.mixup or self.cutmix:
            return self.mixing(rows)
        return collate_pictures(rows)

    def collate_evaluation(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        return collate_pictures(rows)

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        """Cross-entropy with label smoothing, of classes or of shares of mixed ones: a mean over the pictures of a
        step."""
        each = F.cross_entropy(outputs.logits.float(), labels, label_smoothing=self.label_smoothing, reduction="none")
        if num_items_in_batch is None:
            return each.mean()
        counted = labels[0].numel()  # the Trainer counts every share of a mixed label
        return each.sum() * counted / num_items_in_batch

    def reduce(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return logits.float(), labels

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        return classification_scores(np.asarray(predictions).argmax(-1), np.asarray(labels), self.label_names)[0]

    def evaluate(
        self,
        model: Any,
        *,
        lengths: Sequence[int] | None = None,
        max_tokens: int | None = None,
        progress: bool = True,
    ) -> dict[str, Any]:
        """Scores of the valid and test pictures; for test also the confusion matrix and scores by class, and the
        scores with pictures resized to other sizes. lengths: their longer sides in pixels."""
        require_none("image_classification", **{"--tokens": max_tokens})
        sizes = [self._resized(side, model.config) for side in lengths or ()]
        result: dict[str, Any] = {"kind": "classification", "labels": self.label_names}
        for split, rows in self.unseen(self.scored, model).items():
            labels, logits = np.asarray(rows["label"][:]), self._logits(model, rows, progress)
            scores, details = classification_scores(logits.argmax(-1), labels, self.label_names)
            # details of the last split only, the test pictures
            result |= {
                split: {**scores, "rows": len(rows)},
                **details,
                "mistakes": self._mistakes(rows, logits, labels),
            }
        if sizes:
            rows = self.scored["test"]
            labels = np.asarray(rows["label"][:])
            found = [self._logits(model, rows, progress, size).argmax(-1) for size in sizes]
            scores = [classification_scores(predicted, labels, self.label_names)[0] for predicted in found]
            result["sizes"] = [{"size": list(size), **each} for size, each in zip(sizes, scores, strict=True)]
        return result

    def _resized(self, longer: int, config: Any) -> tuple[int, int]:
        """The size (height, width) of the trained shape whose longer side is given."""
        from lagwise.models.embeddings import patch_side

        height, width = self._reader().size
        patch, scale = patch_side(config), longer / max(height, width)
        size = round(height * scale), round(width * scale)
        if any(side % patch or not side for side in size):
            raise ValueError(
                f"--lengths are longer sides of pictures in pixels; {longer} gives {size[0]} x {size[1]}, which cannot "
                f"be cut into patches of {patch}"
            )
        return size

    def _mistakes(self, rows: Any, logits: np.ndarray, labels: np.ndarray) -> list[dict[str, Any]]:
        """The wrong predictions of highest probability: thumbnails, as PNG files in base64."""
        worst = worst_rows(logits, labels, self.label_names, _MISTAKES)
        return [{"picture": thumbnail(rows[i]["image"], self.channels, _SIDE), **each} for i, each in worst.items()]

    def kernel_length(self, config: Any) -> int:
        """Patches along the longer side."""
        from lagwise.models.embeddings import patch_side

        return max(self._reader().size) // patch_side(config)

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        tables = result_tables(evaluation)
        if found := evaluation.get("sizes"):
            names = [name for name in found[0] if name != "size"]
            rows = [(" x ".join(map(str, each["size"])), *(f"{each[name]:.4f}" for name in names)) for each in found]
            tables.append(Table("Test scores by size", ("size", *(name.replace("_", " ") for name in names)), rows))
        return tables

    def figures(
        self, metrics: Sequence[Mapping[str, float]], evaluation: Mapping[str, Any] | None
    ) -> dict[str, Callable[[], Figure]]:
        figures = result_figures(metrics, evaluation)
        if evaluation and evaluation["mistakes"]:
            figures["mistakes"] = lambda: pictures(
                [base64.b64decode(each["picture"]) for each in evaluation["mistakes"]],
                [f"{each['predicted']}, not {each['true']}" for each in evaluation["mistakes"]],
                title="Most confident mistakes",
            )
        return figures

    def open_rows(self, source: str) -> Any:
        return open_pictures(source, image=self.image, label=self.label)

    def columns(self) -> tuple[str, ...]:
        return ("image",)

    def predict(self, model: Any, rows: Iterable[Mapping[str, Any]], *, progress: bool = True) -> list[dict[str, Any]]:
        """``predicted``, the likeliest class, and a column of probabilities for each. A row's ``image`` is the bytes of
        a picture file."""
        return class_columns(self._logits(model, list(rows), progress), class_names(model.config))

    def _reader(self) -> PictureReader:
        if self.mean is not None and self.std is not None and self.size is not None:  # of a trained run
            return PictureReader(self.size, tuple(self.mean), tuple(self.std), self.crop)
        found = self.pictures.reader
        return PictureReader(found.size, tuple(self.mean or found.mean), tuple(self.std or found.std), self.crop)

    def _source(self) -> PictureSource:
        assert self.data.source is not None
        return open_pictures(self.data.source, image=self.image, label=self.label)

    @torch.inference_mode()
    def _logits(self, model: Any, rows: Any, progress: bool, size: tuple[int, int] | None = None) -> np.ndarray:
        """Logits ``(pictures, labels)`` in the order of the rows. size: (height, width), the trained one by default."""
        read, found = self._reader(), []
        read = read if size is None else replace(read, size=size)
        with progress_bar(desc="predicting", total=len(rows), unit="picture", show=progress) as bar:
            for start in range(0, len(rows), _BATCH):
                batch = [rows[i] for i in range(start, min(start + _BATCH, len(rows)))]
                pixels = [read(row["image"], row.get("file", f"row {start + i + 1}")) for i, row in enumerate(batch)]
                found.append(model(pixel_values=torch.stack(pixels).to(model.device)).logits.float().cpu().numpy())
                bar.update(len(batch))
        return finite(np.concatenate(found), "logits")
