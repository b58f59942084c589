"""Statistics and plots of kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lagwise.analysis import LayerKernel, learned_kernels
from lagwise.analysis.kernels import kernel_curves, kernel_matrices
from lagwise.mixers import ToeplitzMixer
from lagwise.tasks.figures import length_curve, metric_curve


def test_learned_kernels_equal_the_mixers_taps() -> None:
    model = torch.nn.Sequential(ToeplitzMixer(3), ToeplitzMixer(2, causal=False))
    one, two = learned_kernels(model, 50)
    np.testing.assert_allclose(one.taps, model[0].kernel.taps(50).detach(), rtol=1e-6)
    np.testing.assert_allclose(two.taps, model[1].kernel.taps(50).detach(), rtol=1e-6)
    assert (one.origin, two.origin) == (0, 49)


@pytest.mark.covers("TNN fig. 3")
def test_energy_and_matrix() -> None:
    kernel = LayerKernel("0", np.array([[3.0, 0.0, -4.0, 0.0]]))
    assert kernel.energy_within(0.3) == 1
    assert kernel.energy_within(0.5) == 3
    assert kernel.matrix(3).tolist() == [[3, 0, 0], [0, 3, 0], [4, 0, 3]]
    assert kernel.matrix(6)[5].tolist() == [0, 0, 0, 4, 0, 3]


@pytest.mark.covers("TNN fig. 1 and 3")
def test_plotted_curves_have_the_kernels_values() -> None:
    scores = [{"length": n, "bits_per_byte": b} for n, b in ((512, 2.0), (1024, 1.9))]
    line = length_curve(scores, "bits_per_byte", "bits per byte", trained_at=512).axes[0].lines[0]
    assert line.get_xydata().tolist() == [[512, 2.0], [1024, 1.9]]
    metrics = [{"step": 1, "loss": math.log(2)}, {"step": 1, "eval_bits_per_byte": 1.5}]
    train, valid = metric_curve(metrics, "bits_per_byte", "bits per byte").axes
    assert train.lines[0].get_xydata().tolist() == [[1, math.log(2)]]
    assert valid.lines[0].get_xydata().tolist() == [[1, 1.5]]
    kernel = LayerKernel("0", np.array([[3.0, 0.0, -4.0, 0.0]]))
    assert kernel_curves([kernel]).axes[0].lines[-2].get_ydata().tolist() == [3, 0, 4, 0]
    assert (
        kernel_matrices([kernel], size=3).axes[0].images[0].get_array().filled(0).tolist() == kernel.matrix(3).tolist()
    )
    nothing = kernel_matrices([LayerKernel("0", np.zeros((1, 4)))])
    nothing.canvas.draw()
    assert nothing.axes[0].images[0].get_array().mask.all()
