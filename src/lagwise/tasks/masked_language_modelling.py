"""Predict hidden tokens of running text from both sides."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.utils.data import Dataset

from lagwise.data import (
    MaskedExamples,
    Masking,
    ScheduledExamples,
    collate_documents,
    document_of,
    with_mask,
)
from lagwise.data.masking import EVALUATION_SEED
from lagwise.data.options import DataOptions
from lagwise.evaluation import masked_score
from lagwise.models import LagwiseForMaskedLM
from lagwise.tables import Number
from lagwise.tasks.base import Metric, Table, usable_lengths
from lagwise.tasks.figures import Figures, Log, length_curve, metric_curve
from lagwise.tasks.language_modelling import DEFAULT_LENGTHS, RunningText, TextData

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEFAULT_TOKENS = 8 * 8192


class HiddenText(TextData):
    """A text with hidden tokens."""

    task: MaskedLanguageModelling

    def training_examples(self, steps: int, batch_size: int, seed: int) -> Dataset:
        return self._masked(ScheduledExamples(self.text, self.sequence_lengths, batch_size, steps, seed), seed)

    def validation_examples(self, tokens: int) -> Dataset:
        return self._masked(self.text.validation_examples(self.valid_length, tokens), EVALUATION_SEED)

    def collate(self, rows: Sequence[Mapping[str, Any]], training: bool = True) -> dict[str, Tensor]:
        return collate_documents(rows)

    def reduce(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each sequence the loss of its hidden tokens and how many were found ``(batch, 2)``, and how many
        there are ``(batch,)``: a row for each sequence, so that the Trainer can gather them from several processes."""
        chosen = labels != -100
        targets = labels[chosen]
        losses = F.cross_entropy(logits.float(), targets, reduction="none")
        hits = (logits.argmax(-1) == targets).float()
        rows = chosen.nonzero()[:, 0]
        sums = losses.new_zeros(len(labels), 2).index_add(0, rows, torch.stack([losses, hits], dim=1))
        return sums, chosen.sum(1)

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        nats, accuracy = np.asarray(predictions, dtype=np.float64).sum(0) / np.sum(labels)
        return {"perplexity": float(np.exp(nats)), "masked_accuracy": float(accuracy)}

    def evaluate(
        self, model: Any, *, lengths: Sequence[int] | None = None, max_tokens: int | None = None, progress: bool = True
    ) -> dict[str, Any]:
        """Return the perplexity and accuracy on test text, the same tokens hidden at every length.

        Args:
            lengths: by default DEFAULT_LENGTHS; those over the model's limit are left out.
            max_tokens: tokens from the start of the test text, by default DEFAULT_TOKENS.
        """
        lengths = usable_lengths(lengths, DEFAULT_LENGTHS, model.length_limit)
        stream = self._hidden_stream(self.text.splits["test"][: max_tokens or DEFAULT_TOKENS])
        return {"test": [masked_score(model, *stream, n, progress=progress).to_dict() for n in lengths]}

    @functools.cached_property
    def _masking(self) -> Masking:
        assert self.tokenizer is not None
        return Masking(self.tokenizer, **self.task.masking_options)

    def _masked(self, sequences: Any, seed: int) -> MaskedExamples:
        return MaskedExamples(sequences, self._masking, self._end_of_text, seed)

    def _hidden_stream(self, tokens: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Hide tokens of a text in chunks of the trained length; return the text, the labels, and the documents."""
        masking, ids = self._masking, tokens.astype(np.int64)
        starts = range(0, len(ids), self.task.data.length)
        chunks = [
            masking(ids[i : i + self.task.data.length], np.random.default_rng((EVALUATION_SEED, i))) for i in starts
        ]
        hidden, labels = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*chunks, strict=True))
        return hidden, labels, torch.from_numpy(document_of(ids, self._end_of_text))

    @property
    def _end_of_text(self) -> int:
        assert self.tokenizer is not None
        return self.tokenizer.eos_token_id


class MaskedLanguageModelling(RunningText):
    """Masked language modelling (BERT; TNN §4.1): hidden tokens of running text, from the text on both sides.

    Data: text as in `lagwise.data.open_source`, by default Python's standard library. A sequence may contain the end of
    one document and the beginning of another; the model does not mix them.

    Options (as in `lagwise.data.Masking`):
        rate: the share of tokens that are hidden.
        whole_words: hide all tokens of a word or none.

    Metrics: perplexity of a hidden token, the headline, and the share of hidden tokens that the model predicts
    correctly.
    """

    headline = Metric("perplexity", "perplexity", greater_is_better=False)
    opened = HiddenText
    head = LagwiseForMaskedLM
    predicts = "filled"

    def __init__(
        self,
        data: DataOptions,
        *,
        rate: Annotated[Number, Field(gt=0, lt=1)] = 0.15,
        whole_words: bool = True,
    ):
        super().__init__(data)
        self.masking_options: dict[str, Any] = {"rate": rate, "whole_words": whole_words}

    @staticmethod
    def prepared(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        return with_mask(tokenizer)

    def fields(self) -> dict[str, Any]:
        return {"causal": False, "sparse_prediction": True}

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        title = f"Hidden tokens of the test text, trained at {evaluation['trained_at']}"
        rows = [
            (s["length"], *(f"{s[name]:.4f}" for name in ("perplexity", "loss", "accuracy")), f"{s['masked']:,}")
            for s in evaluation["test"]
        ]
        return [Table(title, ("length", "perplexity", "nats/token", "accuracy", "hidden tokens"), rows)]

    def figures(self, metrics: Log, evaluation: Mapping[str, Any] | None) -> Figures:
        figures = {"loss": lambda: metric_curve(metrics, "masked_accuracy", "share of hidden tokens found")}
        if evaluation:
            figures["extrapolation"] = lambda: length_curve(
                evaluation["test"], "loss", "nats per hidden token", trained_at=self.data.length
            )
        return figures

    def _output(self, model: Any, tokenizer: Any, row: Mapping[str, Any]) -> dict[str, Any]:
        """``filled``, the text with the likeliest token for each mask, and ``probability``, the product of theirs.

        ValueError for a text without a mask.
        """
        ids = tokenizer(row["text"], add_special_tokens=False, return_tensors="pt")["input_ids"]
        masks = ids == tokenizer.mask_token_id
        if not masks.any():
            raise ValueError(f"{row['text']!r:.80} has no {tokenizer.mask_token} to fill")
        logits = model(ids.to(model.device)).logits[masks.to(model.device)].float().cpu()
        logits[:, tokenizer.all_special_ids] = -torch.inf
        best = logits.softmax(-1).max(-1)
        ids[masks] = best.indices
        return {"filled": tokenizer.decode(ids[0]), "probability": float(best.values.prod())}
