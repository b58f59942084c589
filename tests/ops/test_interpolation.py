"""Interpolation against Lagrange's formula and its dense matrix."""

from __future__ import annotations

import pytest
import torch

from lagwise.ops import constants
from lagwise.ops.ski import NodeGrid, inducing_grid, interpolation, interpolation_matrix, prolong, restrict, spaced_grid

pytestmark = pytest.mark.usefixtures("uninitialised_is_nan")

GRIDS = [
    *(
        inducing_grid(n, r, d)
        for n, r, d in ((1, 2, 1), (2, 5, 0), (63, 5, 3), (64, 64, 2), (100, 64, 1), (1021, 5, 0))
    ),
    *(spaced_grid(n, h, d) for n, h, d in ((1, 5, 3), (2, 1, 1), (8, 8, 5), (65, 5, 1), (300, 8, 3))),
]


@pytest.mark.covers("SKI-TNN §3.2.1")
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_fast_forms_equal_the_matrix(grid: NodeGrid) -> None:
    """SKI-TNN §3.2.1: W and Wᵀ without the matrix, for values and gradients."""
    w = interpolation_matrix(grid)
    x = torch.randn(2, grid.length, 3, dtype=torch.float64, requires_grad=True)
    z = torch.randn(2, grid.nodes, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(restrict(x, grid), torch.einsum("ip,bic->bpc", w, x), rtol=0, atol=1e-11)
    torch.testing.assert_close(prolong(z, grid), torch.einsum("ip,bpc->bic", w, z), rtol=0, atol=1e-11)
    (dx,) = torch.autograd.grad(restrict(x, grid), x, z.detach())
    (dz,) = torch.autograd.grad(prolong(z, grid), z, x.detach())
    torch.testing.assert_close(dx, prolong(z, grid), rtol=0, atol=1e-11)
    torch.testing.assert_close(dz, restrict(x, grid), rtol=0, atol=1e-11)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_polynomials_up_to_the_degree_are_exact(grid: NodeGrid) -> None:
    """Every row has at most degree + 1 non-zeros and reproduces polynomials, which determines Lagrange's weights."""
    w = interpolation_matrix(grid)
    assert (w != 0).sum(1).max() <= grid.degree + 1
    nodes = grid.start + grid.spacing * torch.arange(grid.nodes, dtype=torch.float64)
    tokens = torch.arange(grid.length, dtype=torch.float64)
    for power in range(grid.degree + 1):
        scale = max(1.0, float(nodes.abs().max())) ** power
        torch.testing.assert_close(w @ nodes**power / scale, tokens**power / scale, rtol=0, atol=1e-11)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="rank"):
        inducing_grid(10, 1)
    with pytest.raises(ValueError, match="odd"):
        spaced_grid(10, 4, 2)
    grid = spaced_grid(10, 4)
    with pytest.raises(ValueError, match="10 tokens, got 9"):
        restrict(torch.zeros(1, 9, 2), grid)
    with pytest.raises(ValueError, match="nodes"):
        prolong(torch.zeros(1, 9, 2), grid)


def test_weights_of_a_grid_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are first needed in inference mode, and then in training."""
    made, compute = [], interpolation._block_weights
    monkeypatch.setattr(interpolation, "_block_weights", counted := lambda grid: made.append(grid) or compute(grid))
    x = torch.randn(1, 40, 3)
    with torch.inference_mode():
        first = restrict(x.clone(), spaced_grid(40, 4))
    again = restrict(x.requires_grad_(), spaced_grid(40, 4))
    again.sum().backward()
    assert len(made) == 1
    assert torch.equal(first, again.detach())
    restrict(x.double(), spaced_grid(40, 4))
    assert len(made) == 2
    for length in range(41, 60):
        restrict(torch.randn(1, length, 3), spaced_grid(length, 4))
    assert constants._cache(counted).cache_info().currsize == constants._MAX_CACHED
