"""How much the layers of a trained model count beside a first answer, by held-out rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

_LIKELY = 0.3  # mean and deviation of the share before any row is seen (docs/log.md)
_MOST = 1.5


def best_share(data: Any, first: np.ndarray, layers: np.ndarray, labels: np.ndarray) -> float:
    """The share of `mixed` that is likeliest for rows that neither model was fitted to, if it has a normal
    distribution around 0.3 before any of them is seen: a few rows change it little.

    Shapes: first and layers ``(rows, outputs)``, what both models say of the rows; labels of the rows.
    """
    from scipy.optimize import minimize_scalar

    def surprise(share: float) -> float:
        return _surprise(data, first, mixed(data, first, layers, share), labels) + ((share / _LIKELY - 1) ** 2) / 2

    return float(minimize_scalar(surprise, bounds=(0, _MOST), method="bounded").x)


def mixed(data: Any, first: np.ndarray, layers: np.ndarray, share: float) -> np.ndarray:
    """What a model joined by `lagwise.models.wide.joined` says of rows."""
    return (1 - share) * first + share * layers if data.label_names is None else first + share * layers


def _surprise(data: Any, first: np.ndarray, found: np.ndarray, labels: np.ndarray) -> float:
    """Minus the logarithm of the likelihood of labels, with the weights of classes; of numbers with errors that are as
    large as those of the first answer."""
    given, true = torch.from_numpy(found).double(), torch.from_numpy(labels)
    if data.label_names is None:
        scale = np.square(first[:, 0] - labels).mean() + 1e-12 * data.label_variance
        return float((given[:, 0] - true).square().sum()) / (2 * scale)
    if data.several:
        return float(F.binary_cross_entropy_with_logits(given, true.double(), reduction="none").mean(1).sum())
    weight = None if data.weights is None else data.weights.double()
    return float(F.cross_entropy(given, true.long(), weight=weight, reduction="sum"))
