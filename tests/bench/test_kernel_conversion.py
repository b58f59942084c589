"""The benchmark of conversion, for kernels that can be reduced, kernels that cannot, and state spaces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lagwise.data import load_tokenizer
from lagwise.kernels import KERNELS
from lagwise.models import LagwiseConfig, LagwiseForCausalLM


@pytest.fixture
def script(benchmark_script: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_script("kernel_conversion")


def test_every_kernel_is_converted(script: ModuleType) -> None:
    kernels = {spec["kernel"]["name"] for spec in script.mixers().values() if "kernel" in spec}
    assert kernels == set(KERNELS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("mixer", "key"),
    [
        ({"name": "toeplitz", "kernel": {"name": "s4d", "modes": 3}}, "state_space"),
        ({"name": "toeplitz", "kernel": {"name": "rpe", "layers": 1, "hidden": 8, "decay": 0.9}}, "bound"),
        ({"name": "lru"}, "state_space"),
        ({"name": "toeplitz", "kernel": {"name": "free", "max_length": 700, "decay": 1.0}}, "refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_kernel_is_converted_refused_or_streamed_as_it_is(
    script: ModuleType, tmp_path: Path, mixer: dict[str, Any], key: str
) -> None:
    block = {"name": "prenorm", "token_mixer": mixer}
    config = LagwiseConfig(vocab_size=256, hidden_size=4, num_hidden_layers=1, block=block)
    LagwiseForCausalLM(config).save_pretrained(tmp_path)
    load_tokenizer("bytes").save_pretrained(tmp_path)
    row = script.measured(tmp_path, 1e-3)
    assert row["streaming_error"] < 1e-4
    assert row["tokens_per_second"]["before"] > 0
    (layer,) = row.get("layers", [{}])
    if key == "bound":
        assert 0 < layer["error"] < 1e-3
        assert layer["error"] <= layer["bound"]
    else:
        assert row[key]
        assert "after" not in row["tokens_per_second"]
