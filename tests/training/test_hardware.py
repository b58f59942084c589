"""The choice of bfloat16 by the speed of this machine's products, and TF32."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lagwise.training import Recipe, machine, train
from lagwise.training.setup import training_arguments


@pytest.fixture(autouse=True)
def uncached() -> Iterator[None]:
    machine.bfloat16_is_fast.cache_clear()
    yield
    machine.bfloat16_is_fast.cache_clear()


def _with(monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], bfloat16: float, float32: float) -> bool:
    seconds = {torch.bfloat16: bfloat16, torch.float32: float32}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(machine, "_product_seconds", seconds.__getitem__)
    return machine.bfloat16_is_fast()


@pytest.mark.parametrize(
    ("capabilities", "bfloat16", "fast"),
    [
        ({"amx_bf16": True, "avx512_bf16": True}, 0.2, True),
        ({"amx_bf16": False, "avx512_bf16": True}, 2.0, False),  # as measured on a Xeon whose AMX was switched off
        ({"amx_bf16": False, "avx512_bf16": False}, 0.2, False),
        ({}, 0.2, False),
    ],
)
def test_bfloat16_needs_instructions_and_speed(
    capabilities: dict[str, bool], bfloat16: float, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _with(monkeypatch, capabilities, bfloat16, float32=1.0) is fast


@pytest.mark.cpu
def test_tf32_is_refused_where_there_is_none(tiny_recipe: Recipe, tmp_path: Path) -> None:
    tiny_recipe.training.tf32 = True
    with pytest.raises(ValueError, match=r"`tf32` needs an NVIDIA Ampere"):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_float16_is_refused_without_a_gpu(tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    tiny_recipe.training.precision = "float16"
    with pytest.raises(ValueError, match=r"`precision=float16` needs an NVIDIA GPU"):
        train(tiny_recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("precision", "bf16", "fp16"), [("float16", False, True), ("bfloat16", True, False), ("float32", False, False)]
)
def test_a_precision_is_passed_on(tiny_recipe: Recipe, tmp_path: Path, precision: str, bf16: bool, fp16: bool) -> None:
    tiny_recipe.training.precision = precision
    arguments = training_arguments(tiny_recipe, tmp_path / "run")
    assert (arguments.bf16, arguments.fp16) == (bf16, fp16)


def test_tf32_is_passed_on(tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: True)
    monkeypatch.setattr("transformers.training_args.enable_tf32", asked.append)
    tiny_recipe.training.tf32, tiny_recipe.training.precision = True, "float32"
    training_arguments(tiny_recipe, tmp_path / "run")
    assert asked == [True]
    tiny_recipe.training.tf32 = False
    assert training_arguments(tiny_recipe, tmp_path / "run").tf32 is None
