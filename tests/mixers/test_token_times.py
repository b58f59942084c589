"""Mixers of tokens that last for different times."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_mixer import CONTINUOUS

from lagwise.mixers import MIXERS, Mixer
from lagwise.ops import Layout
from lagwise.tables import build
from lagwise.testing import check_times, takes_times

COUNTING: dict[str, tuple[dict[str, Any], str]] = {
    "rpe": ({"name": "toeplitz"}, "RPEKernel counts tokens"),
    "softmax": ({"name": "gtu", "kernel": {"name": "dss", "normalization": "softmax"}}, "DSSKernel counts tokens"),
    "ski": ({"name": "toeplitz", "kernel": {"name": "warped"}, "engine": "ski"}, "engine ski counts tokens"),
    "truncation": ({"name": "ema", "truncation": 5}, "truncation counts tokens"),
    "tcn": ({"name": "tcn"}, "TCNMixer counts tokens"),
    "hyena": ({"name": "hyena"}, "counts tokens"),
}


def make(name: str, channels: int = 6, causal: bool = True) -> Mixer:
    return build(MIXERS, dict(CONTINUOUS[name]), channels, what="mixer", causal=causal)


@pytest.mark.parametrize("name", sorted({*CONTINUOUS} - {"kernel ema"}))
def test_times_obey_the_contract(name: str) -> None:
    torch.manual_seed(0)
    for causal in (True, False):
        check_times(lambda channels, causal: make(name, channels, causal), 6, causal)


@pytest.mark.parametrize("name", sorted({*CONTINUOUS} - {"bilinear", "ema", "kernel ema"}))
def test_a_token_of_several_times_is_a_signal_that_is_held(name: str) -> None:
    """As is one that is repeated so often: exactly, as poles have the angles of their parameters, also beyond pi."""
    torch.manual_seed(0)
    mixer = make(name).double()
    x, counts = torch.randn(1, 20, 6, dtype=torch.float64), torch.randint(1, 5, (20,))
    found = mixer(x, layout=Layout(token_time=counts.double()[None]))
    repeated = mixer(x.repeat_interleave(counts, 1))
    torch.testing.assert_close(found, repeated[:, counts.cumsum(0) - 1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_rows_have_steps_of_their_own(name: str, causal: bool) -> None:
    """Each as a mixer of that step has them, padded or not, also for gradients; and where a causal one streams."""
    torch.manual_seed(0)
    mixer = make(name, causal=causal).double()
    x = torch.randn(4, 15, 6, dtype=torch.float64)
    times, lengths = torch.tensor([[2.0], [0.5], [2.0], [1.0]], dtype=torch.float64), (15, 9, 11, 15)
    mask = torch.arange(15) < torch.tensor(lengths)[:, None]
    found = mixer(x, layout=Layout(mask, token_time=times))
    one = [mixer(x[i, None, :n], layout=Layout(token_time=times[i, None])) for i, n in enumerate(lengths)]
    assert all(part.token_time == 1 for part in mixer.modules() if isinstance(part, Mixer))
    parameters = list(mixer.parameters())
    gradients = [
        torch.autograd.grad(y.square().sum(), parameters) for y in ((found * mask[..., None]), torch.cat(one, 1))
    ]
    for part in mixer.modules():
        if hasattr(part, "token_time"):
            part.token_time = 0.5
    with torch.no_grad():
        torch.testing.assert_close(one[1], mixer(x[1:2, :9]), rtol=0, atol=1e-12)
    for i, n in enumerate(lengths):
        torch.testing.assert_close(found[i, :n], one[i][0], rtol=0, atol=1e-9)
    for ours, alone in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, alone, rtol=1e-9, atol=1e-9)
    if causal and name != "kernel ema":
        for part in mixer.modules():
            if hasattr(part, "token_time"):
                part.token_time = 1.0
        streamed, _ = mixer.prefill(x, mixer.init_state(4), layout=Layout(mask, token_time=times))
        torch.testing.assert_close(streamed[mask], found[mask], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["s4d", "cema", "lru", "s5"])
def test_halves_of_a_token_are_the_token(name: str) -> None:
    """Only continuous parameters tell the power of a half of a pole whose angle is beyond pi."""
    torch.manual_seed(0)
    mixer = make(name).double()
    if name == "s4d":
        mixer.kernel.log_step.data.fill_(0.5)  # type: ignore[union-attr, operator]  # angles beyond pi
    x = torch.randn(1, 20, 6, dtype=torch.float64)
    halves = mixer(x.repeat_interleave(2, 1), layout=Layout(token_time=torch.full((1, 40), 0.5, dtype=torch.float64)))
    torch.testing.assert_close(halves[:, 1::2], mixer(x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", COUNTING)
def test_mixers_that_count_tokens_are_refused_by_name(name: str) -> None:
    spec, message = COUNTING[name]
    mixer = build(MIXERS, dict(spec), 6, what="mixer", causal=True)
    x, layout = torch.randn(1, 4, 6), Layout(token_time=torch.ones(1, 4))
    assert not takes_times(mixer)
    with pytest.raises(ValueError, match=message):
        mixer(x, layout=layout)
    with pytest.raises(ValueError, match="counts tokens, whose time therefore cannot differ from row to row"):
        mixer(x, layout=Layout(token_time=torch.ones(1, 1)))
    with pytest.raises(ValueError, match=message):
        mixer.prefill(x, mixer.init_state(1), layout=layout)
    with pytest.raises(ValueError, match=message):
        mixer.step(x[:, 0], mixer.init_state(1), torch.ones(1))


def test_times_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="token_time must be"):
        make("lru")(torch.randn(1, 4, 6), layout=Layout(token_time=torch.ones(1, 3)))
    with pytest.raises(ValueError, match="token_time must be"):
        make("lru")(torch.randn(2, 4, 6), layout=Layout(token_time=torch.ones(3, 1)))
