"""Multi-query associative recall as a task: which value belonged to each of these keys?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lagwise.data.options import DataOptions
from lagwise.tasks.base import Table
from lagwise_papers.data.multi_query_recall import MultiQueryRecall
from lagwise_papers.tasks.associative_recall import AssociativeRecallTask


class MultiQueryRecallTask(AssociativeRecallTask):
    """Task of pairs of keys and values, and every key again, at a distance by a power law (MQAR; Arora et al. 2023,
    "Zoology").

    Data: generated, of ``data.vocab_size`` tokens (Zoology: 8192) and ``data.length``; a source is refused.

    Options:
        pairs: numbers of pairs in a sequence; training draws among those that fit its length, 4 tokens per pair.
        power: exponent of the distances of queries; 1 for all distances alike.
    """

    name = "multi_query_recall"

    def __init__(self, data: DataOptions, *, pairs: Sequence[int] = (4, 8, 16), power: float = 0.01):
        super().__init__(data)
        self.generator = MultiQueryRecall(data.vocab_size, pairs=pairs, power=power)

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        rows = [(s["length"], s["pairs"], f"{s['accuracy']:.3f}", s["sequences"]) for s in evaluation["test"]]
        title = f"Accuracy of queries, trained at {evaluation['trained_at']}"
        return [Table(title, ("length", "pairs", "accuracy", "sequences"), rows)]
