"""The mixer contract as checks that any package can run on its own mixers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lagwise.mixers import Mixer

LENGTHS = (1, 2, 3, 63, 64, 100, 1000, 1021)
Factory = Callable[[int, bool], Mixer]


def check_mixer(factory: Factory, *, channels: int = 16, lengths: Sequence[int] = LENGTHS) -> None:
    """Hold a mixer to the contract of `lagwise.mixers.Mixer`, in every direction that its class says it has.

    factory: ``factory(channels, causal)`` makes one, with its own weights. lengths: of the signals.

    The checks, in float64 unless said otherwise: shapes and types; a causal mixer's outputs and gradients do not
    reach from the future; padding, with NaN in it too, leaves no trace; documents packed into a row are as if alone;
    chunks and single tokens give what the whole sequence gives; an old state stays valid; states of several rows are
    picked and joined; bfloat16 under autocast stays near float64; gradients are those of finite differences; another
    mixer with the same weights gives the same.

    AssertionError says what does not hold.
    """
    made = factory(channels, _direction(factory, channels))
    for causal in type(made).directions:
        check_shapes(factory, channels, causal, lengths)
        check_padding(factory, channels, causal)
        check_packing(factory, channels, causal)
        check_gradients(factory, channels, causal)
        check_weights(factory, channels, causal)
    if True in type(made).directions:
        check_causality(factory, channels)
        if type(made).streams:
            check_streaming(factory, channels)
            check_states(factory, channels)
        check_autocast(factory, channels)


def _direction(factory: Factory, channels: int) -> bool:
    """A direction in which the factory makes a mixer: causal if it can be."""
    try:
        factory(channels, True)
    except ValueError:
        return False
    return True


def check_shapes(factory: Factory, channels: int, causal: bool, lengths: Sequence[int] = LENGTHS) -> None:
    """Outputs are like inputs and finite, in float32."""
    mixer = factory(channels, causal).float()
    for length in lengths:
        y = mixer(_noise(2, length, channels, torch.float32))
        assert y.shape == (2, length, channels), f"output {tuple(y.shape)} for {(2, length, channels)}"
        assert y.dtype == torch.float32, f"output of {y.dtype} for float32"
        assert y.isfinite().all(), f"outputs that are not finite at length {length}"


def check_causality(factory: Factory, channels: int) -> None:
    """What comes later changes no output, nor does an output have a gradient to it."""
    mixer = factory(channels, True).double()
    x = _noise(1, 100, channels).requires_grad_()
    y = mixer(x)
    changed = x.detach().clone()
    changed[:, 60:] += 1
    _same(mixer(changed)[:, :60], y[:, :60], 1e-12, "outputs before a change")
    (grad,) = torch.autograd.grad(y[:, 40].sum(), x)
    assert grad[:, 41:].abs().max() < 1e-12, "an output has a gradient to a later token"
    assert grad[:, :41].abs().max() > 1e-6, "an output has no gradient to its own and earlier tokens"


def check_padding(factory: Factory, channels: int, causal: bool) -> None:
    """Rows padded on either side, with large numbers or NaN, give what they give alone, and so do gradients."""
    mixer = factory(channels, causal).double()
    x = _noise(1, 30, channels)
    alone = mixer(x)
    for left, right, value in ((7, 0, 1e3), (0, 7, 1e3), (4, 9, float("nan"))):
        padded = F.pad(x, (0, 0, left, right), value=value).requires_grad_()
        mask = torch.tensor([[0] * left + [1] * 30 + [0] * right])
        y = mixer(padded, mask=mask)
        assert y.isfinite().all(), "outputs at padding that are not finite"
        _same(y[:, left : left + 30], alone, 1e-9, f"a row with {left} tokens of padding before and {right} after it")
        (grad,) = torch.autograd.grad(y[:, left : left + 30].sum(), padded)
        assert grad.isfinite().all(), "gradients that are not finite, of a row with NaN at its padding"


def check_packing(factory: Factory, channels: int, causal: bool) -> None:
    """Documents side by side in a row, told apart by seq_idx, give what each gives alone."""
    mixer = factory(channels, causal).double()
    documents = [_noise(1, n, channels) for n in (5, 1, 30, 14)]
    row = torch.cat(documents, dim=1).requires_grad_()
    seq_idx = torch.cat([torch.full((1, d.shape[1]), i) for i, d in enumerate(documents)], dim=1)
    packed = mixer(row, seq_idx=seq_idx)
    _same(packed, torch.cat([mixer(d) for d in documents], dim=1), 1e-9, "packed documents")
    (grad,) = torch.autograd.grad(packed[:, 6:36].sum(), row)
    outside = torch.cat([grad[:, :6], grad[:, 36:]], dim=1)
    assert outside.abs().max() == 0, "a document has a gradient to another"


def check_streaming(factory: Factory, channels: int, lengths: Sequence[int] = (1, 3, 64, 301)) -> None:
    """Any chunks, and single tokens, give what the whole sequence gives; also after padding on the left."""
    mixer = factory(channels, True).double()
    for length in lengths:
        x = _noise(2, length, channels)
        whole = mixer(x)
        sizes = torch.randint(1, 80, (length,)).tolist()
        _same(streamed(mixer, x, sizes), whole, 1e-9, f"chunks of a sequence of {length}")
        state, tokens = mixer.init_state(2), []
        for token in x[:, : min(length, 40)].unbind(1):
            y, state = mixer.step(token, state)
            tokens.append(y)
        _same(torch.stack(tokens, 1), whole[:, : len(tokens)], 1e-9, "single tokens")
    x = _noise(1, 40, channels)
    padded = F.pad(x, (0, 0, 5, 0), value=1e3)
    mask = torch.tensor([[0] * 5 + [1] * 40])
    y, state = mixer.prefill(padded[:, :25], mixer.init_state(1), mask=mask[:, :25])
    rest, _ = mixer.prefill(padded[:, 25:], state, mask=mask[:, 25:])
    _same(torch.cat([y, rest], 1)[:, 5:], mixer(x), 1e-9, "a stream that begins with padding")


def streamed(mixer: Mixer, x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Outputs for x ``(batch, length, channels)``, prefilled in chunks of these sizes as far as they go, and the rest
    in one."""
    state, parts, rest = mixer.init_state(x.shape[0]), [], x
    for size in (*sizes, x.shape[1]):
        if rest.shape[1]:
            y, state = mixer.prefill(rest[:, :size], state)
            parts.append(y)
            rest = rest[:, size:]
    return torch.cat(parts, dim=1)


