"""How many files a reader opens to follow a call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import lagwise
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.training.recipe import load_recipe

pytestmark = pytest.mark.cpu  # on a GPU other engines serve
# What there was when these were written, to be lowered with the code.
LAYER, TOKEN = 21, 21


def entered(call: Callable[[], Any]) -> set[str]:
    """The library's files whose functions a call enters."""
    root, files = str(Path(lagwise.__file__).parent), set()
    before = sys.gettrace()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename.startswith(root):
            files.add(frame.f_code.co_filename[len(root) + 1 :])

    sys.settrace(note)
    try:
        call()
    finally:
        sys.settrace(before)
    return files


def test_a_layer_and_a_token_enter_few_files() -> None:
    model = LagwiseForCausalLM(LagwiseConfig(vocab_size=257, **load_recipe("tnn-lm").model))
    layer, x = model.model.layers[0], torch.randn(2, 128, model.config.hidden_size, requires_grad=True)
    layer(x)  # C loops are compiled, and plans made, by the first call
    files = entered(lambda: layer(x))
    assert "mixers/toeplitz.py" in files
    assert len(files) <= LAYER, sorted(files)
    ids, cache = torch.randint(0, 256, (1, 8)), model.eval().model.new_cache()
    with torch.no_grad():
        model(ids, cache=cache, use_cache=True)
        model(ids[:, :1], cache=cache, use_cache=True)
        files = entered(lambda: model(ids[:, :1], cache=cache, use_cache=True, logits_to_keep=1))
    assert "ops/streaming/online.py" in files
    assert len(files) <= TOKEN, sorted(files)
