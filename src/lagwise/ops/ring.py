"""Ring buffers: the last tokens of a stream in a tensor of fixed shape, for graphs that cannot hold a growing one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def ring_write(ring: Tensor, x: Tensor, index: Tensor) -> Tensor:
    """The ring after one token of every row, which replaces the token ``reach`` before it.

    Shapes: ring ``(batch, reach, channels)``; x ``(batch, channels)``; index ``(batch,)``, each token's index in its
    row, from 0; result like ring.
    """
    rows = torch.arange(ring.shape[0], device=ring.device)
    return ring.index_put((rows, index % ring.shape[1]), x.to(ring.dtype))


def ring_read(ring: Tensor, index: Tensor, lags: Tensor) -> Tensor:
    """Tokens at some lags before the last one written, ``(batch, n, channels)``.

    Shapes: ring and index as in `ring_write`; lags ``(n,)`` in tokens, below reach.
    """
    return _gather(ring, (index[:, None] - lags) % ring.shape[1])


def ring_lags(ring: Tensor, index: Tensor) -> Tensor:
    """The lag of each position of the ring behind the last token written, ``(batch, reach)``."""
    positions = torch.arange(ring.shape[1], device=ring.device)
    return (index[:, None] - positions) % ring.shape[1]


def ring_product(ring: Tensor, taps: Tensor, index: Tensor) -> Tensor:
    """A causal convolution at the last token written: ``y = sum_l taps_l x_{index - l}``.

    Shapes: ring and index as in `ring_write`; taps ``(reach, channels)``, lag 0 first; result ``(batch, channels)``.
    """
    return (ring * taps[ring_lags(ring, index)]).sum(1)


def ring_of(tokens: Tensor, reach: int, seen: Tensor) -> Tensor:
    """The ring that holds the last tokens before index ``seen`` of each row.

    Shapes: tokens ``(batch, n <= reach, channels)``, oldest first; seen ``(batch,)``; result ``(batch, reach,
    channels)``. Missing tokens are zero.
    """
    tokens = F.pad(tokens, (0, 0, reach - tokens.shape[1], 0))
    positions = torch.arange(reach, device=tokens.device)
    return _gather(tokens, (positions - seen[:, None]) % reach)


def ring_tokens(ring: Tensor, seen: Tensor) -> Tensor:
    """The inverse of `ring_of`: the last ``reach`` tokens of every row, oldest first, ``(batch, reach, channels)``."""
    positions = torch.arange(ring.shape[1], device=ring.device)
    return _gather(ring, (positions + seen[:, None]) % ring.shape[1])


def ring_extend(ring: Tensor, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The ring's tokens and several new ones after them, oldest first, ``(batch, reach + n, channels)``, and the ring
    after these. Shapes: as in `ring_tokens`; x ``(batch, n, channels)``, whose length a graph may leave open."""
    reach, n = ring.shape[1], x.shape[1]
    signal = torch.cat([ring_tokens(ring, seen), x.to(ring.dtype)], 1)
    return signal, _gather(signal[:, n:], (torch.arange(reach, device=ring.device) - (seen + n)[:, None]) % reach)


def _gather(x: Tensor, index: Tensor) -> Tensor:
    return x[torch.arange(x.shape[0], device=x.device)[:, None], index]
