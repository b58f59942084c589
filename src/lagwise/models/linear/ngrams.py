"""N-gram features of texts: TF-IDF with presence instead of counts, for words and characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lagwise.tables import check_integer

_PLANE = 1 << 16  # size of the tables: code points of Unicode's basic plane
_IDEOGRAPHS = 0x20000  # first code point of the planes of letters; the plane before has mostly symbols
_WORD, _SPACE = 1, 2
_MULTIPLIER, _POSITION = 6364136223846793005, 1442695040888963407  # products wrap around 64 bits
_MAX_CHARACTERS = 3_000_000  # of training text with n-grams of characters, which take ten times as long as words
_MANY_ROWS, _MANY_CHARACTERS = 1000, 100_000  # larger data sets keep only n-grams that occur twice
_COSINE = 4.0  # weight of the cosine of a pair, a single feature that says more than others


class Sparse(NamedTuple):
    """Features of rows, of which most are 0: feature indices ``(batch, n)`` and values, 0 at padding."""

    numbers: Tensor
    values: Tensor


class Ngrams(nn.Module):
    """Presence of n-grams of words and of characters in a text, weighted as in TF-IDF.

    Formula: feature g is ``idf_g / norm`` if n-gram g occurs in the text, with ``idf_g = log((1 + N) / (1 + N_g)) + 1``
    for N training rows, of which N_g have g. The norm is Euclidean, of the n-grams of words and of those of characters
    each. Those that are rare in training are left out. Of a pair of texts the features are those of either text, the
    products of both texts' features, with ``differences`` their absolute differences, and the cosines.

    A token id stands for its bytes (``spellings``), so the same n-grams are found whatever the tokenizer. Characters
    are decoded from UTF-8, in lower case, with runs of white space, and both ends of a text, as one space; words are
    runs of letters, digits and underscores. An n-gram is found by its hash of 64 bits among those of the kept ones.

    Shapes: input_ids ``(batch, length)``; mask ``(batch, length)``, true at tokens, or None; types, of pairs, 0 at the
    first text and 1 at the second. Padding has no effect.

    Args:
        vocab_size: Number of token ids.
        words: Largest number of words of an n-gram; 0 for none.
        characters: Numbers of characters of n-grams.
        kept: Numbers of n-grams of words and of characters that have a feature.
        longest: Bytes of the longest token.
        pairs: Whether rows are pairs of texts.
        differences: Whether pairs have the differences of their features.

    Source: n-grams of words with presence and a linear classifier: Wang and Manning 2012, "Baselines and Bigrams";
    hashing: Weinberger et al. 2009.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        words: int = 2,
        characters: list[int] | None = None,
        kept: list[int],
        longest: int = 1,
        pairs: bool = False,
        differences: bool = False,
    ):
        super().__init__()
        self.words, self.characters = check_integer("words", words, min=0), characters or []
        self.kept, self.pairs, self.differences = kept, pairs, differences
        if len(kept) != 2 or min(kept) < 0:
            raise ValueError(f"kept must be the numbers of n-grams of words and of characters, got {kept}")
        if min(self.characters, default=1) < 1:
            raise ValueError(f"characters must be numbers of at least 1, got {characters}")
        self.count = sum(kept) + 1  # + 1: the out-of-vocabulary bucket
        self.size = (3 + differences) * self.count + 2 if pairs else self.count
        self.register_buffer("spellings", torch.zeros(vocab_size, check_integer("longest", longest), dtype=torch.uint8))
        self.register_buffer("spelled", torch.zeros(vocab_size, dtype=torch.uint8))
        self.register_buffer("lower", torch.zeros(_PLANE, dtype=torch.int32))
        self.register_buffer("kinds", torch.zeros(_PLANE, dtype=torch.uint8))
        self.register_buffer("hashes", torch.zeros(self.count - 1, dtype=torch.long))  # words' hashes, then characters'
        self.register_buffer("idf", torch.zeros(self.count))

    @classmethod
    def chosen(
        cls, spellings: Sequence[bytes], batches: Iterable[Mapping[str, Tensor]], *, pairs: bool, **sizes: Any
    ) -> tuple[dict[str, Any], Ngrams]:
        """Return the options and the features for training texts, rows as models read them. spellings: bytes of each
        token id; sizes: ``words``, ``characters`` and ``min_rows``, the rows in which an n-gram must occur to be kept,
        by default as suits the amount of text."""
        lengths, read = torch.tensor([len(each) for each in spellings]), list(batches)
        total = sum(int(lengths[batch["input_ids"]].sum()) for batch in read)
        rows = sum(len(batch["input_ids"]) for batch in read)
        min_rows = sizes.pop("min_rows", 2 if rows > _MANY_ROWS and total > _MANY_CHARACTERS else 1)
        shape: dict[str, Any] = {"words": 2, "characters": [2, 3, 4, 5] if total <= _MAX_CHARACTERS else []}
        shape |= {**sizes, "longest": max(1, *map(len, spellings))}
        scanner = cls(len(spellings), kept=[0, 0], **shape)
        scanner._spell(spellings)
        collected: list[list[np.ndarray]] = [[], []]
        count = rows * (2 if pairs else 1)
        for batch in read:
            ids, mask = batch["input_ids"], batch.get("attention_mask")
            mask = None if mask is None else mask.bool()
            for part in scanner._texts(ids, mask, batch.get("token_type_ids")) if pairs else [mask]:
                for family, hashes in enumerate(scanner._hashes(ids, part)):
                    collected[family].append(_distinct(hashes))
        kept, counts = [], []
        for parts in collected:
            hashes, times = np.unique(np.concatenate(parts or [np.zeros(0, np.int64)]), return_counts=True)
            kept.append(hashes[times >= min_rows])
            counts.append(times[times >= min_rows])
        options: dict[str, Any] = {**shape, "kept": [len(each) for each in kept], "pairs": pairs, "differences": pairs}
        features = cls(len(spellings), **options)
        features._spell(spellings)
        features.hashes.copy_(torch.from_numpy(np.concatenate(kept)))
        idf = np.log((1 + count) / (1 + np.concatenate(counts))) + 1
        features.idf.copy_(torch.from_numpy(np.append(idf, 0)).float())
        return {"name": "ngrams", **options}, features

    def _spell(self, spellings: Sequence[bytes]) -> None:
        for token, spelling in enumerate(spellings):
            self.spellings[token, : len(spelling)] = torch.tensor(list(spelling), dtype=torch.uint8)
            self.spelled[token] = len(spelling)
        characters = [chr(code) for code in range(_PLANE)]
        lower = [ord(c.lower()) if len(c.lower()) == 1 and ord(c.lower()) < _PLANE else ord(c) for c in characters]
        kinds = [_WORD if c.isalnum() or c == "_" else _SPACE if c.isspace() else 0 for c in characters]
        self.lower.copy_(torch.tensor(lower))
        self.kinds.copy_(torch.tensor(kinds))

    def forward(self, ids: Tensor, mask: Tensor | None = None, types: Tensor | None = None) -> Sparse:
        if not self.pairs:
            return self._weighted(self._numbers(ids, mask))
        first, second = (self._numbers(ids, part) for part in self._texts(ids, mask, types))
        a, b = self._weighted(first), self._weighted(second)
        # Where both texts have a feature, it occurs twice when both are sorted together.
        merged, order = torch.cat([a.numbers, b.numbers], 1).sort(1)
        values = torch.cat([a.values, b.values], 1).gather(1, order)
        before, twice = F.pad(values, (1, 0))[:, :-1], F.pad(merged[:, 1:] == merged[:, :-1], (1, 0))
        both = twice * values * before
        of_words = merged < self.kept[0]
        cosines = torch.stack([(both * part).sum(1) for part in (of_words, ~of_words)], 1)
        numbers = [a.numbers, b.numbers + self.count, merged + 2 * self.count]
        weights = [a.values, b.values, both]
        if self.differences:
            numbers.append(merged + 3 * self.count)
            weights.append((values - twice * before).abs().masked_fill(F.pad(twice, (0, 1))[:, 1:], 0))
        last = torch.arange(self.size - 2, self.size, device=ids.device).expand(ids.shape[0], -1)
        return Sparse(torch.cat([*numbers, last], 1), torch.cat([*weights, _COSINE * cosines], 1))

    def _texts(self, ids: Tensor, mask: Tensor | None, types: Tensor | None) -> list[Tensor]:
        """Return masks of the two texts of pairs."""
        if types is None:
            raise ValueError("this model reads pairs of texts: give token_type_ids, 0 at the first and 1 at the second")
        real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        return [real & (types == number) for number in (0, 1)]

    def _numbers(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Look up the numbers of the n-grams of each text, sorted, ``(batch, n)``."""
        numbers, start = [], 0
        for hashes, count in zip(self._hashes(ids, mask), self.kept, strict=True):
            table = self.hashes[start : start + count]
            if count:
                index = torch.clamp(_searched(table, hashes), max=count - 1)
                numbers.append(torch.where(table[index] == hashes, index + start, self.count - 1))
            start += count
        numbers = numbers or [torch.full_like(ids[:, :1], self.count - 1)]
        return torch.cat(numbers, 1).sort(1).values

    def _weighted(self, numbers: Tensor) -> Sparse:
        """Weight sorted numbers; duplicates are left once."""
        numbers = numbers.masked_fill(F.pad(numbers[:, 1:] == numbers[:, :-1], (1, 0)), self.count - 1)
        values = self.idf[numbers]
        of_words = numbers < self.kept[0]
        squares = values.square()
        norms = [(squares * part).sum(1, keepdim=True).sqrt() for part in (of_words, ~of_words)]
        return Sparse(numbers, values / torch.where(of_words, norms[0], norms[1]).clamp(min=1e-6))

    def _hashes(self, ids: Tensor, mask: Tensor | None) -> list[Tensor]:
        """Hash the n-grams of words and of characters of each text, ``(batch, n)``; 0 for none."""
        text, real = self._characters(ids, mask)
        return [self._word_hashes(text, real), _hashed(text + 1, real, self.characters, _POSITION)]

    def _characters(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Decode texts to code points ``(batch, n)``, in lower case, between spaces, and return where there are any."""
        spelled = torch.arange(self.spellings.shape[1], device=ids.device) < self.spelled[ids][..., None]
        spelled = spelled if mask is None else spelled & mask[..., None]
        codes, real = _compact(self.spellings[ids].flatten(1).long(), spelled.flatten(1))
        after = [F.pad(codes, (0, n))[:, n:] & 63 for n in (1, 2, 3)]
        two = ((codes & 31) << 6) | after[0]
        three = ((codes & 15) << 12) | (after[0] << 6) | after[1]
        four = ((codes & 7) << 18) | (after[0] << 12) | (after[1] << 6) | after[2]
        point = torch.where(codes < 0xC0, codes, torch.where(codes < 0xE0, two, torch.where(codes < 0xF0, three, four)))
        small = point.clamp(max=_PLANE - 1)
        point = torch.where(point < _PLANE, self.lower[small].long(), point)
        space = (point < _PLANE) & (self.kinds[small] == _SPACE)
        point = torch.where(space, 32, point)
        first = (codes & 0xC0) != 0x80
        text, real = _compact(point, real & first)
        ends = real.sum(1, keepdim=True) + 1
        text = F.pad(F.pad(text, (1, 0), value=32), (0, 1)).scatter(1, ends, 32)
        real = F.pad(F.pad(real, (1, 0), value=True), (0, 1)).scatter(1, ends, True)
        repeated = (text == 32) & (F.pad(text, (1, 0))[:, :-1] == 32)
        return _compact(text, real & ~repeated)

    def _word_hashes(self, text: Tensor, real: Tensor) -> Tensor:
        inside = real & ((text >= _IDEOGRAPHS) | (self.kinds[text.clamp(max=_PLANE - 1)] == _WORD))
        index = torch.arange(text.shape[1], device=text.device).expand_as(text)
        starts = inside & ~F.pad(inside, (1, 0))[:, :-1]
        # A lookup by the index of the word, because ONNX has no running maximum.
        begins, _ = _compact(index, starts)
        start = begins.gather(1, (starts.long().cumsum(1) - 1).clamp(min=0))
        # A word's hash is the sum over its characters of a hash of the character and its index in the word.
        own = torch.where(inside, _mixed(text + 1 + (index - start) * _POSITION), 0)
        total = own.cumsum(1)
        ends = inside & ~F.pad(inside, (0, 1))[:, 1:]
        word, real = _compact(total - (total - own).gather(1, start), ends)
        return _hashed(word, real, range(1, self.words + 1), -_POSITION)


def _hashed(tokens: Tensor, real: Tensor, sizes: Sequence[int], step: int) -> Tensor:
    """Hash the n-grams of some sizes that end at each token, ``(batch, n)``; 0 where one begins before the text."""
    number, length = tokens, tokens.shape[1]
    hashes = [tokens[:, :0]]
    for size in range(1, max(sizes, default=0) + 1):
        if size in sizes:
            whole = real & F.pad(real, (size - 1, 0))[:, :length]
            hashes.append(torch.where(whole, _mixed(number + size * step), 0))
        number = number * _MULTIPLIER + F.pad(tokens, (size, 0))[:, :length]
    return torch.cat(hashes[1:] or hashes, 1)


def _mixed(number: Tensor) -> Tensor:
    """Hash numbers of 64 bits to 64 bits; in practice none becomes 0."""
    number = (number ^ ((number >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    number = (number ^ ((number >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return number ^ ((number >> 31) & 0x1FFFFFFFF)


def _searched(ordered: Tensor, values: Tensor) -> Tensor:
    """`torch.searchsorted`; a bisection in exported programs, because ONNX has no such operation."""
    if not torch.compiler.is_compiling():
        return torch.searchsorted(ordered, values)
    index, step = torch.zeros_like(values), 1 << len(ordered).bit_length()
    while step := step // 2:
        further = index + step
        less = ordered[further.clamp(max=len(ordered)) - 1] < values
        index = torch.where((further <= len(ordered)) & less, further, index)
    return index


def _compact(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Move the kept entries of each row ``(batch, n)`` to its start. Returns as many columns as the longest row needs,
    at least one, and a mask of the entries."""
    counts = keep.sum(1)
    width = x.shape[1] if torch.compiler.is_compiling() else max(1, int(counts.max()))
    target = torch.where(keep, keep.cumsum(1) - 1, width)
    moved = x.new_zeros(x.shape[0], width + 1).scatter(1, target, x)
    return moved[:, :width], torch.arange(width, device=x.device) < counts[:, None]


def _distinct(hashes: Tensor) -> np.ndarray:
    """Concatenate the distinct nonzero hashes of each row."""
    ordered = np.sort(hashes.numpy(force=True), axis=1)
    new = np.ones(ordered.shape, dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return ordered[new & (ordered != 0)]
