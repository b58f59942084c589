"""Attention within non-overlapping chunks of the sequence, in linear time, and rotary positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from lagwise.ops.host import on_host
from lagwise.ops.operation import (
    Engine,
    Values,
    at_most,
    beyond,
    chunk_count,
    cpu_graph,
    open_length,
    operation,
    recorded,
    symbolic,
)
from lagwise.ops.packing import move_rows
from lagwise.tables import known

ATTENTION_FUNCTIONS = ("softmax", "laplace", "relu2")
_ROTARY_BASE = 10000.0
Biases = Callable[[int, int, int], Tensor]  # of queries from the first to the second number, and so many keys
_QUERIES_AT_ONCE = 512  # queries at a time where scores are computed in full, so that memory is linear in the window
_LAPLACE_MEAN = math.sqrt(0.5)
_LAPLACE_WIDTH = math.sqrt(1 / (4 * math.pi))


def chunked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    chunk: int,
    causal: bool = True,
    function: str = "softmax",
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    sliding: bool = False,
) -> Tensor:
    """Attention in which a token sees the tokens of its own chunk, and if ``sliding`` also those of the chunk before.

    Formula: ``y_i = sum_j f(s_ij) v_j`` over real keys ``j`` with ``floor(j / chunk) = floor(i / chunk)`` (and ``j <=
    i`` when causal). Positions are counted from each row's first real token; ``f`` and ``s`` as in `pair_attention`,
    with the bias indexed by the positions of query and key in their chunk. Sliding chunks, of causal attention only,
    add the keys with ``floor(j / chunk) = floor(i / chunk) - 1``; their bias is by lag.

    Shapes: query and key ``(batch, heads, length, d)``; value ``(batch, heads, length, e)``; bias ``(heads or 1, c,
    c)`` with c >= min(chunk, length), or by lag ``(heads or 1, 2 c - 1)``, lag ``-(c - 1)`` first, or None; for sliding
    chunks and more tokens than one c >= 2 chunk. mask ``(batch, length)``, true where a token is real. Result like
    value. chunk is in tokens and need not divide the length.

    Preconditions: ValueError for an unknown function, a chunk below 1, an empty sequence, or shapes that do not match.
    Outputs at padding are finite and have no meaning.

    Source: TCNCA §2 and fig. 1; MEGA (Ma et al. 2023), §3.4, which counts chunks from the row's start, padding
    included; sliding chunks: Gecko (Ma et al. 2026), as released.

    >>> x = torch.arange(6.0).view(1, 1, 6, 1)
    >>> same = torch.zeros(1, 1, 6, 1)  # queries and keys without a preference: the mean of the tokens that are seen
    >>> chunked_attention(same, same, x, chunk=3, causal=False).flatten().tolist()
    [1.0, 1.0, 1.0, 4.0, 4.0, 4.0]
    """
    _check(query, key, value, chunk, causal, function, bias, mask, sliding)
    return _attention(query, key, value, bias, mask, chunk, causal, function, sliding)


@operation
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    chunk: int,
    causal: bool,
    function: str,
    sliding: bool,
) -> Tensor:
    shift = None
    if mask is not None:
        mask = mask.bool()
        # Inspect padding only outside of graphs and `torch.vmap`, which cannot branch on values.
        here = None if recorded() else on_host(mask)[0]
        if here is None or first_real(here).any():
            shift = first_real(mask)
            query, key, value = (_moved(x, -shift) for x in (query, key, value))
            mask = _moved(mask[:, None, :, None].float(), -shift)[:, 0, :, 0] > 0
        if (
            here is not None
            and not ((here[:, 1:] & ~here[:, :-1] & here.cumsum(1).bool()[:, :-1]) if causal else ~here).any()
        ):
            mask = None  # a causal query never sees padding on the right
    y = _in_chunks(query, key, value, bias, mask, chunk, causal, function, sliding)
    return y if shift is None else _moved(y, shift)


_attention.in_graphs(
    "chunked_attention", lambda query, key, value, *_: value.new_empty(value.shape), where=cpu_graph, constants="mask"
)


def pair_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    function: str = "softmax",
    bias: Tensor | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """Attention over the allowed pairs of query and key, with elementwise weights unless ``softmax``.

    Formula: ``sum_j f(s_ij) v_j`` with n_i the number of keys allowed for query i, and

    - ``softmax``: ``s = q k / sqrt(d) + bias``, normalised over the keys;
    - ``laplace``: ``s = q k / n_i + bias``, ``f = (1 + erf((s - mu) / (sigma sqrt 2))) / 2``, ``mu = sqrt(1 / 2)``,
      ``sigma = sqrt(1 / (4 pi))``; 0 where not allowed;
    - ``relu2``: ``s`` as for laplace, ``f = max(s, 0)^2``; 0 where not allowed.

    Shapes: query ``(batch, heads, n, d)``; key ``(batch, heads, m, d)``; value ``(batch, heads, m, e)``; bias ``(heads
    or 1, n, m)`` or ``(batch, heads or 1, n, m)``; allowed, boolean, ``(n, m)`` or ``(batch or 1, heads or 1, n, m)``.
    Result ``(batch, heads, n, e)``.

    Preconditions: ValueError for an unknown function. With softmax, at least one key must be allowed for every query.
    Elementwise weights are computed in float32 or better.

    Source: TCNCA §2; MEGA (Ma et al. 2023), §3.2, eq. 16 and app. C for Laplace, which approximates the squared ReLU
    of Primer, and MEGA §2.1 for n_i.
    """
    known(function, ATTENTION_FUNCTIONS, "function")
    if function == "softmax":
        scores = allowed
        if bias is not None:
            bias = (bias[None] if bias.dim() == 3 else bias).to(query.dtype)
            scores = bias if allowed is None else torch.where(allowed, bias, float("-inf"))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=scores)
    scores = query @ key.transpose(2, 3)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    scores = scores / (key.shape[2] if allowed is None else allowed.sum(-1, keepdim=True).clamp(min=1))
    if bias is not None:
        scores = scores + bias
    if function == "laplace":
        weights = 0.5 * (1 + torch.erf((scores - _LAPLACE_MEAN) / (_LAPLACE_WIDTH * math.sqrt(2))))
    else:
        weights = scores.relu().square()
    if allowed is not None:
        weights = weights.masked_fill(~allowed, 0)
    return weights.to(value.dtype) @ value


def rotary(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate pairs of channels by an angle proportional to the position, so that products depend on lags (RoPE).

    Formula: channels 2 k and 2 k + 1 of the token at position p are rotated by ``p * 10000**(-2 k / d)``, in float32 or
    better.

    Shapes: x ``(length, d)``, ``(batch, length, d)`` or ``(batch, heads, length, d)``; positions ``(length,)`` or
    ``(batch, length)``, in tokens, any sign. Result like x. ValueError for odd d.

    Source: Su et al. 2021; TCNCA app. F.
    """
    return rotate(x, *rotary_factors(positions, x.shape[-1], dtype=x.dtype))


