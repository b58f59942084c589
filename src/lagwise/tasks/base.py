"""Tasks: everything about a training that depends on what is learned, and the one loop of evaluation and prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lagwise.data import open_rows
from lagwise.data.batches import IGNORED
from lagwise.data.encoding import timed_fields
from lagwise.data.options import DataOptions
from lagwise.data.series_windows import WindowCollator, even_windows, random_windows, windows
from lagwise.data.tokenizers import without_template
from lagwise.models.loading import by_rate, save_tokenizer
from lagwise.progress import progress_bar
from lagwise.tasks.figures import Figures, Log, metric_curve

Records = Iterable[Mapping[str, Any]]  # rows as mappings from columns
#: Options of the data that not every task supports.
_SPECIAL = ("lengths", "evaluate_length", "format")


class Table(NamedTuple):
    """A table of results: a title, column names, and rows of text or numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Metric(NamedTuple):
    """A metric of validation data: its name, its name for people, and whether more of it is better.

    >>> Metric("accuracy", "accuracy", greater_is_better=True).greater_is_better
    True
    """

    name: str
    label: str
    greater_is_better: bool = True


class Sizes(NamedTuple):
    """The size of a task's training examples."""

    steps_per_epoch: int | None  # that see every example about once; None for examples without end
    tokens: float  # of an example on average, or what ``unit`` names
    longest: int
    unit: str = "tokens"  # what the progress bar of a training counts


class LinearRows(NamedTuple):
    """The data for the fit of a linear model: rows in batches, with ``labels`` and perhaps a ``weight`` for each."""

    train: Sequence[Mapping[str, Tensor]]
    valid: Sequence[Mapping[str, Tensor]]  # held-out rows, in the order of `TaskData.validation_examples`
    fields: Mapping[str, Any]  # of the model's configuration
    tokenizer: Any = None


