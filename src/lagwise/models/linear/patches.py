"""Features of images: how much their patches are like patches of the sample images, pooled over regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.ops.operation import traced
from lagwise.tables import check_integer

_SAMPLED = 20_000  # number of patches from which whitening is computed
_CONTRAST = 0.1  # added to the variance of a patch, so that flat ones stay flat; pixels have a variance near 1
_WHITENING = 0.1  # added to the variances of whitened directions
_MAX_PATCHES = 1 << 12  # patches computed at a time; their products with 256 filters take 4 MB


class Patches(nn.Module):
    """Thresholded products of an image's whitened patches with those of sample images, pooled over a grid of
    regions.

    Formula: ``sqrt(mean_{p in region} max(0, +-f_k . w(p) - t))`` for both signs, where p is a square patch of the
    image, ``w(p) = Z (n(p) - m)`` its normalised contrast, whitened over the sample patches (ZCA), f_k one of
    ``filters`` random whitened sample patches of length 1, and t the mean of ``|f_k . w(p)|``.

    Regions divide an image evenly, so that images may have any size of at least a patch; neighbours share a row of
    patches where the number is not divisible.

    Shapes: pixels ``(batch, channels, height, width)``; result ``(batch, size)``.

    Args:
        channels: Channels of the images.
        side: Side of a patch in pixels.
        filters: Number of sample patches.
        regions: Number of rows, and of columns, of the grid of regions.

    Source: Coates, Lee and Ng 2011, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning", whose
    random patches are as good as learned ones where there are enough; the root is that of Hellinger kernels.
    """

    def __init__(self, channels: int, *, side: int, filters: int, regions: int):
        super().__init__()
        self.side, self.regions = check_integer("side", side), check_integer("regions", regions)
        pixels = check_integer("channels", channels) * side * side
        self.size = 2 * check_integer("filters", filters) * regions * regions
        self.register_buffer("centre", torch.zeros(pixels))
        self.register_buffer("filters", torch.zeros(filters, pixels))  # Z f_k, as Z is symmetric
        self.register_buffer("threshold", torch.zeros(()))

    @staticmethod
    def plan(height: int, width: int) -> dict[str, Any]:
        """Choose sides of patches and regions for images of a size."""
        side = min(height, width)
        regions = 3 if side >= 16 else 2
        return {"side": min(side, 6 if side >= 16 else 4), "filters": 256, "regions": regions}

    @torch.no_grad()
    def prepare(self, images: Sequence[Tensor] | Tensor, seed: int) -> None:
        """Draw filters from sample images of one size ``(channels, height, width)``, and compute the whitening."""
        random = torch.Generator().manual_seed(seed)
        height, width = self._grid(images[0])
        picked = torch.randint(len(images), (_SAMPLED,), generator=random, device="cpu")
        top, left = (torch.randint(n, (_SAMPLED,), generator=random, device="cpu") for n in (height, width))
        corner = zip(picked.tolist(), top.tolist(), left.tolist(), strict=True)
        side = self.side
        patches = torch.stack([images[n][:, i : i + side, j : j + side].flatten() for n, i, j in corner])
        varied = patches[patches.var(1) > 1e-3]  # constant patches have no contrast
        patches = _normalised(varied if len(varied) >= len(self.filters) else patches)
        centre = patches.mean(0)
        variances, directions = torch.linalg.eigh(torch.cov(patches.t()).double())
        whitening = ((directions * (variances.clamp(min=0) + _WHITENING).rsqrt()) @ directions.t()).float()
        chosen = torch.randperm(len(patches), generator=random, device="cpu")[
            torch.arange(len(self.filters), device="cpu") % len(patches)
        ]
        filters = F.normalize((patches[chosen] - centre) @ whitening, dim=1) @ whitening
        self.centre.copy_(centre)
        self.filters.copy_(filters)
        self.threshold.copy_(((patches[:5000] - centre) @ filters.t()).abs().mean())

    def forward(self, pixels: Tensor) -> Tensor:
        if min(pixels.shape[2:]) < self.side:
            raise ValueError(f"images must have sides of at least {self.side} pixels, got {tuple(pixels.shape[2:])}")
        pixels = pixels.to(self.filters.dtype)
        if traced():
            return self._averaged(self._likeness(pixels))
        rows, columns = self._grid(pixels)
        images, band = max(1, _MAX_PATCHES // (rows * columns)), max(1, _MAX_PATCHES // columns)
        return torch.cat([self._averaged(self._likeness_by_bands(part, band)) for part in pixels.split(images)])

    def _likeness_by_bands(self, pixels: Tensor, band: int) -> Tensor:
        """Average `_likeness` over the columns of each region, ``(batch, 2 filters, rows, regions)``, ``band`` rows at
        a time: for all patches of a photo at once it would take a hundred times the memory of the photo."""
        rows, bands = self._grid(pixels)[0], []
        for top in range(0, rows, band):
            likeness = self._likeness(pixels[:, :, top : top + band + self.side - 1])
            bands.append(F.adaptive_avg_pool2d(likeness, (likeness.shape[2], self.regions)))
        return torch.cat(bands, 2)

    def _likeness(self, pixels: Tensor) -> Tensor:
        """Compute thresholded products of all patches, of both signs: ``(batch, 2 filters, rows, columns)``."""
        patches = _normalised(F.unfold(pixels, self.side).transpose(1, 2)) - self.centre
        products = (patches @ self.filters.t()).transpose(1, 2).unflatten(2, self._grid(pixels))
        return F.relu(torch.cat([products, -products], 1) - self.threshold)

    def _averaged(self, likeness: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(likeness, self.regions).flatten(1).sqrt()

    def _grid(self, pixels: Tensor) -> tuple[int, int]:
        """Return the number of rows and columns of the patches of images."""
        return pixels.shape[-2] - self.side + 1, pixels.shape[-1] - self.side + 1


def _normalised(patches: Tensor) -> Tensor:
    """Normalise patches ``(..., pixels)`` to a mean of 0 and, except for flat ones, a deviation near 1."""
    centred = patches - patches.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + _CONTRAST).sqrt()
