"""The first answer as a classifier of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import compress
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from lagwise.data import PaddingCollator, RowEncoder, load_tokenizer
from lagwise.data.batches import batches_by_length
from lagwise.data.encoding import feature_scale
from lagwise.data.splits import random_rows
from lagwise.data.tokens import checked_text
from lagwise.files import expanded, read_json, saved_whole, write_json
from lagwise.models import LagwiseForSequenceClassification, LagwiseLinearForSequenceClassification
from lagwise.models.loading import load_model, quiet, save_tokenizer
from lagwise.tables import refuse, shown
from lagwise.tasks.base import LinearRows, tokenizer_fields
from lagwise.tasks.labelled import class_fields, class_names
from lagwise.training.linear_fits import fit_linear_model

_FILE = "classifier.json"
_READS = {"series": "series (n, channels, length)", "texts": "texts"}
_TABLE = (
    "X is a table of numbers or categories, neither texts nor series (n, channels, length); use "
    "sklearn.ensemble.HistGradientBoostingClassifier().fit(X, y)"
)
_ENOUGH = 2500  # rows of which some are held out to choose by; of fewer, each is left out in turn, or in folds
_VALUES_A_BATCH = 1 << 18
_KINDS = "bifuU"  # numpy's kinds of dtype that classes may have


class LagClassifier(ClassifierMixin, BaseEstimator):
    """Classifies series or texts with scikit-learn's interface, by a linear model of fixed features that is fitted in
    seconds: the first answer of ``lagwise train``.

    X is one of

    - series ``(n, channels, length)``, or a list of arrays ``(channels, length)`` of different lengths; NaN is a
      missing sample. Features are random dilated convolutions (`Convolutions`);
    - a list, array or column of texts. Features are the n-grams of words and of characters that occur (`Ngrams`).

    Formula: ``softmax(W f(x) + b)`` with the features f. W and b are a ridge regression, or of texts a logistic
    regression, whose penalty is chosen by rows that are left out (`fit_linear`).

    Parameters:
        class_weight: weights of the classes, a mapping or ``balanced``; None for 1.
        random_state: seed of the convolutions and of the choice of held-out rows.

    Attributes:
        classes_: the classes, sorted.
        model_: the fitted `LagwiseLinearForSequenceClassification`; of a loaded run perhaps a trained model.
        penalty_: the chosen penalty as text, such as ``C=4``; None for a loaded run.
        kind_: what is read: ``series`` or ``texts``.
        n_features_in_: number of channels of series.

    A ValueError names infinite values, series of other channels than in `fit`, rows of another kind, and tables.

    Source: the features' own (MiniRocket; TF-IDF with presence); `docs/first-answers.md` has their scores.

    >>> LagClassifier().fit(["so good", "a bore", "good fun", "what a bore"], ["+", "-", "+", "-"]).predict(["good!"])
    array(['+'], dtype='<U1')
    """

    n_features_in_: int
    penalty_: str | None

    def __init__(self, *, class_weight: Mapping[Any, float] | str | None = None, random_state: Any = 0):
        self.class_weight = class_weight
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[missing-attribute]
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model to rows X and their classes y ``(rows,)``, of which there must be at least two.

        sample_weight: weights of the rows ``(rows,)``; None for 1.
        """
        self.kind_, rows = _rows(X)
        y = column_or_1d(y, warn=True)
        check_consistent_length(rows, y)
        check_classification_targets(y)
        if sample_weight is not None:
            sample_weight = column_or_1d(np.asarray(sample_weight, dtype=np.float64))
            check_consistent_length(rows, sample_weight)
            weighted = sample_weight > 0
            rows, y, sample_weight = list(compress(rows, weighted)), y[weighted], sample_weight[weighted]
        self.classes_, ids = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs at least 2 classes, but y has 1 class, {self.classes_.tolist()[0]!r}")
        random, weights = check_random_state(self.random_state), None
        if sample_weight is not None or self.class_weight is not None:
            weights = compute_sample_weight(self.class_weight, y)
            weights = weights if sample_weight is None else weights * sample_weight
        self.tokenizer_ = load_tokenizer("bytes") if self.kind_ == "texts" else None
        if self.kind_ == "series":
            self.n_features_in_ = rows[0].shape[1]
        elif hasattr(self, "n_features_in_"):  # left by an earlier fit
            del self.n_features_in_
        held_out = random_rows(ids, random) if len(ids) > _ENOUGH else np.zeros(len(ids), dtype=bool)
        train, valid = [], []
        for part, indices in ((train, np.flatnonzero(~held_out)), (valid, np.flatnonzero(held_out))):
            for batch, own in self._batches(rows, indices):
                batch["labels"] = torch.from_numpy(ids[own])
                if weights is not None:
                    batch["weight"] = torch.from_numpy(weights[own])
                part.append(batch)
        seed = int(random.randint(np.iinfo(np.int32).max))
        fitted = LinearRows(train, valid, self._fields(rows), self.tokenizer_)
        self.model_, fit = fit_linear_model(LagwiseLinearForSequenceClassification, fitted, seed)
        self.penalty_ = fit.penalty
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the likeliest class of each row ``(rows,)``."""
        logits = self._logits(X)
        return self.classes_[logits.argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return probabilities ``(rows, classes)`` in the order of ``classes_``."""
        return torch.from_numpy(self._logits(X)).softmax(1).numpy()

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the classifier in a folder, as safetensors and JSON: a Hugging Face model, for texts with its tokenizer.
        OSError where it cannot be saved; ValueError for classes that JSON cannot hold."""
        check_is_fitted(self)
        classes = self.classes_.tolist()
        plain = self.classes_.dtype.kind in _KINDS or all(isinstance(each, str) for each in classes)
        if not plain:
            raise ValueError(f"classes are saved if they are strings, numbers or booleans, got {shown(classes)}")
        about = {"kind": self.kind_, "classes": classes, "dtype": str(self.classes_.dtype), "penalty": self.penalty_}
        with quiet(), saved_whole(expanded(folder), "the classifier", last="config.json") as partial:
            self.model_.save_pretrained(partial)
            if self.tokenizer_ is not None:
                save_tokenizer(self.tokenizer_, partial, None)
            write_json(partial / _FILE, about)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> LagClassifier:
        """Load a classifier that `save_pretrained` saved, or a run that classifies texts or series, or its first answer
        in ``RUN/first``; of a run, rows are read whole. Its parameters are those of ``LagClassifier()``.

        ValueError for a folder with another model, also of pairs of texts or several labels per row, or a damaged one.
        """
        folder, estimator = expanded(folder), cls()
        model: Any
        model, tokenizer = load_model(folder)
        is_linear = isinstance(model, LagwiseLinearForSequenceClassification)
        is_classifier = is_linear or isinstance(model, LagwiseForSequenceClassification)
        pairs = getattr(model.features, "pairs", False) if is_linear else getattr(model.config, "type_vocab_size", 0)
        several, elsewhere = model.config.problem_type == "multi_label_classification", "use lagwise.runs.predict_run"
        refuse(
            (
                not is_classifier or model.num_labels < 2,
                f"{str(folder)!r} holds no classifier of rows but a {type(model).__name__}",
            ),
            (pairs, f"the model in {str(folder)!r} reads pairs of texts; {elsewhere}"),
            (several, f"the model in {str(folder)!r} gives a row several labels; {elsewhere}"),
        )
        kind = "texts" if model.config.input_name == "tokens" else "series"
        about: dict[str, Any] = {"kind": kind, "classes": list(class_names(model.config)), "dtype": "str"}
        if (folder / _FILE).is_file():
            about |= read_json(folder / _FILE)
        try:
            estimator.classes_ = np.array(about["classes"], dtype=about["dtype"])
            estimator.kind_, estimator.penalty_ = about["kind"], about.get("penalty")
            if len(estimator.classes_) != model.num_labels or estimator.kind_ != kind:
                raise ValueError("it does not fit the model")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{_FILE} in {str(folder)!r} is damaged ({error})") from error
        estimator.model_, estimator.tokenizer_ = model, tokenizer
        if estimator.kind_ != "texts":
            inputs: Any = model.config.inputs
            estimator.n_features_in_ = inputs["features"]
        return estimator

    @torch.inference_mode()
    def _logits(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        kind, rows = _rows(X)
        if kind != self.kind_:
            raise ValueError(f"X must be {_READS[self.kind_]}, as in fit, got {_READS[kind]}")
        if kind == "series" and rows[0].shape[1] != self.n_features_in_:
            raise ValueError(f"X has series of {rows[0].shape[1]} channels, but fit had {self.n_features_in_}")
        logits = np.empty((len(rows), len(self.classes_)))
        stride = self.model_.config.inputs.get("stride", 1) if kind == "series" else 1
        for batch, indices in self._batches(rows, np.arange(len(rows)), stride):
            logits[indices] = self.model_(**batch).logits.numpy()
        return logits

    def _fields(self, rows: Any) -> dict[str, Any]:
        """Collect the fields of the model's configuration."""
        fields = class_fields([str(each) for each in self.classes_.tolist()])
        fields |= {"problem_type": "single_label_classification"}
        if self.tokenizer_ is not None:
            return {**fields, **tokenizer_fields(self.tokenizer_), "inputs": {"name": "tokens"}}
        mean, std = feature_scale(rows)
        inputs = {"name": "values", "features": self.n_features_in_, "mean": mean, "std": std}
        if any(np.isnan(each).any() for each in rows):
            inputs["gaps"] = True
        return {**fields, "inputs": inputs}

    def _batches(
        self, rows: Any, indices: np.ndarray, stride: int = 1
    ) -> Iterator[tuple[dict[str, torch.Tensor], np.ndarray]]:
        """Yield batches of rows of similar lengths, as the model reads them, and the index of each row."""
        name, arrays, pad = "input_values", rows, None
        if self.tokenizer_ is not None:
            name, arrays, pad = "input_ids", self._encoded(rows), self.tokenizer_.pad_token_id
        sizes = np.array([each.size for each in arrays], dtype=np.int64)
        collate = PaddingCollator(pad, stride=stride)
        for part in batches_by_length(sizes[indices], _VALUES_A_BATCH):
            yield collate([{name: arrays[i]} for i in indices[part]]), indices[part]

    def _encoded(self, texts: list[str]) -> list[np.ndarray]:
        """Encode texts as token ids; an empty one is an end of text."""
        tokenizer: Any = self.tokenizer_
        encoder = RowEncoder(("text",), 0, tokenizer)
        end = np.asarray([tokenizer.eos_token_id])
        return [ids if len(ids) else end for ids in encoder.ids(texts)]


