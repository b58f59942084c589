"""The mixer contract as checks that any package can run on its mixers; lagwise runs them on those of its table."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from lagwise.files import one_line
from lagwise.mixers import Mixer
from lagwise.mixers.base import mixers_of
from lagwise.mixers.derived import frozen
from lagwise.mixers.state import eager_state, fixed_start, fixed_state, join_states, named_tensors, rebuilt, select_rows
from lagwise.ops import Layout
from lagwise.ops.shards import Shard

LENGTHS = (1, 2, 3, 63, 64, 100, 1000, 1021)
Factory = Callable[[int, bool], Mixer]


def check_mixer(
    factory: Factory, *, channels: int = 16, lengths: Sequence[int] = LENGTHS, gradients: bool = True
) -> None:
    """Check a mixer against the contract of `lagwise.mixers.Mixer`, in every direction that its class supports.

    The checks, in float64 unless stated otherwise: shapes and types; outputs and gradients of a causal mixer do not
    depend on the future; padding, even with NaN, has no effect, also in a stream; documents packed into a row give the
    same as alone; chunks and single tokens give the same as the whole sequence; an old state stays valid; states of
    several rows can be picked and joined; unless it grows, a state of fixed shapes gives the same, also in an exported
    graph; bfloat16 under autocast stays close to float64; gradients equal finite differences; another mixer with the
    same weights gives the same outputs. If tokens may have times of their own (`Mixer.require_times`), equal times of 1
    change nothing, and padding, packing, streams and gradients are right with others too. If all processes of a
    `torch.distributed` group call it, also rows that are split between them (`check_shards`).

    Args:
        factory: ``factory(channels, causal)`` creates a mixer with random weights.
        channels: Of the mixers.
        lengths: Of the signals.
        gradients: Whether to compare gradients with finite differences, for which a layer must compute in float64 if
            its weights are.

    Raises:
        AssertionError: If a check fails; it says which.
        ValueError: For a mixer over a grid (`Mixer.needs_grid`), because the checks are for sequences.
    """
    kind = type(_any_direction(factory, channels))
    if kind.needs_grid:
        raise ValueError(f"check_mixer is for mixers of sequences; {kind.__name__} mixes over a grid")
    for causal in kind.directions:
        check_shapes(factory, channels, causal, lengths)
        check_padding(factory, channels, causal)
        check_packing(factory, channels, causal)
        if gradients:
            check_gradients(factory, channels, causal)
        check_weights(factory, channels, causal)
        if takes_times(factory(channels, causal)):
            check_times(factory, channels, causal)
        check_autocast(factory, channels, causal)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            check_shards(factory, channels, causal)
    if True in kind.directions:
        check_causality(factory, channels)
        if kind.streams:
            check_streaming(factory, channels)
            check_padding_anywhere(factory, channels)
            check_old_states(factory, channels)
            check_joined_states(factory, channels)
            if not any(part.grows for part in mixers_of(factory(channels, True))):
                check_fixed_shapes(factory, channels)


def _any_direction(factory: Factory, channels: int) -> Mixer:
    """Make a causal mixer, or a two-sided one if there is none."""
    try:
        return factory(channels, True)
    except ValueError:
        return factory(channels, False)


def check_shapes(factory: Factory, channels: int, causal: bool, lengths: Sequence[int] = LENGTHS) -> None:
    """Check that outputs are like inputs and finite, in float32."""
    mixer = factory(channels, causal).float()
    for length in lengths:
        y = mixer(_noise(2, length, channels, torch.float32))
        assert y.shape == (2, length, channels), f"output {tuple(y.shape)} for {(2, length, channels)}"
        assert y.dtype == torch.float32, f"output of {y.dtype} for float32"
        assert y.isfinite().all(), f"outputs that are not finite at length {length}"


def check_causality(factory: Factory, channels: int) -> None:
    """Check that later tokens change no output, and that no output has a gradient with respect to them."""
    mixer = factory(channels, True).double()
    x = _noise(1, 100, channels).requires_grad_()
    y = mixer(x)
    changed = x.detach().clone()
    changed[:, 60:] += 1
    _same(mixer(changed)[:, :60], y[:, :60], 1e-12, "outputs before a change")
    (grad,) = torch.autograd.grad(y[:, 40].sum(), x)
    assert grad[:, 41:].abs().max() < 1e-12, "an output has a gradient to a later token"
    assert grad[:, :41].abs().max() > 1e-6, "an output has no gradient to its own and earlier tokens"


def check_padding(factory: Factory, channels: int, causal: bool, *, times: bool = False) -> None:
    """Check that rows padded on either side, with large numbers or NaN, give the same as alone, and finite
    gradients. times: with a time for every token."""
    mixer = factory(channels, causal).double()
    x, time = _noise(3, 30, channels), _times(3, 30) if times else None
    alone = mixer(x, layout=Layout(token_time=time))
    for left, right, scale in ((7, 0, 1e3), (0, 7, 1e3), (4, 9, 1e3), (4, 9, float("nan"))):
        parts = [scale * _noise(3, left, channels), x, scale * _noise(3, right, channels)]
        padded = torch.cat(parts, dim=1).requires_grad_()
        mask = torch.tensor([[0] * left + [1] * 30 + [0] * right] * 3).bool()
        padded_time = None if time is None else F.pad(time, (left, right), value=float("nan"))
        y = mixer(padded, layout=Layout(mask, token_time=padded_time))
        assert y.isfinite().all(), "outputs at padding that are not finite"
        _same(y[:, left : left + 30], alone, 1e-9, f"a row with {left} tokens of padding before and {right} after it")
        (grad,) = torch.autograd.grad(y[:, left : left + 30].sum(), padded)
        assert grad.isfinite().all(), "gradients that are not finite, of a row with NaN at its padding"
    extents = ((0, 30), (7, 30), (0, 21))
    mask = torch.tensor([[start <= i < end for i in range(30)] for start, end in extents])
    batch = mixer(x, layout=Layout(mask, token_time=time))
    for i, (start, end) in enumerate(extents):
        row = slice(i, i + 1), slice(start, end)
        expected = mixer(x[row], layout=Layout(token_time=None if time is None else time[row]))
        _same(batch[row], expected, 1e-9, f"row {i + 1} of a padded batch")


def check_packing(factory: Factory, channels: int, causal: bool, *, times: bool = False) -> None:
    """Check that documents packed into a row, separated by seq_idx, give the same as alone. times: with a time for
    every token."""
    mixer = factory(channels, causal).double()
    sizes = [5, 1, 30, 29]  # the last two share a batch
    row = _noise(1, sum(sizes), channels).requires_grad_()
    time = _times(1, sum(sizes)) if times else None
    seq_idx = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))[None]
    packed = mixer(row, layout=Layout(seq_idx=seq_idx, token_time=time))
    document_times = [None] * len(sizes) if time is None else time.split(sizes, 1)
    documents = zip(row.split(sizes, 1), document_times, strict=True)
    alone = [mixer(document, layout=Layout(token_time=document_time)) for document, document_time in documents]
    _same(packed, torch.cat(alone, dim=1), 1e-9, "packed documents")
    (grad,) = torch.autograd.grad(packed[:, 6:36].sum(), row)
    outside = torch.cat([grad[:, :6], grad[:, 36:]], dim=1)
    assert outside.abs().max() == 0, "a document has a gradient to another"


def check_autocast(factory: Factory, channels: int, causal: bool, dtype: torch.dtype = torch.bfloat16) -> None:
    """Check that under autocast whole sequences, chunks and single tokens stay close to float64."""
    mixer = factory(channels, causal).float()
    x = _noise(2, 200, channels, torch.float32)
    with torch.autocast("cpu", dtype):
        results = [mixer(x)]
        if causal and mixer.streams:
            first, state = mixer.prefill(x[:, :150], mixer.init_state(2))
            token, _ = mixer.step(x[:, 150], state)
            results += [first, token]
    exact = mixer.double()(x.double())
    for ours, expected in zip(results, (exact, exact[:, :150], exact[:, 150]), strict=False):
        assert ours.isfinite().all(), f"outputs that are not finite under autocast to {dtype}"
        error = float(((ours.double() - expected).norm() / expected.norm()).detach())
        assert error < 8 * torch.finfo(dtype).eps, f"under autocast to {dtype} outputs are off by {error:.1e}"


def check_shards(factory: Factory, channels: int, causal: bool) -> None:
    """Check that rows split between the processes of the default group, each of which calls this, give the outputs and
    gradients of whole rows, also where padding and packed documents cross the boundaries of shards; a mixer that does
    not support shards must refuse them by its name."""
    mixer = factory(channels, causal).double()
    if (refusal := _refusal(mixer)) is not None:
        assert type(mixer).__name__ in refusal, f"a refusal that does not name the mixer: {refusal}"
        return
    for tensor in (*mixer.parameters(), *mixer.buffers()):
        dist.broadcast(tensor.detach(), 0)
    count, length = dist.get_world_size(), 60
    bounds = [0, *(length * i // count + 1 for i in range(1, count)), length]
    sizes = [end - start for start, end in itertools.pairwise(bounds)]
    for what, layout in split_layouts(length).items():
        difference, where = shard_difference(mixer, layout, sizes)
        assert difference < 1e-9, f"{where} of {what} rows, split between processes, is off by {difference:.1e}"


def _refusal(mixer: Mixer) -> str | None:
    """Return the message with which a mixer refuses rows that are split; None if it does not."""
    try:
        mixer.require_shards()
    except ValueError as error:
        return str(error)
    return None


def split_layouts(length: int) -> dict[str, tuple[Tensor | None, Tensor | None]]:
    """Make masks and documents of three rows, for `shard_difference`; documents end at many places."""
    position = torch.arange(length)
    mask = torch.stack([position >= length // 6, position < 2 * length // 3 + 1, position >= 0])
    ends = torch.tensor([[5, 20, 23, 50], [23, 24, 37, 60], [1, 2, 3, 4]])
    documents = (position[None, :, None] >= ends[:, None]).sum(2)
    return {"plain": (None, None), "padded": (mask, None), "packed": (None, documents), "both": (mask, documents)}


def shard_difference(
    mixer: Mixer, layout: tuple[Tensor | None, Tensor | None], sizes: Sequence[int]
) -> tuple[float, str]:
    """Compute the largest difference between the shards of rows and the whole, in the outputs and all gradients,
    relative to the largest number, and return where it is. All processes return the same, so that none waits for one
    that has failed.

    Args:
        mixer: The mixer.
        layout: Mask and seq_idx.
        sizes: Tokens of every process.
    """
    mask, seq_idx = layout
    rows, length, start = 3, sum(sizes), sum(sizes[: dist.get_rank()])
    local = slice(start, start + sizes[dist.get_rank()])
    random = torch.Generator().manual_seed(1)
    signals = torch.randn(2, rows, length, mixer.channels, dtype=torch.float64, generator=random, device="cpu")
    x, slope = signals.to(torch.get_default_device())
    if mask is not None:
        slope = slope * mask[..., None]
    reference, sharded = copy.deepcopy(mixer), copy.deepcopy(mixer)
    a, b = x.clone().requires_grad_(), x[:, local].clone().requires_grad_()
    y = reference(a, layout=Layout(mask, seq_idx))
    y.backward(slope)
    local_mask, local_seq_idx = (None if t is None else t[:, local] for t in layout)
    assert dist.group.WORLD is not None
    shard = Shard(dist.group.WORLD, rows, sizes[dist.get_rank()], local_mask, local_seq_idx, x.device)
    z = sharded(b, layout=Layout(local_mask, local_seq_idx, shard=shard))
    z.backward(slope[:, local])
    real = slice(None) if local_mask is None else local_mask
    assert a.grad is not None
    assert b.grad is not None
    pairs = [("the output", z[real], y[:, local][real], y), ("the gradient of x", b.grad, a.grad[:, local], a.grad)]
    for (name, p), q in zip(sharded.named_parameters(), reference.parameters(), strict=True):
        if p.requires_grad:
            difference, expected = (torch.zeros_like(t) if t.grad is None else t.grad for t in (p, q))
            dist.all_reduce(difference)
            pairs.append((f"the gradient of {name}", difference, expected, expected))
    scores = [((f - e).abs().max().item() / max(s.abs().max().item(), 1e-9), n) for n, f, e, s in pairs if f.numel()]
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, [(float("inf") if math.isnan(off) else off, where) for off, where in scores])
    return max(itertools.chain.from_iterable(everywhere))


def check_gradients(factory: Factory, channels: int, causal: bool) -> None:
    """Check that gradients with respect to the signal and some small parameters equal finite differences."""
    mixer = factory(channels, causal).double()
    x = _noise(1, 6, channels).requires_grad_()
    some = [p for p in mixer.parameters() if p.numel() <= 64][:2]
    try:
        torch.autograd.gradcheck(lambda a, *_: mixer(a), (x, *some), fast_mode=True)
    except RuntimeError as error:
        raise AssertionError(
            f"gradients are not those of finite differences ({one_line(error)}); for a layer that computes in float32 "
            "whatever its type, pass gradients=False"
        ) from error


def check_weights(factory: Factory, channels: int, causal: bool) -> None:
    """Check that the state_dict determines a mixer: another one gives other outputs, and with the same weights the
    same."""
    mixer, other = (factory(channels, causal).double() for _ in range(2))
    x = _noise(1, 30, channels)
    if list(mixer.parameters()):
        assert not torch.equal(mixer(x), other(x)), "two mixers of their own random weights give the same"
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(mixer(x), other(x)), "another mixer with the same state_dict gives other outputs"


def check_streaming(
    factory: Factory, channels: int, lengths: Sequence[int] = (1, 3, 64, 301), *, times: bool = False
) -> None:
    """Check that chunks of any size, and single tokens, give the same as the whole sequence. times: with a time for
    every token."""
    for length in lengths:
        mixer = factory(channels, True).double()
        x, time = _noise(2, length, channels), _times(2, length) if times else None
        full = mixer(x, layout=Layout(token_time=time))
        generator = torch.Generator().manual_seed(length)
        sizes = torch.randint(1, 81, (length,), generator=generator, device="cpu").tolist()
        _same(streamed(mixer, x, sizes, time), full, 1e-9, f"chunks of a sequence of {length}")
        state, tokens = mixer.init_state(2), []
        for i in range(min(length, 40)):
            y, state = mixer.step(x[:, i], state, None if time is None else time[:, i])
            tokens.append(y)
        _same(torch.stack(tokens, 1), full[:, : len(tokens)], 1e-9, "single tokens")


def streamed(mixer: Mixer, x: Tensor, sizes: Sequence[int], time: Tensor | None = None) -> Tensor:
    """Compute outputs for x ``(batch, length, channels)``, prefilled in chunks of these sizes while tokens remain, and
    the rest in one chunk. time: that of each token, ``(batch, length)``."""
    state, outputs, start = mixer.init_state(x.shape[0]), [], 0
    for size in (*sizes, x.shape[1]):
        if start < x.shape[1]:
            chunk = slice(start, start + size)
            layout = Layout(token_time=None if time is None else time[:, chunk])
            y, state = mixer.prefill(x[:, chunk], state, layout=layout)
            outputs.append(y)
            start += size
    return torch.cat(outputs, dim=1)


def takes_times(mixer: Mixer) -> bool:
    """Whether tokens may have times of their own (`Layout.token_time`)."""
    try:
        mixer.require_times()
    except ValueError:
        return False
    return True


def check_times(factory: Factory, channels: int, causal: bool) -> None:
    """Check that times of 1 change no output, that with other times padding, other documents of a row and the chunks of
    a stream have no effect, and that gradients equal finite differences, also those of times."""
    mixer = factory(channels, causal).double()
    x, time = _noise(2, 70, channels), _times(2, 70)
    _same(mixer(x, layout=Layout(token_time=torch.ones_like(time))), mixer(x), 1e-9, "tokens with times of 1")
    assert not torch.allclose(mixer(x, layout=Layout(token_time=time)), mixer(x)), "times of tokens have no effect"
    some, short = [p for p in mixer.parameters() if p.numel() <= 64][:2], time[:1, :6].clone().requires_grad_()
    signal = x[:1, :6].clone().requires_grad_()
    torch.autograd.gradcheck(
        lambda a, t, *_: mixer(a, layout=Layout(token_time=t)), (signal, short, *some), fast_mode=True
    )
    check_padding(factory, channels, causal, times=True)
    check_packing(factory, channels, causal, times=True)
    if causal and mixer.streams:
        check_streaming(factory, channels, [90], times=True)
        check_padding_anywhere(factory, channels, times=True)


def _times(batch: int, length: int) -> Tensor:
    return torch.rand(batch, length, dtype=torch.float64) * 3 + 0.1


def check_padding_anywhere(factory: Factory, channels: int, *, times: bool = False) -> None:
    """Check that rows of a stream with padding before, within and after their text, or of padding only, continue as if
    they had only their real tokens, whether they have begun or not. times: with a time for every token."""
    mixer = factory(channels, True).double()
    x, masks = _noise(5, 63, channels), torch.ones(5, 63, dtype=torch.bool)
    time = _times(5, 63) if times else None
    masks[0, 13:20] = False  # at the end of a chunk
    masks[1, :4] = masks[1, 20:26] = False  # at the beginning of two chunks
    masks[2, 5:9] = masks[2, 31:33] = masks[2, 50:60] = False
    masks[3, :40] = False  # two chunks of padding only
    x[~masks] = float("nan")
    chunks, state = [], mixer.init_state(5)
    for chunk in (slice(0, 20), slice(20, 40), slice(40, 60), slice(60, 63)):
        chunk_time = None if time is None else time[:, chunk]
        output, state = mixer.prefill(x[:, chunk], state, layout=Layout(masks[:, chunk], token_time=chunk_time))
        chunks.append(output)
    outputs = torch.cat(chunks, 1)
    assert outputs.isfinite().all(), "outputs at the padding of a stream that are not finite"
    for i, (tokens, mask) in enumerate(zip(x, masks, strict=True)):
        alone = mixer(tokens[mask][None], layout=Layout(token_time=None if time is None else time[i, mask][None]))[0]
        _same(outputs[i, mask], alone, 1e-9, f"row {i + 1} of a stream with padding")


def check_old_states(factory: Factory, channels: int) -> None:
    """Check that continuing from a state leaves it unchanged: two continuations do not affect each other."""
    mixer = factory(channels, True).double()
    _, state = mixer.prefill(_noise(1, 50, channels), mixer.init_state(1))
    one = mixer.step(_noise(1, 1, channels)[:, 0], state)
    token = _noise(1, 1, channels)[:, 0]
    first, _ = mixer.step(token, state)
    mixer.step(_noise(1, 1, channels)[:, 0], one[1])
    assert torch.equal(first, mixer.step(token, state)[0]), "going on from a state has changed it"


def check_joined_states(factory: Factory, channels: int) -> None:
    """Check that requests may join and leave a running batch: rows that have seen different numbers of tokens, or none,
    are picked, reordered and joined."""
    rows = _Rows(factory(channels, True).double(), channels, [260, 80, 60, 100, 60, 60])
    state = join_states([rows.begin(0, 193), rows.begin(1, 1), rows.begin(2, 0), rows.begin(3, 38)])
    state = rows.advance([0, 1, 2, 3], state, [1, 1, 1, 15, 1, 2, 1, 20])
    remaining = select_rows(state, torch.tensor([3, 1]))
    joined = join_states([remaining, rows.begin(4, 5), rows.begin(5, 0)])
    joined = rows.advance([3, 1, 4, 5], joined, [9], padding=(0, 0, 0, 4))
    rows.advance([3, 1, 4, 5], joined, [1, 7, 1])
    rows.advance([0, 2], select_rows(state, torch.tensor([0, 2])), [1, 6])  # the old state stays valid


def check_fixed_shapes(factory: Factory, channels: int) -> None:
    """Check that steps on a state of fixed shapes, as in compiled code, exported files and static caches, give the same
    as the whole sequence, also in a graph of `torch.export`, and that states convert to fixed shapes and back."""
    mixer = factory(channels, True).double().eval()
    x = _noise(2, 50, channels)
    with torch.no_grad():
        full, form = mixer(x), frozen(mixer)
        like = fixed_start(mixer.init_state(2))
        state, outputs = like, []
        for token in x[:, :30].unbind(1):
            y, after = form.step(token, state)
            again, _ = form.step(token, state)
            assert torch.equal(y, again), "a step has changed the state that it was given"
            state = after
            outputs.append(y)
        _same(torch.stack(outputs, 1), full[:, :30], 1e-9, "steps on a state of fixed shapes")
        back = eager_state(state, mixer.init_state(2), iter(()))
        _same(mixer.prefill(x[:, 30:], back)[0], full[:, 30:], 1e-9, "a state of fixed shapes taken back")
        _, state = mixer.prefill(x[:, :20], mixer.init_state(2))
        graph = torch.export.export(_Step(form, like), (x[:, 0], *_tensors(like)), strict=False).module()
        state, outputs = _tensors(fixed_state(state, like)[0]), []
        for token in x[:, 20:].unbind(1):
            y, *state = graph(token, *state)
            outputs.append(y)
        _same(torch.stack(outputs, 1), full[:, 20:], 1e-9, "an exported step")


class _Step(torch.nn.Module):
    """A mixer's step as a function of tensors."""

    def __init__(self, mixer: Mixer, like: Any):
        super().__init__()
        self.mixer, self.like = mixer, like

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        y, after = self.mixer.step(x, rebuilt(self.like, iter(state)))
        return y, *_tensors(after)


