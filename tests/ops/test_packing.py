from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from lagwise.ops import Layout
from lagwise.ops.packing import per_document, seq_idx_from_cu_seqlens, similar_lengths


def running_sum(x: Tensor, layout: Layout) -> Tensor:
    return (x if layout.mask is None else x * layout.mask[..., None]).cumsum(1)


def test_documents_are_mixed_separately() -> None:
    """A running sum restarts with every document, also if adjacent documents of two rows have the same number."""
    x = torch.arange(12, dtype=torch.float64).reshape(2, 6, 1)
    seq_idx = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 2, 2, 2, 2, 0]])
    y = per_document(running_sum, x, Layout(seq_idx=seq_idx))
    assert y.flatten().tolist() == [0, 1, 3, 3, 7, 12, 6, 7, 15, 24, 34, 11]


def test_a_document_of_padding_alone_gives_zeros() -> None:
    layout = Layout(torch.tensor([[1, 1, 0, 0]]), torch.tensor([[0, 0, -1, -1]]))
    assert per_document(lambda x, _: x + 1, torch.ones(1, 4, 1), layout).flatten().tolist() == [2, 2, 0, 0]
    nothing = Layout(torch.zeros(1, 4), torch.zeros(1, 4, dtype=torch.long))
    assert per_document(lambda x, _: x + 1, torch.ones(1, 4, 1), nothing).flatten().tolist() == [0, 0, 0, 0]


def tokens_of(groups: list[list[int]], least: int) -> int:
    """With padding, and the cost of each group."""
    return sum(max(len(group), least) * max(group) + 100 for group in groups)


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("longest", [6, 60, 900, 9000])
def test_groups_pad_the_fewest_tokens(longest: int, least: int) -> None:
    lengths = torch.randint(1, longest, (9,))
    ordered, ways = sorted(lengths.tolist()), []
    for cuts in itertools.chain.from_iterable(itertools.combinations(range(1, 9), n) for n in range(4)):
        ways.append([ordered[a:b] for a, b in itertools.pairwise([0, *cuts, 9])])
    found = similar_lengths(lengths, 4, min_rows=least)
    assert sorted(torch.cat(found).tolist()) == list(range(9))
    groups = [lengths[group].tolist() for group in found]
    assert [max(group) for group in groups] == sorted(max(group) for group in groups)
    # those of equal lengths are never apart
    best = min(
        tokens_of(way, least) for way in ways if len({x for g in way for x in set(g)}) == sum(map(len, map(set, way)))
    )
    assert tokens_of(groups, least) == best


@pytest.mark.parametrize(
    "seq_idx",
    [
        [[0] * 12],
        [list(range(12))],
        [[0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3]],
        [[0] * 6 + [-1] * 6, [5] * 3 + [6] * 5 + [-1] * 4],
        [[-1] * 12, [-1] * 12],
        [[0]],
        [[0, 1]],
    ],
)
def test_groups_of_graphs_are_three_without_a_size_of_one(seq_idx: list[list[int]]) -> None:
    documents = torch.tensor(seq_idx)
    x = torch.randn(*documents.shape, 2, dtype=torch.float64, requires_grad=True)
    mask = documents >= 0
    for layouts in ([Layout(mask, documents) for _ in "ab"], [Layout(None, documents) for _ in "ab"]):
        expected, grouped = layouts
        grouped.group_for_graphs()
        assert len(grouped.buckets) == 3
        sizes = [each.shape for bucket in grouped.buckets for each in bucket[:2]]
        assert min(itertools.chain(*sizes)) >= 2
        y = per_document(running_sum, x, grouped)
        torch.testing.assert_close(y, per_document(running_sum, x, expected))
        assert torch.autograd.gradcheck(lambda a, layout=grouped: per_document(running_sum, a, layout), x)


def test_what_fills_groups_of_graphs_reads_no_padding() -> None:
    x, weight = torch.full((1, 9, 2), torch.nan), torch.randn(2, 2, requires_grad=True)
    x[:, 3:] = torch.randn(1, 6, 2)
    layout = Layout(torch.arange(9)[None] >= 3, torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]]))
    layout.group_for_graphs()
    per_document(lambda x, _: x @ weight, x, layout).sum().backward()
    torch.testing.assert_close(weight.grad, x[0, 3:].sum(0)[:, None].expand(2, 2))


def test_compact_keeps_everything_between_the_first_and_last_token() -> None:
    mask = torch.tensor([[0, 1, 0, 1, 0, 0], [1, 1, 0, 0, 0, 0]])
    kept, layout = Layout(mask).compact or pytest.fail("much of this batch is padding")
    assert kept.tolist() == [1, 2, 3, 6, 7]
    assert layout.seq_idx is not None
    assert layout.mask is not None
    assert layout.seq_idx.tolist() == [[0, 0, 0, 1, 1]]
    assert layout.mask.tolist() == [[True, False, True, True, True]]


def test_compact_keeps_documents_of_packed_rows_apart() -> None:
    seq_idx = torch.tensor([[0, 0, 1, -1, -1, -1], [1, 1, -1, -1, -1, -1]])
    kept, layout = Layout(seq_idx >= 0, seq_idx).compact or pytest.fail("much of this batch is padding")
    assert kept.tolist() == [0, 1, 2, 6, 7]
    assert layout.seq_idx is not None
    assert layout.seq_idx.tolist() == [[0, 0, 1, 2, 2]]
    assert layout.mask is None


@pytest.mark.parametrize("layout", [Layout(), Layout(torch.ones(2, 5)), Layout(torch.ones(2, 4), grid=(2, 2))])
def test_rows_are_not_compacted_without_a_gain(layout: Layout) -> None:
    assert layout.compact is None


def test_cumulative_lengths() -> None:
    assert seq_idx_from_cu_seqlens(torch.tensor([0, 2, 5]), 6).tolist() == [[0, 0, 1, 1, 1, 2]]
    for wrong in ([1, 2], [0, 3, 3], [0, 7]):
        with pytest.raises(ValueError, match="cu_seqlens"):
            seq_idx_from_cu_seqlens(torch.tensor(wrong), 6)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="seq_idx"):
        per_document(running_sum, torch.ones(1, 4, 1), Layout(seq_idx=torch.zeros(1, 3)))
    with pytest.raises(ValueError, match="mask must be like seq_idx"):
        Layout(torch.ones(1, 4), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="a grid of 2 x 3 does not hold 7 tokens"):
        Layout(grid=(2, 3)).check(1, 7)
