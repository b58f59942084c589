"""Steps on states of fixed shapes, for every mixer that has one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from every_mixer import CHANNELS, OPTIONS, factory, make, noise
from torch import Tensor
from torch.export import Dim

from lagwise import testing
from lagwise.mixers import MIXERS, Mixer
from lagwise.mixers.derived import frozen
from lagwise.mixers.state import eager_state, fixed_start, fixed_state, join_states, select_rows

# Mixers whose states grow with the text; the default of `toeplitz` and of `gtu` decays, and so ends.
_ENDLESS = (
    {"kernel": {"name": "rpe", "decay": 1.0}},
    {"kernel": {"name": "ema"}},
    {"kernel": {"name": "rpe", "decay": 1.0}, "engine": {"name": "ski", "spacing": 5}},
    {"kernel": {"name": "ema"}, "engine": "ski"},
)


def grows(name: str, options: dict[str, Any]) -> bool:
    return name == "attention" or options in _ENDLESS


def has_none(name: str) -> bool:
    """Whether a mixer does not stream."""
    return not (MIXERS[name].streams and True in MIXERS[name].directions)


fixed_mixers = pytest.mark.parametrize(
    ("name", "options"),
    [case for case in OPTIONS if not (grows(*case) or has_none(case[0]))],
    ids=lambda v: str(v) if v else "default",
)


def start(mixer: Mixer, rows: int) -> Any:
    return fixed_start(mixer.init_state(rows))


def taken(mixer: Mixer, state: Any) -> Any:
    return fixed_state(state, start(mixer, 1))[0]


def given(mixer: Mixer, fixed: Any) -> Any:
    return eager_state(fixed, mixer.init_state(1), iter(()))


def stream(form: Any, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    parts = []
    for token in x.split(1, dim=1):
        y, state = form.prefill(token, state)
        parts.append(y)
    return torch.cat(parts, dim=1), state


@fixed_mixers
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-10), pytest.param(torch.float32, 1e-5, marks=pytest.mark.slow)],
    ids=["float64", "float32"],
)
@torch.no_grad()
def test_a_fixed_step_equals_forward(name: str, options: dict, dtype: torch.dtype, tolerance: float) -> None:
    """For more tokens than any ring holds, except for kernels with a reach of a thousand."""
    mixer = make(name, options, dtype=dtype).eval()
    x = noise(2, 520, dtype)
    whole = mixer(x)
    y, _ = stream(frozen(mixer), x, start(mixer, 2))
    assert (y - whole).abs().max() <= tolerance * whole.abs().max()


@pytest.mark.sampled(2)
@fixed_mixers
@torch.no_grad()
def test_states_convert_to_fixed_shapes_and_back(name: str, options: dict) -> None:
    """Also for rows with different offsets, across the ends of blocks, chunks and cells."""
    mixer = make(name, options).eval()
    x, alone = noise(2, 400), noise(1, 30)
    whole = mixer(x)
    form = frozen(mixer)
    state = mixer.prefill(x[:, :101], mixer.init_state(2))[1]
    y, fixed = stream(form, x[:, 101:240], taken(mixer, state))
    torch.testing.assert_close(y, whole[:, 101:240], rtol=0, atol=1e-9)
    state = given(mixer, fixed)
    later = mixer.prefill(alone[:, :7], mixer.init_state(1))[1]
    torch.testing.assert_close(mixer.prefill(x[:, 240:], state)[0], whole[:, 240:], rtol=0, atol=1e-9)
    joined = join_states([state, later])
    y, fixed = stream(form, torch.cat([x[:, 240:263], alone[:, 7:]]), taken(mixer, joined))
    expected = torch.cat([whole[:, 240:263], mixer(alone)[:, 7:]])
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-9)
    first = select_rows(given(mixer, fixed), torch.tensor([0]))
    torch.testing.assert_close(mixer.prefill(x[:1, 263:], first)[0], whole[:1, 263:], rtol=0, atol=1e-9)


@fixed_mixers
@torch.no_grad()
def test_several_tokens_in_a_graph(name: str, options: dict) -> None:
    """Between single tokens, from positions within a chunk, a ring or a cell, and for rows with different offsets."""
    mixer = make(name, options).eval()
    x, alone = noise(1, 200), noise(1, 193)
    form = frozen(mixer)
    states = [mixer.prefill(x[:, :20], mixer.init_state(1))[1], mixer.prefill(alone[:, :13], mixer.init_state(1))[1]]
    rows = torch.cat([x[:, 20:], alone[:, 13:]])
    expected = torch.cat([mixer(x)[:, 20:], mixer(alone)[:, 13:]])
    y, state = stream(form, rows[:, :3], taken(mixer, join_states(states)))
    parts = [y]
    for first, last in ((3, 64), (64, 65), (65, 180)):
        y, state = form.prefill(rows[:, first:last], state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-9)
    y, _ = form.prefill(x[:, :50], start(mixer, 1))
    torch.testing.assert_close(y, mixer(x)[:, :50], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "options"), [case for case in OPTIONS if grows(*case)])
def test_a_growing_state_is_refused(name: str, options: dict) -> None:
    with pytest.raises(ValueError, match="grows with"):
        make(name, options).require_fixed()


COMPLEX = [
    ("lru", {}),
    ("s5", {}),
    ("toeplitz", {"kernel": {"name": "s4d", "modes": 4}}),
    ("toeplitz", {"kernel": {"name": "cema", "dimension": 4}}),
    ("toeplitz", {"kernel": {"name": "s4", "modes": 4, "span": 100}}),
    ("gss", {}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "options"), COMPLEX)
@torch.no_grad()
def test_a_frozen_mixer_is_one_graph_without_complex_numbers(name: str, options: dict) -> None:
    mixer = make(name, options).eval()
    form = frozen(mixer)
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    program = torch.export.export(form, (noise(2, 48),), dynamic_shapes=shapes, strict=False)
    values = [node.meta.get("val") for node in program.graph.nodes]
    assert not any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)
    for batch, length in ((1, 1), (3, 131)):
        x = noise(batch, length)
        torch.testing.assert_close(program.module()(x), mixer(x), rtol=0, atol=1e-10)


def test_a_frozen_copy_shares_weights() -> None:
    mixer = make("gtu", {})
    assert frozen(mixer).gate.weight is mixer.gate.weight


@fixed_mixers
def test_the_contract_of_fixed_shapes(name: str, options: dict) -> None:
    testing.check_fixed_shapes(factory(name, options), CHANNELS)
