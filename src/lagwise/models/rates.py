"""Models at other sampling rates than that of their training, and of samples with times of their own."""

from __future__ import annotations

from typing import Any

from lagwise.kernels import LagKernel
from lagwise.mixers import ChunkedAttention, Mixer


def set_rate(model: Any, config: Any) -> None:
    """Scale the steps of all parts of a backbone to ``config.rate``. ValueError names a part that counts tokens."""
    if config.input_name != "values":
        raise ValueError(f"rate is that of samples, so it needs inputs 'values', got {config.inputs!r}")
    stride = model.embed_tokens.stride
    if model.embed_tokens.timed:
        raise ValueError(f"rate {config.rate:g} is not for a model of samples with times, which tell their rate")
    if stride != 1:
        raise ValueError(
            f"rate {config.rate:g} needs a model with a stride of 1: this one reads {stride} samples at once, by "
            "filters for the rate of training; resample its inputs"
        )
    _check_positions(f"rate {config.rate:g}", config)
    for name, part in model.named_modules():
        if isinstance(part, ChunkedAttention) or (isinstance(part, Mixer | LagKernel) and not part.any_rate):
            raise ValueError(
                f"rate {config.rate:g} needs mixers and kernels in continuous time, such as s4d, dss, s5, lru, cema "
                f"and ema, but {name} is a {type(part).__name__}, which counts samples; resample its inputs"
            )
    for part in model.modules():
        if isinstance(part, Mixer | LagKernel):
            part.token_time = 1 / config.rate


def require_times(model: Any, config: Any) -> None:
    """ValueError if a part of a backbone counts tokens, which then have no times of their own."""
    _check_positions("tokens with times of their own", config)
    for name, part in model.named_modules():
        if isinstance(part, ChunkedAttention):
            raise ValueError(
                f"{name} is a {type(part).__name__}, which counts tokens, but these have times of their own"
            )
        if isinstance(part, Mixer):
            part.require_times()


def _check_positions(what: str, config: Any) -> None:
    if config.position_embedding != "none":
        raise ValueError(
            f"{what} needs position_embedding 'none', as others count samples, got {config.position_embedding!r}"
        )
