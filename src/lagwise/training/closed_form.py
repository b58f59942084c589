"""Penalised linear maps of features to labels, by scikit-learn, with penalties chosen by rows that are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_ALPHAS = np.logspace(-3, 5, 17)  # of dense features that are divided by their standard deviations
_SPARSE_ALPHAS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_SPARSE_LOGISTIC_CS = (1.0, 4.0, 16.0, 64.0)  # inverse penalties of rows of norm 1
_COLUMN_LOGISTIC_CS = (0.003, 0.03, 0.3, 3.0, 30.0)  # inverse penalties of columns divided by their deviations
_MAX_LEAVE_ONE_OUT = 2500  # rows or features, up to which every row is left out in turn
_MIN_HELD_OUT = 300  # rows by which a penalty can be chosen; of fewer, folds choose it
_FOLDS = 5


class Fit(NamedTuple):
    """A linear map that is fitted to all rows.

    Attributes:
        weights: ``(outputs, features)``, of the logits of classes or labels, or of a number.
        biases: ``(outputs,)``.
        penalty: The chosen penalty as text, under scikit-learn's name.
        held_out: The outputs ``(rows, outputs)`` for the held-out rows of a map that is fitted to the training rows
            alone.
        loss: The loss of rows that were left out, with the chosen penalty.
    """

    weights: np.ndarray
    biases: np.ndarray
    penalty: str
    held_out: np.ndarray
    loss: float


def fit_linear(
    x: Any, y: np.ndarray, held_out: tuple[Any, np.ndarray], weights: np.ndarray | None, *, columns: bool = False
) -> Fit:
    """Fit a penalised linear map from features to labels. The penalty is chosen by rows that are left out; then all
    rows, the held-out ones too, are fitted with it.

    - Dense features: a ridge regression, for classes to targets of 1 and -1. The penalty minimises the squared error of
      rows left out one by one (generalised cross-validation), or of the held-out rows if both rows and features are
      many. Its outputs are scaled to logits. Features are divided by their standard deviations or, for at most 2,500
      rows, all by one number if that has the smaller error: with few rows, nearly constant features are noise.
    - Sparse features: a logistic regression, or for numbers a ridge regression, with the penalty of the smallest loss
      on the held-out rows, or over five folds if there are fewer than 300.
    - The columns of a table with classes: likewise a logistic regression, because a ridge regression of few features
      cannot separate a class that lies between two others.

    Args:
        x: Features ``(rows, features)``, an array or a sparse matrix of scipy.
        y: Class ids ``(rows,)``, integers all of which occur; numbers ``(rows,)``, floating-point; or several labels
            ``(rows, labels)``, integers 0 and 1.
        held_out: Features and labels of other rows. There may be none if there are at most 2,500 training rows.
        weights: Weights of the classes ``(classes,)``, or None.
        columns: Whether features are the columns of a table.
    """
    from scipy.sparse import issparse

    numbers = y.dtype.kind == "f"
    if columns and not numbers:
        scale = _deviations(x)
        fit = _likeliest(x / scale, y, (held_out[0] / scale, held_out[1]), weights, columns=True)
        return fit._replace(weights=fit.weights / scale)
    if issparse(x):
        return _likeliest(x, y, held_out, None if numbers else weights)
    return _dense(x, y, held_out, None if numbers else weights)


def _dense(x: np.ndarray, y: np.ndarray, held_out: tuple[np.ndarray, np.ndarray], weights: np.ndarray | None) -> Fit:
    from sklearn.linear_model import Ridge

    shift, unit = 0.0, 1.0
    if y.dtype.kind == "f":
        shift, unit = float(y.mean()), float(y.std()) or 1.0
        targets, true = (((each - shift) / unit)[:, None] for each in (y, held_out[1]))
    elif y.ndim == 2:
        targets, true = (2.0 * each - 1 for each in (y, held_out[1].reshape(-1, y.shape[1])))
    else:
        targets, true = (_signs(each, int(y.max()) + 1) for each in (y, held_out[1]))
    other, own = held_out[0], None if weights is None else weights[y]
    scalings = (_deviations, _one_deviation) if len(x) <= _MAX_LEAVE_ONE_OUT else (_deviations,)
    found = [_ridge(x, targets, (other, true), own, scaling) for scaling in scalings]
    best = min(found, key=lambda each: each.loss)
    if y.dtype.kind != "f":
        unit = _likely_scale(best.outside, y if min(x.shape) <= _MAX_LEAVE_ONE_OUT else held_out[1], 1)
    both = None if weights is None else weights[np.concatenate([y, held_out[1]])]
    rows: Any = np.concatenate([x, other])
    scale, final = best.scaling(rows), Ridge(best.alpha, solver="cholesky")
    final.fit(rows / scale, np.concatenate([targets, true]), both)
    coefficients, biases = np.atleast_2d(final.coef_) / scale, np.atleast_1d(final.intercept_)
    predicted = best.predicted * unit + shift
    return Fit(coefficients * unit, biases * unit + shift, f"alpha={best.alpha:.3g}", predicted, best.loss)


class _Ridge(NamedTuple):
    """A ridge regression of scaled features, fitted to the training rows.

    Attributes:
        scaling: The function that returns the divisors of the features.
        alpha: The chosen penalty.
        outside: Outputs of rows that were left out in turn, or of the held-out rows if there are too many for that.
        loss: The mean squared error of ``outside``.
        predicted: Outputs of the held-out rows.
    """

    scaling: Callable[[np.ndarray], np.ndarray]
    alpha: float
    outside: np.ndarray
    loss: float
    predicted: np.ndarray


def _ridge(
    x: np.ndarray,
    targets: np.ndarray,
    held_out: tuple[np.ndarray, np.ndarray],
    weights: np.ndarray | None,
    scaling: Callable[[np.ndarray], np.ndarray],
) -> _Ridge:
    """Fit the ridge regression with the best penalty. weights: Of rows. scaling: Returns the divisors of features."""
    from sklearn import linear_model

    ridge_cv: Any = linear_model.RidgeCV
    ridge: Any = linear_model.Ridge
    scale, (other, true) = scaling(x), held_out
    x, other = x / scale, other / scale
    if min(x.shape) <= _MAX_LEAVE_ONE_OUT:
        fitted = ridge_cv(_ALPHAS, scoring="neg_mean_squared_error", store_cv_results=True).fit(x, targets, weights)
        best = int(np.flatnonzero(fitted.alpha_ == _ALPHAS)[0])
        outside = fitted.cv_results_.reshape(*targets.shape, len(_ALPHAS))[..., best].copy()  # a tenth of the memory
        predicted = (other @ np.atleast_2d(fitted.coef_).T + fitted.intercept_).reshape(true.shape)
        return _Ridge(scaling, float(fitted.alpha_), outside, float(np.square(outside - targets).mean()), predicted)
    tried = [ridge(alpha, solver="cholesky").fit(x, targets, weights) for alpha in _ALPHAS[6::2]]
    found = [each.predict(other).reshape(true.shape) for each in tried]
    losses = [float(np.square(each - true).mean()) for each in found]
    best = int(np.argmin(losses))
    return _Ridge(scaling, float(tried[best].alpha), found[best], losses[best], found[best])


def _deviations(x: np.ndarray) -> np.ndarray:
    """Compute the standard deviation of each column, 1 for a constant one."""
    scale = x.std(0, dtype=np.float64)
    return np.where(scale == 0, 1, scale)


def _one_deviation(x: np.ndarray) -> np.ndarray:
    """Compute the root mean variance of all columns, and return it for each column."""
    return np.full(x.shape[1], np.sqrt(x.var(0, dtype=np.float64).mean()) or 1.0)


def _signs(y: np.ndarray, classes: int) -> np.ndarray:
    return np.where(np.arange(classes) == y[:, None], 1.0, -1.0)


def _likely_scale(values: np.ndarray, labels: np.ndarray, expected: float) -> float:
    """Find the factor with the highest posterior that turns values ``(rows, outputs)`` into logits of the labels.

    The prior of its logarithm is normal with mean ``expected`` and standard deviation 2. Without the prior the factor
    diverges when all rows are classified correctly."""
    from scipy.optimize import minimize_scalar

    def surprise(power: float) -> float:
        return len(labels) * _loss(np.exp(power) * values, labels) + (power - expected) ** 2 / 8

    return float(np.exp(minimize_scalar(surprise, bounds=(-5, 5), method="bounded").x))


def _likeliest(
    x: Any, y: np.ndarray, held_out: tuple[Any, np.ndarray], weights: np.ndarray | None, *, columns: bool = False
) -> Fit:
    """Fit a logistic regression, or for numbers a ridge regression, with the penalty of the smallest loss on the
    held-out rows or, if these are few, over folds.

    Sparse features have one regression per class, in a fifth of the time of a multinomial one, and a common factor that
    scales their outputs to logits. For ``columns`` the regression is multinomial, so that a class between two others
    can be separated.
    """
    from scipy.sparse import issparse, vstack
    from sklearn.linear_model import LogisticRegression, Ridge

    numbers, own = y.dtype.kind == "f", None if weights is None else weights[y]
    apart = y.ndim == 2 or not (numbers or columns or y.max() < 2)

    def logistic(penalty: float) -> Any:
        # liblinear penalises the intercept as the weight of a constant feature; at 10, it hardly does.
        solver: Any = {"solver": "newton-cg"} if columns else {"solver": "liblinear", "intercept_scaling": 10}
        model = LogisticRegression(C=penalty, max_iter=1000, **solver)
        return _Apart(model) if apart else model

    make, penalties, name = (Ridge, _SPARSE_ALPHAS, "alpha") if numbers else (logistic, _SPARSE_LOGISTIC_CS, "C")
    if columns:
        penalties = _COLUMN_LOGISTIC_CS
    enough = len(held_out[1]) >= _MIN_HELD_OUT
    folds = [] if enough else _folds(y)
    parts = [(x[a], y[a], None if own is None else own[a], x[b], y[b]) for a, b in folds]
    if enough:
        parts = [(x, y, own, *held_out)]
    elif not folds:  # a loss on the training rows cannot choose a penalty
        parts, penalties = [(x, y, own, x, y)], penalties[len(penalties) // 2 :][:1]
    scaled = apart and y.ndim == 1 and (enough or folds)
    true, found = np.concatenate([part[-1] for part in parts]), []
    for tried in penalties:
        models = (make(tried).fit(a, b, sample_weight=of_rows) for a, b, of_rows, _, _ in parts)
        values = np.concatenate([_values(model, part[-2]) for model, part in zip(models, parts, strict=True)])
        likely = _likely_scale(values, true, 0) if scaled else 1.0
        found.append((_loss(values * likely, true), tried, likely, values))
    loss, penalty, scale, values = min(found, key=lambda each: each[0])
    labels, both = np.concatenate([y, held_out[1]]), [x, held_out[0]]
    rows: Any = vstack(both).tocsr() if issparse(x) else np.concatenate(both)
    final = make(penalty).fit(rows, labels, sample_weight=None if weights is None else weights[labels])
    if not enough:
        of_train = make(penalty).fit(x, y, sample_weight=own) if len(held_out[1]) else final
        values = _values(of_train, held_out[0])
    of_classes, biases = (each * scale for each in _logits(final))
    return Fit(of_classes, biases, f"{name}={penalty:g}", values * scale, loss)


class _Apart:
    """One logistic regression for each class of labels ``(rows,)``, or for each of several labels ``(rows, labels)``; a
    constant for a label that all rows have, or none. scikit-learn's `OneVsRestClassifier` takes weights of rows
    only with metadata routing."""

    def __init__(self, model: Any):
        self.model = model

    def fit(self, x: Any, y: np.ndarray, sample_weight: np.ndarray | None = None) -> _Apart:
        labels = y if y.ndim == 2 else (np.arange(y.max() + 1) == y[:, None]).astype(np.int64)
        self.coef_, self.intercept_ = np.zeros((labels.shape[1], x.shape[1])), np.zeros(labels.shape[1])
        for i, own in enumerate(labels.T):
            if own.min() < own.max():
                self.model.fit(x, own, sample_weight=sample_weight)
                self.coef_[i], self.intercept_[i] = self.model.coef_[0], self.model.intercept_[0]
            else:
                self.intercept_[i] = np.log((own.sum() + 0.5) / (len(own) - own.sum() + 0.5))
        return self


def _logits(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights and biases of a number, or of a logit for each class."""
    coefficients, biases = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    if len(getattr(model, "classes_", ())) != 2:
        return coefficients, biases
    return np.concatenate([-coefficients, coefficients]) / 2, np.concatenate([-biases, biases]) / 2


def _values(model: Any, x: Any) -> np.ndarray:
    weights, biases = _logits(model)
    return x @ weights.T + biases


def _loss(values: np.ndarray, y: np.ndarray) -> float:
    """Compute the mean loss of outputs ``(rows, outputs)`` for numbers, several labels, or classes."""
    from scipy.special import log_expit, log_softmax

    if y.dtype.kind == "f":
        return float(np.square(values[:, 0] - y).mean())
    if y.ndim == 2:
        return -float(log_expit(np.where(y > 0, values, -values)).mean())
    return -float(log_softmax(values, 1)[np.arange(len(y)), y].mean())


def _folds(y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split rows into at most five folds, as indices of training and test rows. Every training part has all classes:
    rows of a class with fewer rows than folds are always in it. Empty if fewer than two classes have two rows."""
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
