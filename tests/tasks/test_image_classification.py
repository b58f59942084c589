"""Tests specific to the image task."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from lagwise.data.options import DataOptions
from lagwise.tasks import ImageClassification, MaskedLanguageModelling


def test_mixed_labels_count_once_per_image() -> None:
    """The Trainer counts every entry of the labels that is not -100."""
    task = ImageClassification(DataOptions(source="digits"))
    logits, labels = torch.randn(8, 10), torch.arange(8)
    shares = torch.nn.functional.one_hot(labels, 10).float()
    outputs = SimpleNamespace(logits=logits)
    plain = task.loss(outputs, labels, num_items_in_batch=16)  # of two micro-batches of 8
    mixed = task.loss(outputs, shares, num_items_in_batch=160)
    torch.testing.assert_close(plain, mixed)
    torch.testing.assert_close(plain * 2, task.loss(outputs, labels))


def test_masked_metrics_have_a_row_for_each_sequence() -> None:
    task = MaskedLanguageModelling(DataOptions())
    labels = torch.tensor([[-100, 3, -100, 1], [-100, -100, -100, -100], [2, -100, -100, -100]])
    logits = torch.randn(3, 5, dtype=torch.float64)  # of the three hidden tokens
    sums, counts = task.reduce(logits, labels)
    assert (sums.shape, counts.tolist()) == ((3, 2), [2, 0, 1])
    loss = torch.nn.functional.cross_entropy(logits.float(), torch.tensor([3, 1, 2]))
    found = task.metrics(0.0, sums.numpy(), counts.numpy())
    assert abs(found["perplexity"] - float(loss.exp())) < 1e-5 * float(loss.exp())
