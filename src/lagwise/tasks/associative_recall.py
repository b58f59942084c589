"""Associative recall as a task: which value followed this key?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lagwise.data import AssociativeRecall, ScheduledExamples
from lagwise.data.options import DataOptions
from lagwise.progress import progress_bar
from lagwise.tasks.base import Records, Table, Task, TaskData, require_none, usable_lengths
from lagwise.tasks.figures import Figures, Log, accuracy_curve
from lagwise.tasks.recall_score import recall
from lagwise.tasks.scores import headline_of

DEFAULT_SEQUENCES = 1000


class GeneratedRecall(TaskData):
    """Generated sequences."""

    task: AssociativeRecallTask

    def steps_per_epoch(self, batch_size: int) -> int:
        raise ValueError(
            f"training.epochs does not apply to {self.task.name}, whose data are generated without end; "
            "give training.steps"
        )

    def training_examples(self, steps: int, batch_size: int, seed: int) -> Dataset:
        return ScheduledExamples(self.task.generator, self.sequence_lengths, batch_size, steps, seed)

    def validation_examples(self, tokens: int) -> Dataset:
        return self.task.generator.validation_examples(self.task.data.evaluate_length or self.task.data.length, tokens)

    def reduce(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The token predicted for the end of each row, and the true one."""
        return logits[:, -2].argmax(dim=-1), labels[:, -1]

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        return {"accuracy": float(np.mean(predictions == labels))}

    def evaluate(
        self, model: Any, *, lengths: Sequence[int] | None = None, max_tokens: int | None = None, progress: bool = True
    ) -> dict[str, Any]:
        """Accuracy on test sequences of each length, by default the training length: of DEFAULT_SEQUENCES sequences, or
        as many as ``max_tokens`` allow."""
        usable = usable_lengths(lengths, [self.task.data.length], model.length_limit)
        counts = {n: DEFAULT_SEQUENCES if max_tokens is None else max(1, max_tokens // n) for n in usable}
        for length in lengths or usable:
            self.task.generator.test_examples(length, 1)  # an invalid length is found before any is evaluated
        return {"test": [recall(model, self.task.generator, n, counts[n], progress=progress).to_dict() for n in usable]}

    def scores(self, model: Any, lengths: Sequence[int], max_tokens: int, *, progress: bool = True) -> list[float]:
        counts = [max(1, min(DEFAULT_SEQUENCES, max_tokens // n)) for n in lengths]
        scores = (
            recall(model, self.task.generator, n, c, progress=progress) for n, c in zip(lengths, counts, strict=True)
        )
        return [score.accuracy for score in scores]


class AssociativeRecallTask(Task):
    """Sequences of keys and values, a key again, and the value that followed it (TCNCA table 3 and app. G).

    Data: generated, of ``data.vocab_size`` tokens and ``data.length``; a source is refused.

    Options:
        loss: whether training counts ``every`` value whose key has occurred before it, or only the ``last``.
    """

    headline = headline_of("accuracy")
    head = "LagwiseForCausalLM"
    #: its name in the table of tasks, and the class of its data
    name: ClassVar[str] = "associative_recall"
    opened: type[GeneratedRecall] = GeneratedRecall

    def __init__(self, data: DataOptions, *, loss: str = "every"):
        super().__init__(data)
        require_none(f"{self.name}, which generates its data", **{"data.source": data.source})
        self.generator = AssociativeRecall(data.vocab_size, loss=loss)

    def key(self) -> str:
        return self.generator.key

    def open(self, *, run: Path | None = None, source: str | None = None, progress: bool = True) -> GeneratedRecall:
        require_none(f"{self.name}, which generates its data", source=source)
        return self.opened(self, self.generator.tokenizer)

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        rows = [(s["length"], f"{s['accuracy']:.3f}", s["sequences"]) for s in evaluation["test"]]
        return [Table(f"Accuracy, trained at {evaluation['trained_at']}", ("length", "accuracy", "sequences"), rows)]

    def figures(self, metrics: Log, evaluation: Mapping[str, Any] | None) -> Figures:
        return {"accuracy": lambda: accuracy_curve(metrics, chance=2 / self.data.vocab_size)}

    @torch.inference_mode()
    def predict(self, model: Any, tokenizer: Any, rows: Records, *, progress: bool = True) -> list[dict[str, Any]]:
        """The answer to each text ``key value ... key``."""
        found = []
        for row in progress_bar(list(rows), desc="answering", unit="row", show=progress):
            try:
                ids = tokenizer(row["text"], return_tensors="pt")["input_ids"]
            except Exception as error:  # tokenizers' exception type: a word that is neither key nor value
                raise ValueError(f"{row['text']!r:.80} has a word that is not a key or value of this task") from error
            answer = int(model(ids.to(model.device), logits_to_keep=1).logits[0, -1].argmax())
            found.append({"answer": tokenizer.decode([answer])})
        return found
