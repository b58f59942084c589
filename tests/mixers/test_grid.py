"""Mixers on grids, against a dense matrix with four indices, at any height and width, with ragged masks."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from every_mixer import diagonal
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lagwise.kernels import KERNELS
from lagwise.mixers import MIXERS, GridMixer, GTU2d, Mixer, ToeplitzMixer
from lagwise.ops import Layout, toeplitz_matrix
from lagwise.ops.ski import inducing_grid, interpolation_matrix

CHANNELS = 4
SIZES = ((1, 1), (1, 9), (9, 1), (5, 7), (8, 3), (13, 11))
SKI = {"name": "ski", "rank": 4}
# Kernel and engine of an axis.
OPERATORS: list[dict[str, Any]] = [
    *({"kernel": {"name": name}} for name in KERNELS),
    *({"kernel": {"name": "rpe", "layers": 1}, "engine": engine} for engine in ("dense", "fft", "direct")),
    {"kernel": {"name": "frequency", "grid": 5}},  # shorter than some of the axes
    {"kernel": {"name": "warped", "filter_size": 3}, "engine": SKI},
    {"kernel": {"name": "warped", "filter_size": 0}, "engine": {**SKI, "degree": 3}},
    {"kernel": {"name": "rpe", "layers": 1}, "engine": SKI},
]
every_operator = pytest.mark.parametrize("options", OPERATORS, ids=str)
EVERY: list[tuple[str, dict[str, Any]]] = [
    *(("gtu2d", {"expansion": 2, **options}) for options in OPERATORS),
    ("gfnet", {"height": 13, "width": 12}),
    ("afno2d", {"heads": 2}),
    ("afno2d", {"heads": 1, "threshold": 0.0, "activation": "gelu"}),
    ("grid", {}),
    *(
        ("grid", {"rows": {"name": name}})
        for name, mixer in MIXERS.items()
        if not mixer.needs_grid and False in mixer.directions and name != "attention"
    ),
    ("grid", {"rows": {"name": "attention", "heads": 2}, "columns": {"name": "tcn", "depth": 2}}),
    ("grid", {"rows": {"name": "toeplitz", **OPERATORS[-1]}, "columns": {"name": "gtu", "expansion": 1}}),
    ("grid", {"columns": {"name": "chunked_attention", "chunk": 3}}),
]
every_mixer = diagonal(("name", "options"), EVERY)


def make(name: str, options: dict[str, Any]) -> Mixer:
    if name == "grid":  # heads must divide the channels
        options = {
            axis: {**spec, "heads": 2} if "heads" in signature(MIXERS[spec["name"]]).parameters else spec
            for axis, spec in options.items()
        }
    return MIXERS[name](CHANNELS, causal=False, **options).double()


def noise(batch: int, height: int, width: int) -> Tensor:
    return torch.randn(batch, height * width, CHANNELS, dtype=torch.float64)


def matrix(mixer: Mixer, length: int) -> Tensor:
    """The dense matrices ``(channels, length, length)`` of a Toeplitz mixer."""
    assert isinstance(mixer, ToeplitzMixer)
    if mixer.ski is None:
        return toeplitz_matrix(mixer.kernel.taps(length), length, causal=False)
    grid = inducing_grid(length, mixer.ski.rank, mixer.ski.degree)
    w, node = interpolation_matrix(grid), torch.arange(grid.nodes, dtype=torch.float64)
    lags = (grid.spacing * (node[:, None] - node)).flatten()
    smooth = w @ mixer.kernel.smooth_at(lags).unflatten(1, (grid.nodes, grid.nodes)) @ w.t()
    if mixer.kernel.local_taps() is None:
        return smooth
    taps, origin = mixer.kernel.local_taps()
    place = torch.arange(length)
    index = place[:, None] - place + origin
    return smooth + taps[:, index.clamp(0, taps.shape[1] - 1)] * ((index >= 0) & (index < taps.shape[1]))


def dense(rows: Mixer, columns: Mixer, x: Tensor, height: int, width: int) -> Tensor:
    """The sum of both axes as ``T[c, i, j, k, l]``, from position (k, l) to position (i, j)."""
    same_row, same_column = torch.eye(height, dtype=x.dtype), torch.eye(width, dtype=x.dtype)
    t = torch.einsum("ik,cjl->cijkl", same_row, matrix(rows, width))
    t = t + torch.einsum("cik,jl->cijkl", matrix(columns, height), same_column)
    return torch.einsum("cijkl,bklc->bijc", t, x.unflatten(1, (height, width))).flatten(1, 2)


def check_equal(ours: Tensor, wanted: Tensor, inputs: list[Tensor]) -> None:
    """Compare values and gradients."""
    torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-9)
    weight = torch.randn_like(ours)
    gradients = (torch.autograd.grad(y, inputs, weight, materialize_grads=True) for y in (ours, wanted))
    for got, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.covers("SKI-TNN §5.2")
@every_operator
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_gtu2d_equals_its_formula(options: dict, height: int, width: int) -> None:
    """W_o (silu(W_u x) * (TNO_rows + TNO_columns)(silu(W_v x)))."""
    unit = GTU2d(CHANNELS, expansion=1.5, **options).double()
    x = noise(2, height, width).requires_grad_()
    mixed = dense(unit.rows, unit.columns, F.silu(unit.value(x)), height, width)
    expected = unit.out(F.silu(unit.gate(x)) * mixed)
    check_equal(unit(x, layout=Layout(grid=(height, width))), expected, [x, *unit.parameters()])


@every_mixer
def test_padding_of_ragged_grids_has_no_effect(name: str, options: dict) -> None:
    """Images of several sizes are padded on the right and below with NaN. Values and gradients equal those of each
    image alone, and rows and columns of padding are finite."""
    mixer = make(name, options)
    sizes = ((6, 9), (2, 9), (6, 1), (1, 1), (4, 5))
    images = [noise(1, *size).requires_grad_() for size in sizes]
    alone = [mixer(x, layout=Layout(grid=size)) for x, size in zip(images, sizes, strict=True)]
    mask = torch.zeros(len(sizes), 6, 9, dtype=torch.bool)
    for real, (height, width) in zip(mask, sizes, strict=True):
        real[:height, :width] = True
    mask = mask.flatten(1)
    tokens = torch.cat(images, dim=1)[0]
    batch = torch.full((*mask.shape, CHANNELS), float("nan"), dtype=torch.float64)
    batch = batch.masked_scatter(mask[..., None].expand_as(batch), tokens)
    y = mixer(batch, layout=Layout(mask, grid=(6, 9)))
    assert y.isfinite().all()
    check_equal(y[mask], torch.cat(alone, dim=1)[0], [*images, *mixer.parameters()])


@every_mixer
def test_masks_may_have_any_shape(name: str, options: dict) -> None:
    """Values at padding have no effect, wherever it is."""
    mixer = make(name, options)
    mask = torch.rand(3, 30) < 0.5
    mask[1] = False
    mask[2, 12:18] = False  # a row of the grid
    x = noise(3, 5, 6)
    results = []
    for padding in (float("inf"), 7.0):
        batch = x.masked_fill(~mask[..., None], padding).requires_grad_()
        y = mixer(batch, layout=Layout(mask, grid=(5, 6)))
        assert y.isfinite().all()
        (grad,) = torch.autograd.grad(y[mask].square().sum(), batch)
        assert grad[~mask].abs().max() == 0
        results.append((y[mask], grad))
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


@every_mixer
def test_gradcheck_and_state(name: str, options: dict) -> None:
    mixer, other = make(name, options), make(name, options)
    layout = Layout(grid=(2, 3))
    x = noise(1, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: mixer(a, layout=layout), x, fast_mode=True)
    assert not list(mixer.parameters()) or not torch.equal(mixer(x, layout=layout), other(x, layout=layout))
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(mixer(x, layout=layout), other(x, layout=layout))


@every_mixer
def test_second_derivatives_and_vmap(name: str, options: dict) -> None:
    mixer, layout = make(name, options), Layout(grid=(2, 3))
    x = noise(2, 2, 3).requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(lambda a: mixer(a, layout=layout), x[:1], fast_mode=True, atol=1e-4)
        rows = torch.vmap(lambda a: mixer(a[None], layout=layout)[0])(x)
    torch.testing.assert_close(rows, mixer(x, layout=layout), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name, mixer in MIXERS.items() if mixer.needs_grid])
def test_wrong_input_is_named(name: str) -> None:
    kind = MIXERS[name]
    with pytest.raises(ValueError, match=f"{kind.__name__} has no causal form: build it with causal=False"):
        kind(CHANNELS, causal=True)
    mixer, x = kind(8, causal=False), torch.randn(1, 6, 8)
    with pytest.raises(ValueError, match=f"{kind.__name__} needs a grid.* give images"):
        mixer(x)
    with pytest.raises(ValueError, match=r"give images .*one in each row"):
        mixer(x, layout=Layout(seq_idx=torch.tensor([[0, 0, 0, 1, 1, 1]]), grid=(2, 3)))
    with pytest.raises(ValueError, match="a grid of 2 x 2 does not hold 6 tokens"):
        mixer(x, layout=Layout(grid=(2, 2)))
    with pytest.raises(ValueError, match=f"{kind.__name__} is bidirectional: it has no streaming state$"):
        mixer.init_state(1)


def test_wrong_axes_are_named() -> None:
    with pytest.raises(ValueError, match="unknown mixer of rows: 'emma'; did you mean 'ema'"):
        GridMixer(CHANNELS, rows={"name": "emma"})
    with pytest.raises(ValueError, match="unknown mixer of columns: 'gtu2d'"):
        GridMixer(CHANNELS, columns={"name": "gtu2d"})
    with pytest.raises(ValueError, match="expansion must give at least one channel"):
        GTU2d(CHANNELS, expansion=0)
    with pytest.raises(ValueError, match="coefficients for 3 tokens, got a sequence of 4"):
        GTU2d(CHANNELS, kernel={"name": "free", "max_length": 3})(
            torch.ones(1, 8, CHANNELS), layout=Layout(grid=(2, 4))
        )
