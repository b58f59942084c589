"""Images: decoding, resizing and normalising, and the augmentations of training."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lagwise.data.batches import Examples
from lagwise.data.examples import epoch_order
from lagwise.extras import explained
from lagwise.files import one_line

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
MODES = {1: "L", 3: "RGB"}  # PIL's names, by channels
_ERASED = 0.25  # share of the images that have a rectangle replaced by noise, as in DeiT


def decode(data: bytes, channels: int, where: str) -> Image:
    """An image file in grey (one channel) or colour (three), rotated by its EXIF orientation, transparent parts on
    white; of several frames the first. ValueError if it is damaged, or has more than 8 bits per channel."""
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(data)) as image:
            deep = any(map(_is_deep, image.tile))  # PIL would keep the upper 8 bits of colours
            image.load()
            turned = ImageOps.exif_transpose(image)
        if not deep and not turned.mode.startswith(("I", "F")):
            if turned.has_transparency_data:  # below it, files have any colour, often the black of the drawing
                turned = turned.convert("RGBA")
                turned = Image.alpha_composite(Image.new("RGBA", turned.size, "white"), turned)
            return turned.convert(MODES[channels])
    except Image.UnidentifiedImageError as error:  # the message of Pillow has a memory address
        raise ValueError(f"{where} is not a readable image (of no known format)") from error
    except Exception as error:  # PIL raises many types of exceptions for damaged files
        raise ValueError(f"{where} is not a readable image ({one_line(error)})") from error
    raise ValueError(f"{where} has more than 8 bits per channel (mode {turned.mode}); convert it to 8 bits")


def _is_deep(tile: Sequence[Any]) -> bool:
    """Whether a part of an image that PIL has opened has 16 bits per channel: by the name of its layout (RGB;16B), of
    .ppm by the largest value."""
    layout = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
    return any(f";16{order}" in str(layout[0]) for order in "BLN") or layout[-1] == 65535


def encode_array(array: np.ndarray) -> bytes:
    """An array ``(height, width)`` or ``(height, width, 1 or 3)`` of uint8 as a PNG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array).save(file, "PNG")
    return file.getvalue()


def thumbnail(data: bytes, channels: int, side: int) -> str:
    """An image with sides of at most ``side`` pixels, as a PNG file in base64."""
    image, file = decode(data, channels, "image"), io.BytesIO()
    image.thumbnail((side, side))
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@dataclass(frozen=True)
class ImageReader:
    """Converts image files to pixel values.

    Formula: ``(x / 255 - mean) / std`` for each channel, after resizing to ``size`` (height, width) with bilinear
    interpolation. With a ``crop``, for square sizes: after resizing the shorter side to ``size / crop`` with bicubic
    interpolation, and cutting out the centre (as in DeiT). The image processor that a run saves does the same.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float | None = None

    @property
    def channels(self) -> int:
        return len(self.mean)

    def __call__(
        self, data: bytes, where: str, change: Callable[[Image], Any] | None = None, *, resize: bool = True
    ) -> Tensor:
        """Return pixel values ``(channels, height, width)``. change: applied to the image when it has been resized, or
        to the whole one without ``resize``, and then gives the size itself."""
        from PIL import Image

        image = decode(data, self.channels, where)
        if resize and self.crop is not None:
            side, shorter = self.size[0], int(self.size[0] / self.crop)
            width, height = (int(shorter * n / min(image.size)) for n in image.size)
            left, top = (width - side) // 2, (height - side) // 2
            image = image.resize((width, height), Image.Resampling.BICUBIC)
            image = image.crop((left, top, left + side, top + side))
        elif resize and image.size != self.size[::-1]:
            image = image.resize(self.size[::-1], Image.Resampling.BILINEAR)
        image = image if change is None else change(image)
        pixels = torch.from_numpy(np.array(image, dtype=np.float32)).reshape(*self.size, self.channels)
        return ((pixels / 255 - torch.tensor(self.mean)) / torch.tensor(self.std)).permute(2, 0, 1).contiguous()

    def processor(self) -> Any:
        """Return the encoder as an image processor of transformers."""
        from PIL import Image
        from transformers import ViTImageProcessorPil

        size: dict[str, int] = dict(zip(("height", "width"), self.size, strict=True))
        resizing: dict[str, Any] = {"size": size}
        if self.crop is not None:
            resizing = {"size": {"shortest_edge": int(self.size[0] / self.crop)}, "crop_size": size}
            resizing |= {"do_center_crop": True, "resample": Image.Resampling.BICUBIC}
        return ViTImageProcessorPil(
            **resizing,
            image_mean=list(self.mean),
            image_std=list(self.std),
            do_convert_rgb=self.channels == 3,
        )


def height_and_width(size: int | list[int]) -> tuple[int, int]:
    """The sides of images, given both or that of a square. ValueError for other numbers of sides, or empty ones."""
    size = [size, size] if isinstance(size, int) else size
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"`size` must be a side or [height, width], got {size!r}")
    return size[0], size[1]


def _seed(*numbers: int) -> int:
    """A seed of 63 bits for some numbers of at least 0."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def torchvision_transforms() -> Any:
    """Import torchvision's transforms. ImportError if torchvision is missing or was built for another torch."""
    try:
        from torchvision.transforms import v2  # type: ignore[missing-import]
    except ModuleNotFoundError as error:
        raise explained(error) from error
    except (ImportError, RuntimeError) as error:  # RuntimeError where it was built for another torch
        build = torch.__version__.partition("+")[2]  # each build, such as cpu or cu130, has its own index
        index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
        raise ImportError(
            f"random changes of images need a torchvision built for torch {torch.__version__} (pip install "
            f"torchvision{index}): {one_line(error)}; or train without them (`augment=[]`, `mixup=0`, "
            "`cutmix=0`)"
        ) from error
    return v2


