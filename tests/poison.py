"""Padding filled with NaN and infinity, for every module that follows the mixer contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_POISON = torch.tensor([float("nan"), float("inf"), float("-inf")], dtype=torch.float64)


def check_poisoned_padding(module: Any, channels: int, *, streamed: bool) -> None:
    """Outputs and gradients at real tokens, and gradients of parameters, equal those of the rows without padding.
    Outputs at padding are finite, and gradients there are zero. Checked in forward, in packed rows and, if supported,
    in streams."""
    rows = [torch.randn(n, channels, dtype=torch.float64) for n in (13, 9, 1)]
    weights = [torch.randn_like(row) for row in rows]
    clean = _run(module, lambda xs: [module(x[None])[0] for x in xs], rows, weights)

    def padded(*starts: int, length: int = 16) -> tuple[Callable[[Sequence[Tensor]], Tensor], Tensor]:
        mask = torch.stack([within(length, n, n + len(row)) for n, row in zip(starts, rows, strict=True)])
        return lambda xs: _poisoned(torch.cat(list(xs)), mask), mask

    def forward(xs: Sequence[Tensor]) -> list[Tensor]:
        build, mask = padded(0, 4, 8)
        y = module(build(xs), mask=mask)
        assert y.isfinite().all()
        return list(y[mask].split([len(x) for x in xs]))

    def packed(xs: Sequence[Tensor]) -> list[Tensor]:
        """Documents of padding only, with padding before their text, after it, and without padding."""
        texts = zip(_PLACES, (*xs, xs[0][:0]), strict=True)
        mask = torch.cat([within(n, start, start + len(x)) for (n, start), x in texts])
        seq_idx = torch.cat([torch.full((n,), i) for i, (n, _) in enumerate(_PLACES)])
        y = module(_poisoned(torch.cat(list(xs)), mask[None]), mask=mask[None], seq_idx=seq_idx[None])
        assert y.isfinite().all()
        return list(y[0, mask].split([len(x) for x in xs]))

    def stream(xs: Sequence[Tensor]) -> list[Tensor]:
        build, mask = padded(3, 7, 15)
        state, parts, x = module.init_state(len(xs)), [], build(xs)
        for at in (slice(0, 5), slice(5, 6), slice(6, 16)):
            y, state = module.prefill(x[:, at], state, mask=mask[:, at])
            assert y.isfinite().all()
            parts.append(y)
        return list(torch.cat(parts, dim=1)[mask].split([len(x) for x in xs]))

    for way in (forward, packed, *([stream] if streamed else [])):
        for what, ours, wanted in zip(("outputs", "gradients"), _run(module, way, rows, weights), clean, strict=True):
            message = f"{what} of {way.__name__}: ".__add__
            torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9, msg=message)


# Length of a document of the packed row, and where its text starts.
_PLACES = ((18, 5), (11, 0), (1, 0), (4, 0))


def _run(
    module: Any, way: Callable[[Sequence[Tensor]], list[Tensor]], rows: list[Tensor], weights: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, and gradients to rows and parameters."""
    xs = [row.clone().requires_grad_() for row in rows]
    ys = way(xs)
    loss = torch.stack([(y * w).sum() for y, w in zip(ys, weights, strict=True)]).sum()
    return ys, list(torch.autograd.grad(loss, [*xs, *module.parameters()], materialize_grads=True))


def within(length: int, start: int, stop: int) -> Tensor:
    place = torch.arange(length)
    return (place >= start) & (place < stop)


def _poisoned(tokens: Tensor, mask: Tensor) -> Tensor:
    """Rows that hold these tokens where the mask is true, in order, and poison elsewhere."""
    x = _POISON.to(tokens.device)[torch.randint(3, (*mask.shape, tokens.shape[1]))]
    return x.masked_scatter(mask[..., None].expand_as(x), tokens)
