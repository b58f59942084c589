"""Embeddings of the last few tokens together, and of what followed them the last time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor, nn

from lagwise.models.inputs import token_positions
from lagwise.ops import Layout
from lagwise.ops.packing import document_starts, tokens_last
from lagwise.tables import check_integer

_PRIME, _MULTIPLIER = 2**31 - 1, 1_103_515_245  # their product fits into 64 bits
_FOLLOWERS = 2**31  # upper bound of token ids + 1, the lower bits of an entry
_MAX_SIZE = 16  # tokens of an n-gram


class NgramEmbedding(nn.Module):
    """Vectors for the n-grams that end at a token, by hashing.

    Formula: token t gets the sum over the sizes n of ``E_n[h(x_t, ..., x_{t-n+1})]``, with a table E_n of ``buckets``
    rows for each size. h is a polynomial in the ids modulo a prime, modulo ``buckets``, so n-grams share a row by
    chance. Before the first token of a text or document, and at padding, an n-gram has "no token" instead of an id.

    Shapes: ids ``(batch, length)``; result ``(batch, length, channels)``. What comes before ids is described by
    ``earlier``, ``(batch, largest size - 1)``: ids + 1, and 0 for no token; None for whole texts. Padding then comes
    before the ids of a row. The second result is the same for tokens that follow, and None for whole texts.

    Args:
        hidden_size: Channels.
        sizes: Sizes of n-grams, from 2 to 16.
        buckets: Rows of each table.

    Raises:
        ValueError: For no sizes, a repeated one or one out of range, and for no buckets.

    Source: Pagnoni et al. 2024 (Byte Latent Transformer), §3.2.1; there sizes are 3 to 8, and the sum is divided by
    their number.
    """

    def __init__(self, hidden_size: int, *, sizes: Sequence[int], buckets: int):
        super().__init__()
        self.sizes = _checked("ngram_sizes", sizes)
        self.table = nn.Embedding(len(sizes) * check_integer("ngram_buckets", buckets), hidden_size)
        self.buckets, self.reach = buckets, max(sizes) - 1
        self.state_size = self.reach

    def forward(self, ids: Tensor, layout: Layout, earlier: Tensor | None) -> tuple[Tensor, Tensor | None]:
        rows, later = _rows(self, ids, layout, earlier)
        return self.table(rows).sum(2), later

    def rows(self, ids: Tensor, layout: Layout, earlier: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The rows of the table for every token, ``(batch, length, sizes)``, and what `forward` returns beside the
        vectors."""
        tokens = _with_earlier(ids, layout, self.reach, earlier)
        numbers = _numbers(tokens, self.sizes, _positions(ids, layout))
        rows = [number % self.buckets + i * self.buckets for i, number in enumerate(numbers)]
        # A copy, because a view would keep all tokens in memory as long as the cache.
        later = None if earlier is None else tokens[:, ids.shape[1] :].clone()
        return torch.stack(rows, 2), later


