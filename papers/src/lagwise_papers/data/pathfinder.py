"""Pathfinder (Linsley et al. 2018): are two marks joined by a dashed contour? Generated with the parameters of Long
Range Arena."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace

import numpy as np

BLOCK = 256  # images that are made of one seed
CONTOUR, DISTRACTOR = 14, 4  # paddles of each of the two contours, and of each distractor
_PADDING_PIXELS, _SCALE = 1, 2  # border without contours; a pixel is rendered as a square of points of this side
_PADDLE_TRIES, _START_TRIES, _DISTRACTOR_TRIES = 12, 24, 6  # to place the next paddle, the first one, and a distractor
_IMAGES_PER_DRAW, _RENDER_CHUNKS = 512, 16
_OUTSIDE = -99.0  # position of paddles that are not drawn


@dataclass(frozen=True)
class Parameters:
    """Parameters of Long Range Arena's generator, in pixels.

    Attributes:
        seeds: distance between the starts of the two contours.
        continuity: successive paddles turn by up to ``90 / continuity`` degrees.
        margins: half the gap between paddles; one of them is drawn for each image.
        length, thickness, brightness: those of a paddle; marks have brightness 1.
    """

    distractors: int
    seeds: float
    radius: float
    continuity: float
    margins: tuple[int, ...]
    length: float
    thickness: float
    brightness: float


PARAMETERS = {
    32: Parameters(5, 7.0, 1.5, 1.0, (1,), 2.0, 0.5, 2 * 0.75),
    128: Parameters(8, 20.0, 3.0, 1.8, (2, 3), 5.0, 1.5, 0.9),
}


@dataclass(frozen=True)
class _Drawing:
    """A batch of images with the same number of paddles. margins ``(images,)``; centres ``(images, paddles, 2)``,
    angles ``(images, paddles)``: the two contours, whose paddles alternate, then the distractors."""

    side: int
    margins: np.ndarray
    centres: np.ndarray
    angles: np.ndarray

    def only(self, keep: np.ndarray) -> _Drawing:
        return _Drawing(self.side, self.margins[keep], self.centres[keep], self.angles[keep])

    def ends(self) -> np.ndarray:
        """Compute the positions for marks: start and end of both contours, ``(images, 2 contours, 2 ends, 2)``."""
        half = PARAMETERS[self.side].length / 2
        first, last = slice(0, 2), slice(2 * CONTOUR - 2, 2 * CONTOUR)
        start = self.centres[:, first] - half * _direction(self.angles[:, first])
        end = self.centres[:, last] + half * _direction(self.angles[:, last])
        return np.stack([start, end], axis=2)


def images(seed: int, block: int, *, side: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Draw `BLOCK` images ``(BLOCK, side, side)`` of uint8 and their labels, determined by (seed, block). side: 32 or
    128.

    Each has two contours of 14 paddles, up to 5 (128: 8) distractors of 4, and two marks: at the start of a contour,
    and at the end of the same one (label 1) or of the other (label 0). Contours start near the centre, at a fixed
    distance from each other. Neither grey values nor the distance of the marks reveal the label.

    Formula: a paddle turns from the previous one by an angle whose density is proportional to cos(continuity angle)^2,
    so that it is at least two margins away from all others. Images without such an angle are drawn again, and a
    distractor for which none is found is left out.

    Source: Long Range Arena §2.1, and the parameters of its generator (for 128, those of its Pathfinder128, and the
    length of paddles that is the generator's default). We deviate in three points: positions are not rounded to pixels,
    marks do not touch each other, and of the allowed angles those with free space ahead are preferred, because
    otherwise 1 image in 500 succeeds.
    """
    random = np.random.default_rng((seed, block))
    labels = random.permutation(BLOCK) % 2
    drawings: list[_Drawing] = []
    while sum(len(batch.margins) for batch in drawings) < BLOCK:
        drawings.append(_contours(random, side))
    drawing = _concatenate(drawings).only(np.arange(BLOCK))
    for _ in range(PARAMETERS[side].distractors):
        drawing = _with_distractor(drawing, random)
    marks = _marks(drawing, labels, random)
    chunks = np.array_split(np.arange(BLOCK), _RENDER_CHUNKS)
    return np.concatenate([_rendered(drawing.only(chunk), marks[chunk]) for chunk in chunks]), labels


