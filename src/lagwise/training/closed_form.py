"""Linear maps of features to labels, by scikit-learn, with the penalty that predicts other rows best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

_RIDGE = np.logspace(-3, 5, 17)  # penalties of scaled features
_SPARSE_RIDGE = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_LOGISTIC = (1.0, 4.0, 16.0, 64.0)  # inverse penalties of rows of length 1
_LOGISTIC_COLUMNS = (0.003, 0.03, 0.3, 3.0, 30.0)  # penalties for scaled features
_EXACT = 2500  # rows or features for which every row is left out in turn
_ENOUGH = 300  # held-out rows to choose by
_FOLDS = 5


class Fit(NamedTuple):
    """A linear map of all rows: weights ``(outputs, features)`` and biases ``(outputs,)``, which give logits of classes
    or a number; its penalty, as scikit-learn has it, for people; and what the same map of the training rows alone gives
    for the held-out rows, ``(rows, outputs)``, with its loss for rows that were left out."""

    weights: np.ndarray
    biases: np.ndarray
    penalty: str
    held_out: np.ndarray
    loss: float


def fit_linear(
    x: Any, y: np.ndarray, held_out: tuple[Any, np.ndarray], weights: np.ndarray | None, *, columns: bool = False
) -> Fit:
    """Fit labels y ``(rows,)`` to features x ``(rows, features)``: logits of classes, if y are integers, or
    numbers; or y ``(rows, labels)``, 0 and 1 of several labels per row: a logit of each. The penalty is chosen by the
    training rows, and by the held-out ones where there are enough; then all rows are fitted with it.

    Dense features are divided by their deviations. Their map is a ridge regression, of classes to 1 and -1, whose
    penalty is the best for rows left out one by one (generalised cross-validation), or, of many rows with many
    features, for the held-out rows; its values are scaled to likely logits of these. Sparse features have logistic
    regression or a ridge regression, by held-out rows, or by five folds where these are few; and so have classes of
    the few features of ``columns``, by which a ridge regression cannot tell a class between two others.

    Args:
        x: An array, or a sparse matrix of scipy.
        y: Ids of classes, all of which occur, floating-point numbers, or 0 and 1 of several labels, as integers.
        held_out: Features and labels of other rows; there may be none, if there are at most 2,500 rows.
        weights: Of classes, or None.
        columns: Whether features are the columns of a table.
    """
    from scipy.sparse import issparse

    numbers = y.dtype.kind == "f"
    if columns and not numbers:
        scale = _deviations(x)
        fit = _likeliest(x / scale, y, (held_out[0] / scale, held_out[1]), weights, _LOGISTIC_COLUMNS)
        return fit._replace(weights=fit.weights / scale)
    if issparse(x):
        return _likeliest(x, y, held_out, None if numbers else weights, _LOGISTIC)
    return _dense(x, y, held_out, None if numbers else weights)


def _dense(x: np.ndarray, y: np.ndarray, held_out: tuple[np.ndarray, np.ndarray], weights: np.ndarray | None) -> Fit:
    from sklearn import linear_model

    ridge_cv: Any = linear_model.RidgeCV
    ridge: Any = linear_model.Ridge
    scale = _deviations(x)
    x, other = x / scale, held_out[0] / scale
    shift, unit = 0.0, 1.0
    if y.dtype.kind == "f":
        shift, unit = float(y.mean()), float(y.std()) or 1.0
        targets, true = (((each - shift) / unit)[:, None] for each in (y, held_out[1]))
    elif y.ndim == 2:
        targets, true = (2.0 * each - 1 for each in (y, held_out[1].reshape(-1, y.shape[1])))
    else:
        targets, true = (_signs(each, int(y.max()) + 1) for each in (y, held_out[1]))
    own = None if weights is None else weights[y]
    if min(x.shape) <= _EXACT:
        fitted = ridge_cv(_RIDGE, scoring="neg_mean_squared_error", store_cv_results=True).fit(x, targets, own)
        alpha = float(fitted.alpha_)
        best = int(np.flatnonzero(fitted.alpha_ == _RIDGE)[0])
        outside, left_out = fitted.cv_results_.reshape(*targets.shape, len(_RIDGE))[..., best], targets
        predicted = (other @ np.atleast_2d(fitted.coef_).T + fitted.intercept_).reshape(true.shape)
    else:
        tried = [ridge(alpha, solver="cholesky").fit(x, targets, own) for alpha in _RIDGE[6::2]]
        found = [each.predict(other).reshape(true.shape) for each in tried]
        best = int(np.argmin([np.square(each - true).mean() for each in found]))
        alpha, outside, left_out, predicted = float(tried[best].alpha), found[best], true, found[best]
    if y.dtype.kind != "f":
        unit = _likely_scale(outside, left_out > 0, several=y.ndim == 2)
    both = None if weights is None else weights[np.concatenate([y, held_out[1]])]
    final = ridge(alpha, solver="cholesky")
    final.fit(np.concatenate([x, other]), np.concatenate([targets, true]), both)
    coefficients, biases = np.atleast_2d(final.coef_) / scale, np.atleast_1d(final.intercept_)
    loss = float(np.square(outside - left_out).mean())
    return Fit(coefficients * unit, biases * unit + shift, f"alpha={alpha:.3g}", predicted * unit + shift, loss)


def _deviations(x: np.ndarray) -> np.ndarray:
    """Of each column; 1 of a constant one."""
    scale = x.std(0, dtype=np.float64)
    return np.where(scale == 0, 1, scale)


def _signs(y: np.ndarray, classes: int) -> np.ndarray:
    return np.where(np.arange(classes) == y[:, None], 1.0, -1.0)


def _likely_scale(values: np.ndarray, true: np.ndarray, *, several: bool) -> float:
    """The factor that makes values ``(rows, classes)`` the likeliest logits of the true classes ``(rows, classes)``, of
    which a row has one or ``several``."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_expit, log_softmax

    def loss(scale: float) -> float:
        logits = np.exp(scale) * values
        if several:
            return -float(log_expit(np.where(true, logits, -logits)).mean())
        return -float(log_softmax(logits, 1)[true].mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-3, 4), method="bounded").x))


