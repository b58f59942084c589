"""FLASH's gated attention unit with mixed chunk attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.mixers.base import Mixer, masked
from lagwise.mixers.derived import Derived
from lagwise.mixers.toeplitz import gated_width
from lagwise.ops import Layout
from lagwise.ops.attention import rotary_factors, rotate
from lagwise.ops.operation import chunk_count
from lagwise.ops.packing import move_rows, row_extents
from lagwise.ops.window import Window, extended, latest, ordered, recent
from lagwise.tables import check_integer


class FlashState(NamedTuple):
    """The values and bases of the current chunk, a window; the sums over earlier chunks and over the current one,
    ``(batch, query_size, width)``; and the number of tokens so far, ``(batch,)``."""

    ring: Window | Tensor
    sums: Tensor
    present: Tensor
    seen: Tensor


class Rotations(NamedTuple):
    """Rotary factors: cosines and sines of the positions in a chunk, ``(chunk, query_size / 2)``."""

    cos: Tensor
    sin: Tensor


class FlashMixer(Derived, Mixer):
    """Gated attention unit, quadratic within a chunk and linear across chunks: ``W_o (u * (A v + L v))``.

    Formula: ``u, v = silu(W_u x), silu(W_v x)`` and ``z = silu(W_z x)``, from which four maps per channel (a scale and
    an offset) compute queries and keys. With g the chunk of C tokens of token i:
        A: ``sum_j relu(q_i k_j / C)^2 v_j`` over the j of chunk g, up to i when causal, with rotary positions;
        L: ``q'_i sum_j k'_jᵀ v_j / n``, over the n tokens of all chunks before g, or of the text when two-sided.

    Options:
        chunk: C, in tokens.
        expansion: width of u and v relative to the channels (published: 2).
        query_size: width of z, even (published: 128).

    In the published code the sum of L is divided by the length of the whole text, or not at all. Here it is divided by
    the number of its tokens, so that a causal sum does not depend on later tokens. Chunks count from a row's first real
    token. There is no bias by lag apart from the rotary positions. ValueError for options out of range.

    Streams in constant memory and time: the sums over the earlier chunks and over the current one, and the tokens of
    the current one, of which each is compared with the new token.

    Source: Hua et al. 2022, "Transformer Quality in Linear Time", §3.2, eq. 7 to 10, and code 1.
    """

    undecayed = ("scale", "shift")

    def __init__(
        self, channels: int, *, causal: bool = True, chunk: int = 128, expansion: float = 2, query_size: int = 128
    ):
        super().__init__(channels, causal)
        self.chunk = check_integer("chunk", chunk)
        if check_integer("query_size", query_size) % 2:
            raise ValueError(f"query_size must be even, got {query_size}")
        self.width = gated_width(channels, expansion)
        self.input = nn.Linear(channels, 2 * self.width + query_size)
        self.scale, self.shift = (nn.Parameter(torch.empty(4, query_size)) for _ in range(2))
        self.out = nn.Linear(self.width, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw scales from normal(1, 0.02), because the published normal(0, 0.02) starts with almost no attention; set
        shifts to 0."""
        nn.init.normal_(self.scale, 1.0, 0.02)
        nn.init.zeros_(self.shift)

    def mix(self, x: Tensor, state: FlashState | None, layout: Layout) -> tuple[Tensor, Any]:
        mask, (gate, inner) = layout.mask, self._project(x, layout.mask)
        first = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
        lengths = torch.full_like(first, x.shape[1])
        if mask is not None:
            first, lengths = row_extents(mask)
        if state is None:
            y = self._attend(inner, first, first + lengths, None, torch.zeros_like(first))[0]
            return self.out(gate * y), None
        ring, sums, present, seen = state
        count = lengths if mask is None else lengths * mask.any(1)
        # For a row that has started, the current chunk; for one that starts here, only padding comes before it.
        in_chunk, past = seen % self.chunk, ordered(ring, seen).to(inner.dtype)
        joined = torch.cat([past, inner], 1)
        start = past.shape[1] + first - in_chunk
        y, total, added = self._attend(joined, start, start + in_chunk + count, sums, seen - in_chunk)
        rows, full, chunks = torch.arange(len(x), device=x.device), (in_chunk + count) // self.chunk, added.shape[1]
        sums = total[rows, full]
        present = added[rows, full.clamp(max=chunks - 1)].masked_fill((full == chunks)[:, None, None], 0)
        state = FlashState(extended(ring, inner, seen), sums, present, seen + count)
        return self.out(gate * y[:, past.shape[1] :]), state

    def derive(self, form: str = "eager") -> Any:
        dtype = torch.promote_types(self.out.weight.dtype, torch.float32)
        positions = torch.arange(self.chunk, device=self.out.weight.device)
        return Rotations(*rotary_factors(positions, self.scale.shape[1], dtype=dtype))

    def init_state(self, batch_size: int) -> FlashState:
        self.require_causal()
        weight, size = self.out.weight, self.scale.shape[1]
        dtype = torch.promote_types(weight.dtype, torch.float32)
        window = Window.empty(batch_size, self.width + size, self.chunk, like=weight)
        sums = weight.new_zeros((batch_size, size, self.width), dtype=dtype)
        seen = torch.zeros(batch_size, dtype=torch.long, device=weight.device)
        return FlashState(window, sums, torch.zeros_like(sums), seen)

    def mix_token(self, x: Tensor, state: FlashState) -> tuple[Tensor, FlashState]:
        """A full chunk is added to the sums at its last token."""
        ring, sums, present, seen = state
        gate, inner = self._project(x[:, None], None)
        ring, position = extended(ring, inner, seen), seen % self.chunk
        met, (cos, sin) = recent(ring, position + 1, seen), self.derived()
        with torch.autocast(x.device.type, enabled=False):
            value, base = latest(ring, met).to(sums.dtype).split([self.width, self.scale.shape[1]], 2)
            key = base * self.scale[1].to(base.dtype) + self.shift[1].to(base.dtype)  # the other heads: of one token
            query, _, far_query, far_key = self.heads(inner.to(sums.dtype)[..., self.width :]).unbind(2)
            query = rotate(query, cos[position][:, None], sin[position][:, None])
            lags = position[:, None] - met.lags
            key = rotate(key, cos[lags], sin[lags])
            scores = (query.bmm(key.mT) / self.chunk).relu().square()  # `@` branches on whether the batch size is 1
            if met.allowed is not None:
                scores = scores * met.allowed[:, None]
            y = scores.bmm(value) + far_query.bmm(sums) / (seen - position).clamp(min=1)[:, None, None]
            present = present + far_key.mT.bmm(inner.to(sums.dtype)[..., : self.width])
            full = (position == self.chunk - 1)[:, None, None]
            sums = torch.where(full, sums + present, sums)
            present = torch.where(full, torch.zeros_like(present), present)
        y = self.out(gate * y.to(inner.dtype))
        return y[:, 0], FlashState(ring, sums, present, seen + 1)

    def _project(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute the gate u, and v and z concatenated, zero at padding."""
        gate, inner = F.silu(self.input(x)).split([self.width, self.width + self.scale.shape[1]], 2)
        return gate, masked(inner, mask)

    def heads(self, base: Tensor) -> Tensor:
        """Compute query, key, far query and far key of z ``(..., query_size)``, on a new axis before the last."""
        return base[..., None, :] * self.scale.to(base.dtype) + self.shift.to(base.dtype)

    def _attend(
        self, inner: Tensor, start: Tensor, end: Tensor, sums: Tensor | None, earlier: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the results at every token of v and z ``(batch, length, ...)``, the sums before each chunk and at the
        end, and the sums over each chunk.

        Args:
            start, end: where rows start, with the first token of a chunk, and end, ``(batch,)``.
            sums, done: the sums over earlier chunks, and their numbers of tokens.
        """
        batch, length, _ = inner.shape
        size = self.chunk
        chunks = chunk_count(length, size)
        position = torch.arange(chunks * size, device=inner.device)
        real = (position < (end - start)[:, None]).unflatten(1, (chunks, size))
        moved = move_rows(inner, -start, chunks * size).unflatten(1, (chunks, size)) * real[..., None]
        value, base = moved.split([self.width, self.scale.shape[1]], 3)
        dtype = torch.promote_types(inner.dtype, torch.float32)
        with torch.autocast(inner.device.type, enabled=False):
            value, base = value.to(dtype), base.to(dtype)
            query, key, far_query, far_key = (self.heads(base) * real[..., None, None]).unbind(3)
            factors = rotary_factors(position[:size], base.shape[3], dtype=dtype)
            query, key = (rotate(t.flatten(0, 1), *factors).unflatten(0, (batch, chunks)) for t in (query, key))
            scores = (query @ key.mT / size).relu().square()
            y = (scores.tril() if self.causal else scores) @ value
            before = value.new_zeros(batch, base.shape[3], value.shape[3]) if sums is None else sums
            added = far_key.mT @ value
            total = torch.cat([before[:, None], added], 1).cumsum(1)
            chunk_index = earlier[:, None] + position[::size]  # tokens before each chunk
            if self.causal:
                y = y + far_query @ total[:, :-1] / chunk_index.clamp(min=1)[..., None, None]
            else:
                y = y + far_query @ total[:, -1:] / (end - start).clamp(min=1)[:, None, None, None]
        return move_rows(y.flatten(1, 2), start, length).to(inner.dtype), total, added
