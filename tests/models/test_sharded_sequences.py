"""Sequences that are split between processes are refused wherever they can be recognised."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import run_together
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from transformers import AutoConfig

from lagwise.models import LagwiseConfig, LagwiseForCausalLM, LagwiseForMaskedLM, LagwiseForPrediction

SIZES: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 50}
ROTATIONS = ("allgather", "alltoall")
REFUSED = "A sequence that is split between processes"


def models() -> list[tuple[Any, dict[str, Tensor]]]:
    """Heads, with inputs of 16 tokens whose dimension 1 can be split in two."""
    ids, encoder = torch.arange(16)[None].repeat(2, 1), {**SIZES, "causal": False}
    attention = {"name": "prenorm", "token_mixer": {"name": "attention", "heads": 2}}
    forecasts = {"inputs": {"name": "values", "features": 4}, "prediction_length": 3}
    return [
        (LagwiseForCausalLM(LagwiseConfig(**SIZES, block=attention)), {"input_ids": ids}),
        (LagwiseForMaskedLM(LagwiseConfig(**encoder)), {"input_ids": ids}),
        (LagwiseForPrediction(LagwiseConfig(**encoder, **forecasts)), {"past_values": torch.randn(2, 16, 1)}),
    ]


def in_a_process() -> None:
    """One of two processes: every model refuses its shard, and works afterwards."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    for rotation in ROTATIONS:
        set_rotate_method(rotation)
        for model, inputs in models():
            (whole,) = inputs.values()
            shape = whole.shape
            with context_parallel(mesh, buffers=[whole], buffer_seq_dims=[1]):
                assert whole.shape[1] == 8
                with pytest.raises(ValueError, match=REFUSED):
                    model(**inputs)
            assert whole.shape == shape
            model(**inputs)
    dist.destroy_process_group()


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_two_processes_refuse_their_shards() -> None:
    assert run_together(in_a_process) == [0, 0]


@pytest.mark.parametrize("causal", [True, False])
def test_programs_that_split_sequences_read_the_types_of_layers(causal: bool, tmp_path: Path) -> None:
    big_modeling = pytest.importorskip("accelerate.big_modeling")
    config = LagwiseConfig(**SIZES, causal=causal)
    model = LagwiseForCausalLM(config) if causal else LagwiseForMaskedLM(config)
    checks = ("_attach_context_parallel_hooks", "_refuse_recurrent_layers_under_sequence_parallelism")
    for check in checks:
        if hasattr(big_modeling, check):  # older releases lack some
            with pytest.raises(ValueError, match="linear_attention"):
                getattr(big_modeling, check)(model)
    config.save_pretrained(tmp_path)
    assert "layer_types" not in (tmp_path / "config.json").read_text()
    assert AutoConfig.from_pretrained(tmp_path).layer_types == ["linear_attention"] * 2


@pytest.mark.parametrize(
    ("position_ids", "mask", "wrong"),
    [
        ([8, 9, 10, 11], None, "8 at token 0"),
        ([0, 1, 6, 7], None, "6 at token 2"),
        ([0, 1, 0, 3], None, "3 at token 3"),
        ([1, 1, 0, 2], [0, 0, 1, 1], "2 at token 3"),
        ([4, 5, 6, 6], [1, 1, 1, 0], "4 at token 0"),
        ([0, 1, 2, 3], None, None),
        ([0, 1, 0, 0], None, None),
        ([0, 0, 0, 1], [0, 0, 1, 1], None),
        ([1, 1, 0, 1], [0, 0, 1, 1], None),
        ([2, 3, 4, 5], [0, 0, 1, 1], None),
        ([0, 1, 9, 9], [1, 1, 0, 0], None),
    ],
)
def test_positions_that_leave_tokens_out_are_refused(
    position_ids: list[int], mask: list[int] | None, wrong: str | None
) -> None:
    """Shards of a process have them, whether they are cut in order or from both ends."""
    model = LagwiseForCausalLM(LagwiseConfig(**SIZES))
    inputs = {"input_ids": torch.arange(4)[None], "position_ids": torch.tensor([position_ids])}
    if mask is not None:
        inputs["attention_mask"] = torch.tensor([mask])
    if wrong is None:
        assert model(**inputs).logits.isfinite().all()
        return
    with pytest.raises(ValueError, match=f"position_ids of row 0 have {wrong}.*{REFUSED}"):
        model(**inputs)
