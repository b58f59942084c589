"""Every sequence mixer in the table, with options that change its computation."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from lagwise import testing
from lagwise.mixers import MIXERS, Mixer

CHANNELS = 16

# Every entry with its defaults, and the options that change how it computes.
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name, mixer in MIXERS.items() if not mixer.needs_grid),  # those have test_grid.py
    ("attention", {"position": "none"}),
    ("chunked_attention", {"chunk": 7}),
    ("chunked_attention", {"chunk": 16, "heads": 2, "position": "none"}),
    ("chunked_attention", {"chunk": 12, "function": "laplace", "position": "simple"}),
    ("chunked_attention", {"chunk": 9, "heads": 2, "function": "relu2", "position": "rotary"}),
    ("chunked_attention", {"chunk": 1, "position": "simple"}),
    ("toeplitz", {"kernel": {"name": "rpe", "decay": 1.0}}),
    ("toeplitz", {"kernel": {"name": "rpe", "decay": 0.9}}),
    ("toeplitz", {"kernel": {"name": "free", "max_length": 1100}}),
    ("toeplitz", {"kernel": {"name": "frequency"}}),
    ("toeplitz", {"kernel": {"name": "frequency", "inputs": "omega", "grid": 100}}),
    ("toeplitz", {"kernel": {"name": "frequency", "grid": 100}, "engine": "fft"}),
    ("gtu", {"kernel": {"name": "frequency", "inputs": "omega"}}),
    ("toeplitz", {"kernel": {"name": "warped"}}),
    ("toeplitz", {"engine": "direct", "kernel": {"name": "rpe", "decay": 0.5}}),
    ("toeplitz", {"kernel": {"name": "warped"}, "engine": "ski"}),
    ("toeplitz", {"kernel": {"name": "warped"}, "engine": {"name": "ski", "degree": 3, "spacing": 4, "width": 40}}),
    ("toeplitz", {"kernel": {"name": "rpe", "decay": 1.0}, "engine": {"name": "ski", "spacing": 5}}),
    ("gtu", {"kernel": {"name": "warped"}, "engine": "ski"}),
    ("toeplitz", {"kernel": {"name": "ema"}}),
    ("toeplitz", {"kernel": {"name": "modal", "modes": 4}}),
    ("toeplitz", {"kernel": {"name": "s4d", "modes": 4}}),
    ("toeplitz", {"kernel": {"name": "cema", "dimension": 4}}),
    ("toeplitz", {"kernel": {"name": "dss", "modes": 4, "normalization": "softmax"}}),
    ("toeplitz", {"kernel": {"name": "s4", "modes": 4, "span": 100}}),
    ("toeplitz", {"kernel": {"name": "sgconv", "size": 8, "scales": 4}}),
    ("toeplitz", {"kernel": {"name": "hyena", "span": 50, "hidden": 8}}),
    ("toeplitz", {"kernel": {"name": "hyena", "span": 50, "hidden": 8}, "engine": "ski"}),
    ("toeplitz", {"kernel": {"name": "spectral", "filters": 4, "span": 90}}),
    ("ema", {"truncation": 70, "dimension": 3}),
    ("ema", {"engine": "auto"}),
    ("tcn", {"kernel_size": 3, "dilation": 3, "depth": 3, "convolutions": 2, "norm": "rms", "activation": "gelu"}),
    ("tcn", {"kernel_size": 17, "dilation": 5, "depth": 2, "activation": "none", "residual": False}),
    ("linear_attention", {"feature_map": "cosformer", "heads": 1, "span": 1100}),
    ("linear_attention", {"feature_map": "favor", "heads": 2, "count": 20}),
    ("flash", {"chunk": 7, "query_size": 4}),
    ("gmlp", {"matrix": "dense", "max_length": 1100}),
    ("synthesizer", {"form": "random", "heads": 1, "max_length": 1100}),
    ("relative_attention", {"heads": 2, "memory": 5}),
    ("afno", {"heads": 1, "threshold": 0.1, "activation": "tanh"}),
    ("long_short", {"heads": 2, "window": 6, "rank": 2}),
    ("long_short", {"heads": 2, "window": 6, "rank": 2, "position": "none"}),
]

# Mixers in continuous time.
CONTINUOUS: dict[str, dict[str, Any]] = {
    "s4d": {"name": "toeplitz", "kernel": {"name": "s4d", "modes": 3}},
    "bilinear": {"name": "toeplitz", "kernel": {"name": "s4d", "modes": 3, "rule": "bilinear"}},
    "dss": {"name": "toeplitz", "kernel": {"name": "dss", "modes": 3}},
    "cema": {"name": "toeplitz", "kernel": {"name": "cema", "dimension": 3}},
    "modal": {"name": "toeplitz", "kernel": {"name": "modal", "modes": 3}},
    "gtu": {"name": "gtu", "expansion": 1, "kernel": {"name": "s4d", "modes": 3}},
    "gss": {"name": "gss"},
    "kernel ema": {"name": "toeplitz", "kernel": {"name": "ema", "dimension": 4}},  # takes one rate in each row
    "ema": {"name": "ema", "dimension": 3},
    "lru": {"name": "lru"},
    "s5": {"name": "s5"},
}

STRIDE = 6
# Without slow tests, nobody collects the thousands that `diagonal` would mark so: see conftest.py.
WITH_SLOW = os.environ.get("LAGWISE_TEST_SLOW") != "0"


def diagonal(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Any], Any]:
    """Parametrise a test by cases, of which every sixth runs by default, other ones in every test; the others are
    slow."""

    def decorate(test: Any) -> Any:
        first = zlib.crc32(test.__name__.encode())
        rows = [case if isinstance(case, tuple) else (case,) for case in cases]
        chosen = [(index + first) % min(STRIDE, len(rows)) == 0 for index in range(len(rows))]
        parameters = [
            pytest.param(*row, marks=() if by_default else pytest.mark.slow)
            for row, by_default in zip(rows, chosen, strict=True)
            if by_default or WITH_SLOW
        ]
        return pytest.mark.parametrize(names, parameters, ids=_id)(test)

    return decorate


def _id(value: Any) -> str:
    return "default" if value == {} else getattr(value, "__name__", str(value))


_DIRECTIONS = [(name, options, causal) for name, options in OPTIONS for causal in MIXERS[name].directions]
STREAMS = [case for case in OPTIONS if True in MIXERS[case[0]].directions and MIXERS[case[0]].streams]
every_mixer = diagonal(("name", "options"), OPTIONS)
every_stream = diagonal(("name", "options"), STREAMS)
every_direction = diagonal(("name", "options", "causal"), _DIRECTIONS)
every_entry = diagonal(  # for what takes long
    ("name", "options"), [case for case in OPTIONS if not case[1] or case[1].get("engine") == "ski"]
)
every_trained_direction = diagonal(
    ("name", "options", "causal"),
    [case for case in _DIRECTIONS if list(MIXERS[case[0]](CHANNELS, causal=case[2]).parameters())],
)


def make(
    name: str, options: dict[str, Any], *, causal: bool | None = None, dtype: torch.dtype = torch.float64
) -> Mixer:
    """causal: by default the first of its directions."""
    causal = MIXERS[name].directions[0] if causal is None else causal
    engine = options.get("engine")
    if not causal and isinstance(engine, dict):  # a plan is for causal kernels only, and refused for others
        options = {**options, "engine": {k: v for k, v in engine.items() if k not in ("spacing", "width")}}
    return MIXERS[name](CHANNELS, causal=causal, **options).to(dtype)


def factory(name: str, options: dict[str, Any]) -> testing.Factory:
    """A factory for the checks of `lagwise.testing`, for `CHANNELS`."""
    return lambda channels, causal: make(name, options, causal=causal)


def noise(batch: int, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, length, CHANNELS, dtype=dtype)
