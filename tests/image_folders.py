"""Small labelled images for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

ROWS = 12


def arrays(channels: int = 3, count: int = ROWS, side: int = 6) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    shape = (count, side, side + 2, channels) if channels > 1 else (count, side, side + 2)
    return random.integers(0, 256, shape, dtype=np.uint8), np.arange(count) % 2


def folder_of(root: Path, images: np.ndarray, labels: np.ndarray, suffix: str = "png") -> Path:
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = root / ("cat", "dog")[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i:02}.{suffix}")
    return root