def _likeliest(
    x: Any, y: np.ndarray, held_out: tuple[Any, np.ndarray], weights: np.ndarray | None, inverse: Sequence[float]
) -> Fit:
    """Logistic regression, with one of the ``inverse`` penalties, or a ridge regression of numbers."""
    from scipy.sparse import issparse, vstack
    from scipy.special import log_expit, log_softmax
    from sklearn.linear_model import LogisticRegression, Ridge

    def logistic(penalty: float) -> Any:
        model = LogisticRegression(C=penalty, max_iter=1000)
        return _OfSeveral(model) if y.ndim == 2 else model

    def loss(model: Any, x: Any, y: np.ndarray) -> float:
        if y.dtype.kind == "f":
            return float(np.square(model.predict(x) - y).mean())
        if y.ndim == 2:
            return -float(log_expit(np.where(y > 0, 1, -1) * model.decision_function(x)).mean())
        of_classes, biases = _logits(model)
        return -float(log_softmax(x @ of_classes.T + biases, 1)[np.arange(len(y)), y].mean())

    numbers = y.dtype.kind == "f"
    make, penalties, name = (Ridge, _SPARSE_RIDGE, "alpha") if numbers else (logistic, inverse, "C")
    own = None if weights is None else weights[y]
    model, penalty, least = _best(make, penalties, loss, x, y, held_out, own)
    labels, both = np.concatenate([y, held_out[1]]), [x, held_out[0]]
    rows: Any = vstack(both).tocsr() if issparse(x) else np.concatenate(both)
    final = make(penalty).fit(rows, labels, None if weights is None else weights[labels])
    of_train, of_all = _logits(model), _logits(final)
    return Fit(*of_all, f"{name}={penalty:g}", held_out[0] @ of_train[0].T + of_train[1], least)


class _OfSeveral:
    """A logistic regression for each of several labels ``(rows, labels)``, or a constant where all rows have one of
    them, or none."""

    def __init__(self, model: Any):
        self.model = model

    def fit(self, x: Any, y: np.ndarray, sample_weight: np.ndarray | None = None) -> _OfSeveral:
        self.coef_, self.intercept_ = np.zeros((y.shape[1], x.shape[1])), np.zeros(y.shape[1])
        for i, own in enumerate(y.T):
            if own.min() < own.max():
                self.model.fit(x, own, sample_weight=sample_weight)
                self.coef_[i], self.intercept_[i] = self.model.coef_[0], self.model.intercept_[0]
            else:
                self.intercept_[i] = np.log((own.sum() + 0.5) / (len(own) - own.sum() + 0.5))
        return self

    def decision_function(self, x: Any) -> np.ndarray:
        return x @ self.coef_.T + self.intercept_


def _logits(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Weights and biases of a number, or of a logit for each class."""
    coefficients, biases = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    if len(getattr(model, "classes_", ())) != 2:
        return coefficients, biases
    return np.concatenate([-coefficients, coefficients]) / 2, np.concatenate([-biases, biases]) / 2


def _best(
    make: Callable[[float], Any],
    penalties: Sequence[float],
    loss: Callable[[Any, Any, np.ndarray], float],
    x: Any,
    y: np.ndarray,
    held_out: tuple[Any, np.ndarray],
    weights: np.ndarray | None,
) -> tuple[Any, float, float]:
    """The model with the penalty of the smallest loss on held-out rows, or, if these are few, over folds; fitted to all
    rows x and y; the penalty and the loss. weights: of rows."""
    if len(held_out[1]) >= _ENOUGH:
        tried = [make(penalty).fit(x, y, sample_weight=weights) for penalty in penalties]
        losses = [loss(model, *held_out) for model in tried]
        best = int(np.argmin(losses))
        return tried[best], penalties[best], losses[best]
    losses = [0.0] * len(penalties)
    for train, test in _folds(y):
        own = None if weights is None else weights[train]
        for i, penalty in enumerate(penalties):
            losses[i] += loss(make(penalty).fit(x[train], y[train], sample_weight=own), x[test], y[test]) * len(test)
    best = int(np.argmin(losses))
    return make(penalties[best]).fit(x, y, sample_weight=weights), penalties[best], losses[best] / len(y)


def _folds(y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows of folds, in each of which all classes are trained: rows of classes that are too small to
    be in every fold are always trained."""
    from sklearn.model_selection import KFold, StratifiedKFold

    if y.dtype.kind == "f" or y.ndim == 2:
        return list(KFold(min(_FOLDS, len(y)), shuffle=True, random_state=0).split(y))
    rare = np.bincount(y)[y] < _FOLDS
    common, always = np.flatnonzero(~rare), np.flatnonzero(rare)
    if len(np.unique(y[common])) < 2:
        everything = np.arange(len(y))
        return [(everything, everything)]
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0).split(common, y[common])
    return [(np.concatenate([common[train], always]), common[test]) for train, test in folds]
