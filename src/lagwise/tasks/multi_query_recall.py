"""Multi-query associative recall as a task: which value belonged to each of these keys?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lagwise.data.multi_query_recall import MultiQueryRecall
from lagwise.data.options import DataOptions
from lagwise.data.packing import IGNORED
from lagwise.progress import progress_bar
from lagwise.tasks.associative_recall import DEFAULT_SEQUENCES, AssociativeRecallTask, GeneratedRecall
from lagwise.tasks.base import Table, usable_lengths

_TOKENS_A_BATCH = 16384


class GeneratedQueries(GeneratedRecall):
    """Generated sequences with several queries."""

    task: MultiQueryRecallTask

    def reduce(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The token predicted at every place, and the true answers."""
        return logits[:, :-1].argmax(dim=-1), labels[:, 1:]

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        asked = labels != IGNORED
        return {"accuracy": float(np.mean((predictions == labels)[asked]))}

    def counted(self, batch: Mapping[str, Tensor]) -> Tensor:
        return super().counted({"labels": batch["labels"][:, 1:]})

    def evaluate(
        self, model: Any, *, lengths: Sequence[int] | None = None, max_tokens: int | None = None, progress: bool = True
    ) -> dict[str, Any]:
        """Accuracy over the queries of test sequences, of each length and number of pairs that fits: of
        DEFAULT_SEQUENCES sequences, or as many as ``max_tokens`` allow."""
        generator = self.task.generator
        usable = usable_lengths(lengths, [self.task.data.length], model.length_limit)
        for length in lengths or usable:
            generator.fitting(length)  # an invalid length is found before any is evaluated
        found = []
        for length in usable:
            count = DEFAULT_SEQUENCES if max_tokens is None else max(1, max_tokens // length)
            for pairs in generator.fitting(length):
                accuracy = self._accuracy(model, length, pairs, count, progress)
                found.append({"length": length, "pairs": pairs, "sequences": count, "accuracy": accuracy})
        return {"test": found}

    def scores(self, model: Any, lengths: Sequence[int], max_tokens: int, *, progress: bool = True) -> list[float]:
        counts = [max(1, min(DEFAULT_SEQUENCES, max_tokens // n)) for n in lengths]
        most = [max(self.task.generator.fitting(n)) for n in lengths]
        return [self._accuracy(model, *size, progress) for size in zip(lengths, most, counts, strict=True)]

    @torch.inference_mode()
    def _accuracy(self, model: Any, length: int, pairs: int, count: int, progress: bool) -> float:
        """The share of queries whose likeliest next token is their key's value."""
        model.eval()
        examples, device, right = self.task.generator.test_examples(length, count, pairs), model.device, 0
        batches = DataLoader(examples, batch_size=max(1, _TOKENS_A_BATCH // length))
        with progress_bar(desc=f"{pairs} pairs in {length}", total=count, unit="sequence", show=progress) as bar:
            for batch in batches:
                ids, labels = batch["input_ids"].to(device), batch["labels"][:, 1:].to(device)
                logits = model(input_ids=ids, use_cache=False).logits[:, :-1][labels != IGNORED]
                if not logits.isfinite().all():
                    raise FloatingPointError(f"the model's logits at length {length} have NaN")
                right += int((logits.argmax(-1) == labels[labels != IGNORED]).sum())
                bar.update(len(ids))
        return right / (count * pairs)


class MultiQueryRecallTask(AssociativeRecallTask):
    """Pairs of keys and values, and every key again, at a distance by a power law (MQAR; Arora et al. 2023, "Zoology").

    Data: generated, of ``data.vocab_size`` tokens (Zoology: 8192) and ``data.length``; a source is refused.

    Options:
        pairs: numbers of pairs in a sequence; training draws among those that fit its length, 4 tokens per pair.
        power: exponent of the distances of queries; 1 for all distances alike.
    """

    name = "multi_query_recall"
    opened = GeneratedQueries
    generator: Any

    def __init__(self, data: DataOptions, *, pairs: Sequence[int] = (4, 8, 16), power: float = 0.01):
        super().__init__(data)
        self.generator = MultiQueryRecall(data.vocab_size, pairs=pairs, power=power)

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        rows = [(s["length"], s["pairs"], f"{s['accuracy']:.3f}", s["sequences"]) for s in evaluation["test"]]
        title = f"Accuracy of queries, trained at {evaluation['trained_at']}"
        return [Table(title, ("length", "pairs", "accuracy", "sequences"), rows)]
