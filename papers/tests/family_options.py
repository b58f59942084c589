"""Random options of the mixers of other papers, for the fuzz of all mixers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_QUADRATIC = 1000  # tokens of a row for forms of quadratic cost


def family_options(draws: Any) -> dict[str, Callable[[], dict[str, Any]]]:
    """Draw options, by the name of a mixer. draws: `options.Draws` of tests/fuzz."""
    return {
        "hyena": lambda: {
            "order": draws.rng.randint(1, 3),
            "short": draws.centred(),
            "first_gate": draws.rng.random() < 0.5,
            "short_bias": draws.rng.random() < 0.5,
            **draws.toeplitz(),
        },
        "linear_attention": lambda: linear_attention(draws),
        "lru": lambda: {"states": draws.rng.randint(1, 6), "most_angle": draws.rng.choice((0.1, 6.0))},
        "s5": lambda: {"modes": draws.rng.randint(1, 4)},
        "gss": lambda: {
            "expansion": draws.rng.choice((1, 2)),
            "contraction": draws.rng.choice((0.6, 1)),
            **draws.toeplitz(),
        },
        "flash": lambda: {"chunk": draws.skewed(300), "query_size": 2 * draws.rng.randint(1, 3)},
        "gmlp": lambda: {
            **longest(draws),
            "expansion": draws.rng.choice((6, 8)),
            "matrix": "toeplitz" if draws.length > _QUADRATIC else draws.rng.choice(("toeplitz", "dense")),
        },
        "synthesizer": lambda: {
            **longest(draws),
            "heads": 1 if draws.length > _QUADRATIC else draws.divisor(),
            "form": draws.rng.choice(("dense", "random")) if draws.double and draws.length <= _QUADRATIC else "random",
        },
        "long_short": lambda: {
            "heads": draws.divisor(),
            "window": max(draws.length // 50 + 1, draws.skewed(300)),
            "rank": draws.rng.randint(1, 3),
            "position": draws.rng.choice(("alibi", "none")),
        },
        "relative_attention": lambda: {"heads": draws.divisor(), "memory": draws.skewed(300)},
        "caracal": lambda: {"heads": draws.divisor(), "short": draws.skewed(9)},
        "toeplitz_heads": lambda: {"heads": draws.divisor(), **draws.toeplitz()},
        "fnet": dict,
        "gfnet": lambda: {
            "height": draws.length + draws.rng.randint(0, 3),
            "width": draws.length + draws.rng.randint(0, 3),
        },
        "afno": lambda: afno(draws),
        "afno2d": lambda: afno(draws),
    }


def afno(draws: Any) -> dict[str, Any]:
    threshold = draws.rng.choice((0.0, 0.01)) if draws.double else 0.0  # a kink
    return {"heads": draws.divisor(), "threshold": threshold, "activation": draws.rng.choice(draws.activations)}


def linear_attention(draws: Any) -> dict[str, Any]:
    # In float32 it is rounding that decides the sign of what relu takes.
    maps = ("elu", "favor", *(("cosformer",) if draws.double else ()))
    return {
        "heads": draws.divisor(),
        "feature_map": draws.rng.choice(maps),
        "span": draws.length + 9 + draws.skewed(600),
        "count": draws.skewed(30),
    }


def longest(draws: Any) -> dict[str, Any]:
    return {"max_length": draws.length + draws.skewed(100)}
