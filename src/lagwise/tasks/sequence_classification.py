"""Classes, or numbers, of whole rows: texts, pairs of texts, series of real values."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.utils.data import Dataset

import lagwise.data.arrow as pa
import lagwise.data.hf as hf
from lagwise.data import (
    FORMATS,
    BucketedExamples,
    EncodedExamples,
    LabelledData,
    PaddingCollator,
    RowEncoder,
    RowSource,
    SeriesSource,
    load_tokenizer,
    open_rows,
    open_series,
    prepare_labelled,
    rows_to_score,
    with_pairs,
)
from lagwise.data.arrays import series
from lagwise.data.batches import batches_by_length, length_step, with_all_labels
from lagwise.data.encoding import feature_scale, sizes_differ, typical_time
from lagwise.data.examples import ChangedExamples
from lagwise.data.labelled import INPUTS, input_columns
from lagwise.data.labelled_rows import RATE
from lagwise.data.labels import KINDS, MULTI_LABEL
from lagwise.data.options import DataOptions
from lagwise.data.tokenizers import without_template
from lagwise.models import LagwiseForSequenceClassification, LagwiseLinearForSequenceClassification
from lagwise.models.inputs import require_rate
from lagwise.models.loading import read_config, save_tokenizer
from lagwise.tables import Count, Number, Share, known, refuse
from lagwise.tasks.base import LinearRows, Metric, Records, SeriesTask, Sizes, finite, require_none
from lagwise.tasks.labelled import (
    MAX_STRIDE,
    Labelled,
    LabelledRows,
    check_metric,
    check_samples,
    checked_class_weights,
    class_fields,
    class_names,
    class_weights,
    default_metric,
    headline_of,
)

TOKENS_A_BATCH = 16384  # tokens of an evaluation batch, including padding
_SHOWN_CHARACTERS = 120  # characters of a text in a report
_MIN_LONGEST_STEPS = 256  # model steps that the longest series keeps when samples share steps


class SequenceClassification(SeriesTask, Labelled):
    """A class or a number for each row of a table: of a text, a pair of texts, or a series of real values.

    Data: rows as in `lagwise.data.open_rows`, or with ``data.format`` a name of
    `lagwise.data.FORMATS`, such as tasks of GLUE and of Long Range Arena, which lagwise-papers has.

    Options:
        text: the column of the inputs, two names for pairs of texts, or more for texts that are joined (`RowEncoder`).
        label: the column of the labels; or several columns of 0 and 1, each for one of several labels per row.
        kind: ``classification``, ``regression``, ``multi_label`` (several labels per row: a list, names between ``|``,
            ``;`` or ``,``, or, if there is no column of labels, all columns of 0 and 1), or ``auto``: text and few
            different integers are classes, lists are several labels.
        metric: the headline, by which checkpoints are compared: ``accuracy``, ``macro_f1``, ``matthews`` (Matthews'
            correlation) or, of two classes, ``f1`` of the second; of numbers ``pearson`` or ``spearman``; of
            several labels ``micro_f1``, ``macro_f1`` or ``exact_match``.
        threshold: the probability above which a row has one of several labels; by default the one with the best micro
            F1 on the held-out rows.
        inputs: ``tokens`` of text, or ``values``: series of real vectors, which are standardised; for two-sided models
            each by its own mean and deviation, where the deviations of training series differ a hundredfold.
        stride: samples of a series per step of the model; without one (null), found in the data: as many, up to 16, as
            leave the longest training series 256 steps.
        wide: whether the model has a first answer's map of n-grams of texts, or of random convolutions of series,
            beside its layers (`Wide`): fitted before they are trained, and joined with them in the end, with a share of
            the logits that held-out rows choose. Not if samples have times.
        features: columns of .csv and .tsv files of series that are read, in this order; found in the data.
        lines: whether each line of .csv and .tsv files is a series, not a sample; by default where they have labels.
        rate: sampling rate of sound files in Hz for which the parameters of kernels are: that of the first file. Other
            files may have another one, by which the steps of kernels in continuous time are scaled.
        time: column of the times of samples, numbers or dates, where these are not equally far apart: kernels in
            continuous time then step from sample to sample by it. Of .csv and .tsv files that are a recording each, or
            lists of records; needs a stride of 1.
        class_weights: ``balanced`` weights each class by the inverse of its share of the training rows.
        label_smoothing: share of the true class's probability that is spread over all classes.
        separate: cut each text of a pair to half of ``data.length``, without an end of text between them, instead of
            the longer one first: for models that process them separately (``model.pooling``).
        group: a column whose equal values stay in one split, such as the person that rows are of.

    All these metrics are computed, for numbers also the mean squared error. The default headlines are the accuracy,
    Pearson's correlation, and micro F1.
    """

    head = LagwiseForSequenceClassification
    linear_head = LagwiseLinearForSequenceClassification
    supports = frozenset({"format"})
    _needs = "classification needs rows to learn from; give a file with `source`, such as reviews.csv"

    def __init__(
        self,
        data: DataOptions,
        *,
        text: str | list[str] = "text",
        label: str | list[str] = "label",
        kind: str = "auto",
        metric: str | None = None,
        inputs: str = "tokens",
        stride: Count | None = 1,
        wide: bool = False,
        features: list[str] | None = None,
        lines: bool | None = None,
        rate: Count | None = None,
        time: str | None = None,
        class_weights: str = "none",
        label_smoothing: Share = 0.0,
        separate: bool = False,
        group: str | None = None,
        threshold: Annotated[Number, Field(gt=0, lt=1)] | None = None,
    ):
        Labelled.__init__(self, data, label_smoothing)
        if data.format is not None:
            known(data.format, FORMATS, "`format` for this task")
        self.kind, self.metric = known(kind, KINDS, "`kind`"), metric
        check_metric(metric, self.kind)
        self.inputs = known(inputs, INPUTS, "`inputs`")
        self.class_weights = checked_class_weights(class_weights)
        self.text, self.label, self.threshold = text, label, threshold
        self.separate, self.group = separate, group
        if time is not None and stride is None:
            stride = 1
        refuse(
            (
                isinstance(label, list) and len(label) < 2,
                f"`label` must be a column, or two or more columns of 0 and 1, got {label!r}",
            ),
            (
                time is not None and stride != 1,
                f"`time`, of samples with times of their own, needs `stride=1`, got {stride}",
            ),
            (stride != 1 and inputs == "tokens", f"`stride` is for series, got {stride!r}"),
        )
        self.finds_stride, self.time = stride is None, time
        self.stride = MAX_STRIDE if stride is None else stride
        self.features, self.lines, self.rate = features, lines, rate
        self.wide = wide and time is None
        if inputs == "tokens":
            who = "sequence_classification with `inputs=tokens`"
            require_none(who, features=features, lines=lines, rate=rate, time=time)
        input_columns(text, label, kind, inputs, data.length, separate)  # checks them

    @property
    def headline(self) -> Metric:  # type: ignore[override]
        return headline_of(self.metric or default_metric(self.kind))

    def fields(self) -> dict[str, Any]:
        return {"causal": False} | (super().fields() if self.inputs == "values" else {})

    def lengths(self) -> dict[str, int]:
        return super().lengths() if self.inputs == "values" else {"`length`": self.data.length}

    def rows(self, source: str) -> RowSource:
        if self.inputs == "values":
            names = ("features", "lines", "rate", "time", "group")
            options: dict[str, Any] = {name: getattr(self, name) for name in names}
            return open_series(source, self.label, **options, any_rate=True)
        return open_rows(source) if self.data.format is None else FORMATS[self.data.format].open(source)

    def _open(self, run: Path | None, progress: bool) -> ClassifiedRows:
        rows = prepare_labelled(self.source, **self.reading, progress=progress)
        tokenizer = rows.tokenizer
        if run is not None and tokenizer is not None:
            own = load_tokenizer(str(run))
            if own.get_vocab() != tokenizer.get_vocab():
                reading: dict[str, Any] = {**self.reading, "tokenizer": str(run)}
                rows, tokenizer = prepare_labelled(self.source, **reading, progress=progress), own
        check_metric(self.metric, rows.kind, rows.label_names)
        weighted, several = self.class_weights != "none", rows.kind == MULTI_LABEL
        refuse(
            (
                self.threshold is not None and not several,
                f"`threshold` {self.threshold} is for several labels per row (`kind={MULTI_LABEL}`)",
            ),
            (
                several and weighted,
                "`class_weights` does not apply to several labels per row, which have a `threshold`",
            ),
            (
                rows.label_names is None and (weighted or self.label_smoothing),
                "`class_weights` and `label_smoothing` do not apply to regression",
            ),
        )
        if run is None and self.inputs == "values":
            longest = max(rows.splits["train"]["length"][:])
            if self.finds_stride:
                self.stride = max(1, min(MAX_STRIDE, longest // _MIN_LONGEST_STEPS))
            check_samples(self, rows.features or 1, longest)
        data = ClassifiedRows(self, tokenizer, rows)
        own = data.resolved().get("rate")
        if self.rate not in (None, own):
            raise ValueError(f"the sounds of {self.data.source!r} have a sampling rate of {own} Hz, not {self.rate}")
        return data

    def _open_other(self, source: str, run: Path, progress: bool) -> ClassifiedRows:
        config: Any = read_config(run)
        data = ClassifiedRows(self, load_tokenizer(str(run)) if config.input_name == "tokens" else None)
        data.label_names = None if config.num_labels == 1 else class_names(config)
        data.several = config.problem_type == "multi_label_classification"
        opened = self.rows(source)
        rows, labels = rows_to_score(opened, self.columns(), self.label, data.label_names, several=data.several)
        encoded: Any = self.encoder(config, data.tokenizer)(rows)
        if self.rate is not None and RATE in rows.column_names:
            encoded = encoded.add_column(RATE, rows[RATE][:])
        data._scored, data._labels = {"test": encoded}, {"test": labels}
        return data

    def columns(self) -> tuple[str, ...]:
        return (self.text,) if isinstance(self.text, str) else tuple(self.text)

    def _encoded(self, model: Any, tokenizer: Any, rows: Records) -> pa.Table:
        return self.encoder(model.config, tokenizer).table(rows)

    def _batches(
        self, model: Any, tokenizer: Any, rows: hf.Dataset | pa.Table, indices: Sequence[int]
    ) -> Iterator[tuple[Sequence[int], np.ndarray]]:
        """Compute logits in batches of similar lengths, in steps of the model: a first answer reads single samples."""
        inputs = model.config.inputs
        stride = inputs.get("stride", 1) if isinstance(inputs, dict) else 1
        examples, steps = EncodedExamples(rows), -(-np.asarray(rows["length"][:]) // stride)
        for part in batches_by_length(steps[indices], TOKENS_A_BATCH):
            own = [indices[i] for i in part]
            inputs = [{k: v for k, v in examples[i].items() if k not in ("label", RATE)} for i in own]
            batch = self.padded(tokenizer, inputs, stride=stride)
            logits = model(**{name: value.to(model.device) for name, value in batch.items()}).logits.float().cpu()
            yield own, finite(logits.numpy(), "logits")

    def padded(self, tokenizer: Any, rows: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Tensor]:
        """A batch of encoded rows, each with the time of its samples where they have rates. options: of the
        collator."""
        pad = None if tokenizer is None else tokenizer.pad_token_id
        batch = with_all_labels(PaddingCollator(pad, **{"stride": self.stride, **options})(rows))
        if RATE in rows[0]:
            assert self.rate is not None
            batch["token_time"] = self.rate / torch.stack([row[RATE] for row in rows])[:, None]
        return batch

    def encoder(self, config: Any, tokenizer: Any) -> RowEncoder:
        """Return the encoder of rows for a model."""
        features = config.inputs["features"] if config.input_name == "values" else None
        is_bytes, length = self.data.tokenizer == "bytes", self.data.length
        return RowEncoder(self.columns(), length, tokenizer, is_bytes, features, self.separate, config.takes_gaps)

    @property
    def reading(self) -> dict[str, Any]:
        """The options that affect how rows are read and encoded."""
        own = {name: getattr(self, name) for name in ("text", "label", "kind", "inputs", "separate", "group")}
        return own | {name: getattr(self.data, name) for name in ("tokenizer", "vocab_size", "length")}


def _hertz(rates: Sequence[int]) -> str:
    return f"{' and '.join(map(str, rates))} Hz"


class ClassifiedRows(LabelledRows):
    """The texts, pairs of texts or series of a task, with a label each. rows: None for other data than the task's
    own."""

    task: SequenceClassification
    change: Any = None  #: changes a training example at random (`ChangedExamples`)

    def __init__(self, task: SequenceClassification, tokenizer: Any, rows: LabelledData | None = None):
        super().__init__(task, tokenizer, rows)
        if rows is None:
            return
        rows, train, self.several = self.rows, self.rows.splits["train"], rows.kind == MULTI_LABEL
        if rows.label_names is not None and not self.several:
            self.weights = class_weights(task.class_weights, {n: rows.counts["train"][n] for n in rows.label_names})
        self.label_variance = float(np.var(train["label"][:])) or 1.0
        self._longest = task.steps(max(train["length"][:]))

    @property
    def headline(self) -> Metric:
        kind = MULTI_LABEL if self.several else "regression" if self.label_names is None else "classification"
        return headline_of(self.task.metric or default_metric(kind))

    def fields(self) -> dict[str, Any]:
        names = self.rows.label_names
        fields = super().fields()
        if self.rows.features is not None:
            own = {"features": self.rows.features, "stride": self.task.stride}
            fields["inputs"] = {"name": "values", **own, **self._scale}
        if isinstance(self.task.text, list) and len(self.task.text) == 2:
            fields["type_vocab_size"] = 2
        if names is None:
            labels = np.asarray(self.rows.splits["train"]["label"][:], dtype=np.float64)
            spread = {"label_mean": float(labels.mean()), "label_std": float(labels.std()) or 1.0}
            return fields | {"num_labels": 1, "problem_type": "regression", **spread}
        kind = "multi_label_classification" if self.several else "single_label_classification"
        return fields | class_fields(names) | {"problem_type": kind}

    @cached_property
    def _scale(self) -> dict[str, Any]:
        """The options of inputs that follow from the training series, all of which are read for each."""
        train = self.rows.splits["train"]
        mean, std = feature_scale(series(train))
        scale: dict[str, Any] = {"mean": mean, "std": std}
        if self.rows.gaps:
            scale["gaps"] = True
        if self.task.time is not None:
            scale["time"] = typical_time(series(train))
        values = (each[:, self.task.time is not None :] for each in series(train))
        if sizes_differ(values):
            scale["by_row"] = True
        return scale

    def linear_rows(self) -> LinearRows:
        fields = self.fields()
        fields = {k: v for k, v in fields.items() if k not in ("type_vocab_size", "label_mean", "label_std")}
        if self.task.inputs == "values":
            own = {name: value for name, value in fields["inputs"].items() if name not in ("time", "by_row")}
            fields["inputs"] = {**own, "stride": 1}  # a time is one more feature
        else:
            fields["inputs"] = {"name": "tokens", "pairs": len(self.task.columns()) == 2}
        train, valid = (list(self._linear_batches(split)) for split in ("train", "valid"))
        if self.weights is not None:  # of the classes
            weights = self.weights.double()
            for batch in [*train, *valid]:
                batch["weight"] = weights[batch["labels"]]
        return LinearRows(train, valid, fields, self.tokenizer)

    def _linear_batches(self, split: str) -> Iterator[dict[str, Tensor]]:
        if self.rows.rates:
            raise ValueError(
                f"a first answer counts samples, but sounds have sampling rates of {_hertz(self.rows.rates)}; resample "
                "them, or leave it out with `first_answer=none` and `wide=false`"
            )
        rows = self.rows.splits[split]
        examples = EncodedExamples(rows)
        for part in batches_by_length(rows["length"][:], TOKENS_A_BATCH):
            yield self.task.padded(self.tokenizer, [examples[i] for i in part], stride=1)

    def check_model(self, model: Any) -> None:
        if self.rows.rates:
            try:
                require_rate("a rate for each row", model.base_model, model.config)
            except ValueError as error:
                raise ValueError(f"sounds have sampling rates of {_hertz(self.rows.rates)}; {error}") from error

    def resolved(self) -> dict[str, Any]:
        columns, source = self.rows.encoder.columns, self.task.source
        options: dict[str, Any] = {} if columns == self.task.columns() else {"text": columns[0]}  # the only one of text
        if self.rows.label != self.task.label:
            options["label"] = self.rows.label
        if isinstance(source, SeriesSource):
            options |= {"stride": self.task.stride, **source.reading_options()}
        if self.rows.rates and self.task.rate is not None:
            options["rate"] = self.task.rate
        return options

    def save_preprocessing(self, folder: Path, limit: int | None) -> None:
        if len(self.task.columns()) == 2 and self.tokenizer is not None:
            save_tokenizer(with_pairs(without_template(self.tokenizer), separate=self.task.separate), folder, limit)
        else:
            super().save_preprocessing(folder, limit)

    def sizes(self, batch_size: int) -> Sizes:
        lengths = self.rows.splits["train"]["length"][:]
        return Sizes(-(-len(lengths) // batch_size), float(np.mean(lengths)) / self.task.stride, self._longest)

    def training_examples(self, steps: int, batch_size: int, seed: int) -> Dataset:
        examples = BucketedExamples(self.rows.splits["train"], batch_size, steps=steps, seed=seed)
        return ChangedExamples(examples, self.change, seed, 1) if self.change else examples

    def validation_examples(self, tokens: int) -> Dataset:
        rows = self.rows.splits["valid"]
        return EncodedExamples(rows.select(np.argsort(rows["length"][:], kind="stable")))

    def collate(self, rows: Sequence[Mapping[str, Any]], training: bool = True) -> dict[str, Tensor]:
        if not training:
            return self.task.padded(self.tokenizer, rows)
        return self.task.padded(self.tokenizer, rows, multiple_of=partial(length_step, longest=self._longest))

    def _hertz_of(self, rows: hf.Dataset) -> Any:
        return rows[RATE][:] if RATE in rows.column_names else None

    def _shown(self, rows: hf.Dataset, i: int) -> dict[str, Any]:
        """Describe a row by its number and the start of its text, or of both texts of a pair."""
        if self.tokenizer is None:
            return {"row": f"{i + 1}"}
        row = rows[i]
        parts = [np.asarray(row["input_ids"])]
        if len(self.task.columns()) == 2:
            parts = [parts[0][np.asarray(row["token_type_ids"]) == number] for number in (0, 1)]
        texts = [str(self.tokenizer.decode(part[:_SHOWN_CHARACTERS], skip_special_tokens=True)) for part in parts]
        shown = [textwrap.shorten(text, _SHOWN_CHARACTERS // len(parts), placeholder=" ...") for text in texts]
        return {"row": f"{i + 1}: {' | '.join(shown)}"}
