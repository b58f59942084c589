"""The weight of a trained model's layers beside a first answer, chosen by held-out rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

_PRIOR_SHARE = 0.3  # mean and standard deviation of the prior of the share (docs/log.md)
_MAX_SHARE = 1.5


def best_share(data: Any, first: np.ndarray, layers: np.ndarray, labels: np.ndarray) -> float:
    """Find the share of the layers in `mixed` with the highest posterior, for rows that neither model was fitted to.

    The prior is normal with mean and standard deviation 0.3, so that a few rows change the share little. For numbers,
    the noise has the variance of the first answer's errors.

    Shapes: the outputs of both models, first and layers, ``(rows, outputs)``; labels ``(rows,)`` or ``(rows, labels)``.
    """
    from scipy.optimize import minimize_scalar

    weight = float(len(labels))
    if data.label_names is None:
        weight /= 2 * max(loss_of(data, first, labels), 1e-12)

    def surprise(share: float) -> float:
        return weight * loss_of(data, mixed(data, first, layers, share), labels) + ((share / _PRIOR_SHARE - 1) ** 2) / 2

    return float(minimize_scalar(surprise, bounds=(0, _MAX_SHARE), method="bounded").x)


def mixed(data: Any, first: np.ndarray, layers: np.ndarray, share: float) -> np.ndarray:
    """Mix two models' outputs as `lagwise.models.wide.joined` does: ``first + share * layers``, or of numbers their
    weighted mean."""
    return (1 - share) * first + share * layers if data.label_names is None else first + share * layers


def loss_of(data: Any, logits: np.ndarray, labels: np.ndarray) -> float:
    """Compute the training loss of logits, a mean over rows."""
    return float(data.loss(SimpleNamespace(logits=torch.from_numpy(logits)), torch.from_numpy(labels)))
