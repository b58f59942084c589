"""The first answer as a classifier of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_random_state, column_or_1d
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    validate_data,  # type: ignore[missing-module-attribute]
)

from lagwise.data import PaddingCollator, RowEncoder, load_tokenizer, spellings
from lagwise.data.batches import like_lengths
from lagwise.data.encoding import feature_scale
from lagwise.data.splits import random_rows
from lagwise.files import expanded, read_json, saved_whole, write_json
from lagwise.models import LagwiseForSequenceClassification, LagwiseLinearForSequenceClassification
from lagwise.models.linear.ngrams import Ngrams
from lagwise.models.loading import load_model, quiet, save_tokenizer
from lagwise.tables import shown
from lagwise.tasks.base import LinearRows
from lagwise.tasks.classes import class_fields, class_names
from lagwise.training.linear_fits import fit_linear_model

_FILE = "classifier.json"
_FEATURES = {"table": "columns", "series": "convolutions", "texts": "ngrams"}
_READS = {"table": "rows of numbers (rows, columns)", "series": "series (n, channels, length)", "texts": "texts"}
_ENOUGH = 2500  # rows of which some are held out to choose by; of fewer, each is left out in turn, or in folds
_VALUES_A_BATCH = 1 << 18
_KINDS = "bifuU"  # numpy's kinds of dtype that classes may have


class LagClassifier(ClassifierMixin, BaseEstimator):
    """Classifies rows of numbers, series or texts with scikit-learn's interface, by a linear model of fixed features
    that is fitted in seconds: the first answer of ``lagwise train``.

    X is one of

    - a table ``(rows, columns)`` of numbers: an array or a DataFrame. Features are the columns, and where these make
      the error of left-out rows at least 5 % smaller, up to 15 thresholds of each (`Columns`);
    - series ``(n, channels, length)``, or a list of arrays ``(channels, length)`` of different lengths. Features are
      random dilated convolutions (`Convolutions`);
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
        kind_: what is read: ``table``, ``series`` or ``texts``.
        n_features_in_: number of columns of a table, or channels of series.

    A ValueError names values that are not finite, series of other channels than in `fit`, and rows of another kind.

    Source: the features' own (MiniRocket; TF-IDF with presence); `docs/first-answers.md` has their scores.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> classifier = LagClassifier().fit(x[::2], y[::2])
    >>> bool(classifier.score(x[1::2], y[1::2]) > 0.9)
    True
    >>> LagClassifier().fit(["so good", "a bore", "good fun", "what a bore"], ["+", "-", "+", "-"]).predict(["good!"])
    array(['+'], dtype='<U1')
    """

    n_features_in_: int
    feature_names_in_: np.ndarray
    penalty_: str | None

    def __init__(self, *, class_weight: Mapping[Any, float] | str | None = None, random_state: Any = 0):
        self.class_weight = class_weight
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[missing-attribute]
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the model to rows X and their classes y ``(rows,)``, of which there must be at least two."""
        kind = _kind(X)
        rows, y = self._training_rows(X, kind, y)
        check_classification_targets(y)
        self.classes_, ids = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a classifier needs at least 2 classes, but y has 1 class, {self.classes_.tolist()[0]!r}")
        self.kind_, random = kind, check_random_state(self.random_state)
        self.tokenizer_ = load_tokenizer("bytes") if kind == "texts" else None
        held = random_rows(ids, random) if len(ids) > _ENOUGH else np.zeros(len(ids), dtype=bool)
        weights = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        train, valid = ([batch for batch, _ in self._batches(rows, np.flatnonzero(held == k), ids)] for k in (0, 1))
        own = None if self.tokenizer_ is None else Ngrams.chosen(spellings(self.tokenizer_), train, pairs=False)
        fitted = LinearRows(train, valid, self._fields(rows), own, None if self.class_weight is None else weights)
        seed = int(random.randint(np.iinfo(np.int32).max))
        self.model_, fit = fit_linear_model(LagwiseLinearForSequenceClassification, _FEATURES[kind], fitted, seed)
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
        names = getattr(self, "feature_names_in_", None)
        about = {
            "kind": self.kind_,
            "classes": classes,
            "dtype": str(self.classes_.dtype),
            "columns": None if names is None else names.tolist(),
            "penalty": self.penalty_,
        }
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
        folder, made = expanded(folder), cls()
        model: Any
        model, tokenizer = load_model(folder)
        is_linear = isinstance(model, LagwiseLinearForSequenceClassification)
        if not (is_linear or isinstance(model, LagwiseForSequenceClassification)) or model.num_labels < 2:
            raise ValueError(f"{str(folder)!r} holds no classifier of rows but a {type(model).__name__}")
        if getattr(model.features, "pairs", False) if is_linear else getattr(model.config, "type_vocab_size", 0):
            raise ValueError(f"the model in {str(folder)!r} reads pairs of texts; use lagwise.runs.predict_run")
        if model.config.problem_type == "multi_label_classification":
            raise ValueError(f"the model in {str(folder)!r} gives a row several labels; use lagwise.runs.predict_run")
        kind = "texts" if model.config.input_name == "tokens" else "series"
        about: dict[str, Any] = {"kind": kind, "classes": list(class_names(model.config)), "dtype": "str"}
        if (folder / _FILE).is_file():
            about |= read_json(folder / _FILE)
        try:
            made.classes_ = np.array(about["classes"], dtype=about["dtype"])
            made.kind_, made.penalty_ = about["kind"], about.get("penalty")
            fits = _FEATURES[made.kind_] == model.config.features["name"] if is_linear else made.kind_ == kind
            if len(made.classes_) != model.num_labels or not fits:
                raise ValueError("it does not fit the model")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{_FILE} in {str(folder)!r} is damaged ({error})") from error
        made.model_, made.tokenizer_ = model, tokenizer
        if made.kind_ != "texts":
            inputs: Any = model.config.inputs
            made.n_features_in_ = inputs["features"]
        if about.get("columns") is not None:
            made.feature_names_in_ = np.array(about["columns"], dtype=object)
        return made

    @torch.inference_mode()
    def _logits(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        rows = self._rows(X)
        found = np.empty((len(rows), len(self.classes_)))
        for batch, places in self._batches(rows, np.arange(len(rows))):
            found[places] = self.model_(**batch).logits.numpy()
        return found

    def _training_rows(self, X: Any, kind: str, y: Any) -> tuple[Any, np.ndarray]:
        """Check rows, an array or a list of arrays or of texts, and their classes."""
        if kind == "table":
            rows, y = validate_data(self, X, y, dtype=np.float64)
            return _in_range(rows), y
        rows: Any = _texts(X) if kind == "texts" else _series(X)
        y = column_or_1d(y, warn=True)
        check_consistent_length(rows, y)
        for name in ("feature_names_in_", "n_features_in_"):  # left by an earlier fit
            if hasattr(self, name):
                delattr(self, name)
        if kind == "series":
            self.n_features_in_ = rows[0].shape[1]
        return rows, y

    def _rows(self, X: Any) -> Any:
        """Check rows to predict. ValueError for rows of another kind than those of `fit`."""
        kind = _kind(X)
        if kind != self.kind_:
            raise ValueError(f"X must be {_READS[self.kind_]}, as in fit, got {_READS[kind]}")
        if kind == "table":
            return _in_range(validate_data(self, X, reset=False, dtype=np.float64))
        if kind == "texts":
            return _texts(X)
        rows = _series(X)
        if rows[0].shape[1] != self.n_features_in_:
            raise ValueError(f"X has series of {rows[0].shape[1]} channels, but fit had {self.n_features_in_}")
        return rows

    def _fields(self, rows: Any) -> dict[str, Any]:
        """Collect the fields of the model's configuration."""
        fields = class_fields([str(each) for each in self.classes_.tolist()])
        fields |= {"problem_type": "single_label_classification"}
        if self.tokenizer_ is not None:
            special = {
                f"{name}_token_id": getattr(self.tokenizer_, f"{name}_token_id") for name in ("bos", "eos", "pad")
            }
            return {
                **fields,
                "vocab_size": len(self.tokenizer_),
                **special,
                "inputs": {"name": "tokens", "pairs": False},
            }
        mean, std = feature_scale([rows] if self.kind_ == "table" else rows)
        return {**fields, "inputs": {"name": "values", "features": self.n_features_in_, "mean": mean, "std": std}}

    def _batches(
        self, rows: Any, places: np.ndarray, ids: np.ndarray | None = None
    ) -> Iterator[tuple[dict[str, torch.Tensor], np.ndarray]]:
        """Yield batches of rows of similar lengths, as the model reads them, with their classes if given; and the index
        of each row."""
        if self.kind_ == "table":
            size = max(1, _VALUES_A_BATCH // rows.shape[1])
            for own in (places[start : start + size] for start in range(0, len(places), size)):
                labels = {} if ids is None else {"labels": torch.from_numpy(ids[own])}
                yield {"input_values": torch.from_numpy(rows[own])[:, None], **labels}, own
            return
        name, arrays, pad, stride = "input_values", rows, None, 1
        if self.tokenizer_ is not None:
            name, arrays, pad = "input_ids", self._encoded(rows), self.tokenizer_.pad_token_id
        if ids is None and self.kind_ == "series":
            stride = self.model_.config.inputs.get("stride", 1)
        sizes = np.array([each.size for each in arrays], dtype=np.int64)
        ordered, collate = places[np.argsort(sizes[places], kind="stable")], PaddingCollator(pad, stride=stride)
        for part in like_lengths(sizes[ordered].tolist(), _VALUES_A_BATCH):
            own = ordered[part.start : part.stop]
            yield collate([{name: arrays[i], **({} if ids is None else {"label": int(ids[i])})} for i in own]), own

    def _encoded(self, texts: list[str]) -> list[np.ndarray]:
        """Encode texts as token ids; an empty one is an end of text."""
        tokenizer: Any = self.tokenizer_
        encoder = RowEncoder(("text",), 0, tokenizer)
        end = np.asarray([tokenizer.eos_token_id])
        return [ids if len(ids) else end for ids in encoder.ids(texts)]


def _kind(X: Any) -> str:
    """Find the kind of rows that X has. ValueError for a single text, rows of several texts, and no rows."""
    if isinstance(X, str | bytes):
        raise ValueError(f"X must be a list of texts, got one, {shown(X)}")
    axes = len(getattr(X, "shape", ()))  # a Series of polars has no ndim
    first: Any = next(iter(X), None) if isinstance(X, list | tuple) or axes == 1 else None
    if isinstance(X, list | tuple) and not X:
        raise ValueError("X is empty")
    if isinstance(first, str):
        return "texts"
    cells = X.iloc[0] if axes == 2 and hasattr(X, "iloc") and X.size else ()
    if (cell := next((each for each in cells if isinstance(each, str)), None)) is not None:
        raise ValueError(f"X is a table with the text {shown(cell)}; give the column of texts alone, such as X[NAME]")
    if isinstance(X, list | tuple) and len({len(each) for each in X if np.ndim(each) == 1}) > 1:
        raise ValueError("X has rows of different lengths; series are (channels, length), also with one channel")
    if isinstance(first, list | tuple) and any(isinstance(each, str) for each in first):
        raise ValueError(
            f"X must be a list of texts or of numbers, got the row {shown(first)}; rows of several texts are for "
            "the task sequence_classification, with text=[one, two]"
        )
    return "series" if axes == 3 or np.ndim(first) == 2 else "table"


def _in_range(X: np.ndarray) -> np.ndarray:
    """Return a table that single precision, in which the model reads it, can represent; otherwise raise a
    ValueError."""
    wrong = np.argwhere(np.abs(X) > np.finfo(np.float32).max)
    if len(wrong):
        row, column = wrong[0].tolist()
        raise ValueError(
            f"X has {X[row, column]:g} in row {row}, column {column}, which exceeds single precision; remove the "
            "row or take the logarithm of the column"
        )
    return X


def _texts(X: Any) -> list[str]:
    texts = list(X)
    for i, each in enumerate(texts):
        if not isinstance(each, str):
            raise ValueError(f"X must be texts, but row {i} is {shown(each)}")
        try:
            each.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"row {i} is not valid Unicode: {shown(each)}") from error
    return texts


def _series(X: Any) -> list[np.ndarray]:
    """Convert series to arrays ``(length, channels)``. ValueError for series without values or of different
    channels."""
    if not len(X):
        raise ValueError("there are no series")
    found = []
    for i, each in enumerate(X):
        if np.ndim(each) != 2 or 0 in np.shape(each):
            raise ValueError(f"each series must be (channels, length), but series {i} has shape {np.shape(each)}")
        values = check_array(each, dtype=np.float32, ensure_min_features=1, input_name=f"X[{i}]").T
        if found and values.shape[1] != found[0].shape[1]:
            raise ValueError(
                f"all series must have as many channels, but series {i} has {values.shape[1]} and series 0 "
                f"{found[0].shape[1]}; a series is (channels, length)"
            )
        found.append(np.ascontiguousarray(values))
    return found
