"""Activations by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor


def identity(x: Tensor) -> Tensor:
    """Return x."""
    return x


#: Functions that can be pickled, as models hold them. ``gelu_tanh`` is the approximation in GPT-2 and HyenaDNA.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
    "none": identity,
}
