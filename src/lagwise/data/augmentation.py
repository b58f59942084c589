"""Random augmentations of series, so that a model learns what recordings have in common."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

#: The kinds of changes, and the largest sensible strength of each. All but the first are in units of a feature's
#: deviation:
#: - stretch: deviation of the logarithm of a factor on time.
#: - mix: deviation of the entries of a matrix, around the identity, that features are multiplied by.
#: - filter: deviation of the taps of smooth filters, from every feature to every feature, whose outputs are added:
#:   shapes change, and alike in the whole window, as between two sensors.
#: - wander: deviation of an offset, and of the amplitude of a slow wave, added to each feature.
#: - noise: largest deviation of white noise.
#: - drop: probability that one of several features is silenced.
CHANGES = {"stretch": 1.0, "mix": 10.0, "filter": 10.0, "wander": 100.0, "noise": 100.0, "drop": 1.0}
_SLOWEST, _FASTEST = 1.0, 16.0  # waves in a window
_NODES = 5  # between which the taps of a filter are interpolated


def changed(x: np.ndarray, change: Mapping[str, float], taps: int, random: np.random.Generator) -> np.ndarray:
    """A window of standardised features ``(samples, features)`` with random changes, each of the strength given by its
    name in `CHANGES`; all but stretch, for which see `stretched`. taps: of filters, in samples."""
    length, features = x.shape
    y = x
    if change["mix"]:
        y = y @ (np.eye(features) + random.normal(0, change["mix"], (features, features)))
    if change["filter"]:
        y = y + filtered(x, random.normal(0, change["filter"], (_NODES, features, features)), taps)
    if features > 1 and random.random() < change["drop"]:
        y = y * (np.arange(features) != random.integers(features))
    if change["wander"]:
        angle = 2 * np.pi * (random.uniform(_SLOWEST, _FASTEST) * np.arange(length) / length + random.random())
        offset, amplitude = random.normal(0, change["wander"], (2, features))
        y = y + offset + amplitude * np.sin(angle)[:, None]
    if change["noise"]:
        y = y + random.normal(0, 1, y.shape) * random.uniform(0, change["noise"], features)
    return y


def filtered(x: np.ndarray, nodes: np.ndarray, taps: int) -> np.ndarray:
    """Filter x ``(samples, features)``, from every feature to every feature, centred so that events stay in place.

    Formula: ``y_{t,j} = sum_i sum_{l < taps} k_{l,i,j} x_{t+c-l,i}`` with ``c = (taps - 1) // 2``, the taps ``k_l``
    being linear between the nodes ``(nodes, features, features)`` and divided by taps / nodes, so that the gain does
    not depend on the number of taps.
    """
    at = np.linspace(0, len(nodes) - 1, taps)
    below = np.minimum(at.astype(int), len(nodes) - 2)
    share = (at - below)[:, None, None]
    kernel = ((1 - share) * nodes[below] + share * nodes[below + 1]) * (len(nodes) / taps)
    y = np.zeros_like(x)
    for i, j in np.ndindex(*nodes.shape[1:]):
        start = (taps - 1) // 2
        y[:, j] += np.convolve(x[:, i], kernel[:, i, j])[start : start + len(x)]
    return y


def stretched(values: np.ndarray, labels: np.ndarray, length: int, *, events: bool) -> tuple[np.ndarray, np.ndarray]:
    """A window, values ``(samples, features)`` and labels ``(samples,)``, resampled to ``length`` samples: values by
    linear interpolation, labels by the nearest sample; ``events`` stay single samples."""
    source = np.linspace(0, len(values) - 1, length)
    places = np.arange(len(values))
    moved = np.stack([np.interp(source, places, feature) for feature in values.T], axis=1)
    if not events:
        return moved, labels[source.round().astype(np.int64)]
    result = labels[source.astype(np.int64)]
    result = np.where(result > 0, 0, result)
    at = np.flatnonzero(labels > 0)
    result[(at * ((length - 1) / max(1, len(values) - 1))).round().astype(np.int64)] = labels[at]
    return moved, result
