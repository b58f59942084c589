"""Tasks: everything about a training that depends on what is learned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

import lagwise.models as models
from lagwise.data import open_rows
from lagwise.data.batches import IGNORED
from lagwise.data.options import DataOptions
from lagwise.data.tokenizers import without_template
from lagwise.data.writing import rows_as_csv
from lagwise.files import write_whole
from lagwise.models.loading import save_tokenizer
from lagwise.tables import known
from lagwise.tasks.figures import Figures, Log, metric_curve

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Records = Iterable[Mapping[str, Any]]  # rows as mappings from columns


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


class Task:
    """The description of what is learned: options, which the constructor checks, and what follows from them without the
    data. Abstract; `lagwise.tasks.TASKS` maps names to subclasses.

    The constructor takes the data options and, as keyword-only parameters, the task's own. `open` reads the data.
    """

    #: the metric by which checkpoints are compared, as far as it is known without the data
    headline: Metric
    #: names of the heads that are trained and fitted, in `lagwise.models`
    head: ClassVar[str]
    linear_head: ClassVar[str | None] = None
    #: what a trained run is used with: a prompt, text, masked text, data, or labels to learn
    query: str = "text"
    #: the values that ``data.format`` may have
    formats: ClassVar[Collection[str]] = ()
    #: what the model must read, a name of `LagwiseConfig.inputs`
    inputs: str = "tokens"
    #: the first of the columns that `predict` adds
    predicts: ClassVar[str] = "predicted"

    #: whether sequence parallelism is supported: losses and metrics must be sums over tokens
    splits: ClassVar[bool] = False
    #: whether training may carry a model's states from step to step: its texts are longer than a step
    carries: ClassVar[bool] = False
    #: the sampling rate in Hz of the sounds that it learns from
    rate: int | None = None
    #: whether its data can be streamed (``data.streaming``)
    streams: ClassVar[bool] = False
    #: what a training needs, for people, where it has no data of its own
    needs: ClassVar[str | None] = None
    #: whether all examples are of one length, ``data.length`` at most
    one_length: ClassVar[bool] = False

    def __init__(self, data: DataOptions):
        self.data = data
        if data.streaming and not self.streams:
            raise ValueError(
                f"`streaming` is for language modelling and masked language modelling, not {type(self).__name__}"
            )
        if self.needs and not data.source:
            raise ValueError(self.needs)
        if self.one_length:
            options = {"lengths": data.lengths, "evaluate_length": data.evaluate_length}
            require_none(type(self).__name__, **options)
        if data.format is not None:
            known(data.format, self.formats, "`format` for this task")

    #: whether the model has a first answer's map beside its layers
    wide: bool = False
    #: the data, not yet read
    source: Any

    @property
    def model_class(self) -> type[PreTrainedModel]:
        """The head that is trained."""
        return getattr(models, self.head)

    @property
    def linear_class(self) -> type[PreTrainedModel] | None:
        """The head of a first answer, a linear model of fixed features; None if the task has none."""
        return None if self.linear_head is None else getattr(models, self.linear_head)

    def fixed_fields(self) -> dict[str, Any]:
        """Return the fields of the model's configuration that are known before the data are read."""
        return {}

    def lengths(self) -> dict[str, int]:
        """The lengths that the model must serve, by the option that sets each."""
        return {"`length`": self.data.length}

    def check_config(self, config: Any) -> None:
        """ValueError for a model that cannot read the task's inputs, as far as they are known."""
        if config.input_name != self.inputs:
            raise ValueError(f"the task provides {self.inputs}, but the model reads {config.input_name}")

    def logged_headline(self, metrics: Log) -> Metric:
        """The headline of a run, from the lines of its log."""
        return self.headline

    def key(self) -> str:
        """A hash of the data, their splits, and what decides how they are read. Encodes nothing."""
        return self.source.key()

    def open(self, *, run: Path | None = None, source: str | None = None, progress: bool = True) -> TaskData:
        """Read and encode the data, or load the cached result; ValueError for unsuitable data.

        Args:
            run: the folder of a trained run, whose tokenizer and labels the data must have.
            source: other data for evaluation.
        """
        raise NotImplementedError

    def write_split(self, folder: Path) -> None:
        """Write the splits of the data as files that `open` reads as the same splits. ValueError for a task that does
        not."""
        raise ValueError(
            f"{type(self).__name__} does not write its split as files; tasks of running text and labelled rows do"
        )

    def open_rows(self, source: str) -> Any:
        """The rows of a table to predict, as the task reads them."""
        return open_rows(source)

    def columns(self) -> tuple[str, ...]:
        """The columns of rows that `predict` needs."""
        return ("text",)

    def predict(self, model: Any, tokenizer: Any, rows: Records, *, progress: bool = True) -> list[dict[str, Any]]:
        """The model's predictions for each row, as new columns by name. tokenizer: the model's, None without one."""
        raise NotImplementedError

    def continuation(self, source: str) -> Callable[[Any], list[dict[str, Any]]] | None:
        """A function of the model that gives the next rows of a table over time; None for a source of separate rows,
        which `predict` is for."""
        return None

    def check_output(self, out: Path, source: str | None = None) -> None:
        """ValueError for a file or folder that `save_predictions` does not write for the rows of a source."""
        if out.suffix != ".csv" or not out.parent.is_dir():
            raise ValueError(f"`out` must be a .csv file in an existing folder, got {str(out)!r}")

    def as_csv(self, rows: Sequence[Mapping[str, Any]]) -> str:
        """Return the rows with their predictions as .csv."""
        return rows_as_csv(rows)

    def save_predictions(self, rows: Sequence[Mapping[str, Any]], out: Path) -> None:
        """Write rows with their predictions to a file, or to a folder if `check_output` accepts one."""
        write_whole(out, self.as_csv(rows))

    def kernel_length(self, config: Any) -> int:
        """The length for which a report draws the kernels of a model."""
        return 2048

    def tables(self, evaluation: Mapping[str, Any]) -> list[Table]:
        """The result of `TaskData.evaluate` for people."""
        raise NotImplementedError

    def figures(self, metrics: Log, evaluation: Mapping[str, Any] | None) -> Figures:
        """Return the figures by name, drawn when called, from the lines of a run's log and the result of
        `TaskData.evaluate`; by default the headline over the steps."""
        return {"loss": lambda: metric_curve(metrics, self.headline.name, self.headline.label)}

    def sample(self, model: Any, tokenizer: Any) -> str:
        """Return a text that the model writes, for a report; an empty one where it writes no text."""
        return ""


