"""Random options of mixers and kernels, for every entry of their tables. New entries need their options here."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from family_options import family_options

from lagwise.kernels import KERNELS
from lagwise.mixers import MIXERS
from lagwise.ops import EXACT_ENGINES
from lagwise.ops.attention import ATTENTION_FUNCTIONS

DECAYS = (0.01, 0.3, 0.9, 0.99, 0.999, 0.9999, 0.99999)
_QUADRATIC = 1000  # tokens of a row for engines of quadratic cost

TWO_SIDED_MIXERS = [name for name, mixer in MIXERS.items() if not mixer.needs_grid and False in mixer.directions]
STREAMING_MIXERS = [name for name, mixer in MIXERS.items() if mixer.streams and True in mixer.directions]

Options = dict[str, Any]


def mixer_options(
    rng: random.Random, name: str, channels: int, *, causal: bool, length: int, double: bool = True
) -> Options:
    """Options of a mixer. double: also options whose gradients may depend on rounding, such as activations with a kink
    and norms of vectors that may be zero."""
    return Draws(rng, channels, causal, length, double).mixers[name]()


class Draws:
    """Random options of every entry of the tables, by name."""

    def __init__(self, rng: random.Random, channels: int, causal: bool, length: int, double: bool):
        self.rng, self.channels, self.causal, self.length, self.double = rng, channels, causal, length, double
        quadratic = () if length <= _QUADRATIC else ("dense", "direct")
        self.engines = [engine for engine in EXACT_ENGINES if engine not in quadratic]
        self.activations = ("relu", "silu", "gelu") if double else ("silu", "gelu")
        self.mixers: dict[str, Callable[[], Options]] = {
            "toeplitz": self.toeplitz,
            "gtu": lambda: {"expansion": rng.choice((1, 2)), **self.toeplitz()},
            "attention": lambda: {"heads": self.divisor(), "position": rng.choice(("alibi", "none"))},
            "ema": lambda: {**self.ema(), "engine": rng.choice(("scan", *self.engines))},
            "tcn": self.tcn,
            "chunked_attention": self.chunked_attention,
            "grid": lambda: {"rows": self.axis(), "columns": self.axis()},
            "gtu2d": lambda: {"expansion": rng.choice((1, 2)), **self.toeplitz()},
            "short_conv": lambda: {"kernel_size": self.centred()},
            **family_options(self),
        }
        self.kernels: dict[str, Callable[[], Options]] = {
            "rpe": self.rpe,
            "free": lambda: {"max_length": length + rng.choice((9, 10, 100)), "decay": rng.choice((*DECAYS, 1.0))},
            "frequency": lambda: {**self.network(), "inputs": rng.choice(("cos", "omega")), "grid": self.skewed(600)},
            "warped": self.warped,
            "ema": self.ema,
            "modal": lambda: {"modes": rng.randint(1, 4)},
            "cema": lambda: {"dimension": rng.randint(1, 4)},
            "s4d": lambda: {**self.diagonal(), "rule": rng.choice(("zoh", "bilinear"))},
            "dss": lambda: {
                **self.diagonal(),
                "normalization": rng.choice(("exp", "softmax")),
                "span": self.skewed(600),
            },
            "s4": lambda: {"modes": rng.randint(1, 4), "span": 2 * self.skewed(300)},
            "sgconv": lambda: {"size": self.skewed(20), "scales": rng.randint(1, 6)},
            "hyena": lambda: {
                "span": 1 + self.skewed(600),
                "hidden": self.skewed(9),
                "layers": rng.randint(0, 3),
                "bands": rng.randint(1, 3),
                "frequency": rng.choice((1.0, 14.0)),
                "shift": rng.choice((0.0, 0.05)),
            },
            "spectral": lambda: {"filters": 3, "span": 2 + self.skewed(300), "alternating": rng.random() < 0.5},
        }

    def diagonal(self) -> Options:
        return {"modes": self.rng.randint(1, 4), "start": self.rng.choice(("lin", "inv", "legs"))}

    def toeplitz(self) -> Options:
        name = self.rng.choice(list(KERNELS))
        kernel = {"name": name, **self.kernels[name]()}
        engines = self.engines.copy()
        if self.causal or KERNELS[name].continuous:
            engines += ["ski"] * 3
        engine: Any = self.rng.choice(engines)
        if engine == "ski" and self.rng.random() < 0.8:
            engine = {"name": "ski", **(self.causal_ski() if self.causal else self.two_sided_ski())}
        if "shift" in kernel and "ski" in str(engine) and not self.causal:
            kernel["shift"] = 0.0  # others are refused
        return {"kernel": kernel, "engine": engine}

    def axis(self) -> Options:
        name = self.rng.choice(TWO_SIDED_MIXERS)
        return {"name": name, **self.mixers[name]()}

    def causal_ski(self) -> Options:
        if self.rng.random() < 0.1:
            return {"tolerance": self.rng.choice((0.1, 0.01))}
        spacing, degree = self.skewed(12), self.rng.choice((1, 1, 3, 5))
        return {"spacing": spacing, "degree": degree, "width": spacing * (degree + 1) + self.skewed(64)}

    def two_sided_ski(self) -> Options:
        return {"rank": self.rng.randint(2, 80), "degree": self.rng.randint(0, 4)}

    def rpe(self) -> Options:
        learned = self.rng.random() < 0.3
        return {
            **self.network(),
            "inputs": self.rng.choice(("integer", "normalized", "sincos")),
            "scale": self.skewed(600),
            "decay": self.rng.choice(DECAYS if learned else (0.0, *DECAYS, 1.0)),
            "learn_decay": learned,
        }

    def network(self) -> Options:
        activation = self.rng.choice((*self.activations, "tanh", "none"))
        return {"hidden": 2 * self.rng.randint(1, 6), "layers": self.rng.randint(0, 3), "activation": activation}

    def warped(self) -> Options:
        decay, size = self.rng.choice(DECAYS), self.rng.choice((0, self.skewed(40)))
        return {"points": self.skewed(64), "decay": decay, "filter_size": size}

    def ema(self) -> Options:
        return {"dimension": self.rng.randint(1, 5), "truncation": self.rng.choice((None, None, self.skewed(600)))}

    def tcn(self) -> Options:
        size, residual = self.rng.randint(1, 9), self.rng.random() < 0.5
        return {
            "kernel_size": size if self.causal else size | 1,
            "dilation": self.rng.randint(1, 5),
            "depth": self.rng.randint(1, 4),
            "convolutions": self.rng.randint(1, 3),
            "activation": self.rng.choice((*self.activations, "none")),
            # The norm of one channel is its sign.
            "norm": self.rng.choice(("none", "rms") if (residual and self.channels > 1) or self.double else ("none",)),
            "residual": residual,
        }

    def chunked_attention(self) -> Options:
        heads = self.divisor()
        even = self.channels // heads % 2 == 0
        return {
            "heads": heads,
            "chunk": self.skewed(300),
            "evaluation_chunk": self.rng.choice((None, self.skewed(300))),
            "function": self.rng.choice(ATTENTION_FUNCTIONS),
            "position": self.rng.choice(("none", "simple", *(("rope", "rotary") if even else ()))),
            "sliding": self.causal and self.rng.random() < 0.5,
        }

    def centred(self) -> int:
        """Taps of a short convolution."""
        size = self.rng.randint(1, 5)
        return size if self.causal else size | 1

    def divisor(self) -> int:
        return self.rng.choice([n for n in range(1, self.channels + 1) if self.channels % n == 0])

    def skewed(self, most: int) -> int:
        """From 1 to ``most``; small numbers are as likely as large ones."""
        return int(most ** self.rng.random())
