"""Diagonal state spaces: taps, steps and blocks agree, and reductions are within the bounds of dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from lagwise.kernels import FreeKernel, ModalKernel, RPEKernel
from lagwise.ops import Modes, reduce_taps, toeplitz_product
from lagwise.ops.recurrence import DiagonalSSM, modal_taps
from lagwise.ops.recurrence.state_space import largest_difference

CHANNELS, MODES = 3, 4


def prefill(x: Tensor, modes: Modes, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The outputs, and the state ``(batch, 2 modes, channels)``, real above imaginary parts."""
    ssm = DiagonalSSM.of(modes)
    y, after = ssm.prefill(x, ssm.start(len(x)) if state is None else state.chunk(2, 1), modes.blocks)
    return y, torch.cat(after, 1)


def some_modes(*, slowest: float = 0.999) -> Modes:
    """Slow, fast, real, negative and vanishing poles."""
    size = torch.rand(CHANNELS, MODES, dtype=torch.float64) * slowest
    size[:, 0] = slowest
    angle = torch.rand(CHANNELS, MODES, dtype=torch.float64) * torch.pi
    angle[0, 1], angle[0, 2], size[1, 2] = 0, torch.pi, 0
    return Modes(
        torch.polar(size, angle),
        torch.randn(CHANNELS, MODES, dtype=torch.complex128),
        torch.randn(CHANNELS, dtype=torch.float64),
    )


def signal(length: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, CHANNELS, dtype=torch.float64)


def dense_hankel(taps: Tensor) -> np.ndarray:
    n = len(taps) - 1
    return np.array([[float(taps[i + j + 1]) if i + j < n else 0.0 for j in range(n)] for i in range(n)])


def measured_error(taps: Tensor, modes: Modes, points: int = 1 << 14) -> np.ndarray:
    """Largest ``|K - K^|``, with K^ in closed form."""
    z = np.exp(-2j * np.pi * np.arange(points) / points)
    poles, weights, direct = (t.cpu().numpy() for t in modes)
    found = direct[:, None] + sum(
        (w / (1 - p * z) + w.conj() / (1 - p.conj() * z)) / 2
        for p, w in zip(poles.T[..., None], weights.T[..., None], strict=True)
    )
    return abs(np.fft.fft(taps.cpu().numpy(), points) - found).max(1)


def test_taps_equal_their_definition() -> None:
    modes = some_modes()
    for length in (1, 2, 3, 5, 64, 1000):
        written_out = torch.stack([(modes.weights * modes.poles**lag).sum(1).real for lag in range(length)], 1)
        written_out[:, 0] = modes.weights.sum(1).real + modes.direct  # 0**0 is 1 here
        torch.testing.assert_close(modal_taps(modes, length), written_out, rtol=1e-11, atol=1e-11)
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        modal_taps(modes, 0)


def test_long_float32_taps_are_exact_for_rounded_poles() -> None:
    modes = some_modes(slowest=0.9999).to(torch.float32)
    exact = modal_taps(modes.to(torch.float64), 100_000)
    assert (modal_taps(modes, 100_000) - exact).abs().max() < 1e-6 * exact.abs().max()


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 128, 1000, 1021])
@pytest.mark.usefixtures("uninitialised_is_nan")
def test_steps_blocks_and_taps_agree(length: int) -> None:
    modes, x = some_modes(), signal(length)
    expected = toeplitz_product(x, modal_taps(modes, length), engine="dense")
    y, end = prefill(x, modes, None)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-10)
    ssm = DiagonalSSM.of(modes)
    state, steps = ssm.start(2), []
    for token in x.unbind(1):
        out, state = ssm.step(token, state)
        steps.append(out)
    torch.testing.assert_close(torch.stack(steps, 1), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.cat(state, 1), end, rtol=0, atol=1e-10)
    graph, state = ssm.in_graph(x, ssm.start(2))
    torch.testing.assert_close(graph, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(torch.cat(state, 1), end, rtol=0, atol=1e-10)


def test_random_chunks_equal_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    modes, x = some_modes(), signal(1500)
    whole, end = prefill(x, modes, None)
    monkeypatch.setattr("lagwise.ops.recurrence.diagonal._SIGNAL_ELEMENTS", 1000)  # few tokens at a time
    with torch.inference_mode():
        state, parts = None, []
        for part in x.split([1, 300, 63, 1, 64, 700, 300, 71], dim=1):
            y, state = prefill(part, modes, state)
            parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-10)
    assert state is not None
    torch.testing.assert_close(state, end, rtol=0, atol=1e-10)