def check_states(factory: Factory, channels: int) -> None:
    """A state is not changed by going on from it, its rows can be picked, and rows of several states can be joined."""
    mixer = factory(channels, True).double()
    x, token = _noise(3, 20, channels), _noise(3, 1, channels)[:, 0]
    _, state = mixer.prefill(x, mixer.init_state(3))
    first, after = mixer.step(token, state)
    mixer.step(_noise(3, 1, channels)[:, 0], after)
    assert torch.equal(first, mixer.step(token, state)[0]), "going on from a state has changed it"
    picked = state.map_batch(lambda t: t[torch.tensor([2, 0])])
    y, _ = mixer.step(token[:2], picked)
    for row, source in enumerate((2, 0)):
        _, alone = mixer.prefill(x[source : source + 1], mixer.init_state(1))
        _same(y[row : row + 1], mixer.step(token[row : row + 1], alone)[0], 1e-10, "a row picked of a state")
    signals = [_noise(1, n, channels) for n in (40, 21, 20)]
    states = [mixer.init_state(1)]
    for signal in signals[:2]:
        states.append(mixer.prefill(signal[:, :-20], mixer.init_state(1))[1])
    joined = states[0].join([states[1], states[2], states[0]])
    at = 0
    for size in (1, 7, 12):
        part = torch.cat([signal[:, signal.shape[1] - 20 + at :][:, :size] for signal in signals])
        y, joined = mixer.prefill(part, joined)
        for i, signal in enumerate(signals):
            start = signal.shape[1] - 20 + at
            _same(y[i : i + 1], mixer(signal)[:, start : start + size], 1e-9, "a row joined with others")
        at += size


def check_autocast(factory: Factory, channels: int, dtype: torch.dtype = torch.bfloat16) -> None:
    """Under autocast, whole sequences stay near those in float64."""
    mixer = factory(channels, True).float()
    x = _noise(2, 200, channels, torch.float32)
    with torch.autocast("cpu", dtype):
        y = mixer(x)
    exact = mixer.double()(x.double())
    error = float(((y.double() - exact).norm() / exact.norm()).detach())
    assert error < 8 * torch.finfo(dtype).eps, f"under autocast to {dtype} outputs are off by {error:.1e}"


def check_gradients(factory: Factory, channels: int, causal: bool) -> None:
    """Gradients to the signal and some small parameters are those of finite differences."""
    mixer = factory(channels, causal).double()
    x = _noise(1, 6, channels).requires_grad_()
    some = [p for p in mixer.parameters() if p.numel() <= 64][:2]
    right = torch.autograd.gradcheck(lambda a, *_: mixer(a), (x, *some), fast_mode=True, raise_exception=False)
    assert right, "gradients are not those of finite differences"


def check_weights(factory: Factory, channels: int, causal: bool) -> None:
    """A mixer is its state_dict: another with the same gives the same."""
    mixer, other = (factory(channels, causal).double().eval() for _ in range(2))
    other.load_state_dict(mixer.state_dict())
    x = _noise(1, 30, channels)
    assert torch.equal(mixer(x), other(x)), "another mixer with the same state_dict gives other outputs"


def _noise(batch: int, length: int, channels: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, length, channels, dtype=dtype)


def _same(ours: Any, wanted: Any, tolerance: float, what: str) -> None:
    error = float((ours - wanted).detach().abs().max())
    assert error <= tolerance, f"{what}: off by {error:.1e}"