class _Rows:
    """A batch of signals of different lengths that stream together, and the output of each alone."""

    def __init__(self, mixer: Mixer, channels: int, lengths: list[int]):
        self.mixer = mixer
        self.signals = [_noise(1, n, channels) for n in lengths]
        self.expected = [mixer(x) for x in self.signals]
        self.positions = [0] * len(lengths)

    def begin(self, row: int, tokens: int) -> Any:
        """Return the state of a single row after some tokens."""
        state, self.positions[row] = self.mixer.init_state(1), tokens
        return self.mixer.prefill(self.signals[row][:, :tokens], state)[1] if tokens else state

    def advance(self, rows: list[int], state: Any, sizes: list[int], *, padding: tuple[int, ...] = ()) -> Any:
        """Continue these rows, by `step` where a size is 1; padding before the rows' first tokens, in one chunk."""
        for size in sizes:
            left = [min(size, n) for n in padding or [0] * len(rows)]
            starts = [self.positions[row] for row in rows]
            chunks = [self.signals[r][:, i : i + size - n] for r, i, n in zip(rows, starts, left, strict=True)]
            x = torch.cat([F.pad(chunk, (0, 0, n, 0), value=7.0) for chunk, n in zip(chunks, left, strict=True)])
            if size == 1:
                token, state = self.mixer.step(x[:, 0], state)
                y = token[:, None]
            else:
                mask = torch.arange(size) >= torch.tensor(left)[:, None] if padding else None
                y, state = self.mixer.prefill(x, state, mask=mask)
            for i, (row, n) in enumerate(zip(rows, left, strict=True)):
                end = self.positions[row] + size - n
                _same(y[i, n:], self.expected[row][0, self.positions[row] : end], 1e-9, "a row joined with others")
                self.positions[row] = end
        return state


def _tensors(state: Any) -> list[Tensor]:
    return [tensor for _, tensor in named_tensors(state)]


def _noise(batch: int, length: int, channels: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, length, channels, dtype=dtype)


def _same(ours: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=tolerance, msg=lambda actual: f"{what}: {actual}")