class Task:
    """The description of what is learned: options, which the constructor checks, and what follows from them without the
    data. Abstract; `lagwise.tasks.TASKS` maps names to subclasses.

    The constructor takes the data options and, as keyword-only parameters, the task's own. `open` reads the data. A
    subclass says how a model answers one encoded row (``_output``, or ``_batches`` for several at a time), how rows are
    encoded (``_encoded``), and how an answer becomes new columns of its row (``_answer``).
    """

    #: the metric by which checkpoints are compared, as far as it is known without the data
    headline: Metric
    #: the head that is trained, and that of a first answer, a linear model of fixed features
    head: ClassVar[Any]
    linear_head: ClassVar[Any] = None
    #: what the model must read, a name of `LagwiseConfig.inputs`
    inputs: str = "tokens"
    #: the options of data and training that it supports, of those that not every task does: ``lengths``,
    #: ``evaluate_length``, ``format`` and ``sequence_parallel`` (losses and metrics are sums over tokens)
    supports: ClassVar[frozenset[str]] = frozenset()
    #: the first of the columns that `predict` adds
    predicts: ClassVar[str] = "predicted"
    #: the sampling rate in Hz of the sounds that it learns from
    rate: int | None = None
    #: whether the model has a first answer's map beside its layers
    wide: bool = False
    #: the data, not yet read
    source: Any

    _needs: ClassVar[str | None] = None  # what a training needs, for people, where it has no data of its own
    _unit: ClassVar[str] = "row"  # what a progress bar counts

    def __init__(self, data: DataOptions):
        self.data = data
        if self._needs and not data.source:
            raise ValueError(self._needs)
        unsupported = {name: getattr(data, name) or None for name in _SPECIAL if name not in self.supports}
        require_none(type(self).__name__, **unsupported)

    def fields(self) -> dict[str, Any]:
        """Return the fields of the model's configuration that are known before the data are read."""
        return {}

    def lengths(self) -> dict[str, int]:
        """The lengths that the model must serve, by the option that sets each."""
        return {"`length`": self.data.length}

    def check_config(self, config: Any) -> None:
        """Raise ValueError for a model that cannot read the task's inputs, as far as they are known."""
        if config.input_name != self.inputs:
            raise ValueError(f"the task provides {self.inputs}, but the model reads {config.input_name}")

    def key(self) -> str:
        """A hash of the data, their splits, and what decides how they are read. Encodes nothing."""
        return self.source.key()

    def open(self, *, run: Path | None = None, source: str | None = None, progress: bool = True) -> Any:
        """Read and encode the data, or load the cached result; ValueError for unsuitable data.

        Args:
            run: the folder of a trained run, whose tokenizer and labels the data must have.
            source: other data for evaluation: its test split, or all.
        """
        run = None if run is None else run.resolve()  # a path is never taken for a tokenizer's name
        if source is None:
            return self._open(run, progress)
        assert run is not None
        return self._open_other(source, run, progress)

    def _open(self, run: Path | None, progress: bool) -> Any:
        raise NotImplementedError

    def _open_other(self, source: str, run: Path, progress: bool) -> Any:
        raise NotImplementedError

    def rows(self, source: str) -> Any:
        """The rows of a table to predict, as the task reads them, not yet read."""
        return open_rows(source)

    def columns(self) -> tuple[str, ...]:
        """The columns of rows that `predict` needs."""
        return ("text",)

    def predict(self, model: Any, tokenizer: Any, rows: Records, *, progress: bool = True) -> list[dict[str, Any]]:
        """The model's predictions for each row, as new columns by name. tokenizer: the model's, None without one."""
        encoded, answers = self._encoded(model, tokenizer, rows), {}
        names = rows[0] if isinstance(rows, list) else getattr(rows, "column_names", ())
        hertz = None
        if self.rate is not None and "sampling_rate" in names:  # sounds may have other rates than those of training
            hertz = [row["sampling_rate"] for row in rows] if isinstance(rows, list) else rows["sampling_rate"][:]  # type: ignore[bad-index]
        for i, output in outputs(self, model, tokenizer, encoded, hertz, desc="predicting", progress=progress):
            answers[i] = self._answer(model, output)
        return [answers[i] for i in range(len(encoded))]

    def _encoded(self, model: Any, tokenizer: Any, rows: Any) -> Any:
        return list(rows)

    def _batches(
        self, model: Any, tokenizer: Any, rows: Any, indices: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], Any]]:
        """Yield the indices of the rows of a batch, and the model's output for each; one row at a time by default."""
        for i in indices:
            yield [i], [self._output(model, tokenizer, rows[i])]

    def _output(self, model: Any, tokenizer: Any, row: Any) -> Any:
        raise NotImplementedError

    def _answer(self, model: Any, output: Any) -> dict[str, Any]:
        return output

    def continuation(self, source: str) -> Callable[[Any], list[dict[str, Any]]] | None:
        """A function of the model that gives the next rows of a table over time; None for a source of separate rows,
        which `predict` is for."""
        return None

    def table(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return rows with their predictions as lines of a .csv file."""
        return rows

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        """The result of `TaskData.evaluate` for people."""
        raise NotImplementedError

    def figures(self, metrics: Log, evaluation: Mapping[str, Any] | None) -> Figures:
        """Return the figures by name, drawn when called, from the lines of a run's log and the result of
        `TaskData.evaluate`; by default the headline over the steps."""
        headline = self.logged_headline(metrics)
        return {"loss": lambda: metric_curve(metrics, headline.name, headline.label)}

    def logged_headline(self, metrics: Log) -> Metric:
        """Return the headline of a run from the lines of its log, which know what was found in the data."""
        return self.headline


class SeriesTask(Task):
    """A task of series of real vectors, of which a step of the model reads ``stride`` samples. Abstract."""

    inputs = "values"
    stride: int = 1
    time: str | None = None  #: the column of the times of samples

    def fields(self) -> dict[str, Any]:
        return {"inputs": {"name": "values", "stride": self.stride, **timed_fields(self.time)}}

    def lengths(self) -> dict[str, int]:
        return {"`length` (in steps)": self.steps(self.data.length)}

    def steps(self, samples: int) -> int:
        """Return the steps of the model for so many samples of a series."""
        return -(-samples // self.stride)


class TaskData:
    """The data of a task, read and encoded, and what is learned and measured on them. Abstract; `Task.open` returns
    it. With other data for evaluation, it can only evaluate.

    `evaluate` reduces the output for each row of the splits ``_scored`` (``_measured``), and computes the scores of a
    split from all of them (``_scores``).
    """

    task: Any
    tokenizer: Any  #: of text, else None
    #: the training loss, a function of (outputs, labels, num_items_in_batch), where it is not the model's own
    loss: Any = None
    #: whether `calibrate` sets anything
    calibrates: bool = False

    _scored: Mapping[str, Any]  # encoded rows to evaluate on, by split

    def __init__(self, task: Task, tokenizer: Any = None):
        self.task, self.tokenizer = task, tokenizer

    @property
    def headline(self) -> Metric:
        """The metric by which checkpoints are compared."""
        return self.task.headline

    def fields(self) -> dict[str, Any]:
        """Return the fields of the model's configuration that depend on the data."""
        return {} if self.tokenizer is None else tokenizer_fields(self.tokenizer)

    def resolved(self) -> dict[str, Any]:
        """The task's options, completed from the data and saved with a run, so that it predicts without its data."""
        return {}

    def check_model(self, model: Any) -> None:
        """Raise ValueError for a new model that cannot learn from the training data."""

    def linear_rows(self) -> LinearRows:
        """The labelled rows of ``train`` and ``valid``, as a linear model reads them."""
        raise NotImplementedError

    def save_preprocessing(self, folder: Path, limit: int | None) -> None:
        """Save the preprocessing for other programs: the tokenizer, which encodes a text as in training, with the
        model's length limit."""
        if self.tokenizer is not None:
            save_tokenizer(without_template(self.tokenizer), folder, limit)

    def constant_scores(self) -> dict[str, float]:
        """Return scores on the validation rows of one answer for all rows: the accuracy of their most common class, or
        the mean squared error of the training rows' mean. Empty for tasks without such an answer."""
        return {}

    def notes(self) -> Sequence[str]:
        """Return the notes about the data for the user before a long training, one line each."""
        return ()

    def sizes(self, batch_size: int) -> Sizes:
        """Return the sizes of training examples and the steps of an epoch."""
        raise NotImplementedError

    def training_examples(self, steps: int, batch_size: int, seed: int) -> Dataset:
        """Return ``steps * batch_size`` examples in the order in which they are used; example i depends only on the
        data, the arguments and i, so that a resumed run and any number of processes see the same."""
        raise NotImplementedError

    def validation_examples(self, tokens: int) -> Dataset:
        """Return the held-out examples of about ``tokens`` tokens at most."""
        raise NotImplementedError

    def collate(self, rows: Sequence[Mapping[str, Any]], training: bool = True) -> dict[str, Tensor]:
        """A batch of training or validation examples; by default of one length, which need no padding and no mask."""
        from transformers import default_data_collator

        return default_data_collator(list(rows))

    def reduce(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """The values of a validation batch that `metrics` needs; None if the loss is enough."""
        return None

    def calibrate(self, model: Any, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Set a model's configuration by what `reduce` kept of its outputs for held-out rows, and return these."""
        return logits

    def counted(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Number of labels, tokens or values over which the loss of a validation batch is the mean."""
        return (batch["labels"] != IGNORED).sum()

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        """Return the validation metrics by name, the headline among them, from the mean loss and what `reduce` kept."""
        raise NotImplementedError

    def evaluate(
        self, model: Any, *, lengths: Sequence[int] | None = None, max_tokens: int | None = None, progress: bool = True
    ) -> dict[str, Any]:
        """Return the scores on held-out data, to be saved as JSON. ValueError for an option that does not apply to the
        task."""
        require_none(type(self.task).__name__, lengths=lengths, max_tokens=max_tokens)
        result: dict[str, Any] = {}
        for split, rows in self._scored.items():
            if self._is_fitted(model, split):
                continue
            measured, hertz, desc = {}, self._hertz_of(rows), f"scoring {split}"
            for i, output in outputs(self.task, model, self.tokenizer, rows, hertz, desc=desc, progress=progress):
                measured[i] = self._measured(output, rows, i)
            result |= self._scores(split, [measured[i] for i in range(len(rows))], model)
        return result

    def _is_fitted(self, model: Any, split: str) -> bool:
        """Whether a model was fitted to a split, which is then not scored."""
        return False

    def _hertz_of(self, rows: Any) -> Any:
        """The sampling rate of each row, None where all have that of training."""
        return None

    def _measured(self, output: Any, rows: Any, i: int) -> Any:
        return output

    def _scores(self, split: str, measured: Sequence[Any], model: Any) -> dict[str, Any]:
        raise NotImplementedError


class Recordings(TaskData):
    """Series that are learned in random windows and answered whole. Abstract.

    A subclass gives the windows of a split (``_windows``), with ``draw``, ``cut`` and ``lengths`` as `random_windows`
    and `Windows` take them.
    """

    _hertz: Any = None  # sampling rates of the series of other data

    def _windows(self, split: str) -> Any:
        raise NotImplementedError

    def resolved(self) -> dict[str, Any]:
        return self.task.source.reading_options()

    def sizes(self, batch_size: int) -> Sizes:
        samples, length = sum(self._windows("train").lengths), self.task.data.length
        steps = self.task.steps(length)
        return Sizes(max(1, round(samples / (batch_size * length))), float(steps), steps)

    def training_examples(self, steps: int, batch_size: int, seed: int) -> Dataset:
        rows = self._windows("train")
        return random_windows(rows.draw, rows.lengths, steps * batch_size, seed)

    def validation_examples(self, tokens: int) -> Dataset:
        rows, length = self._windows("valid"), self.task.data.length
        return windows(rows.cut, even_windows(rows.lengths, length, tokens // self.task.steps(length)))

    def collate(self, rows: Sequence[Any], training: bool = True) -> dict[str, Tensor]:
        return WindowCollator(self.task.stride)(rows)

    def _hertz_of(self, rows: Any) -> Any:
        return self._hertz


def outputs(
    task: Task,
    model: Any,
    tokenizer: Any,
    rows: Any,
    hertz: Sequence[int] | None = None,
    *,
    desc: str,
    progress: bool,
) -> Iterator[tuple[int, Any]]:
    """Yield the index of each encoded row and the model's output for it, in the order of batches: the loop of all
    evaluations and predictions of rows. hertz: the sampling rate of each row, if they may differ from that of training.
    """
    groups = [(model, range(len(rows)))] if hertz is None else by_rate(model, hertz, task.rate or 0)
    with progress_bar(desc=desc, total=len(rows), unit=task._unit, show=progress) as bar:
        for own, indices in groups:
            batches = task._batches(own, tokenizer, rows, indices)
            while True:
                with torch.inference_mode():  # not while the caller has the outputs
                    chosen, results = next(batches, ((), ()))
                if not len(chosen):
                    break
                yield from zip(chosen, results, strict=True)
                bar.update(len(chosen))


def tokenizer_fields(tokenizer: Any) -> dict[str, Any]:
    """The fields of a model's configuration that describe its tokens."""
    special = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
    return {"vocab_size": len(tokenizer), **special}


def usable_lengths(lengths: Sequence[int] | None, default: Sequence[int], limit: int | None) -> list[int]:
    """The lengths that a model can be evaluated at, of those given, or else of the default ones, or else its limit.
    ValueError if all that are given exceed the limit."""
    usable = [length for length in lengths or default if limit is None or length <= limit]
    if usable or limit is None:
        return usable
    if lengths is None:
        return [limit]
    raise ValueError(
        f"every length in {list(lengths)} is over the model's limit of {limit} tokens; give other `lengths`"
    )


def require_none(task: str, **options: Any) -> None:
    """Raise ValueError if an option is given that does not apply to the task."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"`{name}` does not apply to the task {task}, got {value!r}")


def finite(x: np.ndarray, noun: str) -> np.ndarray:
    """The array; FloatingPointError if it has NaN or infinity."""
    if not np.isfinite(x).all():
        raise FloatingPointError(f"{noun} of the model are not finite; its weights may be damaged")
    return x
