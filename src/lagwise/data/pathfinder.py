"""Pathfinder (Linsley et al. 2018): are two marks joined by a dashed contour? Generated with the parameters of Long
Range Arena."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np

BLOCK = 256  # pictures that are made of one seed
_CONTOUR, _DISTRACTORS = 14, 5  # paddles of each of the two contours; short contours beside them, of a third as many
_LENGTH, _HALF_WIDTH, _GAP = 1.25, 0.4, 1.25  # of a paddle, and to the next one
_RADIUS, _BORDER, _SEEDS = (
    1.5,
    2.5,
    7.0,
)  # of a mark; kept free, so that one fits; between the first paddles of the two contours
_TURN = np.pi / 3  # between successive paddles, at most
_APART, _ALONE = 2.0, 3.0  # least distance between paddles that do not follow each other, and of others to a mark
_BRIGHTNESS, _SCALE = 0.75, 2  # of paddles, marks having 1; points in a pixel are squares of this side
_AHEAD, _ENOUGH, _WHIM = 4.0, 4.0, 6.0  # how far a contour looks ahead, how much space is enough, and a random part
_ATTEMPTS, _TRIES, _STARTS = (
    4,
    12,
    24,
)  # of a contour, of its next paddle and of its first, before a picture is given up
_TOGETHER = 512  # pictures that are begun at a time


@dataclass
class _Drawing:
    """Pictures that are being drawn alike. centres ``(pictures, paddles, 2)``, angles ``(pictures, paddles)``."""

    side: int
    centres: np.ndarray
    angles: np.ndarray

    def only(self, kept: np.ndarray) -> _Drawing:
        return _Drawing(self.side, self.centres[kept], self.angles[kept])


def pictures(seed: int, block: int, *, side: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """`BLOCK` pictures ``(BLOCK, side, side)`` of uint8 and their labels, that (seed, block) decide.

    Each has two contours of 14 paddles, 5 distractors of 4, and two marks: at both ends of one contour (label 1), or at
    one end of each (label 0). Both labels have the same shapes, so that grey values alone do not distinguish them.

    Source: Long Range Arena §2.1 and the parameters of its generator. Contours turn by up to 60 degrees from paddle to
    paddle, towards free space, and pictures without any are drawn again.
    """
    random = np.random.default_rng((seed, block))
    labels = random.permutation(BLOCK) % 2
    found, done = [], 0
    while done < BLOCK:
        drawn = _contours(random, side)
        drawn = drawn.only(np.arange(len(drawn.centres)) < BLOCK - done)
        own = labels[done : done + len(drawn.centres)]
        found.append(_rendered(drawn, _marks(drawn, own, random)))
        done += len(own)
    return np.concatenate(found), labels


def encoded(picture: np.ndarray) -> bytes:
    """A picture as a PNG file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def _contours(random: np.random.Generator, side: int) -> _Drawing:
    """Pictures with all their contours; those without enough space are left out."""
    drawing = _Drawing(side, np.empty((_TOGETHER, 0, 2)), np.empty((_TOGETHER, 0)))
    for length in (_CONTOUR, _CONTOUR, *(_CONTOUR // 3,) * _DISTRACTORS):
        drawing = _with_contour(drawing, length, random)
    return drawing.only(_marks_fit(drawing))


def _with_contour(drawing: _Drawing, length: int, random: np.random.Generator) -> _Drawing:
    """The pictures with one more contour, those left out in which it has failed several times."""
    after = drawing.centres.shape[1] + length
    done = [_Drawing(drawing.side, np.empty((0, after, 2)), np.empty((0, after)))]
    for _ in range(_ATTEMPTS):
        grown, own = drawing, np.arange(len(drawing.centres))
        for place in range(length):
            if len(own):
                grown, kept = _grown(grown, random, place, length)
                own = own[kept]
        if len(own):
            done.append(grown)
            drawing = drawing.only(np.setdiff1d(np.arange(len(drawing.centres)), own))
    return _Drawing(
        drawing.side, np.concatenate([each.centres for each in done]), np.concatenate([each.angles for each in done])
    )


def _grown(drawing: _Drawing, random: np.random.Generator, place: int, length: int) -> tuple[_Drawing, np.ndarray]:
    """The pictures with one more paddle, at a place of a contour of a length; those in which no try fits are left out.
    Also the numbers of those that stay."""
    count, paddles = drawing.angles.shape
    if place == 0:
        shape = (count, _STARTS)
        angles, centres = random.uniform(0, 2 * np.pi, shape), random.uniform(0, drawing.side, (*shape, 2))
    else:
        angles = drawing.angles[:, -1:] + random.uniform(-_TURN, _TURN, (count, _TRIES))
        step = (_LENGTH + _GAP) / 2
        centres = drawing.centres[:, -1:] + step * (_direction(drawing.angles[:, -1:]) + _direction(angles))
    points = _points(centres, angles)  # (pictures, tries, 3, 2)
    fits = np.all((points >= _BORDER) & (points <= drawing.side - _BORDER), axis=(2, 3))
    room = random.uniform(0, _WHIM, fits.shape)  # a contour turns towards free space
    ahead = centres + _AHEAD * _direction(angles)
    room += np.minimum(_ENOUGH, np.minimum(ahead, drawing.side - ahead).min(-1))
    if paddles == _CONTOUR:
        fits &= np.linalg.norm(centres - drawing.centres[:, :1], axis=-1) >= _SEEDS
    others = paddles - (place > 0)  # all but the previous one
    if others:
        known = _points(drawing.centres[:, :others], drawing.angles[:, :others])
        squared = _nearest(points, known)
        fits &= (squared >= _APART**2).all(-1)
        if length == _CONTOUR and place in (0, length - 1):  # a mark may be at its outer end
            fits &= squared[:, :, 0 if place == 0 else 2] >= _ALONE**2
        room += np.minimum(_ENOUGH, np.sqrt(np.maximum(0, _nearest(ahead[:, :, None], known)[:, :, 0])))
    contours = min(2, (paddles - place) // _CONTOUR)  # that are whole
    if contours:
        fits &= (_nearest(points, _ends(drawing, contours)) >= _ALONE**2).all(-1)
    chosen, kept = np.where(fits, room, -np.inf).argmax(1), np.flatnonzero(np.any(fits, axis=1))
    found = drawing.only(kept)
    found.centres = np.concatenate([found.centres, centres[kept, chosen[kept]][:, None]], axis=1)
    found.angles = np.concatenate([found.angles, angles[kept, chosen[kept]][:, None]], axis=1)
    return found, kept


def _nearest(points: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Squared distance of every point to the nearest of those known in its picture: ``(pictures, tries, k, 2)`` and
    ``(pictures, ..., 2)`` to ``(pictures, tries, k)``."""
    one, other = points.reshape(len(points), -1, 2), known.reshape(len(known), -1, 2)
    products = one @ other.transpose(0, 2, 1)
    squared = np.square(one).sum(-1) + (np.square(other).sum(-1)[:, None] - 2 * products).min(-1)
    return squared.reshape(points.shape[:3])


def _direction(angles: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _points(centres: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Both ends and the middle of paddles, ``(..., 3, 2)``."""
    half = _LENGTH / 2 * _direction(angles)
    return np.stack([centres - half, centres, centres + half], axis=-2)


def _ends(drawing: _Drawing, contours: int = 2) -> np.ndarray:
    """Where marks may be: the outer ends of the first contours, ``(pictures, contours, 2 ends, 2)``."""
    paddles = contours * _CONTOUR
    points = _points(drawing.centres[:, :paddles], drawing.angles[:, :paddles])
    points = points.reshape(len(drawing.centres), contours, _CONTOUR, 3, 2)
    return np.stack([points[:, :, 0, 0], points[:, :, -1, 2]], axis=2)


def _marks_fit(drawing: _Drawing) -> np.ndarray:
    """Pictures in which a mark at any end of a contour covers nothing but that end, nor meets a mark at another."""
    ends = _ends(drawing).reshape(-1, 4, 2)
    far = np.linalg.norm(_points(drawing.centres, drawing.angles)[:, None] - ends[:, :, None, None], axis=-1).min(-1)
    own = np.array([0, _CONTOUR - 1, _CONTOUR, 2 * _CONTOUR - 1])  # the paddle that an end is of, and its neighbour
    far[:, np.arange(4), own] = far[:, np.arange(4), own + np.array([1, -1, 1, -1])] = np.inf
    between = np.linalg.norm(ends[:, :, None] - ends[:, None], axis=-1) + 99 * np.eye(4)
    return (far >= _ALONE).all((1, 2)) & (between >= 2 * _RADIUS + _GAP).all((1, 2))


def _marks(drawing: _Drawing, labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Two marks in each picture, ``(pictures, 2, 2)``: the ends of one contour, or an end of each."""
    ends, rows = _ends(drawing), np.arange(len(labels))
    one, other = random.integers(0, 2, (2, len(labels)))
    joined = ends[rows, one]
    apart = np.stack([ends[rows, 0, one], ends[rows, 1, other]], axis=1)
    return np.where(labels[:, None, None] == 1, joined, apart)


def _rendered(drawing: _Drawing, marks: np.ndarray) -> np.ndarray:
    """Pictures of uint8: each pixel the mean of its points, each point the share of it that a shape covers."""
    count, side = len(marks), drawing.side * _SCALE
    points = np.zeros((count, side, side), dtype=np.float32)
    half = _LENGTH / 2 * _direction(drawing.angles)
    reach = int(np.ceil((_LENGTH / 2 + _RADIUS) * _SCALE)) + 1
    window = np.arange(-reach, reach + 1)
    for shapes, halves, width, brightness in (
        (drawing.centres, half, _HALF_WIDTH, _BRIGHTNESS),
        (marks, np.zeros_like(marks), _RADIUS, 1.0),
    ):
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
        rows = np.arange(count)[:, None, None, None]
        places = np.broadcast_arrays(rows, np.clip(y, 0, side - 1)[..., None, :], np.clip(x, 0, side - 1)[..., :, None])
        np.maximum.at(points, tuple(places), covered.astype(np.float32))
    pixels = points.reshape(count, drawing.side, _SCALE, drawing.side, _SCALE).mean((2, 4))
    return np.rint(255 * pixels).astype(np.uint8)
