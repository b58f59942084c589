"""What a layer's training step would do on a GPU, counted on a device that does nothing."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from needs import needs_compiler

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


SCRIPT = """
import json, os
import gpu_counts
import torch
from steps.counting import count_step

class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 8))

    def forward(self, x):
        return (x @ self.weight).sum()

gpu_counts.pretend_triton()
product = count_step(Product, lambda: {"x": torch.ones(16, 4)}, half=False)
layer, megalodon = (gpu_counts.layer_counts(name, 64, 2, 64) for name in ("tnn-lm", "megalodon-lm"))
print(json.dumps([[product.calls, product.bytes, product.flops, product.waits], layer, megalodon]), flush=True)
os._exit(0)
"""


GRAPHS = """
import json, os
import gpu_counts, gpu_graphs
import torch
from steps.compiled_counts import count_compiled

class Product(torch.nn.Module):
    def __init__(self, on_host):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(256, 256))
        self.on_host = on_host

    def forward(self, x):
        y = (x.sin() + 1) @ self.weight
        y = y.cos().unflatten(1, (-1, 4))
        return (y * torch.tensor([1.0, 2.0, 3.0, 4.0], device="cpu").to(y.device) if self.on_host else y).sum()

gpu_counts.pretend_triton()
found = []
for on_host in (False, True):
    count = count_compiled(lambda: Product(on_host), lambda: {"x": torch.ones(64, 256)}, half=False)
    found.append([count.calls, count.waits, count.graphs, count.refused])
for name in MODELS:
    found.append([name, gpu_graphs.graph_counts(name, 64, 2, 256)])
print(json.dumps(found), flush=True)
os._exit(0)
"""
pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="the device is for PyTorch without CUDA")


def output_of(script: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=BENCHMARKS, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@needs_compiler
def test_counts() -> None:
    product, layer, megalodon = output_of(SCRIPT)
    # x (16, 4) times the weight (4, 8); its sum; a one; the weight's gradient from x and one number.
    sizes = [(16 * 4 + 4 * 8 + 16 * 8), (16 * 8 + 1), 1, (16 * 4 + 1 + 4 * 8)]
    assert product == [4, 4 * sum(sizes), 2 * 2 * 16 * 4 * 8, 0]
    assert (layer["calls"], layer["bytes"], layer["waits"]) == (57, 3553672, 0)
    assert (layer["flops"], layer["peak"]) == (22151168, 431744)
    assert megalodon["calls"] <= 190
    assert megalodon["waits"] == 0


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_compiled_steps_can_be_cuda_graphs() -> None:
    """Their host waits for nothing and copies nothing, and their kernels have no complex numbers."""
    models = (
        "tnn-lm",
        "fd-tnn-lm",
        "ski-tnn-lm",
        "mega-lm",
        "megalodon-lm",
        "tcnca-lm",
        "best-lm",
        "transformer-alibi-lm",
    )
    plain, on_host, *layers = output_of(GRAPHS.replace("MODELS", repr(models)))
    # forward: sin and sum, product, cos and sum; backward: sin of y and its product with the gradient, product; x again
    assert plain[1:] == [0, 2, None]
    assert 5 <= plain[0] <= 7
    assert on_host[1] > 0
    for name, found in layers:
        assert (found["waits"], found["complex"], found["refused"]) == (0, 0, None), name
        assert found["graphs"] == 2
