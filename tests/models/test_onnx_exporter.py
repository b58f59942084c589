"""The ONNX exporter of transformers, which rewrites a model's graph before conversion."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import tiny


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["mega-lm", "megalodon-lm", "tnn-lm", "fd-tnn-lm", "ski-tnn-lm", "tcnca-lm"])
def test_the_exported_file_gives_the_models_logits(recipe: str) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter

    model, ids = tiny(recipe).float().eval(), torch.randint(256, (1, 64))
    inputs: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    exported = OnnxExporter().export(model, inputs, OnnxConfig())
    with torch.no_grad():
        expected = model(ids).logits
    torch.testing.assert_close(torch.as_tensor(exported(input_ids=ids).logits), expected, rtol=0, atol=1e-4)
