"""Models at other sampling rates than that of their training."""

from __future__ import annotations

from typing import Any

from lagwise.kernels import LagKernel
from lagwise.mixers import ChunkedAttention, Mixer


def set_rate(model: Any, config: Any) -> None:
    """Scale the steps of all parts of a backbone to ``config.rate``. ValueError names a part that counts tokens."""
    if config.input_name != "values":
        raise ValueError(f"rate is that of samples, so it needs inputs 'values', got {config.inputs!r}")
    stride = model.embed_tokens.stride
    if stride != 1:
        raise ValueError(
            f"rate {config.rate:g} needs a model with a stride of 1: this one reads {stride} samples at once, by "
            "filters for the rate of training; resample its inputs"
        )
    if config.position_embedding != "none":
        raise ValueError(
            f"rate {config.rate:g} needs position_embedding 'none', as others count samples, got "
            f"{config.position_embedding!r}"
        )
    for name, part in model.named_modules():
        if isinstance(part, ChunkedAttention) or (isinstance(part, Mixer | LagKernel) and not part.any_rate):
            raise ValueError(
                f"rate {config.rate:g} needs mixers and kernels in continuous time, such as s4d, dss, s5, lru, cema "
                f"and ema, but {name} is a {type(part).__name__}, which counts samples; resample its inputs"
            )
    for part in model.modules():
        if isinstance(part, Mixer | LagKernel):
            part.token_time = 1 / config.rate