def encoded(image: np.ndarray) -> bytes:
    """Encode an image as a PNG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def _contours(random: np.random.Generator, side: int) -> _Drawing:
    """Draw images with both contours; those without enough space are left out."""
    margins = random.choice(PARAMETERS[side].margins, _IMAGES_PER_DRAW)
    drawing = _Drawing(side, margins, np.empty((_IMAGES_PER_DRAW, 0, 2)), np.empty((_IMAGES_PER_DRAW, 0)))
    for index in range(2 * CONTOUR):
        drawing, _ = _grown(drawing, random, back=2 if index >= 2 else 0)
    return drawing.only(_marks_fit(drawing))


def _with_distractor(drawing: _Drawing, random: np.random.Generator) -> _Drawing:
    """Add a distractor to each image, outside of it where it has failed several times."""
    count = len(drawing.margins)
    centres, angles = np.full((count, DISTRACTOR, 2), _OUTSIDE), np.zeros((count, DISTRACTOR))
    missing = np.arange(count)
    for _ in range(_DISTRACTOR_TRIES):
        grown, remaining = drawing.only(missing), missing
        for index in range(DISTRACTOR):
            grown, keep = _grown(grown, random, back=1 if index else 0)
            remaining = remaining[keep]
        centres[remaining], angles[remaining] = grown.centres[:, -DISTRACTOR:], grown.angles[:, -DISTRACTOR:]
        missing = np.setdiff1d(missing, remaining)
    return _more(drawing, centres, angles)


def _concatenate(drawings: list[_Drawing]) -> _Drawing:
    margins, centres, angles = zip(*((each.margins, each.centres, each.angles) for each in drawings), strict=True)
    return _Drawing(drawings[0].side, np.concatenate(margins), np.concatenate(centres), np.concatenate(angles))


def _more(drawing: _Drawing, centres: np.ndarray, angles: np.ndarray) -> _Drawing:
    """Add paddles to the images."""
    return replace(
        drawing,
        centres=np.concatenate([drawing.centres, centres], axis=1),
        angles=np.concatenate([drawing.angles, angles], axis=1),
    )


def _grown(drawing: _Drawing, random: np.random.Generator, back: int) -> tuple[_Drawing, np.ndarray]:
    """Add a paddle to each image: the first of a contour, or, if ``back`` is positive, the successor of the paddle that
    many positions before the end. Images in which no try fits are left out. The indices of the others are returned
    too."""
    parameters = PARAMETERS[drawing.side]
    centres, angles = _successors(drawing, random, back) if back else _starts(drawing, random)
    points = _points(centres, angles, parameters.length)  # (images, tries, 3, 2)
    step = (parameters.length + 2 * drawing.margins)[:, None, None] * _direction(angles)
    ahead = np.stack([centres + step, centres + 2 * step], axis=2)  # where straight successors would be
    points = np.concatenate([points, ahead], axis=2)
    border = (_PADDING_PIXELS + drawing.margins)[:, None, None, None]
    free = np.all((points >= border) & (points <= drawing.side - border), axis=3)
    other_paddles = np.delete(np.arange(drawing.angles.shape[1]), slice(-back, 1 - back or None) if back else [])
    if len(other_paddles):
        existing = _points(drawing.centres[:, other_paddles], drawing.angles[:, other_paddles], parameters.length)
        free &= _nearest(points, existing) >= np.square(2 * drawing.margins)[:, None, None]
    fits = free[..., :3].all(-1)
    best = (fits * (1 + free[..., 3] * (1 + free[..., 4]))).argmax(1)  # the first of those with most space ahead
    keep = np.flatnonzero(fits.any(1))
    selection = keep[:, None], best[keep, None]
    return _more(drawing.only(keep), centres[selection], angles[selection]), keep


def _starts(drawing: _Drawing, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw candidates for the first paddle of a contour: centres ``(images, tries, 2)`` and angles. The first contour
    starts at least twice the distance of the seeds from each side, the second at that distance from it, others
    anywhere."""
    parameters = PARAMETERS[drawing.side]
    count, paddles = drawing.angles.shape
    angles = random.uniform(0, 2 * np.pi, (count, _START_TRIES))
    if paddles == 1:
        first = drawing.centres - parameters.length / 2 * _direction(drawing.angles)
        starts = first + parameters.seeds * _direction(random.uniform(0, 2 * np.pi, angles.shape))
    else:
        border = 0 if paddles else 2 * parameters.seeds
        starts = random.uniform(border, drawing.side - border, (*angles.shape, 2))
    return starts + parameters.length / 2 * _direction(angles), angles