def rotary_factors(
    positions: Tensor, size: int, *, dtype: torch.dtype, limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """Compute cosines and sines of `rotary`'s angles, for `rotate`.

    Shapes: positions as in `rotary`; result ``(*positions.shape, size / 2)`` twice, in float32 or the wider dtype.
    ``limit``: positions are in [0, limit), so that only these angles are computed. ValueError for an odd size.
    """
    if size % 2:
        raise ValueError(f"rotary positions need an even number of channels, got {size}")
    dtype = torch.promote_types(dtype, torch.float32)
    rates = _ROTARY_BASE ** (torch.arange(0, size, 2, dtype=dtype, device=positions.device) / -size)
    count = positions.numel()
    table = limit is not None and (not has_static_value(count) or limit < count)
    indices = torch.arange(limit, dtype=dtype, device=positions.device) if table else positions.to(dtype)
    angles = indices[..., None] * rates
    cos, sin = angles.cos(), angles.sin()
    return (cos[positions], sin[positions]) if table else (cos, sin)


@operation
def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`rotary` with given `rotary_factors`, which several tensors can share."""
    heads = x.dim() == 4
    if heads:  # keep heads within tokens, as projections produce them, so that folding chunks stays a view
        x, cos, sin = x.transpose(1, 2), cos[..., None, :], sin[..., None, :]
    pairs = x.to(cos.dtype)
    if torch.compiler.is_compiling():  # complex numbers are three times as fast, but compilers do not optimise them
        a, b = pairs.unflatten(-1, (-1, 2)).unbind(-1)
        y = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1)
    else:
        if pairs.stride(-1) != 1 or any(n % 2 for n in (pairs.storage_offset(), *pairs.stride()[:-1])):
            pairs = pairs.clone(memory_format=torch.contiguous_format)  # pairs must begin at even offsets
        y = torch.view_as_real(torch.view_as_complex(pairs.unflatten(-1, (-1, 2))) * torch.complex(cos, sin))
    y = y.flatten(-2).to(x.dtype)
    return y.transpose(1, 2) if heads else y


class _Rotation(Engine):
    evaluate = staticmethod(rotate.plain)

    @staticmethod
    def backward(args: Values, saved: Values, grads: Values, needs_grad: Sequence[bool]) -> Values:
        return (rotate.plain(grads[0], args[1], -args[2]),)


rotate.in_graphs("rotate", lambda x, *_: x.new_empty(x.shape), engine=_Rotation, where=cpu_graph, constants="cos sin")


def lag_matrix(values: Tensor) -> Tensor:
    """Matrix of values that depend on the lag: ``T[h, i, j] = v[h, i - j]``.

    Shapes: values ``(heads, 2 n - 1)``, lag ``-(n - 1)`` first; result ``(heads, n, n)``.

    Rows are cut from the values repeated with a period one longer than a row. This avoids a gather, whose gradient is
    slow.
    """
    n = values.shape[1] // 2 + 1
    rows = F.pad(values.flip(1), (0, 1)).repeat(1, n)[:, : n * (2 * n - 1)]
    return rows.unflatten(1, (n, 2 * n - 1))[:, :, n - 1 :]


def first_real(mask: Tensor) -> Tensor:
    """Position of each row's first real token, 0 in a row of padding. Shapes: mask ``(batch, length)``; result
    ``(batch,)``."""
    return mask.bool().long().argmax(dim=1)


def _in_chunks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    real: Tensor | None,
    chunk: int,
    causal: bool,
    function: str,
    sliding: bool,
) -> Tensor:
    """Attention in chunks counted from the first token, all whole ones at once, as rows of a batch. The first of
    sliding chunks, and what is left after whole chunks, are computed alone; or in a graph, which would be compiled anew
    for every rest, filled up to a chunk."""
    (batch, heads, length, _), biases = query.shape, _within(bias)
    graph, late = open_length(length), chunk if sliding else 0
    rest = 0 if graph else length % chunk
    end = length - rest
    count = chunk_count(length, chunk) if graph else (end - late) // chunk
    one = heads == 1 and not graph  # the chunks take the axis of heads, which is a view at any length
    if graph:
        if real is None and (sliding or not causal):
            real = torch.ones(batch, length, dtype=torch.bool, device=query.device)
        query, key, value = (_filled(x, chunk, count) for x in (query, key, value))
    mask = None if real is None else real[:, None, :, None]
    if graph and mask is not None:
        mask = _filled(mask, chunk, count)

    def window(start: int, stop: int) -> Tensor:
        keys = slice(max(0, start - late), stop)
        tokens, real_keys = query[:, :, start:stop], None if real is None else real[:, None, None, keys]
        return attend_window(tokens, key[:, :, keys], value[:, :, keys], causal, function, biases, real_keys)

    def fold(x: Tensor) -> Tensor:
        x = x.unflatten(2, (count, chunk))
        return x.squeeze(1) if one else x.transpose(1, 2).flatten(0, 1)

    def keys_of_chunks(x: Tensor) -> Tensor:
        own = x if graph else x[:, :, late:end]
        if not sliding:
            return fold(own)
        before = F.pad(own, (0, 0, chunk, -chunk)) if graph else x[:, :, : end - chunk]
        return torch.cat([fold(before), fold(own)], 2)

    parts = [window(0, min(chunk, length))] if sliding and not graph else []
    if graph or count > 0:
        real_keys = None if mask is None else keys_of_chunks(mask).transpose(2, 3)
        rows = fold(query if graph else query[:, :, late:end])
        y = attend_window(rows, keys_of_chunks(key), keys_of_chunks(value), causal, function, biases, real_keys)
        y = y[:, None] if one else y.unflatten(0, (batch, count)).transpose(1, 2)
        parts.append(y.flatten(2, 3))
    if rest and (end or not sliding):
        parts.append(window(end, length))
    y = parts[0] if len(parts) == 1 else torch.cat(parts, 2)
    if not graph or symbolic(length):
        return y[:, :, :length]
    # Whether a part is contiguous depends on the length, on which graphs must not: parts put together always are.
    return torch.cat([y[:, :, : length - 1], y[:, :, length - 1 : length]], 2)


def _filled(x: Tensor, chunk: int, whole: int) -> Tensor:
    """Return tokens up to a whole number of chunks, zeros at the end: no padding, which graphs keep apart from some."""
    if symbolic(x.shape[2]):
        return F.pad(x, (0, 0, 0, whole * chunk - x.shape[2]))
    return torch.cat([x, x.new_zeros(*x.shape[:2], 2 * chunk, x.shape[3])], 2)[:, :, : whole * chunk]


def attend_window(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool,
    function: str,
    bias: Biases | None,
    real: Tensor | None,
    *,
    step: int | None = None,
) -> Tensor:
    """Attention of the last tokens of a window, or all, over all n of them, so many queries at a time; real ``(batch,
    heads or 1, 1, n)``."""
    n, parts, step = key.shape[2], [], step or _QUERIES_AT_ONCE
    before = n - query.shape[2]
    if function == "softmax" and bias is None and real is None and not before:
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    starts = [before] if step == query.shape[2] else range(before, n, step)
    for start in starts:
        end = n if len(starts) == 1 else min(start + step, n)
        seen, allowed = end if causal else n, real
        index = torch.arange(seen, device=query.device)
        lags = index[start:end, None] - index
        if real is not None:
            allowed = real[..., :seen]
            if function == "softmax":
                allowed = allowed | (lags == 0)  # so that padding has a key to attend to
        if causal and query.shape[2] > 1:  # one query is the last token: all keys are before it
            allowed = lags >= 0 if allowed is None else allowed & (lags >= 0)
        added = None if bias is None else bias(start, end, seen)
        rows = (query[:, :, start - before : end - before], key[:, :, :seen], value[:, :, :seen])
        parts.append(pair_attention(*rows, function=function, bias=added, allowed=allowed))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _within(bias: Tensor | None) -> Biases | None:
    """The biases of a matrix, or by lag, of a window."""
    if bias is None:
        return None

    def biases(start: int, end: int, seen: int) -> Tensor:
        if bias.dim() == 3:
            return bias[:, start:end, :seen]
        centre = bias.shape[1] // 2
        if (start, end) == (0, seen):
            return lag_matrix(bias[:, centre + 1 - seen : centre + seen])
        lags = bias[:, start + centre + 1 - seen : centre + end]  # from the lag of the first query and the last key on
        return lags.flip(1).unfold(1, seen, 1).flip(1)

    return biases


def _moved(x: Tensor, shift: Tensor) -> Tensor:
    """`move_rows` of ``(batch, heads, length, d)``, to rows of the same length."""
    tokens = x.transpose(1, 2)
    return move_rows(tokens.flatten(2), shift, x.shape[2]).unflatten(2, tokens.shape[2:]).transpose(1, 2)


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    chunk: int,
    causal: bool,
    function: str,
    bias: Tensor | None,
    mask: Tensor | None,
    sliding: bool,
) -> None:
    known(function, ATTENTION_FUNCTIONS, "function")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if sliding and not causal:
        raise ValueError("sliding chunks need causal attention: a token sees the chunk before its own")
    if query.dim() != 4 or query.shape[2] == 0 or query.shape != key.shape:
        shapes = f"{tuple(query.shape)} and {tuple(key.shape)}"
        raise ValueError(f"query and key must be alike, (batch, heads, length >= 1, d), got {shapes}")
    batch, heads, length, _ = query.shape
    if value.dim() != 4 or value.shape[:3] != query.shape[:3]:
        raise ValueError(f"value must be {(batch, heads, length)} and its size, got {tuple(value.shape)}")
    if mask is not None and mask.shape != (batch, length):
        raise ValueError(f"mask must be (batch, length) = {(batch, length)}, got {tuple(mask.shape)}")
    if bias is None:
        return
    n = 2 * chunk if sliding and beyond(length, chunk) else at_most(chunk, length)
    min_size, dims = (2 * n - 1 if bias.dim() == 2 else n), (2,) if sliding else (2, 3)
    if bias.dim() not in dims or bias.shape[0] not in (1, heads) or beyond(min_size, min(bias.shape[1:])):
        square = "" if sliding else f", or ({heads} or 1 heads, at least {n}, at least {n})"
        raise ValueError(
            f"bias{' of sliding chunks' * sliding} must be by lag, ({heads} or 1 heads, at least {2 * n - 1}){square}, "
            f"got {tuple(bias.shape)}"
        )
