"""Checks for sampling rates other than that of training, and for samples with times of their own."""

from __future__ import annotations

from typing import Any

from lagwise.kernels import LagKernel
from lagwise.mixers import ChunkedAttention, Mixer


def set_rate(model: Any, config: Any) -> None:
    """Scale the steps of all parts of a backbone to ``config.rate``. ValueError names a part that counts tokens."""
    require_rate(f"rate {config.rate:g}", model, config)
    for part in model.modules():
        if isinstance(part, Mixer | LagKernel):
            part.token_time = 1 / config.rate


def require_rate(who: str, model: Any, config: Any) -> None:
    """Raise ValueError, about ``who``, if a part of a backbone counts samples, so that it has one rate."""
    if config.input_name != "values":
        raise ValueError(f"{who} needs inputs 'values', as a rate is that of samples, got {config.inputs!r}")
    stride = model.embed_tokens.stride
    if model.embed_tokens.timed:
        raise ValueError(f"{who} is not for a model of samples with times, which tell their rate")
    if stride != 1:
        raise ValueError(
            f"{who} needs a model with a stride of 1: this one reads {stride} samples at once, by filters for the "
            "rate of training; resample its inputs"
        )
    _check_positions(who, config)
    for name, part in model.named_modules():
        if isinstance(part, ChunkedAttention) or (isinstance(part, Mixer | LagKernel) and not part.any_rate):
            raise ValueError(
                f"{who} needs mixers and kernels in continuous time, such as s4d, dss, s5, lru, cema and ema, but "
                f"{name} is a {type(part).__name__}, which counts samples; resample its inputs"
            )
    if config.wide is not None:
        raise ValueError(
            f"{who} is not for a model with a map of convolutions beside its layers, which count samples; resample "
            "its inputs, or train without the map (task.wide=false)"
        )


def require_times(model: Any, config: Any) -> None:
    """Raise ValueError if a part of a backbone counts tokens, which then have no times of their own."""
    _check_positions("tokens with times of their own", config)
    if config.wide is not None:
        raise ValueError("tokens with times of their own need a model without a map of convolutions (task.wide=false)")
    for name, part in model.named_modules():
        if isinstance(part, ChunkedAttention):
            kind = type(part).__name__
            raise ValueError(f"{name} is a {kind}, which counts tokens, but these have times of their own")
        if isinstance(part, Mixer):
            part.require_times()


def _check_positions(who: str, config: Any) -> None:
    if (kind := config.position_embedding) != "none":
        raise ValueError(f"{who} needs position_embedding 'none', as others count samples, got {kind!r}")
