"""Groups of documents that are padded to a common length."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_COST_OF_A_GROUP = 100  # tokens that could be computed during the calls of a group


def similar_lengths(lengths: Tensor, max_groups: int, *, min_rows: int = 1) -> list[Tensor]:
    """Return groups of documents of similar lengths: those that pad the fewest tokens, where a group of k documents is
    padded to ``max(k, min_rows)`` times its longest, and costs a hundred tokens.

    Shapes: lengths ``(documents,)``. Returns the indices of each group's documents, at most ``max_groups`` groups from
    the shortest to the longest.

    >>> [group.tolist() for group in similar_lengths(torch.tensor([900, 4, 1000, 5]), 4)]
    [[1, 3], [0, 2]]
    """
    if not len(lengths):
        return []
    sizes, size, counts = lengths.unique(return_inverse=True, return_counts=True)
    before = F.pad(counts.cumsum(0), (1, 0))
    # of a group from one size to another; there are few sizes, as their sum is at most the number of tokens
    cost = (before[1:] - before[:-1, None]).clamp(min=min_rows) * sizes + _COST_OF_A_GROUP
    cost = cost.masked_fill(torch.ones_like(cost, dtype=torch.bool).tril(-1), torch.iinfo(cost.dtype).max // 4)
    totals, starts = [cost[0]], []  # cost of the sizes up to each, and start of its last group
    for _ in range(min(max_groups, len(sizes)) - 1):
        total, start = (totals[-1][:-1, None] + cost[1:]).min(0)
        totals.append(total)
        starts.append(start + 1)
    groups, end = [], len(sizes)
    for index in range(int(torch.stack(totals)[:, -1].argmin()), -1, -1):
        start = int(starts[index - 1][end - 1]) if index else 0
        groups.append(((size >= start) & (size < end)).nonzero()[:, 0])
        end = start
    return groups[::-1]
