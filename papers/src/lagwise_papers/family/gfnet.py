"""The global filter of GFNet."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer
from lagwise.ops import Layout
from lagwise.tables import check_integer


class GFNetMixer(Mixer):
    """A filter over a grid, learned in the frequency domain: ``irfft2(K * rfft2(x))`` in every channel, circular.

    Options:
        height: rows of the filter's grid (published: 14 patches).
        width: columns of the filter's grid.

    The published filter is for one grid. Here smaller images are filtered on that grid too, with zeros beyond their
    edges, so that padding has no effect. ValueError for a larger image, and as in `GridMixer`. Two-sided only.

    Source: Rao et al. 2021, "Global Filter Networks for Image Classification", §3.2 and code 1.
    """

    needs_grid = True
    directions = (False,)

    def __init__(self, channels: int, *, causal: bool = False, height: int = 14, width: int = 14):
        super().__init__(channels, causal)
        self.size = (check_integer("height", height), check_integer("width", width))
        self.filter = nn.Parameter(torch.empty(height, width // 2 + 1, channels, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw from a normal distribution, with standard deviation 0.02 in both parts, as published."""
        nn.init.normal_(self.filter, std=0.02)

    def mix(self, x: Tensor, state: None, layout: Layout) -> tuple[Tensor, None]:
        height, width = layout.require_grid(type(self).__name__)
        (max_height, max_width), dtype = self.size, torch.promote_types(x.dtype, torch.float32)
        if height > max_height or width > max_width:
            raise ValueError(
                f"the filter's grid is {max_height} x {max_width}, got {height} x {width}; set options height and width"
            )
        image = x.to(dtype).unflatten(1, (height, width))
        image = F.pad(image, (0, 0, 0, max_width - width, 0, max_height - height))
        spectrum = torch.fft.rfft2(image, dim=(1, 2)) * torch.view_as_complex(self.filter.to(dtype).contiguous())
        y = torch.fft.irfft2(spectrum, s=self.size, dim=(1, 2))
        return y[:, :height, :width].flatten(1, 2).to(x.dtype), None