def _rows(X: Any) -> tuple[str, list[Any]]:
    """Check rows, and return their kind with a list of texts, or of series ``(length, channels)``. ValueError for a
    single text, rows of several texts, tables, and no rows."""
    if isinstance(X, str | bytes):
        raise ValueError(f"X must be a list of texts, got one, {shown(X)}")
    axes = len(getattr(X, "shape", ()))  # a Series of polars has no ndim
    first: Any = next(iter(X), None) if isinstance(X, list | tuple) or axes == 1 else None
    if isinstance(X, list | tuple) and not X:
        raise ValueError("X is empty")
    if isinstance(first, str):
        return "texts", [checked_text(each, f"row {i}") for i, each in enumerate(X)]
    if isinstance(first, list | tuple) and any(isinstance(each, str) for each in first):
        raise ValueError(
            f"X must be a list of texts or of series, got the row {shown(first)}; rows of several texts are for "
            "the task sequence_classification, with text=[one, two]"
        )
    if axes != 3 and np.ndim(first) != 2:
        raise ValueError(_TABLE)
    return "series", _series(X)


def _series(X: Any) -> list[np.ndarray]:
    """Convert series to arrays ``(length, channels)``. ValueError for series without values or of different
    channels."""
    if not len(X):
        raise ValueError("there are no series")
    series = []
    for i, each in enumerate(X):
        if np.ndim(each) != 2 or 0 in np.shape(each):
            raise ValueError(f"each series must be (channels, length), but series {i} has shape {np.shape(each)}")
        checks: dict[str, Any] = {"ensure_all_finite": "allow-nan", "input_name": f"X[{i}]"}
        values = check_array(each, dtype=np.float32, **checks).T
        if series and values.shape[1] != series[0].shape[1]:
            raise ValueError(
                f"all series must have as many channels, but series {i} has {values.shape[1]} and series 0 "
                f"{series[0].shape[1]}; a series is (channels, length)"
            )
        series.append(np.ascontiguousarray(values))
    return series
