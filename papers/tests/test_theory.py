"""SKI-TNN's theorems, checked for this implementation, and where they fail as printed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lagwise.ops.ski import inducing_grid, interpolation_matrix
from lagwise_papers.theory import (
    curved_share,
    decay_order,
    random_responses,
    ski_error_bound,
    smooth_kernel,
)
from lagwise_papers.theory_figures import plot_theory


@pytest.mark.covers("SKI-TNN th. 1")
@pytest.mark.parametrize("degree", [1, 3])
@pytest.mark.parametrize("rank", [8, 16, 32])
def test_theorem_1_holds(degree: int, rank: int) -> None:
    """SKI-TNN th. 1: the error is within the bound."""
    result = ski_error_bound(rank=rank, degree=degree)
    assert 0 < result.error <= result.bound
    assert result.nystrom <= result.bound


@pytest.mark.covers("SKI-TNN th. 1")
def test_theorem_1s_error_equals_the_error_of_the_matrices() -> None:
    result = ski_error_bound(length=64, rank=16)
    tokens = torch.arange(64, dtype=torch.float64)
    matrix = smooth_kernel(tokens[:, None] - tokens[None, :])
    grid = inducing_grid(64, 16)
    w, p = interpolation_matrix(grid), grid.spacing * torch.arange(16, dtype=torch.float64)
    low = w @ smooth_kernel(p[:, None] - p[None, :]) @ w.t()
    u, s, vt = np.linalg.svd(matrix.numpy())
    best = u[:, :16] * s[:16] @ vt[:16]
    assert abs(result.error - np.linalg.norm(low.numpy() - best, 2)) < 1e-9
    assert abs(result.matrix - s[0]) < 1e-9


def test_theorem_1_is_vacuous_for_a_smooth_kernel() -> None:
    """The bound grows with the rank and exceeds the norm of the matrix, while the error falls as h²."""
    results = [ski_error_bound(rank=rank) for rank in (16, 32, 64)]
    assert all(r.bound > r.matrix for r in results)
    assert results[1].bound > 1e6 * results[0].bound
    assert results[0].error > 3 * results[1].error > 9 * results[2].error


@pytest.mark.covers("SKI-TNN th. 2 to 4, fig. 4 to 6 and app. E.3")
@pytest.mark.parametrize("activation", ["gelu", "silu", "relu"])
def test_taps_from_the_published_input_decay_as_one_over_lag_squared(activation: str) -> None:
    """SKI-TNN th. 2, 3 and 4 with the published input: the even extension has kinks, which determine the decay."""
    _, taps = random_responses(activation, "omega")
    assert 1.5 < decay_order(taps, 32, 1000) < 2.6
    assert np.abs(taps[:, 512]).max() > 1e-7


@pytest.mark.covers("SKI-TNN th. 2 and 3")
@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_taps_from_the_cosine_decay_as_the_theorems_state(activation: str) -> None:
    """SKI-TNN th. 2 and 3 with the input cos(omega): taps of smooth activations are below rounding by lag 128."""
    _, taps = random_responses(activation, "cos")
    assert np.abs(taps[:, 128:]).max() < 1e-15
    assert decay_order(taps) > 6


@pytest.mark.covers("SKI-TNN th. 4")
def test_taps_of_relu_are_square_summable() -> None:
    """SKI-TNN th. 4: kinks in the response make taps fall as 1 / lag², which is stronger than the theorem requires."""
    _, taps = random_responses("relu", "cos")
    assert decay_order(taps, 32, 1000) > 1.4


@pytest.mark.covers("SKI-TNN prop. 1")
def test_proposition_1_needs_a_network_without_norm() -> None:
    """SKI-TNN prop. 1: without a norm, a finer grid has a smaller share of kinks; with a norm, the function is curved
    everywhere."""
    assert curved_share(normalize=False, points=8192) < 0.3 * curved_share(normalize=False, points=1024)
    assert curved_share(normalize=True, points=8192) > 0.99


@pytest.mark.slow
def test_figures_are_drawn(tmp_path: Path) -> None:
    written = plot_theory(tmp_path / "theory")
    assert [path.name for path in written] == ["theorem-1.png", "theorems-2-to-4.png", "proposition-1.png"]
    assert all(path.stat().st_size > 10_000 for path in written)
