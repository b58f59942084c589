"""Predict hidden or next tokens, or values, of rows without their labels: what a model can learn before the labels."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

import lagwise.models as models
from lagwise.data import BucketedExamples, EncodedExamples, Masking, load_tokenizer, with_mask
from lagwise.data.batches import by_length, length_step, like_lengths, padded_labels
from lagwise.data.encoding import feature_scale
from lagwise.data.examples import ChangedExamples
from lagwise.data.masking import EVALUATION_SEED, hidden_steps
from lagwise.data.options import DataOptions
from lagwise.data.packing import IGNORED
from lagwise.data.rows import rows_to_evaluate
from lagwise.progress import progress_bar
from lagwise.tables import build, counted, known
from lagwise.tasks.base import Metric, Records, Table, Task, TaskData, finite, require_none
from lagwise.tasks.sequence_classification import TOKENS_A_BATCH, ClassifiedRows, SequenceClassification

if TYPE_CHECKING:
    from datasets import Dataset as Rows
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OBJECTIVES = ("masked", "next")
_ROWS = "sequence_classification"
_OF_LABELS = ("num_labels", "id2label", "label2id", "problem_type", "label_mean", "label_std")
_METRICS = {
    "tokens": Metric("perplexity", "perplexity", greater_is_better=False),
    "values": Metric("mean_squared_error", "mean squared error", greater_is_better=False),
}
_TOKENS_SCORED = TOKENS_A_BATCH // 8  # together: each has logits of the whole vocabulary
_MOST_NATS = 50.0  # whose exponential is still a number


class RowModelling(Task):
    """Hidden tokens of texts, or hidden values of series, from both sides; or the next ones, from those before.

    Source: BERT §3.1 for tokens. A model that is trained on the sequences of a task before it is trained on their
    labels can be as good as one that was trained on far more data (Amos et al. 2023).

    Data: the rows of `SequenceClassification`, whose labels are not used, and in training also those of its option
    ``unlabelled``.

    Options:
        rows: options of `SequenceClassification`, which say what the rows are.
        objective: ``masked``, or ``next`` for causal models. Hidden are 15 % of the tokens, in whole words, or 30 % of
            the steps of a series, in spans of three on average; the mean of all series stands in their place, or that
            of the series, where each has its own scale (`SequenceClassification`).

    Metrics of the held-out rows: the perplexity of a token, or the mean squared error of values that are scaled to mean
    0 and variance 1.
    """

    head: ClassVar[str] = ""  # it depends on the rows and the objective
    query = "labels"
    predicts = "loss"
    formats: ClassVar[Collection[str]] = SequenceClassification.formats

    def __init__(self, data: DataOptions, *, rows: dict[str, Any] | None = None, objective: str = "masked"):
        super().__init__(data)
        self.options = rows or {}
        table, spec = {_ROWS: SequenceClassification}, {**self.options, "name": _ROWS}
        self.rows: SequenceClassification = build(table, spec, data, what="task.rows", prefix="task.rows.")
        self.objective = known(objective, OBJECTIVES, "task.objective")
        if self.rows.time is not None:
            raise ValueError(
                "row_modelling (training.pretrain) does not read times of samples (task.time "
                f"{self.rows.time!r}), which it would predict as values"
            )
        self.inputs = self.rows.inputs
        self.headline = _METRICS[self.inputs]

    @property
    def model_class(self) -> type[PreTrainedModel]:
        if self.inputs == "values":
            return models.LagwiseForTokenClassification
        return models.LagwiseForMaskedLM if self.objective == "masked" else models.LagwiseForCausalLM

    def fixed_fields(self) -> dict[str, Any]:
        sparse = self.inputs == "tokens" and self.objective == "masked"
        return {**self.rows.fixed_fields(), "causal": self.objective == "next", "sparse_prediction": sparse}

    def lengths(self) -> dict[str, int]:
        return self.rows.lengths()

    def key(self) -> str:
        own, other = self.rows.key(), self.rows.unlabelled
        if other is None:
            return own
        return hashlib.sha256(f"{own}:{self.open_rows(other).key()}".encode()).hexdigest()[:24]

    def open_rows(self, source: str) -> Any:
        return self.rows.open_rows(source)

    def columns(self) -> tuple[str, ...]:
        return self.rows.columns()

    def open(self, *, run: Path | None = None, source: str | None = None, progress: bool = True) -> ModelledRows:
        if source is None:
            return ModelledRows(self, self.rows.open(run=run, progress=progress))
        from lagwise.models.loading import read_config

        assert run is not None
        config: Any = read_config(run)
        tokenizer = load_tokenizer(str(run.resolve())) if self.inputs == "tokens" else None
        found = ModelledRows(self, ClassifiedRows(self.rows, tokenizer), config)
        rows = rows_to_evaluate(self.open_rows(source).read(), source)
        found.scored = {"test": self.rows.encoder(config, tokenizer)(rows)}
        return found

    def predict(self, model: Any, tokenizer: Any, rows: Records, *, progress: bool = True) -> list[dict[str, Any]]:
        """``loss`` of each row, the mean over its hidden parts: of tokens in nats, of values squared errors. Rows
        unlike those of the training have high ones."""
        data = ModelledRows(self, ClassifiedRows(self.rows, tokenizer), model.config)
        sums, counts = data.losses(model, self.rows.encoder(model.config, tokenizer)(rows), progress)
        return [{"loss": float(each)} for each in sums / np.maximum(counts, 1)]

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        splits = [(name, evaluation[name]) for name in ("valid", "test") if name in evaluation]
        rows = [(name, *(f"{s[key]:.4f}" for key in (self.headline.name, "loss")), s["rows"]) for name, s in splits]
        return [Table("Hidden parts of rows", ("", self.headline.label, "loss", "rows"), rows)]


class ModelledRows(TaskData):
    """Rows whose parts are predicted.

    Args:
        labelled: the rows.
        config: that of a trained model, for other data than the task's own.
    """

    task: RowModelling

    def __init__(self, task: RowModelling, labelled: ClassifiedRows, config: Any = None):
        super().__init__(task, labelled.tokenizer)
        self.labelled, self.masking = labelled, None
        self.scored: dict[str, Rows] = {}
        fields = labelled.fields() if config is None else {"inputs": config.inputs}
        if task.inputs == "values":
            self.mean, self.std = (np.asarray(fields["inputs"][name], dtype=np.float32) for name in ("mean", "std"))
            self.by_row = fields["inputs"].get("by_row", False) and task.objective == "masked"
            self.loss = squared_error
        elif task.objective == "masked":
            assert self.tokenizer is not None
            self.masking = Masking(with_mask(self.tokenizer))
        if config is None:
            splits = labelled.rows.splits
            self.train, self.scored = self._training_rows(), {name: splits[name] for name in ("valid", "test")}

    def _training_rows(self) -> Rows:
        from datasets import concatenate_datasets

        rows, other = self.labelled.rows.splits["train"].remove_columns("label"), self.task.rows.unlabelled
        if other is None:
            return rows
        try:
            tables = [self.labelled.rows.encode(table) for table in self.task.open_rows(other).read().values()]
        except ValueError as error:
            raise ValueError(f"task.unlabelled {other!r}: {error}") from error
        return concatenate_datasets([rows, *tables])

    def notes(self) -> Sequence[str]:
        more = len(self.train) - len(self.labelled.rows.splits["train"])
        source = f", {more:,} of them from {self.task.rows.unlabelled}" if more else ""
        return [f"training on {counted(len(self.train), 'row')} without labels first{source}"]

    def fields(self) -> dict[str, Any]:
        own = {name: value for name, value in self.labelled.fields().items() if name not in _OF_LABELS}
        if self.masking is not None:
            own["vocab_size"] = len(self.masking.special)
        if self.task.inputs == "values":
            own["num_labels"] = len(self.mean) * self.task.rows.stride
        return own

    def resolved(self) -> dict[str, Any]:
        return {"rows": {**self.task.options, **self.labelled.resolved()}}

    def saved_tokenizer(self) -> PreTrainedTokenizerBase:
        return self.labelled.saved_tokenizer()

    def steps_per_epoch(self, batch_size: int) -> int:
        return -(-len(self.train) // batch_size)

    def training_examples(self, steps: int, batch_size: int, seed: int) -> Dataset:
        return self._hidden(BucketedExamples(self.train, batch_size, steps=steps, seed=seed), seed)

    def validation_examples(self, tokens: int) -> Dataset:
        return self._hidden(EncodedExamples(by_length(self.scored["valid"])[0]), EVALUATION_SEED)

    def _hidden(self, examples: Any, seed: int) -> Dataset:
        return ChangedExamples(examples, self.hidden, seed, 2)

    def tokens_per_example(self) -> float:
        return float(np.mean(self.train["length"][:])) / self.task.rows.stride

    def longest_example(self) -> int:
        return self.task.rows.steps(max(self.train["length"][:]))

    def hidden(self, row: Mapping[str, Tensor], random: np.random.Generator) -> dict[str, Tensor]:
        """A row of which parts are hidden, and what is to be predicted, ``labels``: tokens ``(length,)``, or scaled
        values of steps ``(steps, stride * features)``; -100 for none, and for missing ones."""
        row = {name: value for name, value in row.items() if name != "label"}
        if self.task.inputs == "tokens":
            if self.masking is None:
                return {**row, "labels": row["input_ids"]}
            ids, labels = self.masking(row["input_ids"].numpy(), random)
            return {**row, "input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
        values, stride = row["input_values"].numpy(), self.task.rows.stride
        steps, (mean, std) = self.task.rows.steps(len(values)), self._scale(values)
        scaled = np.full((steps * stride, len(self.mean)), IGNORED, dtype=np.float32)
        scaled[: len(values)] = (values - mean) / std
        scaled[np.isnan(scaled)] = IGNORED  # missing samples
        labels = scaled.reshape(steps, -1)
        if self.task.objective == "next":
            nothing = np.full_like(labels[:1], IGNORED)
            return {**row, "labels": torch.from_numpy(np.concatenate([labels[1:], nothing]))}
        hidden = hidden_steps(steps, random)
        labels[~hidden] = IGNORED
        seen = np.where(hidden.repeat(stride)[: len(values), None], mean, values)
        return {**row, "input_values": torch.from_numpy(seen), "labels": torch.from_numpy(labels)}

    def _scale(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of the features: of a row, where the model reads each on its own scale, or of all."""
        if not self.by_row:
            return self.mean, self.std
        mean, std = feature_scale([values])
        return np.asarray(mean, dtype=np.float32), np.asarray(std, dtype=np.float32)

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        return self._padded(rows, multiple_of=partial(length_step, most=self.longest_example()))

    def collate_evaluation(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        return self._padded(rows)

    def _padded(self, rows: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Tensor]:
        inputs = [{name: value for name, value in row.items() if name != "labels"} for row in rows]
        batch = self.task.rows.padded(self.tokenizer, inputs, **options)
        length = self.task.rows.steps(next(iter(batch.values())).shape[1])
        return {**batch, "labels": padded_labels(rows, length)}

    def counted(self, batch: Mapping[str, Tensor]) -> Tensor:
        shifted = self.task.inputs == "tokens" and self.task.objective == "next"
        return super().counted({"labels": batch["labels"][:, 1:] if shifted else batch["labels"]})

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        return {self.task.headline.name: math.exp(min(loss, _MOST_NATS)) if self.task.inputs == "tokens" else loss}

    def evaluate(
        self, model: Any, *, lengths: Sequence[int] | None = None, max_tokens: int | None = None, progress: bool = True
    ) -> dict[str, Any]:
        """The loss of hidden parts of the valid and test rows, and the metric."""
        require_none(type(self.task).__name__, lengths=lengths, max_tokens=max_tokens)
        result: dict[str, Any] = {"kind": self.task.objective}
        for split, rows in self.scored.items():
            sums, counts = self.losses(model, rows, progress)
            loss = float(sums.sum() / max(1, counts.sum()))
            result[split] = {**self.metrics(loss), "loss": loss, "rows": len(rows)}
        return result

    @torch.inference_mode()
    def losses(self, model: Any, rows: Rows, progress: bool) -> tuple[np.ndarray, np.ndarray]:
        """The sum of the losses of each row's hidden parts ``(rows,)``, and their number."""
        ordered, order = by_length(rows)
        examples = self._hidden(EncodedExamples(ordered), EVALUATION_SEED)
        found = np.zeros((2, len(order)))
        with progress_bar(desc="scoring", total=len(order), unit="row", show=progress) as bar:
            for places in like_lengths(ordered["length"][:], _TOKENS_SCORED):
                batch = self._padded([examples[i] for i in places])
                labels = batch.pop("labels").to(model.device)
                logits = model(**{name: value.to(model.device) for name, value in batch.items()}).logits.float()
                if self.task.inputs == "values":
                    chosen = labels != IGNORED
                    losses = (logits - labels).square() * chosen
                else:
                    if self.task.objective == "next":
                        logits, labels = logits[:, :-1], labels[:, 1:]
                    chosen = labels != IGNORED
                    losses = F.cross_entropy(logits.mT, labels, ignore_index=IGNORED, reduction="none")
                sums = torch.stack([losses.flatten(1).sum(1), chosen.flatten(1).sum(1)])
                found[:, order[places.start : places.stop]] = sums.double().cpu().numpy()
                bar.update(len(places))
        return finite(found[0], "losses"), found[1]


def squared_error(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The mean squared error of the values that are to be predicted: all that are not -100."""
    chosen = labels != IGNORED
    count = chosen.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    return F.mse_loss(outputs.logits.float()[chosen], labels[chosen], reduction="sum") / count
