"""Linear models of fixed features: features of rows of tensors, and penalised linear maps of features to labels, by
scikit-learn, with penalties chosen by rows that are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lagwise.data import spellings
from lagwise.models.configuration import LagwiseLinearConfig
from lagwise.models.linear.convolutions import LEVELS, THRESHOLDS, Convolutions
from lagwise.models.linear.modeling import inputs_of
from lagwise.models.linear.ngrams import Ngrams
from lagwise.models.linear.patches import Patches
from lagwise.tasks.base import LinearRows

#: rows with labels and perhaps weights, as the model reads them
Batches = Sequence[Mapping[str, Tensor]]

_MANY_SERIES = 5000  # for which half of the features do
_MAX_VALUES = 2 * 10**8  # dense features in memory; beyond, a random part of the rows is used
_IMAGES = 2000  # from which patches are drawn
_GAIN = 0.95  # levels are kept where they make the error so much smaller
_ALPHAS = np.logspace(-3, 5, 17)  # of dense features that are divided by their standard deviations
_SPARSE_ALPHAS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_LOGISTIC_CS = (1.0, 4.0, 16.0, 64.0)  # inverse penalties of sparse rows of norm 1
_MAX_LEAVE_ONE_OUT = 2500  # rows or features, up to which every row is left out in turn
_MIN_HELD_OUT = 300  # rows by which a penalty can be chosen; of fewer, folds choose it
_FOLDS = 5


def fit_linear_model(linear_class: Any, rows: LinearRows, seed: int) -> tuple[Any, Fit]:
    """Fit a linear model of a class of heads, and return it in evaluation mode, with its fit. What dense features take
    from rows without their labels is taken from the held-out rows too."""
    inputs = dict(rows.fields["inputs"])
    pairs = inputs.pop("pairs", False)
    with torch.inference_mode():
        options, features = _features(rows, inputs, pairs, seed)
        random = np.random.default_rng(seed)
        train = rows.train if inputs["name"] == "tokens" else _thinned(rows.train, features.size, random)
        x, other = (_matrix(features, batches) for batches in (train, rows.valid))
        y, true = labels_of(train), labels_of(rows.valid)
        both = [*train, *rows.valid]
        weights = torch.cat([batch["weight"] for batch in both]).numpy() if "weight" in both[0] else None
        fit = fit_linear(x, y, (other, true), weights)
        if options.get("levels"):
            plain = fit_linear(x[:, : features.plain], y, (other[:, : features.plain], true), weights)
            if fit.loss >= _GAIN * plain.loss:
                features.drop_levels()
                options["levels"], fit = 0, plain
    fields: dict[str, Any] = {**rows.fields, "inputs": inputs, "features": options}
    model: Any = linear_class(LagwiseLinearConfig(**fields))
    model.features.load_state_dict(features.state_dict())
    with torch.no_grad():
        model.classifier.weight.copy_(torch.from_numpy(fit.weights))
        model.classifier.bias.copy_(torch.from_numpy(fit.biases))
    return model.eval(), fit


def _features(rows: LinearRows, inputs: Mapping[str, Any], pairs: bool, seed: int) -> tuple[dict[str, Any], Any]:
    """The features of rows, by the kind of their inputs, and their options in a model's configuration."""
    if inputs["name"] == "tokens":
        return Ngrams.chosen(spellings(rows.tokenizer), rows.train, pairs=pairs)
    batches: list[Any] = [*rows.train, *rows.valid]
    if inputs["name"] == "values":
        series = []
        for batch in batches:
            values, mask = batch["input_values"], batch.get("attention_mask")
            lengths = [values.shape[1]] * len(values) if mask is None else mask.sum(1).tolist()
            series += [row[:length] for row, length in zip(values, lengths, strict=True)]
        total = THRESHOLDS if len(series) <= _MANY_SERIES else -(-THRESHOLDS // 2)
        options: dict[str, Any] = {**Convolutions.plan([len(row) for row in series], total=total), "levels": LEVELS}
        features = Convolutions(inputs["features"], **options, mean=inputs.get("mean"), std=inputs.get("std"))
        features.prepare(series, seed)
        return {"name": "convolutions", **options}, features
    images = [image for batch in batches for image in batch["pixel_values"]]
    sample = [images[i] for i in np.random.default_rng(seed).permutation(len(images))[:_IMAGES]]
    channels, *size = sample[0].shape
    options = Patches.plan(*size)
    patches = Patches(channels, **options)
    patches.prepare(sample, seed)
    return {"name": "patches", **options}, patches


def labels_of(batches: Batches) -> np.ndarray:
    """Concatenate the labels of all rows; several labels per row become integers 0 and 1."""
    if not batches:
        return np.zeros(0, dtype=np.int64)
    labels = torch.cat([batch["labels"] for batch in batches]).numpy()
    return labels.astype(np.int64) if labels.ndim == 2 else labels


def _thinned(batches: Batches, size: int, random: np.random.Generator) -> Batches:
    """Subsample the rows of batches when the dense feature matrix would have more than `_MAX_VALUES` values."""
    limit, total = _MAX_VALUES // size, sum(len(batch["labels"]) for batch in batches)
    if total <= limit:
        return batches
    thinned = []
    for batch in batches:
        count = len(batch["labels"])
        rows = torch.from_numpy(np.sort(random.permutation(count)[: -(-count * limit // total)]))
        thinned.append({name: values[rows] for name, values in batch.items()})
    return thinned


def _matrix(features: Any, batches: Batches) -> Any:
    """Compute the features of rows ``(rows, features)``: an array, or of texts a sparse matrix of scipy."""
    parts: Iterator[Any] = (features(*inputs_of(batch)) for batch in batches)
    if not isinstance(features, Ngrams):
        return np.concatenate([np.zeros((0, features.size), dtype=np.float32), *(each.numpy() for each in parts)])
    from scipy.sparse import csr_matrix, vstack

    matrices = [csr_matrix((0, features.size))]
    for each in parts:
        present = each.values != 0
        rows, columns = present.nonzero()[:, 0].numpy(), each.numbers[present].numpy()
        values = each.values[present].double().numpy()
        matrices.append(csr_matrix((values, (rows, columns)), shape=(len(present), features.size)))
    return vstack(matrices).tocsr()


class Fit(NamedTuple):
    """A linear map that is fitted to all rows."""

    weights: np.ndarray  # ``(outputs, features)``, of the logits of classes or labels, or of a number
    biases: np.ndarray  # ``(outputs,)``
    penalty: str  # as text, under scikit-learn's name
    held_out: np.ndarray  # outputs for the held-out rows of a map that is fitted to the training rows alone
    loss: float  # of rows that were left out, with the chosen penalty


def fit_linear(x: Any, y: np.ndarray, held_out: tuple[Any, np.ndarray], weights: np.ndarray | None = None) -> Fit:
    """Fit a penalised linear map from features ``(rows, features)``, an array or a sparse matrix, to labels: class ids
    ``(rows,)``, all of which occur, numbers, or several labels ``(rows, labels)`` of 0 and 1. The penalty is chosen by
    rows that are left out; then all rows, the held-out ones too, are fitted with it. Dense features have a ridge
    regression, for classes to targets of 1 and -1, whose penalty is chosen by rows left out one by one, or the held-out
    rows if both rows and features are many; features are divided by their standard deviations or, for at most 2,500
    rows, all by one number if that has the smaller error. Sparse features have a logistic regression, of several
    classes one each, or for numbers a ridge regression, with the penalty of the smallest loss on the held-out rows, or
    over five folds if there are fewer than 300. Outputs for classes are scaled to logits by the rows that were left
    out. weights: of the training rows, and then of the held-out rows."""
    from scipy.sparse import issparse, vstack

    labels, count = np.concatenate([y, held_out[1].reshape(-1, *y.shape[1:])]), len(y)
    if issparse(x):
        return _fit(vstack([x, held_out[0]]).tocsr(), labels, count, weights)
    rows = np.concatenate([x, held_out[0]])
    own = rows.std(0, dtype=np.float64)
    scales = [np.where(own == 0, 1, own)]
    if count <= _MAX_LEAVE_ONE_OUT:
        scales.append(np.full_like(own, np.sqrt(np.square(own).mean()) or 1.0))
    fits = [_fit(rows / scale, labels, count, weights) for scale in scales]
    best = min(range(len(fits)), key=lambda i: fits[i].loss)
    return fits[best]._replace(weights=fits[best].weights / scales[best])


def _fit(x: Any, y: np.ndarray, count: int, weights: np.ndarray | None) -> Fit:
    """Fit all rows, of which the first ``count`` are for training and the others are held out."""
    dense, numbers = isinstance(x, np.ndarray), y.dtype.kind == "f"
    train, valid = np.arange(count), np.arange(count, len(y))
    shift, unit = (float(y[train].mean()), float(y[train].std()) or 1.0) if numbers else (0.0, 1.0)
    method, penalties, targets = _logistic, np.array(_LOGISTIC_CS), y
    if dense or numbers:
        method, penalties, targets = _ridge, _ALPHAS if dense else np.array(_SPARSE_ALPHAS), _targets(y, shift, unit)

    def fitted(rows: np.ndarray, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        return method(x[rows], targets[rows], penalty, None if weights is None else weights[rows])

    def outputs(rows: np.ndarray, others: np.ndarray, penalty: float) -> np.ndarray:
        coefficients, biases = fitted(rows, penalty)
        return x[others] @ coefficients.T + biases

    parts = [(train, train)]
    if dense and min(count, x.shape[1]) <= _MAX_LEAVE_ONE_OUT:
        from sklearn.linear_model import RidgeCV

        ridge_cv: Any = RidgeCV
        ridge = ridge_cv(_ALPHAS, scoring="neg_mean_squared_error", store_cv_results=True)
        ridge.fit(x[train], targets[train], None if weights is None else weights[train])
        tried = [*np.moveaxis(ridge.cv_results_.reshape(*targets[train].shape, len(_ALPHAS)), -1, 0)]
    else:
        if dense or len(valid) >= _MIN_HELD_OUT:
            parts, penalties = [(train, valid)], penalties[6::2] if dense else penalties
        elif folds := _folds(y[train]):
            parts = folds
        else:  # a loss on the training rows cannot choose a penalty
            penalties = penalties[len(penalties) // 2 :][:1]
        tried = [np.concatenate([outputs(*part, penalty) for part in parts]) for penalty in penalties]
    tested = np.concatenate([part[1] for part in parts])
    factors = [1.0] * len(penalties)
    left_out = len(parts) > 1 or parts[0][1] is valid
    if method is _logistic and y.ndim == 1 and y.max() > 1 and left_out:  # a regression for each class
        factors = [_likely_scale(each, y[tested], 0) for each in tried]
    losses = [_loss(factor * each, targets[tested]) for factor, each in zip(factors, tried, strict=True)]
    best = int(np.argmin(losses))
    penalty, factor = float(penalties[best]), factors[best]
    if method is _ridge:
        factor = unit if numbers else _likely_scale(tried[best], y[tested], 1)
    if len(valid):
        before = tried[best] if parts[0][1] is valid else outputs(train, valid, penalty)
    else:
        before = tried[best][:0]
    coefficients, biases = fitted(np.arange(len(y)), penalty)
    name = "alpha" if method is _ridge else "C"
    return Fit(
        coefficients * factor, biases * factor + shift, f"{name}={penalty:.3g}", before * factor + shift, losses[best]
    )


def _targets(y: np.ndarray, shift: float, unit: float) -> np.ndarray:
    """Return targets ``(rows, outputs)`` of a ridge regression: standardised numbers, or 1 and -1."""
    if y.dtype.kind == "f":
        return ((y - shift) / unit)[:, None]
    return np.where(y > 0 if y.ndim == 2 else np.arange(y.max() + 1) == y[:, None], 1.0, -1.0)


def _ridge(x: Any, targets: np.ndarray, alpha: float, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights ``(outputs, features)`` and biases of a ridge regression."""
    from sklearn import linear_model

    ridge: Any = linear_model.Ridge
    model = ridge(alpha, solver="cholesky" if isinstance(x, np.ndarray) else "auto").fit(x, targets, weights)
    return np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)


def _logistic(x: Any, y: np.ndarray, penalty: float, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The weights ``(outputs, features)`` and biases of logits: of a regression for each class of more than two, which
    takes a fifth of the time of a multinomial one, or for each of several labels."""
    from sklearn.linear_model import LogisticRegression

    labels = y > 0 if y.ndim == 2 else np.arange(y.max() + 1) == y[:, None]
    two = y.ndim == 1 and labels.shape[1] == 2
    labels = labels[:, 1:] if two else labels
    coefficients, biases = np.zeros((labels.shape[1], x.shape[1])), np.zeros(labels.shape[1])
    for i, own in enumerate(labels.T):
        if own.all() or not own.any():
            biases[i] = np.log((own.sum() + 0.5) / (len(own) - own.sum() + 0.5))
            continue
        # liblinear penalises the intercept as the weight of a constant feature; at 10, it hardly does.
        model = LogisticRegression(C=penalty, max_iter=1000, solver="liblinear", intercept_scaling=10)
        model.fit(x, own, sample_weight=weights)
        coefficients[i], biases[i] = model.coef_[0], model.intercept_[0]
    if not two:
        return coefficients, biases
    return np.concatenate([-coefficients, coefficients]) / 2, np.concatenate([-biases, biases]) / 2


def _likely_scale(values: np.ndarray, labels: np.ndarray, expected: float) -> float:
    """The factor with the highest posterior that turns values ``(rows, outputs)`` into logits of the labels. The prior
    of its logarithm is normal with mean ``expected`` and standard deviation 2; without it the factor diverges when all
    rows are right."""
    from scipy.optimize import minimize_scalar

    def surprise(power: float) -> float:
        return len(labels) * _loss(np.exp(power) * values, labels) + (power - expected) ** 2 / 8

    return float(np.exp(minimize_scalar(surprise, bounds=(-5, 5), method="bounded").x))


def _loss(values: np.ndarray, y: np.ndarray) -> float:
    """Compute the mean loss of outputs ``(rows, outputs)`` for numbers, several labels, or classes."""
    from scipy.special import log_expit, log_softmax

    if y.dtype.kind == "f":
        return float(np.square(values - y).mean())
    if y.ndim == 2:
        return -float(log_expit(np.where(y > 0, values, -values)).mean())
    return -float(log_softmax(values, 1)[np.arange(len(y)), y].mean())


def _folds(y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split rows into at most five folds, as indices of training and test rows. Rows of a class with fewer rows than
    folds are always in training. Empty if fewer than two classes have two rows."""
    from sklearn.model_selection import KFold, StratifiedKFold

    if y.dtype.kind == "f" or y.ndim == 2:
        return list(KFold(min(_FOLDS, len(y)), shuffle=True, random_state=0).split(y))
    counts = np.bincount(y)
    number = int(np.clip(np.sort(counts)[-2], 2, _FOLDS))
    rare = counts[y] < number
    common, always = np.flatnonzero(~rare), np.flatnonzero(rare)
    if len(np.unique(y[common])) < 2:
        return []
    folds = StratifiedKFold(number, shuffle=True, random_state=0).split(common, y[common])
    return [(np.concatenate([common[train], always]), common[test]) for train, test in folds]
