"""Base of dense feature extractors: standardisation, and the linear head."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DenseFeatures(nn.Module):
    """Base of feature extractors whose features are mostly nonzero. Subclasses for samples set ``mean`` and ``std`` of
    each channel (or None), and ``biases``, whose dtype computations have."""

    mean: list[float] | None
    std: list[float] | None
    biases: Tensor

    @staticmethod
    def logits(features: Tensor, classifier: nn.Linear) -> Tensor:
        """Logits ``(..., labels)`` of features."""
        return classifier(features)

    def _scaled(self, x: Tensor) -> Tensor:
        """Standardise samples; missing ones (NaN) count as the mean."""
        z = standardised(x, self.mean, self.std)
        return z.masked_fill(z.isnan(), 0).to(self.biases.dtype)


def standardised(x: Tensor, mean: list[float] | None, std: list[float] | None) -> Tensor:
    """Standardise samples ``(..., channels)``: ``(x - mean) / std``, each None for no change. Computed in at least
    float32, because a signal far from 0 would lose its digits in bfloat16."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if mean is not None:
        x = x - x.new_tensor(mean)
    return x if std is None else x / x.new_tensor(std)
