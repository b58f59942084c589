"""Random mixers on random rows, against dense references: outputs and gradients, whole and streamed.

A failure shows its seed: ``LAGWISE_FUZZ_SEED=seed pytest tests/fuzz/test_parity.py`` runs it alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import campaign
import pytest
import torch
from cases import QUICK, Case, build, draw, lay_out
from references import REFERENCES, reference
from rounding import largest_moves, rounded
from torch import Tensor

from lagwise.mixers import MIXERS
from lagwise.mixers.state import join_states, select_rows
from lagwise.ops import Layout

POISON = torch.tensor([float("nan"), float("inf"), float("-inf"), 1e30])
# Relative to the largest value of the output, and of a gradient or a hundredth of all gradients.
TOLERANCE = {torch.float64: (1e-11, 1e-10), torch.float32: (1e-5, 1e-4)}
# An ill-conditioned case may err by more: this many times the most that rounding changes, in some draws, if each number
# of the dense computation and of its gradients is rounded to the case's dtype.
ROUNDINGS, DRAWS = 10, 5
MANY = 10**6

pytestmark = pytest.mark.filterwarnings("ignore:no SKI plan meets")


def test_every_mixer_has_a_reference() -> None:
    assert set(REFERENCES) == set(MIXERS)


@pytest.mark.sampled(2)
@pytest.mark.covers("MEGA eq. 16", "TCNCA §2")
@pytest.mark.parametrize("seed", campaign.seeds(QUICK))
def test_parity(seed: int) -> None:
    check(seed)


@pytest.mark.timeout(0)
@pytest.mark.skipif(not campaign.SECONDS, reason="set LAGWISE_FUZZ_SECONDS (make fuzz-models)")
def test_parity_at_length() -> None:
    campaign.run(check, QUICK, share=0.75)


def check(seed: int) -> None:
    case = draw(seed)
    try:
        check_case(case)
    except Exception as error:
        raise AssertionError(f"{error}\n{case}") from error


def check_case(case: Case) -> None:
    mixer = build(case)
    exact = deepcopy(mixer).double()
    texts = [torch.randn(n, case.channels).to(case.dtype) for n in case.texts]
    weights = [torch.randn_like(text) for text in texts]
    ways = [partial(forward, case, mixer)]
    if case.chunks:
        ways.append(partial(stream, case, mixer))
        if len(texts) > 1:
            ways.append(partial(joined, case, mixer))
    expected = results(exact, partial(dense, case, exact), texts, weights, torch.float64)
    for name, way in zip(("forward", "stream", "joined streams"), ways, strict=False):
        ours = results(mixer, way, texts, weights, case.dtype)
        wrong = differing(ours, expected, dict.fromkeys(expected, 0.0), case.dtype)
        if wrong:
            wrong = differing(ours, expected, sensitivity(case, exact, texts, weights, expected), case.dtype)
        assert not wrong, f"{name}: {'; '.join(wrong)}"


def dense(case: Case, exact: Any, xs: list[Tensor]) -> list[Tensor]:
    if case.grid is None:
        return [reference(exact, x) for x in xs]
    images = [x.unflatten(0, (p.height, p.width)) for x, p in zip(xs, case.images, strict=True)]
    return [reference(exact, image).flatten(0, 1) for image in images]


def sensitivity(
    case: Case, exact: Any, texts: list[Tensor], weights: list[Tensor], expected: dict[str, Tensor]
) -> dict[str, float]:
    """The allowed error, from the condition of the case."""

    def nearby() -> dict[str, Tensor]:
        mixer = deepcopy(exact)
        with torch.no_grad():
            for parameter in mixer.parameters():
                parameter.copy_(rounded(parameter, case.dtype))
        moved, weighed = ([rounded(t, case.dtype) for t in each] for each in (texts, weights))
        return results(mixer, partial(dense, case, mixer), moved, weighed, torch.float64)

    return {name: ROUNDINGS * moved for name, moved in largest_moves(nearby, expected, case.dtype, DRAWS).items()}


def results(
    mixer: Any,
    way: Callable[[list[Tensor]], list[Tensor]],
    texts: list[Tensor],
    weights: list[Tensor],
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Outputs for the texts, and gradients of their weighted sum, by name."""
    parameters = dict(mixer.named_parameters())
    xs = [text.to(dtype).requires_grad_() for text in texts]
    ys = way(xs)
    loss = sum(((y * w).sum() for y, w in zip(ys, weights, strict=True)), start=torch.zeros((), requires_grad=True))
    grads = torch.autograd.grad(loss, [*xs, *parameters.values()], materialize_grads=True)
    return {
        "output": torch.cat(ys),
        "gradient of x": torch.cat(grads[: len(xs)]),
        **{f"gradient of {name}": grad for name, grad in zip(parameters, grads[len(xs) :], strict=True)},
    }


