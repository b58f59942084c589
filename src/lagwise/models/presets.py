"""Models by one word: the block of each family, with sizes for a laptop."""

from __future__ import annotations

from typing import Any

_TCN = {"name": "tcn", "kernel_size": 5, "dilation": 3, "depth": 5}
_MLP = {"name": "mlp", "expansion": 1, "activation": "silu"}
_MEGA = {"query_size": 32, "value_size": 192, "chunk": 128, "channel_mixer": _MLP}


def _tnn(kernel: dict[str, Any], *, grid: bool = False, **engine: Any) -> dict[str, Any]:
    expansion = 2 if grid else 1
    gtu = {"name": "gtu2d" if grid else "gtu", "expansion": expansion, "kernel": kernel, **engine}
    return {"block": {"name": "prenorm", "token_mixer": gtu, "channel_mixer": {"name": "glu", "expansion": expansion}}}


#: Fields of `LagwiseConfig` for each word; ``hidden_size`` and ``num_hidden_layers`` come from the recipe.
PRESETS: dict[str, dict[str, Any]] = {
    "tnn": _tnn({"name": "rpe", "layers": 3, "hidden": 32}),
    "fd-tnn": _tnn({"name": "frequency", "layers": 3, "hidden": 32}),
    "ski-tnn": _tnn({"name": "warped", "filter_size": 32}, engine="ski"),
    "mega": {"norm": "layer", "block": {"name": "mega", "memory": {"name": "ema", "dimension": 16}, **_MEGA}},
    "megalodon": {
        "norm": {"name": "timestep", "groups": 4},
        "block": {
            "name": "megalodon",
            "memory": {"name": "toeplitz", "kernel": {"name": "cema", "dimension": 16}},
            **_MEGA,
            "groups": 4,
            "channel_mixer": {**_MLP, "bias": False},
        },
    },
    "tcnca": {"norm": "layer", "block": {"name": "mega", "memory": _TCN, **_MEGA}},
    "tcn-mlp": {
        "norm": "layer",
        "block": {
            "name": "prenorm",
            "norm": "layer",
            "token_mixer": {**_TCN, "norm": "rms"},
            "channel_mixer": {"name": "mlp", "expansion": 2},
        },
    },
    "transformer": {
        "norm": "layer",
        "block": {
            "name": "prenorm",
            "norm": "layer",
            "token_mixer": {"name": "attention", "heads": 4, "position": "alibi"},
            "channel_mixer": {"name": "mlp", "expansion": 2},
        },
    },
}

# reads 15 patches to either side
_AXIS_TCN = {"name": "tcn", "kernel_size": 3, "dilation": 2, "depth": 3, "norm": "rms"}

#: The same words for images, mixed along rows and columns. Attention sees all patches, with positions by row and
#: column. Other words mix over the patches row by row, as over a text.
GRID_PRESETS: dict[str, dict[str, Any]] = {
    "tnn": _tnn({"name": "rpe", "layers": 1, "hidden": 32, "decay": 0.9}, grid=True),
    "fd-tnn": _tnn({"name": "frequency", "layers": 1, "hidden": 32}, grid=True),
    "ski-tnn": _tnn({"name": "warped"}, grid=True, engine="ski"),
    "tcn-mlp": {
        "block": {
            "name": "prenorm",
            "token_mixer": {"name": "grid", "rows": _AXIS_TCN, "columns": _AXIS_TCN},
            "channel_mixer": {"name": "glu", "expansion": 2},
        },
    },
    "transformer": {
        "position_embedding": "sinusoidal_2d",
        "block": {
            "name": "prenorm",
            "token_mixer": {"name": "attention", "heads": 4, "position": "none"},
            "channel_mixer": {"name": "glu", "expansion": 2},
        },
    },
}