class TaskData:
    """The data of a task, read and encoded, and what is learned and measured on them. Abstract; `Task.open` returns
    it. With other data for evaluation, it can only evaluate."""

    task: Any
    tokenizer: PreTrainedTokenizerBase | None
    #: what the progress bar of a training counts: `tokens_per_example` of them in each example
    speed_unit: ClassVar[str] = "tokens"
    #: the weight of each class, where they differ
    weights: Tensor | None = None
    #: the arguments of the model that are labels, where they are not those that transformers finds
    label_arguments: ClassVar[Sequence[str]] = ()
    #: the training loss, a function of (outputs, labels, num_items_in_batch), where it is not the model's own
    loss: Any = None

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase | None = None):
        self.task, self.tokenizer = task, tokenizer

    @property
    def headline(self) -> Metric:
        """The metric by which checkpoints are compared."""
        return self.task.headline

    def fields(self) -> dict[str, Any]:
        """Return the fields of the model's configuration that depend on the data."""
        tokenizer = self.tokenizer
        if tokenizer is None:
            return {}
        special = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
        return {"vocab_size": len(tokenizer), **special}

    def resolved(self) -> dict[str, Any]:
        """The task's options, completed from the data and saved with a run, so that it predicts without its data."""
        return {}

    def check_model(self, model: Any) -> None:
        """ValueError for a new model that cannot learn from the training data."""

    def linear_fields(self) -> dict[str, Any]:
        """Return the fields of `LagwiseLinearConfig` that depend on the data."""
        raise NotImplementedError

    @property
    def ngrams(self) -> Any:
        """The n-grams of the training texts (`Ngrams.chosen`), for a first answer of texts."""
        raise NotImplementedError

    def linear_batches(self, split: str) -> Iterator[dict[str, Tensor]]:
        """The labelled rows of ``train`` or ``valid``, as a linear model reads them; of ``valid`` those of
        `validation_examples`, in that order."""
        raise NotImplementedError

    def saved_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer as a run saves it, for other programs: it encodes a text as in training."""
        assert self.tokenizer is not None
        return without_template(self.tokenizer)

    def save_preprocessing(self, folder: Path, limit: int | None) -> None:
        """Save the preprocessing for other programs: the tokenizer, with the model's length limit."""
        if self.tokenizer is not None:
            save_tokenizer(self.saved_tokenizer(), folder, limit)

    def constant_scores(self) -> dict[str, float]:
        """Scores on the validation rows of one answer for all rows: the accuracy of their most common class, or the
        mean squared error of the training rows' mean. Empty for tasks without such an answer."""
        return {}

    def notes(self) -> Sequence[str]:
        """Return the notes about the data for the user before a long training, one line each."""
        return ()

    def steps_per_epoch(self, batch_size: int) -> int:
        """Return the optimiser steps that see every training example about once."""
        raise NotImplementedError

    def training_examples(self, steps: int, batch_size: int, seed: int) -> Dataset:
        """Return ``steps * batch_size`` examples in the order in which they are used; example i depends only on the
        data, the arguments and i, so that a resumed run and any number of processes see the same."""
        raise NotImplementedError

    def carried_examples(self, steps: int, batch_size: int, seed: int, pieces: int) -> Dataset:
        """Return `training_examples`, each of which continues the row of the step before, for so many pieces
        (`CarriedPieces`); of a task that `carries`."""
        raise NotImplementedError

    def training_example(self, ids: np.ndarray, seed: Sequence[int]) -> dict[str, Tensor]:
        """The example of a window of streamed text; of a task that `streams`. seed: of what is random in it."""
        raise NotImplementedError

    def validation_examples(self, tokens: int) -> Dataset:
        """Return the held-out examples of about ``tokens`` tokens at most."""
        raise NotImplementedError

    @property
    def sequence_lengths(self) -> Sequence[int]:
        """The lengths of training sequences; every step draws one."""
        return self.task.data.lengths or [self.task.data.length]

    def tokens_per_example(self) -> float:
        """Return the tokens of a training example on average, or what `speed_unit` names."""
        return sum(self.sequence_lengths) / len(self.sequence_lengths)

    def longest_example(self) -> int:
        """Return the tokens of the longest training example."""
        return self.task.data.length

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """A batch of training examples; by default of one length, which need no padding and no mask."""
        from transformers import default_data_collator

        return default_data_collator(list(rows))

    def collate_evaluation(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """A batch of validation examples."""
        return self.collate(rows)

    def reduce(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
        """The values of a validation batch that `metrics` needs; None if the loss is enough."""
        return None

    def counted(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Number of labels, tokens or values over which the loss of a validation batch is the mean."""
        return (batch["labels"] != IGNORED).sum()

    #: whether a trained model's configuration is set by held-out rows (`calibrated`)
    calibrates: ClassVar[bool] = False

    def calibrated(self, model: Any, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Set a trained model's configuration by its outputs for held-out rows, and return what `reduce` kept of
        these."""
        return logits

    def metrics(self, loss: float, predictions: Any = None, labels: Any = None) -> dict[str, float]:
        """Return the validation metrics by name, the headline among them, from the mean loss and what `reduce` kept."""
        raise NotImplementedError

    def evaluate(
        self, model: Any, *, lengths: Sequence[int] | None = None, max_tokens: int | None = None, progress: bool = True
    ) -> dict[str, Any]:
        """Return the scores on held-out data, to be saved as JSON. ValueError for an option that does not apply to the
        task."""
        raise NotImplementedError

    def scores(self, model: Any, lengths: Sequence[int], max_tokens: int, *, progress: bool = True) -> list[float]:
        """The headline metric of a language model on test data of about ``max_tokens`` tokens at each length."""
        raise NotImplementedError


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
    """ValueError if an option is given that does not apply to the task."""
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"`{name}` does not apply to the task {task}, got {value!r}")


def finite(x: np.ndarray, what: str) -> np.ndarray:
    """The array; FloatingPointError if it has NaN or infinity."""
    if not np.isfinite(x).all():
        raise FloatingPointError(f"{what} of the model are not finite; its weights may be damaged")
    return x
