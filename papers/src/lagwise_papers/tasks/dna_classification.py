"""Classes of sequences of DNA, of which training reads both strands."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from lagwise.data.options import DataOptions
from lagwise.tables import Number, Share
from lagwise.tasks.sequence_classification import ClassifiedRows, SequenceClassification
from lagwise_papers.data.dna import complements, either_strand


class DnaClassification(SequenceClassification):
    """A class or a number for each sequence of DNA.

    Data: FASTA, FASTQ, or other rows, as in `SequenceClassification`.

    Options:
        reverse_complement: read every second training sequence, at random, as its reverse complement, the other strand;
            needs a tokenizer of letters, such as ``dna``.
        text: the column of the sequences.
        label, kind, metric, wide, class_weights, label_smoothing, threshold: as in `SequenceClassification`.
    """

    def __init__(
        self,
        data: DataOptions,
        *,
        reverse_complement: bool = True,
        text: str = "text",
        label: str | list[str] = "label",
        kind: str = "auto",
        metric: str | None = None,
        wide: bool = False,
        class_weights: str = "none",
        label_smoothing: Share = 0.0,
        threshold: Annotated[Number, Field(gt=0, lt=1)] | None = None,
    ):
        same: dict[str, Any] = {"text": text, "label": label, "kind": kind, "metric": metric, "wide": wide}
        same |= {"class_weights": class_weights, "label_smoothing": label_smoothing}
        super().__init__(data, **same, threshold=threshold)
        self.reverse_complement = reverse_complement

    def open(self, *, run: Path | None = None, source: str | None = None, progress: bool = True) -> ClassifiedRows:
        rows = super().open(run=run, source=source, progress=progress)
        if self.reverse_complement and source is None:
            assert rows.tokenizer is not None
            rows.change = partial(either_strand, complements=torch.from_numpy(complements(rows.tokenizer)))
        return rows