class MatchEmbedding(nn.Module):
    """Vectors for the token that came next when the last n tokens occurred before.

    Formula: token t gets the sum over the sizes n of ``E_n[x_{s+1}]``, where s < t is the last position with
    ``(x_{s-n+1}, ..., x_s) = (x_{t-n+1}, ..., x_t)``, and nothing if there is none. Positions are found by a hash of
    the n tokens and kept in `BUCKETS` entries for each size, so one is forgotten when other tokens need its entry.
    Documents of packed rows are separate. Padding is no token, and no token follows a position before it.

    A text repeats names and phrases, which a convolution or a state cannot look up by content. With this it sees what
    followed them, as an induction head of attention does, at a cost per token that does not depend on the length.

    Shapes: ids ``(batch, length)``; result ``(batch, length, channels)``. What comes before ids is described by
    ``earlier``, ``(batch, largest size + sizes * BUCKETS)``; None for whole texts. Padding then comes before the ids of
    a row. The second result is the same for tokens that follow, and None for whole texts.

    Args:
        hidden_size: Channels.
        sizes: Sizes n, from 1 to 16. Tokens of bytes or letters come again so soon that 1 tells little; of words or
            keys, it is the lookup of one token.
        vocab_size: Number of token ids.

    Raises:
        ValueError: For no sizes, a repeated one or one out of range.

    Source: match models of compressors (Mahoney 2005, "Adaptive weighing of context models for lossless data
    compression"), as an input of the model instead of a predictor of its own; induction heads: Olsson et al. 2022.
    """

    BUCKETS: ClassVar[int] = 16_384

    def __init__(self, hidden_size: int, *, sizes: Sequence[int], vocab_size: int):
        super().__init__()
        self.sizes = _checked("match_sizes", sizes, min_size=1)
        self.table = nn.Embedding((vocab_size + 1) * len(sizes), hidden_size)  # rows of one token side by side
        self.reach = max(sizes)
        self.state_size = self.reach + len(sizes) * self.BUCKETS

    def forward(self, ids: Tensor, layout: Layout, earlier: Tensor | None) -> tuple[Tensor, Tensor | None]:
        followers, later = _rows(self, ids, layout, earlier)
        rows = followers * len(self.sizes) + torch.arange(len(self.sizes), device=ids.device)
        return (self.table(rows) * (followers > 0)[..., None]).sum(2), later

    def rows(self, ids: Tensor, layout: Layout, earlier: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return tokens after earlier occurrences, ``(batch, length, sizes)`` as ids + 1 and 0 for none, and what
        `forward` returns beside the vectors."""
        length, table = ids.shape[1], None
        if earlier is not None:
            earlier, table = earlier.split([self.reach, len(self.sizes) * self.BUCKETS], 1)
            table = table.unflatten(1, (len(self.sizes), self.BUCKETS))
        tokens = _with_earlier(ids, layout, self.reach, earlier)
        # One more than the ids, because the last token before them is followed by the first of them.
        positions = _positions(ids, layout)
        positions = None if positions is None else nn.functional.pad(positions, (1, 0))
        numbers = torch.stack(_numbers(tokens, self.sizes, positions), 1)
        last = tokens[:, self.reach - 1 :]
        real = (last > 0)[:, None]
        if table is not None and layout.mask is not None:  # what comes before ids is in the table already
            padding = length - layout.mask.sum(1)[:, None, None]
            real = real & (torch.arange(length + 1, device=ids.device) >= padding)
        if table is not None and length == 1:
            followers, table = self._next(numbers, last, real, table)
        else:
            followers, table = self._all(numbers, last, real, layout, table)
        later = None if table is None else torch.cat([tokens[:, length:], table.flatten(1)], 1)
        return followers.transpose(1, 2), later

    def resize(self, vocab_size: int, std: float) -> None:
        """Change the number of token ids, as `resized`."""
        self.table = resized(self.table, (vocab_size + 1) * len(self.sizes), std)

    def _next(self, numbers: Tensor, last: Tensor, real: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """`_all` for one token."""
        written, read = (numbers % self.BUCKETS).split(1, 2)
        entry = torch.where(real[..., :1], _entry(numbers[..., :1], last[:, None, 1:]), table.gather(2, written))
        table = table.scatter(2, written, entry)
        return _follower(table.gather(2, read), numbers[..., 1:]) * real[..., 1:], table

    def _all(
        self, numbers: Tensor, last: Tensor, real: Tensor, layout: Layout, table: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return tokens after earlier occurrences of the same n tokens, ``(batch, sizes, length)``, as ids + 1 and 0
        for none; and the updated table."""
        count = numbers.shape[2]
        index, bucket = torch.arange(count, device=numbers.device), numbers % self.BUCKETS
        real = real.expand_as(numbers)
        group = bucket
        if layout.seq_idx is not None:
            documents = nn.functional.pad(document_starts(layout.seq_idx).long().cumsum(1), (1, 0))
            group = group + self.BUCKETS * documents[:, None]
        group = torch.where(real, group, -1)
        # Sorted by group and index, the entry before a token's own is the last earlier one of its group.
        order = (group * count + index).argsort(dim=2)
        before, after = order[..., :-1], order[..., 1:]
        same = group.gather(2, before) == group.gather(2, after)
        source = torch.full_like(order, -1).scatter(2, after, torch.where(same, before, -1))
        entries = _entry(numbers[..., :-1], last[:, None, 1:].expand_as(real[..., 1:]))
        entry = entries.gather(2, source.clamp(0, count - 2)) * (source >= 0)
        if table is not None:
            entry = torch.where(source < 0, table.gather(2, bucket), entry)
            written = torch.where(real[..., :-1], index[:-1], -1)
            latest = torch.full_like(table, -1).scatter_reduce(2, bucket[..., :-1], written, "amax")
            table = torch.where(latest < 0, table, entries.gather(2, latest.clamp(min=0)))
        return (_follower(entry, numbers) * real)[..., 1:], table


ContextEmbedding = NgramEmbedding | MatchEmbedding


@torch.no_grad()
def resized(table: nn.Embedding, rows: int, std: float) -> nn.Embedding:
    """An embedding of another number of ids. Rows of new ids begin as normal numbers with a standard deviation."""
    old = table.weight
    if rows == len(old):  # keeps the parameter, which an optimizer may hold
        return table
    new = old.new_empty(rows, old.shape[1]).normal_(std=std)
    new[: len(old)] = old[:rows]
    return nn.Embedding.from_pretrained(new, freeze=not old.requires_grad)


def embed_context(
    embeddings: Sequence[ContextEmbedding], ids: Tensor, layout: Layout, earlier: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The sum of several embeddings, with the columns of their ``earlier`` side by side."""
    sizes = [each.state_size for each in embeddings]
    parts = [None] * len(sizes) if earlier is None else earlier.split(sizes, 1)
    results = [each(ids, layout, part) for each, part in zip(embeddings, parts, strict=True)]
    later = None if earlier is None else torch.cat([after for _, after in results], 1)
    return reduce(torch.add, (y for y, _ in results)), later


def _rows(
    embedding: ContextEmbedding, ids: Tensor, layout: Layout, earlier: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Call `rows` of an embedding. With shards of sequences, every process searches the ids of all tokens."""
    shard = layout.shard
    if shard is None:
        return embedding.rows(ids, layout, earlier)
    return shard.own(embedding.rows(shard.gathered(ids), shard.whole, None)[0]), None


def _entry(numbers: Tensor, followers: Tensor) -> Tensor:
    """Pack the hash of n tokens and the token that came next into an entry of the table."""
    return numbers * _FOLLOWERS + followers


def _follower(entries: Tensor, numbers: Tensor) -> Tensor:
    """The token that came next if an entry is for these tokens, else 0."""
    rest = entries - numbers * _FOLLOWERS  # ONNX divides integers in floating point
    return torch.where((rest > 0) & (rest < _FOLLOWERS), rest, 0)


def _checked(name: str, sizes: Sequence[int], min_size: int = 2) -> list[int]:
    if not sizes or len(set(sizes)) < len(sizes) or not all(min_size <= n <= _MAX_SIZE for n in sizes):
        raise ValueError(f"{name} must be different numbers from {min_size} to {_MAX_SIZE}, got {list(sizes)}")
    return sorted(sizes)


def _with_earlier(ids: Tensor, layout: Layout, reach: int, earlier: Tensor | None) -> Tensor:
    """``reach`` tokens before ids, and ids: ids + 1, and 0 for no token. Padding, at the start of rows, comes before
    both, so that it separates no tokens."""
    tokens = ids.long() + 1  # hashes need 64 bits
    tokens = tokens if layout.mask is None else tokens * layout.mask
    if earlier is None:
        return nn.functional.pad(tokens, (reach, 0))
    tokens = torch.cat([earlier, tokens], 1)
    if layout.mask is None:
        return tokens
    return tokens.gather(1, tokens_last(nn.functional.pad(layout.mask, (reach, 0), value=True)))


def _positions(ids: Tensor, layout: Layout) -> Tensor | None:
    """Return positions of ids in the documents of packed rows."""
    if layout.seq_idx is None:
        return None
    return token_positions(ids.shape[0], ids.shape[1], Layout(seq_idx=layout.seq_idx), ids.device)[0]


def _numbers(tokens: Tensor, sizes: list[int], positions: Tensor | None) -> list[Tensor]:
    """Hash the last n tokens, for each of the sorted sizes n, at tokens that have ``max(sizes) - 1`` before them."""
    reach = sizes[-1] - 1
    length = tokens.shape[1] - reach
    number = tokens[:, reach:]
    hashes = [number] if 1 in sizes else []
    for lag in range(1, reach + 1):
        token = tokens[:, reach - lag : reach - lag + length]
        if positions is not None:
            token = token * (positions >= lag)
        number = (number * _MULTIPLIER + token) % _PRIME
        if lag + 1 in sizes:
            hashes.append(number)
    return hashes
