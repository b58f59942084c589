"""Associative recall as a task: which value followed this key?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lagwise.data import ScheduledExamples
from lagwise.data.batches import IGNORED
from lagwise.data.options import DataOptions
from lagwise.figures import columns, single
from lagwise.models import LagwiseForCausalLM
from lagwise.progress import progress_bar
from lagwise.tasks.base import Sizes, Table, Task, TaskData, require_none, usable_lengths
from lagwise.tasks.figures import Figures, Log
from lagwise.tasks.labelled import headline_of
from lagwise_papers.data.associative_recall import AssociativeRecall, DrawnExamples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_SEQUENCES = 1000
_TOKENS_PER_BATCH = 16384


class GeneratedRecall(TaskData):
    """Data of generated sequences."""

    task: AssociativeRecallTask

    @property
    def _lengths(self) -> Sequence[int]:
        return self.task.data.lengths or [self.task.data.length]

    def sizes(self, batch_size: int) -> Sizes:
        return Sizes(None, sum(self._lengths) / len(self._lengths), self.task.data.length)

    def training_examples(self, steps: int, batch_size: int, seed: int) -> Dataset:
        return ScheduledExamples(self.task.generator, self._lengths, batch_size, steps, seed)

    def validation_examples(self, tokens: int) -> Dataset:
        return self.task.generator.validation_examples(self.task.data.evaluate_length or self.task.data.length, tokens)

    def reduce(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the token predicted at every position, and the true answers."""
        return logits[:, :-1].argmax(dim=-1), labels[:, 1:]

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        return {"accuracy": float(np.mean((predictions == labels)[labels != IGNORED]))}

    def counted(self, batch: Mapping[str, Tensor]) -> Tensor:
        return super().counted({"labels": batch["labels"][:, 1:]})  # nothing predicts the first token

    def evaluate(
        self, model: Any, *, lengths: Sequence[int] | None = None, max_tokens: int | None = None, progress: bool = True
    ) -> dict[str, Any]:
        """Compute the accuracy on test sequences of each length, by default the training length, and of each number of
        pairs if there are several: of DEFAULT_SEQUENCES sequences, or as many as ``max_tokens`` allow."""
        generator = self.task.generator
        usable = usable_lengths(lengths, [self.task.data.length], model.length_limit)
        kinds = {length: generator.kinds(length) for length in lengths or usable}  # an error before the first is done
        results = []
        for length in usable:
            count = DEFAULT_SEQUENCES if max_tokens is None else max(1, max_tokens // length)
            for kind in kinds.get(length) or generator.kinds(length):
                correct, total = recall(model, generator.test_examples(length, count, **kind), progress=progress)
                scores = {"sequences": count, "correct": correct, "accuracy": correct / total}
                results.append({"length": length, **kind, **scores})
        return {"test": results}


@torch.inference_mode()
def recall(model: Any, examples: DrawnExamples, *, progress: bool = False) -> tuple[int, int]:
    """Count the correct answers of a causal language model on sequences, and all answers (TCNCA table 3).

    The model sees the tokens before an answer, where labels are; its prediction is the likeliest token of the whole
    vocabulary. FloatingPointError if the model gives NaN.
    """
    model.eval()
    device, correct, total = next(model.parameters()).device, 0, 0
    batches = DataLoader(examples, batch_size=max(1, _TOKENS_PER_BATCH // examples.length))
    desc = f"evaluating at {examples.length}"
    with progress_bar(desc=desc, total=len(examples), unit="sequence", show=progress) as bar:
        for batch in batches:
            ids, answers = batch["input_ids"].to(device), batch["labels"][:, 1:]
            needed = answers.shape[1] - int((answers != IGNORED).any(0).nonzero()[0])
            answers = answers[:, -needed:].to(device)
            logits = model(input_ids=ids[:, :-1], use_cache=False, logits_to_keep=needed).logits[answers != IGNORED]
            if not logits.isfinite().all():
                raise FloatingPointError(
                    f"the model's logits at length {examples.length} have NaN; its weights may be damaged"
                )
            correct += int((logits.argmax(dim=-1) == answers[answers != IGNORED]).sum())
            total += len(logits)
            bar.update(len(ids))
    return correct, total


class AssociativeRecallTask(Task):
    """Task of sequences of keys and values, a key again, and the value that followed it (TCNCA table 3 and app. G).

    Data: generated, of ``data.vocab_size`` tokens and ``data.length``; a source is refused.

    Options:
        loss: whether training counts ``every`` value whose key has occurred before it, or only the ``last``.
    """

    headline = headline_of("accuracy")
    head = LagwiseForCausalLM
    supports = frozenset({"lengths", "evaluate_length"})
    predicts = "answer"
    #: its name in the table of tasks
    name: ClassVar[str] = "associative_recall"
    generator: Any

    def __init__(self, data: DataOptions, *, loss: str = "every"):
        super().__init__(data)
        require_none(f"{self.name}, which generates its data", **{"data.source": data.source})
        self.generator = AssociativeRecall(data.vocab_size, loss=loss)

    def key(self) -> str:
        return self.generator.key

    def open(self, *, run: Path | None = None, source: str | None = None, progress: bool = True) -> GeneratedRecall:
        require_none(f"{self.name}, which generates its data", source=source)
        return GeneratedRecall(self, self.generator.tokenizer)

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        rows = [(s["length"], f"{s['accuracy']:.3f}", s["sequences"]) for s in evaluation["test"]]
        return [Table(f"Accuracy, trained at {evaluation['trained_at']}", ("length", "accuracy", "sequences"), rows)]

    def figures(self, metrics: Log, evaluation: Mapping[str, Any] | None) -> Figures:
        return {"accuracy": lambda: accuracy_curve(metrics, chance=2 / self.data.vocab_size)}

    def _output(self, model: Any, tokenizer: Any, row: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a text ``key value ... key``."""
        try:
            ids = tokenizer(row["text"], return_tensors="pt")["input_ids"]
        except Exception as error:  # tokenizers' exception type: a word that is neither key nor value
            raise ValueError(f"{row['text']!r:.80} has a word that is not a key or value of this task") from error
        answer = int(model(ids.to(model.device), logits_to_keep=1).logits[0, -1].argmax())
        return {"answer": tokenizer.decode([answer])}


def accuracy_curve(metrics: Log, *, chance: float) -> Figure:
    """Draw the accuracy on validation sequences over steps, from the lines of a run's metrics, and the accuracy of
    guessing."""
    figure, axes = single()
    valid = [(line["step"], line["eval_accuracy"]) for line in metrics if "eval_accuracy" in line]
    axes.plot(*columns(valid), color="C0", marker="o", markersize=3, label="validation")
    axes.axhline(chance, color="0.7", linestyle="--", label="guessing a value")
    axes.set(xlabel="step", ylabel="share of correct answers", title="Learning", ylim=(-0.02, 1.02))
    axes.legend(loc="center right")
    return figure
