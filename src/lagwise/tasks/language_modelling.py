"""Running text as data, and the prediction of its next token, or of hidden tokens from both sides."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

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
    TokenData,
    collate_documents,
    content_key,
    document_of,
    load_tokenizer,
    open_source,
    prepare,
    token_bytes,
    with_mask,
)
from lagwise.data.masking import EVALUATION_SEED
from lagwise.data.options import AUTO, DataOptions
from lagwise.data.reading import inner_suffix
from lagwise.evaluation import compressor_bits_per_byte, evaluate, masked_score
from lagwise.evaluation.perplexity import Score
from lagwise.files import expanded
from lagwise.models import LagwiseForCausalLM, LagwiseForMaskedLM
from lagwise.tables import Number
from lagwise.tasks.base import Metric, Sizes, Table, Task, TaskData, usable_lengths
from lagwise.tasks.figures import Figures, Log, length_curve, metric_curve

DEFAULT_LENGTHS = (512, 1024, 2048, 4096, 8192, 14336)
DEFAULT_TOKENS = 16 * 14336 + 1
MASKED_TOKENS = 8 * 8192  # of which some are hidden


class RunningText(Task):
    """A task that learns from text in token files. Abstract.

    Data: text as in `lagwise.data.open_source`, by default Python's standard library.
    """

    #: the class of its data
    opened: type[TextData]
    supports = frozenset({"lengths", "evaluate_length", "sequence_parallel"})

    def __init__(self, data: DataOptions):
        super().__init__(data)
        self.by_default = data.source is None
        data.source = "stdlib" if data.source is None else data.source
        data.tokenizer = "bytes" if data.tokenizer == AUTO else data.tokenizer  # unless a training has chosen another

    @staticmethod
    def prepared(tokenizer: Any) -> Any:
        """The tokenizer of the token files with the tokens that the task adds."""
        return tokenizer

    def lengths(self) -> dict[str, int]:
        evaluate_length = self.data.evaluate_length
        return super().lengths() | ({} if evaluate_length is None else {"`evaluate_length`": evaluate_length})

    def key(self) -> str:
        return content_key(open_source(self.source), self.data.tokenizer, self.data.vocab_size)

    def _open_other(self, source: str, run: Path, progress: bool) -> TextData:
        return self.opened(self, prepare(source, str(run), progress=progress))

    def _open(self, run: Path | None, progress: bool) -> TextData:
        options = self.data
        if run is None and progress and self.by_default:  # before the minutes that reading it may take
            print("no data are given, so the text is Python's standard library", file=sys.stderr)
        text = prepare(self.source, options.tokenizer, vocab_size=options.vocab_size, progress=progress)
        if run is not None and self.prepared(text.tokenizer).get_vocab() != load_tokenizer(str(run)).get_vocab():
            text = prepare(self.source, str(run), progress=progress)
        return self.opened(self, text)

    @property
    def source(self) -> str:
        """The name of the text."""
        return str(self.data.source)


class TextData(TaskData):
    """The text of a task in token files. Abstract."""

    task: RunningText

    def __init__(self, task: RunningText, text: TokenData):
        super().__init__(task, task.prepared(text.tokenizer))
        self.text: Any = text

    def notes(self) -> Sequence[str]:
        source = "Python's standard library" if self.task.source == "stdlib" else self.task.source
        tokens = ", ".join(f"{split} {len(ids):,}" for split, ids in self.text.splits.items())
        notes = [f"text: {source}; tokens: {tokens}"]
        if inner_suffix(Path(self.task.source)) in (".csv", ".tsv"):
            notes.append("a table is read as plain text here; recipes for its columns are classify and forecast-tnn")
        if expanded(self.task.source).is_dir():
            notes += open_source(self.task.source).notes
        return notes

    @property
    def valid_length(self) -> int:
        """The length of validation sequences."""
        return self.task.data.evaluate_length or self.task.data.length

    @property
    def sequence_lengths(self) -> Sequence[int]:
        """The lengths of training sequences; every step draws one."""
        return self.task.data.lengths or [self.task.data.length]

    def sizes(self, batch_size: int) -> Sizes:
        tokens = sum(self.sequence_lengths) / len(self.sequence_lengths)
        steps = max(1, round(len(self.text.splits["train"]) / (batch_size * tokens)))
        return Sizes(steps, tokens, self.task.data.length)


class PlainText(TextData):
    """A text to predict token by token."""

    def training_examples(self, steps: int, batch_size: int, seed: int) -> Dataset:
        return ScheduledExamples(self.text, self.sequence_lengths, batch_size, steps, seed)

    def validation_examples(self, tokens: int) -> Dataset:
        return self.text.validation_examples(self.valid_length, tokens)

    def counted(self, batch: Mapping[str, Tensor]) -> Tensor:
        return super().counted({"labels": batch["labels"][:, 1:]})  # nothing predicts the first token

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        return {"bits_per_byte": loss / math.log(2) / self.text.bytes_per_token("valid")}

    def evaluate(
        self,
        model: Any,
        *,
        lengths: Sequence[int] | None = None,
        max_tokens: int | None = None,
        progress: bool = True,
        learning: Callable[..., Score] | None = None,
    ) -> dict[str, Any]:
        """Score validation text at the length of validation, test text at every length (TNN table 15), and compressors
        on the same bytes: by default at DEFAULT_LENGTHS, up to the model's limit, and DEFAULT_TOKENS from the start of
        each split. learning: another function like `lagwise.evaluation.evaluate`, of the model while it learns, whose
        scores of the test text are ``learned``."""
        count, limit = max_tokens or DEFAULT_TOKENS, model.length_limit
        lengths = usable_lengths(lengths, DEFAULT_LENGTHS, limit)
        tokenizer, data = self.text.tokenizer, self.text
        test, valid = (data.splits[s][:count] for s in ("test", "valid"))
        valid_sizes, test_sizes = (token_bytes(tokenizer, data.bytes_per_token(s)) for s in ("valid", "test"))
        text = str(tokenizer.decode(test[1:], skip_special_tokens=True)).encode()
        window = max(1, round(self.task.data.length * data.bytes_per_token("test")))
        valid_at = self.valid_length
        result = {
            "valid": evaluate(model, valid, min(valid_at, limit or valid_at), valid_sizes).to_dict(),
            "test": [evaluate(model, test, n, test_sizes, progress=progress).to_dict() for n in lengths],
            "compressors": compressor_bits_per_byte(text, window=window),
        }
        if learning is not None:
            scores = [learning(model, test, length, test_sizes, progress=progress) for length in lengths]
            result["learned"] = [score.to_dict() for score in scores]
        return result


class LanguageModelling(RunningText):
    """Causal language modelling: the next token of running text, in bits per byte of that text.

    Data: text as in `lagwise.data.open_source`, by default Python's standard library. No options.
    """

    headline = Metric("bits_per_byte", "bits/byte", greater_is_better=False)
    head = LagwiseForCausalLM
    predicts = "bits_per_byte"
    opened = PlainText

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        valid, test = evaluation["valid"], evaluation["test"]
        scored = test[0]["tokens"]
        title = f"The same {test[0]['text_bytes']:,} test bytes"
        if evaluation["trained_at"] is not None:  # else the folder is of another program
            title += f"; trained at length {evaluation['trained_at']}"
        if max(score["length"] for score in test) > scored:
            title += f" (only {scored:,} tokens are scored: longer lengths read them at once)"
        rows = [(f"this model, length {s['length']}", *_columns(s)) for s in test]
        learned = [score for score in evaluation.get("learned", ()) if score["tokens"] == scored]
        rows += [(f"learning after each score, length {s['length']}", *_columns(s)) for s in learned]
        rows += [(name, f"{value:.4f}", "") for name, value in evaluation["compressors"].items()]
        rows.append((f"(validation, {valid['tokens']:,} tokens, length {valid['length']})", *_columns(valid)))
        return [Table(title, ("", "bits/byte", "perplexity/token"), rows)]

    def figures(self, metrics: Log, evaluation: Mapping[str, Any] | None) -> Figures:
        figures = super().figures(metrics, evaluation)
        if evaluation:
            figures["extrapolation"] = lambda: length_curve(
                evaluation["test"], "bits_per_byte", "bits per byte", trained_at=self.data.length
            )
        return figures

    def _output(self, model: Any, tokenizer: Any, row: Mapping[str, Any]) -> dict[str, Any]:
        """``bits_per_byte`` of a text, read as a separate document."""
        end = tokenizer.eos_token_id
        ids = tokenizer(row["text"], add_special_tokens=False, split_special_tokens=True)["input_ids"]
        stream = np.asarray([end, *ids, end])
        score = evaluate(model, stream, min(len(stream), model.length_limit or len(stream)), np.zeros(len(tokenizer)))
        return {"bits_per_byte": score.nats / math.log(2) / max(1, len(str(row["text"]).encode()))}


def _columns(score: Mapping[str, Any]) -> tuple[str, str]:
    return f"{score['bits_per_byte']:.4f}", f"{score['perplexity']:.4f}"


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
        """Return the perplexity and accuracy on test text, the same tokens hidden at every length: by default of
        DEFAULT_LENGTHS, up to the model's limit, and MASKED_TOKENS from the start of the text."""
        lengths = usable_lengths(lengths, DEFAULT_LENGTHS, model.length_limit)
        stream = self._hidden_stream(self.text.splits["test"][: max_tokens or MASKED_TOKENS])
        return {"test": [masked_score(model, *stream, n, progress=progress) for n in lengths]}

    @cached_property
    def _masking(self) -> Masking:
        return Masking(self.tokenizer, **self.task.masking_options)

    def _masked(self, sequences: Any, seed: int) -> MaskedExamples:
        return MaskedExamples(sequences, self._masking, self.tokenizer.eos_token_id, seed)

    def _hidden_stream(self, tokens: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Hide tokens of a text in chunks of the trained length; return the text, the labels, and the documents."""
        masking, ids = self._masking, tokens.astype(np.int64)
        starts = range(0, len(ids), self.task.data.length)
        chunks = [
            masking(ids[i : i + self.task.data.length], np.random.default_rng((EVALUATION_SEED, i))) for i in starts
        ]
        hidden, labels = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*chunks, strict=True))
        return hidden, labels, torch.from_numpy(document_of(ids, self.tokenizer.eos_token_id))


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
    def prepared(tokenizer: Any) -> Any:
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
