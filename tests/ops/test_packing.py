from __future__ import annotations

import pytest
import torch

from lagwise.ops import per_document, seq_idx_from_cu_seqlens


def test_documents_are_mixed_apart() -> None:
    """A running sum starts again with every document, also where two rows' neighbours have the same number."""
    x = torch.arange(12, dtype=torch.float64).reshape(2, 6, 1)
    seq_idx = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 2, 2, 2, 2, 0]])
    y = per_document(lambda padded, mask: (padded * mask[..., None]).cumsum(1), x, seq_idx)
    assert y.flatten().tolist() == [0, 1, 3, 3, 7, 12, 6, 7, 15, 24, 34, 11]


def test_a_mask_reaches_the_mixer() -> None:
    x = torch.ones(1, 4, 1)
    mask = torch.tensor([[True, False, True, True]])
    y = per_document(lambda padded, m: (padded * m[..., None]).cumsum(1), x, torch.zeros(1, 4, dtype=torch.long), mask)
    assert y.flatten().tolist() == [1, 1, 2, 3]


def test_cumulative_lengths() -> None:
    assert seq_idx_from_cu_seqlens(torch.tensor([0, 2, 5]), 6).tolist() == [[0, 0, 1, 1, 1, 2]]
    for wrong in ([1, 2], [0, 3, 3], [0, 7]):
        with pytest.raises(ValueError, match="cu_seqlens"):
            seq_idx_from_cu_seqlens(torch.tensor(wrong), 6)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="seq_idx"):
        per_document(lambda a, m: a, torch.ones(1, 4, 1), torch.zeros(1, 3))
