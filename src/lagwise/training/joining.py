"""How much the layers of a trained model count beside a first answer, by held-out rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

_LIKELY = 0.3  # mean and deviation of the share before any row is seen (docs/log.md)
_MOST = 1.5


def best_share(data: Any, first: np.ndarray, layers: np.ndarray, labels: np.ndarray) -> float:
    """The share of `mixed` that is likeliest for rows that neither model was fitted to, if it has a normal
    distribution around 0.3 before any of them is seen: a few rows change it little. Numbers have errors that are as
    large as those of the first answer.

    Shapes: first and layers ``(rows, outputs)``, what both models say of the rows; labels of the rows.
    """
    from scipy.optimize import minimize_scalar

    weight = float(len(labels))
    if data.label_names is None:
        weight /= 2 * max(loss_of(data, first, labels), 1e-12)

    def surprise(share: float) -> float:
        return weight * loss_of(data, mixed(data, first, layers, share), labels) + ((share / _LIKELY - 1) ** 2) / 2

    return float(minimize_scalar(surprise, bounds=(0, _MOST), method="bounded").x)


def mixed(data: Any, first: np.ndarray, layers: np.ndarray, share: float) -> np.ndarray:
    """What a model joined by `lagwise.models.wide.joined` says of rows."""
    return (1 - share) * first + share * layers if data.label_names is None else first + share * layers


def loss_of(data: Any, logits: np.ndarray, labels: np.ndarray) -> float:
    """The loss of the training, a mean over rows."""
    return float(data.loss(SimpleNamespace(logits=torch.from_numpy(logits)), torch.from_numpy(labels)))