def _randaugment_deit(v2: Any, size: tuple[int, int]) -> Any:
    """RandAugment as DeiT has it (rand-m9-mstd0.5-inc1 of timm), except that magnitudes do not vary, and torchvision
    has no Invert and no SolarizeAdd."""
    one = v2.RandAugment(
        num_ops=1, magnitude=27, interpolation=v2.InterpolationMode.BICUBIC, fill=127
    )  # on a scale from 0 to 30
    return v2.Compose([v2.RandomApply([one], p=0.5), v2.RandomApply([one], p=0.5)])


#: Random changes by name, as transforms of torchvision for a size (height, width). `erase` is one of pixel values.
CHANGES: dict[str, Callable[[Any, tuple[int, int]], Any]] = {
    "crop": lambda v2, size: v2.RandomCrop(size, padding=[max(1, n // 8) for n in size[::-1]], padding_mode="reflect"),
    "resized_crop": lambda v2, size: v2.RandomResizedCrop(size, interpolation=v2.InterpolationMode.BICUBIC),
    "flip": lambda v2, size: v2.RandomHorizontalFlip(),
    "randaugment": lambda v2, size: v2.RandAugment(num_ops=2, magnitude=9),
    "randaugment_deit": _randaugment_deit,
    "erase": lambda v2, size: v2.RandomErasing(p=_ERASED, value="random"),
}


class ImageExamples(Dataset):
    """A data set of encoded images as pixel_values ``(channels, height, width)``, each with its ``label`` if it has the
    id of one. changes: names in CHANGES, applied in order; their effect on image i depends only on (seed, i)."""

    def __init__(self, rows: Any, reader: ImageReader, changes: Sequence[str] = (), seed: int = 0):
        self.rows, self.reader, self.seed = rows, reader, seed
        v2 = torchvision_transforms() if changes else None
        transforms = [CHANGES[name](v2, reader.size) for name in changes if name != "erase"]
        self.change = v2.Compose(transforms) if v2 is not None and transforms else None
        self.erase = CHANGES["erase"](v2, reader.size) if v2 is not None and "erase" in changes else None
        self.resize, self.changes = "resized_crop" not in changes, bool(changes)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.example(index, index)

    def example(self, row: int, index: int) -> dict[str, Any]:
        """Return image ``row``, changed as example ``index`` of a training."""
        cells = self.rows[row]
        label = {"label": cells["label"]} if isinstance(cells.get("label"), int) else {}
        with torch.random.fork_rng(devices=[], enabled=self.changes):
            if self.changes:
                torch.default_generator.manual_seed(
                    _seed(self.seed, index)
                )  # leaves the generators of other devices alone
            where = cells.get("file", f"row {row + 1}")
            pixels = self.reader(cells["image"], where, self.change, resize=self.resize)
            pixels = pixels if self.erase is None else self.erase(pixels)
        return {"pixel_values": pixels, "index": index, **label}


def shuffled_images(images: ImageExamples, count: int, seed: int) -> Examples:
    """The ``count`` training examples: every image once an epoch, in an order that depends on (seed, epoch)."""
    return Examples(count, partial(_shuffled, images, seed))


def _shuffled(images: ImageExamples, seed: int, index: int) -> dict[str, Any]:
    epoch, position = divmod(index, len(images))
    return images.example(int(epoch_order(len(images), seed, epoch)[position]), index)


def collate_images(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Stack pixel_values ``(batch, channels, height, width)`` and labels ``(batch,)`` if there are any."""
    batch = {"pixel_values": torch.stack([row["pixel_values"] for row in rows])}
    if "label" in rows[0]:
        batch["labels"] = torch.tensor([row["label"] for row in rows])
    return batch


class Mixing:
    """Mixes the images of a batch in pairs, and their labels, which become shares ``(batch, classes)``: mixup, or a
    rectangle of the other (cutmix), by parameters of Beta distributions, 0 for none; with both, half the batches get
    each (DeiT). Random choices for a batch depend on (seed, its first example)."""

    def __init__(self, classes: int, *, mixup: float = 0.0, cutmix: float = 0.0, seed: int = 0):
        v2, self.seed = torchvision_transforms(), seed
        transforms = [v2.MixUp(alpha=mixup, num_classes=classes)] if mixup else []
        transforms += [v2.CutMix(alpha=cutmix, num_classes=classes)] if cutmix else []
        self.mix = v2.RandomChoice(transforms)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = collate_images(rows)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(_seed(self.seed, rows[0]["index"], 1))
            pixels, labels = self.mix(batch["pixel_values"], batch["labels"])
        return {"pixel_values": pixels, "labels": labels}