def test_gradcheck() -> None:
    leaves = [t.detach().requires_grad_() for t in (signal(5, 1), *some_modes(slowest=0.9))]
    state = torch.randn(1, 2 * MODES, CHANNELS, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *m: modal_taps(Modes(*m), 5), leaves[1:])
    inputs = (leaves[0], state, *leaves[1:])
    assert torch.autograd.gradcheck(lambda x, s, *m: prefill(x, Modes(*m), s), inputs)
    assert torch.autograd.gradgradcheck(lambda x, s, *m: prefill(x, Modes(*m), s), inputs, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_precision_follows_the_modes(dtype: torch.dtype, device: torch.device) -> None:
    modes, x = some_modes().to(torch.float32), signal(100).to(dtype)
    with torch.autocast(device.type, torch.bfloat16):
        y, state = prefill(x, modes)
        exact = prefill(x.double(), modes.to(torch.float64))[0]
    assert (y.dtype, state.dtype) == (torch.float32, torch.float32)
    assert (y - exact).abs().max() < exact.abs().max() * 1e-5


def test_a_sum_of_modes_is_recovered() -> None:
    poles = torch.tensor([[0.9 * np.exp(0.7j), 0.8, -0.6], [0.95 * np.exp(2j), 0, 0]], dtype=torch.complex128)
    weights = torch.tensor([[1 - 2j, 1, -1], [2, 0, 0]], dtype=torch.complex128)
    taps = modal_taps(Modes(poles, weights, torch.tensor([3.0, -1.0], dtype=torch.float64)), 400)
    found = reduce_taps(taps, 1e-6)
    assert found.order.tolist() == [4, 2]
    torch.testing.assert_close(modal_taps(found.modes, 400), taps, rtol=0, atol=1e-6)
    assert found.modes.poles.shape == (2, 3)  # the pair once
    nearest = (found.modes.poles[0][:, None] - poles[0]).abs().amin(0)
    assert nearest.max() < 1e-6


@pytest.mark.parametrize("n", [30, 60, 200])
def test_bounds_equal_those_from_dense_singular_values(n: int) -> None:
    taps = torch.randn(4, n, dtype=torch.float64) * 0.7 ** torch.arange(n)
    found = reduce_taps(taps, 1e-2, max_order=n)
    error, gain = measured_error(taps, found.modes), measured_error(taps, some_modes_of_nothing(4))
    np.testing.assert_allclose(found.gain.cpu(), gain, rtol=1e-3)
    np.testing.assert_allclose(found.error.cpu(), error, rtol=0.05)
    for c in range(4):
        values = np.linalg.svd(dense_hankel(taps[c]), compute_uv=False)
        s = int(found.order[c])
        assert -1e-12 <= float(found.bound[c]) - 2 * values[s:].sum() < 3e-4  # what float32 rounds is in the bound
        assert values[s] <= found.error[c] <= 1e-2 * gain[c] * 1.001 < 2 * values[s - 1 :].sum()
    assert (found.error <= found.bound).all()
    longer = modal_taps(found.modes, 4000)
    longer[:, :n] -= taps
    assert (longer.abs().amax(1) <= found.error * (1 + 1e-4)).all()
    assert (longer.abs().sum(1) <= found.l1_error * (1 + 1e-4)).all()
    assert (found.error <= found.l1_error * (1 + 1e-9)).all()


def some_modes_of_nothing(channels: int) -> Modes:
    none = torch.zeros(channels, 1, dtype=torch.complex128)
    return Modes(none, none, torch.zeros(channels, dtype=torch.float64))


def test_the_bound_between_points_of_the_transform_is_reached() -> None:
    """By ``1 - z**8``, whose largest values are all halfway between two points."""
    none = torch.zeros(1, 0, dtype=torch.complex128)
    nothing = Modes(none, none, torch.zeros(1, dtype=torch.float64))
    taps = torch.tensor([1.0, *[0.0] * 7, -1.0], dtype=torch.float64)
    assert largest_difference(taps, nothing)[0] == pytest.approx(2.0)


def test_irreducible_kernels_are_refused_with_errors() -> None:
    noise = torch.randn(2, 400)
    with pytest.raises(
        ValueError, match=r"channel 0 needs at least \d{3} states for tolerance 0.001, max_order is 100; raise"
    ):
        reduce_taps(noise)
    with pytest.raises(ValueError, match=r"channel 0 .* states .*for tolerance 0.01, max_order is 10"):
        reduce_taps(FreeKernel(2, max_length=2000, decay=1.0).taps(2000), 1e-2, max_order=10)
    with pytest.raises(ValueError, match=r"channel 0 is off by .* of its gain with 29 states in float32, too much"):
        reduce_taps(torch.eye(30)[-1:], max_order=30)  # a delay: 29 equal singular values, all poles at 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"taps": torch.zeros(3)}, "taps must be"),
        ({"taps": torch.zeros(3, 0)}, "taps must be"),
        ({"taps": torch.full((1, 3), torch.nan)}, "taps must be finite"),
        ({"taps": torch.zeros(1, 3), "tolerance": 0.0}, "tolerance must be in"),
        ({"taps": torch.zeros(1, 3), "max_order": 0}, "max_order must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reduce_taps(**arguments)


def test_zeros_single_taps_and_two() -> None:
    found = reduce_taps(torch.zeros(2, 50))
    assert found.order.tolist() == [0, 0]
    assert torch.equal(modal_taps(found.modes, 9), torch.zeros(2, 9, dtype=torch.float64))
    taps = torch.randn(3, 1).double()  # direct is a float32 number
    found = reduce_taps(taps)
    assert found.order.tolist() == [0, 0, 0]
    assert torch.equal(modal_taps(found.modes, 1), taps)
    two = reduce_taps(torch.tensor([[1.0, 2.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64))
    assert two.order.tolist() == [1, 0]
    # A pole at 0 has moved to where float32 can hold its weight; the bound knows.
    expected = torch.tensor([[1.0, 2.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(modal_taps(two.modes, 3), expected, rtol=0, atol=3e-3)
    assert (two.error <= two.bound).all()


def reduced() -> tuple[Tensor, Modes]:
    taps = RPEKernel(CHANNELS).double().taps(2000).detach()
    return taps, reduce_taps(taps).modes


@pytest.mark.parametrize("length", [4_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_float32_steps_stay_accurate(length: int) -> None:
    """For a constant and for noise."""
    taps, modes = reduced()
    x = torch.cat([torch.ones(1, length, CHANNELS), torch.randn(1, length, CHANNELS)])
    single, outputs = DiagonalSSM.of(modes.to(torch.float32)), []
    state = single.start(2)
    with torch.inference_mode():
        for token in x.unbind(1):
            y, state = single.step(token, state)
            outputs.append(y)
        exact = prefill(x.double(), modes, None)[0]
    steps, whole = torch.stack(outputs, 1), toeplitz_product(x.double(), taps)
    assert steps.isfinite().all()
    for row, near, product in zip(steps, exact, whole, strict=True):
        assert (row - near).abs().max() < 1e-4 * near.abs().max()
        assert (row - product).abs().max() < 1e-2 * product.abs().max()


def test_many_tokens_by_blocks() -> None:
    _, modes = reduced()
    x = torch.randn(1, 200_000, CHANNELS)
    with torch.inference_mode():
        y, _ = prefill(x, modes.to(torch.float32), None)
        end, _ = prefill(x[:, -20_000:].double(), modes, None)
    assert y.isfinite().all()
    assert (y[:, -10_000:] - end[:, -10_000:]).abs().max() < 1e-4 * end.abs().max()


@pytest.mark.slow
def test_certified_errors_are_those_of_the_float32_kernel() -> None:
    """For slow oscillations at high frequency, rounding a pole by 1e-7 changes its gain far more."""
    lags = torch.arange(6000, dtype=torch.float64)
    taps = (0.998**lags * torch.cos(2.7 * lags))[None]
    found = reduce_taps(taps, 1e-3)
    kernel = ModalKernel(1, modes=found.modes.poles.shape[1])
    kernel.load_modes(found.modes)
    difference = torch.nn.functional.pad(taps, (0, 30000)) - kernel.taps(36000).double().detach()
    assert torch.fft.rfft(difference).abs().max() <= found.error[0] * (1 + 1e-3)
    assert 1e-7 * found.gain[0] < found.error[0] <= 1e-3 * found.gain[0]
