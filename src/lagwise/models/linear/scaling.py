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
    levels: int
    plain: int  #: number of features that are not levels; levels are last
    size: int
    of_levels: tuple[str, ...] = ()  #: buffers with a column for each level

    def drop_levels(self) -> None:
        """Remove the levels."""
        self.levels, self.size = 0, self.plain
        for name in self.of_levels:
            setattr(self, name, getattr(self, name)[:, :0].clone())

    @staticmethod
    def logits(found: Tensor, classifier: nn.Linear) -> Tensor:
        """Compute logits ``(..., labels)`` from features."""
        return classifier(found)

    def _scaled(self, x: Tensor) -> Tensor:
        """Standardise samples; missing ones (NaN) count as the mean."""
        z = standardised(x, self.mean, self.std)
        return z.masked_fill(z.isnan(), 0).to(self.biases.dtype)


def standardised(x: Tensor, mean: list[float] | None, std: list[float] | None) -> Tensor:
    """Standardise samples ``(..., channels)`` by the mean and deviation of each channel, as far as these are given, in
    at least float32: in bfloat16 a signal far from 0 would lose its digits."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if mean is not None:
        x = x - x.new_tensor(mean)
    return x if std is None else x / x.new_tensor(std)