def _successors(drawing: _Drawing, random: np.random.Generator, back: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw candidates for the paddle after the one ``back`` positions before the end."""
    parameters = PARAMETERS[drawing.side]
    last = drawing.angles[:, -back, None]
    sines = 2 * random.beta(1.5, 1.5, (len(last), _PADDLE_TRIES)) - 1  # the density of their angles is a squared cosine
    angles = last + np.arcsin(sines) / parameters.continuity
    step = (parameters.length / 2 + drawing.margins)[:, None, None]
    return drawing.centres[:, -back, None] + step * (_direction(last) + _direction(angles)), angles


def _nearest(points: np.ndarray, existing: np.ndarray) -> np.ndarray:
    """Compute the squared distance of every point to the nearest existing one in its image: ``(images, tries, k, 2)``
    and ``(images, ..., 2)`` to ``(images, tries, k)``."""
    one, other = (each.reshape(len(each), np.prod(each.shape[1:-1]), 2) for each in (points, existing))
    products = one @ other.transpose(0, 2, 1)
    squared = np.square(one).sum(-1) + (np.square(other).sum(-1)[:, None] - 2 * products).min(-1)
    return squared.reshape(points.shape[:3])


def _direction(angles: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _points(centres: np.ndarray, angles: np.ndarray, length: float) -> np.ndarray:
    """Compute both ends and the middle of paddles, ``(..., 3, 2)``."""
    half = length / 2 * _direction(angles)
    return np.stack([centres - half, centres, centres + half], axis=-2)


def _marks_fit(drawing: _Drawing) -> np.ndarray:
    """Flag the images in which no mark would touch another at the start and the end of contours."""
    ends = drawing.ends().reshape(-1, 4, 2)
    between = np.linalg.norm(ends[:, :, None] - ends[:, None], axis=-1) + 99 * np.eye(4)
    return (between >= 2 * PARAMETERS[drawing.side].radius + 1).all((1, 2))


def _marks(drawing: _Drawing, labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw two marks in each image, ``(images, 2, 2)``: the start of a contour, and the end of the same or the
    other."""
    ends, rows = drawing.ends(), np.arange(len(labels))
    one = random.integers(0, 2, len(labels))
    return np.stack([ends[rows, one, 0], ends[rows, np.where(labels, one, 1 - one), 1]], axis=1)


def _rendered(drawing: _Drawing, marks: np.ndarray) -> np.ndarray:
    """Render images of uint8: each pixel the mean of its points, each point the share of it that a shape covers."""
    parameters, count, side = PARAMETERS[drawing.side], len(marks), drawing.side * _SCALE
    points = np.zeros((count, side, side), dtype=np.float32)
    half = parameters.length / 2 * _direction(drawing.angles)
    for shapes, halves, length, width, brightness in (
        (drawing.centres, half, parameters.length, parameters.thickness / 2, parameters.brightness),
        (marks, np.zeros_like(marks), 0.0, parameters.radius, 1.0),
    ):
        reach = int(np.ceil((length / 2 + width) * _SCALE)) + 1
        window = np.arange(-reach, reach + 1)
        nearest = np.floor(shapes * _SCALE).astype(np.int64)
        x, y = (nearest[..., axis, None] + window for axis in (0, 1))
        dx, dy = ((at + 0.5) / _SCALE - shapes[..., axis, None] for axis, at in ((0, x), (1, y)))
        squared = np.maximum(np.square(halves).sum(-1), 1e-12)[..., None, None]
        along = (
            dx[..., :, None] * halves[..., 0, None, None] + dy[..., None, :] * halves[..., 1, None, None]
        ) / squared
        along = np.clip(along, -1, 1)
        distance = np.hypot(
            dx[..., :, None] - along * halves[..., 0, None, None], dy[..., None, :] - along * halves[..., 1, None, None]
        )
        covered = brightness * np.clip(0.5 + (width - distance) * _SCALE, 0, 1)
        covered *= (shapes[..., 0] != _OUTSIDE)[..., None, None]
        rows = np.arange(count)[:, None, None, None]
        x, y = np.clip(x, 0, side - 1)[..., :, None], np.clip(y, 0, side - 1)[..., None, :]
        np.maximum.at(points, tuple(np.broadcast_arrays(rows, y, x)), covered.astype(np.float32))
    pixels = points.reshape(count, drawing.side, _SCALE, drawing.side, _SCALE).mean((2, 4))
    return np.rint(255 * np.minimum(pixels, 1)).astype(np.uint8)
