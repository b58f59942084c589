"""What a layer's training step would do on a GPU, counted on a device that does nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lagwise.compiler import find_compiler

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


SCRIPT = """
import json, os
import gpu_counts
import torch
from lagwise_bench.counting import count_step

class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 8))

    def forward(self, x):
        return (x @ self.weight).sum()

gpu_counts.pretend_triton()
product = count_step(Product, lambda: {"x": torch.ones(16, 4)}, half=False)
layer = gpu_counts.layer_counts("tnn-lm", 64, 2, 64)
print(json.dumps([[product.calls, product.bytes, product.flops, product.waits], layer]), flush=True)
os._exit(0)
"""


@pytest.mark.skipif(find_compiler() is None, reason="the device needs a C++ compiler")
def test_counts() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=BENCHMARKS, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    product, layer = json.loads(done.stdout.splitlines()[-1])
    # x (16, 4) times the weight (4, 8); its sum; a one; the weight's gradient from x and one number.
    sizes = [(16 * 4 + 4 * 8 + 16 * 8), (16 * 8 + 1), 1, (16 * 4 + 1 + 4 * 8)]
    assert product == [4, 4 * sum(sizes), 2 * 2 * 16 * 4 * 8, 0]
    assert (layer["calls"], layer["bytes"], layer["waits"]) == (77, 3682824, 0)
    assert (layer["flops"], layer["peak"]) == (22282240, 444928)