def forward(case: Case, mixer: Any, xs: list[Tensor]) -> list[Tensor]:
    x, mask, seq_idx = rows(case, xs)
    before, version = x.detach().clone(), x._version
    y = mixer(x, layout=Layout(mask, seq_idx, grid=case.grid))
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert y.isfinite().all()
    assert x._version == version
    assert torch.equal(x.nan_to_num(), before.nan_to_num())
    return texts_of(case, y)


def stream(case: Case, mixer: Any, xs: list[Tensor]) -> list[Tensor]:
    """Stream in the case's chunks. Before some of them, other tokens continue from the same state, which must have no
    effect."""
    rng = random.Random(case.seed)
    x, mask, _ = rows(case, xs)
    state, parts, start = mixer.init_state(len(case.rows)), [], 0
    for size in case.chunks:
        chunk, real = (None if t is None else t[:, start : start + size] for t in (x, mask))
        if rng.random() < 0.2:
            mixer.prefill(torch.randn(x.shape[0], rng.randint(1, 9), case.channels, dtype=x.dtype), state)
        if size == 1 and (real is None or real.all()):
            y, state = mixer.step(chunk[:, 0], state)
            y = y[:, None]
        else:
            y, state = mixer.prefill(chunk, state, mask=real)
        assert y.isfinite().all()
        parts.append(y)
        start += size
    return texts_of(case, torch.cat(parts, dim=1))


def joined(case: Case, mixer: Any, xs: list[Tensor]) -> list[Tensor]:
    """Every row begins alone with any number of its tokens; then rows are joined, and removed at their ends."""
    rng = random.Random(case.seed)
    states, parts = [], []
    for x in xs:
        parts.append([x[: rng.choice((0, rng.randint(0, len(x))))]])
        state = mixer.init_state(1)
        if len(parts[-1][0]):
            y, state = mixer.prefill(parts[-1][0][None], state)
            parts[-1] = [y[0]]
        states.append(state)
    state, live = join_states(states), list(range(len(xs)))
    left = {row: xs[row][sum(map(len, parts[row])) :] for row in live}
    while True:
        staying = [i for i, row in enumerate(live) if len(left[row])]
        if not staying:
            return [torch.cat(part) for part in parts]
        if len(staying) < len(live):
            state, live = select_rows(state, torch.tensor(staying)), [live[i] for i in staying]
        size = rng.choice((1, rng.randint(1, 9), MANY))
        size = min(size, *(len(left[row]) for row in live))
        y, state = mixer.prefill(torch.stack([left[row][:size] for row in live]), state)
        for i, row in enumerate(live):
            parts[row].append(y[i])
            left[row] = left[row][size:]


def rows(case: Case, texts: list[Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """x, mask and seq_idx: texts in their places, and noise or poison at padding."""
    real = case.real()
    x = torch.randn(*real.shape, case.channels)
    if case.poison:
        x = POISON[torch.randint(len(POISON), x.shape)]
    x = x.to(case.dtype).masked_scatter(real[..., None].expand_as(x), torch.cat(texts))
    seq_idx = None
    if case.packed:
        seq_idx = torch.stack([torch.cat([torch.full((sum(d),), i) for i, d in enumerate(row)]) for row in case.rows])
    return lay_out(x, case.layout), None if case.mask is None else real.to(case.mask), seq_idx


def texts_of(case: Case, y: Tensor) -> list[Tensor]:
    """The outputs of the texts, one by one."""
    return list(y[case.real()].split(case.texts))


def differing(
    ours: dict[str, Tensor], expected: dict[str, Tensor], slack: dict[str, float], dtype: torch.dtype
) -> list[str]:
    """A description of the differences."""
    largest = max(distance(t, 0 * t) for name, t in expected.items() if name != "output")
    wrong = []
    for name, right in expected.items():
        scale, tolerance = distance(right, 0 * right), TOLERANCE[dtype][name != "output"]
        if name != "output":
            scale = max(scale, 0.01 * largest)
        error = distance(ours[name], right)
        if not error <= max(tolerance * scale, slack[name]):
            wrong.append(f"{name} is off by {error:.1e} of {scale:.1e}")
    return wrong


def distance(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item() if a.numel() else 0.0
