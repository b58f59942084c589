"""Linear models of fixed features, fitted in closed form to rows of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lagwise.models.linear.columns import Columns
from lagwise.models.linear.configuration import LagwiseLinearConfig
from lagwise.models.linear.convolutions import LEVELS, THRESHOLDS, Convolutions
from lagwise.models.linear.ngrams import Sparse, inputs_of
from lagwise.models.linear.patches import Patches
from lagwise.tasks.base import LinearRows
from lagwise.training.closed_form import Fit, fit_linear

Batches = Sequence[Mapping[str, Tensor]]  # rows with labels, as the model reads them

_MANY_SERIES = 5000  # for which half of the features do
_MAX_VALUES = 2 * 10**8  # dense features in memory; beyond, a random part of the rows is used
_IMAGES = 2000  # from which patches are drawn
_GAIN = 0.95  # levels are kept where they make the error so much smaller


def fit_linear_model(linear_class: Any, features: str, rows: LinearRows, seed: int) -> tuple[Any, Fit]:
    """Fit a linear model of a class of heads, and return it in evaluation mode, with its fit.

    features: A name in `FITTED`.

    What dense features take from rows without their labels, such as thresholds, is taken from the held-out rows too:
    the map is fitted to all rows in the end.
    """
    with torch.inference_mode():
        options, prepared, fit = FITTED[features](rows, seed)
    inputs = {name: value for name, value in rows.fields["inputs"].items() if name != "pairs"}
    merged: dict[str, Any] = {**rows.fields, "inputs": inputs, "features": {"name": features, **options}}
    model: Any = linear_class(LagwiseLinearConfig(**merged))
    model.features.load_state_dict(prepared.state_dict())
    with torch.no_grad():
        model.classifier.weight.copy_(torch.from_numpy(fit.weights))
        model.classifier.bias.copy_(torch.from_numpy(fit.biases))
    return model.eval(), fit


def _texts(data: LinearRows, seed: int) -> tuple[dict[str, Any], Any, Fit]:
    assert data.ngrams is not None
    options, features = data.ngrams

    def rows(batches: Batches) -> tuple[Any, np.ndarray]:
        found = [features(*inputs_of(batch)) for batch in batches]
        return _matrix(found, features.size), labels_of(batches)

    train, valid = rows(data.train), rows(data.valid)
    return options, features, fit_linear(*train, valid, data.weights)


def _series(data: LinearRows, seed: int) -> tuple[dict[str, Any], Any, Fit]:
    inputs, batches = data.fields["inputs"], [*data.train, *data.valid]
    series = [row[: len(row) if real is None else int(real.sum())] for b in batches for row, real in _rows(b)]
    total = THRESHOLDS if len(series) <= _MANY_SERIES else -(-THRESHOLDS // 2)
    options: dict[str, Any] = {**Convolutions.plan([len(row) for row in series], total=total), "levels": LEVELS}
    features = Convolutions(inputs["features"], **options, mean=inputs.get("mean"), std=inputs.get("std"))
    features.prepare(series, seed)

    return _with_levels_if_better(options, features, data, seed)


def _table(data: LinearRows, seed: int) -> tuple[dict[str, Any], Any, Fit]:
    inputs = data.fields["inputs"]
    options = Columns.plan(inputs["features"])
    features = Columns(inputs["features"], **options, mean=inputs.get("mean"), std=inputs.get("std"))
    features.prepare(torch.cat([batch["input_values"].flatten(0, 1) for batch in [*data.train, *data.valid]]))

    return _with_levels_if_better(options, features, data, seed, columns=True)


def _with_levels_if_better(
    options: dict[str, Any], features: Any, data: LinearRows, seed: int, *, columns: bool = False
) -> tuple[dict[str, Any], Any, Fit]:
    """Fit with and without the level features (the last columns), and keep them only if they clearly reduce the
    error."""
    (x, y), valid = _dense_rows(features, data, seed)
    (other, true), plain = valid, features.plain
    simple = fit_linear(x[:, :plain], y, (other[:, :plain], true), data.weights, columns=columns)
    if options["levels"]:
        fit = fit_linear(x, y, valid, data.weights, columns=columns)
        if fit.loss < _GAIN * simple.loss:
            return options, features, fit
    features.drop_levels()
    return {**options, "levels": 0}, features, simple


def _images(data: LinearRows, seed: int) -> tuple[dict[str, Any], Any, Fit]:
    images = [image for batch in [*data.train, *data.valid] for image in batch["pixel_values"]]
    sample = [images[i] for i in np.random.default_rng(seed).permutation(len(images))[:_IMAGES]]
    channels, *size = sample[0].shape
    options = Patches.plan(*size)
    features = Patches(channels, **options)
    features.prepare(sample, seed)

    train, valid = _dense_rows(features, data, seed)
    return options, features, fit_linear(*train, valid, data.weights)


def _dense_rows(features: Any, data: LinearRows, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Compute features and labels of the training rows, subsampled if there are too many, and of the held-out rows."""

    def of(batches: Iterable[Mapping[str, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
        values, labels = [np.zeros((0, features.size), dtype=np.float32)], []
        for batch in batches:
            pixels = batch.get("pixel_values")
            each = features(batch["input_values"], _mask(batch)) if pixels is None else features(pixels)
            values.append(each.numpy())
            labels.append({"labels": batch["labels"]})
        return np.concatenate(values), labels_of(labels)

    return [of(_thinned(data.train, features.size, seed)), of(data.valid)]


#: by the name of the features
FITTED: dict[str, Any] = {"columns": _table, "convolutions": _series, "ngrams": _texts, "patches": _images}


def labels_of(batches: Batches) -> np.ndarray:
    """Concatenate the labels of all rows; several labels per row become integers 0 and 1."""
    if not batches:
        return np.zeros(0, dtype=np.int64)
    labels = torch.cat([batch["labels"] for batch in batches]).numpy()
    return labels.astype(np.int64) if labels.ndim == 2 else labels


def _thinned(batches: Batches, size: int, seed: int) -> Iterator[Mapping[str, Tensor]]:
    """Subsample the rows of batches when the dense feature matrix would have more than `_MAX_VALUES` values."""
    limit, random = _MAX_VALUES // size, np.random.default_rng(seed)
    total = sum(len(batch["labels"]) for batch in batches)
    for batch in batches:
        if total <= limit:
            yield batch
            continue
        count = len(batch["labels"])
        kept = torch.from_numpy(np.sort(random.permutation(count)[: -(-count * limit // total)]))
        yield {name: values[kept] for name, values in batch.items()}


def _rows(batch: Mapping[str, Tensor]) -> Iterable[tuple[Tensor, Tensor | None]]:
    mask = batch.get("attention_mask")
    return ((row, None if mask is None else mask[i]) for i, row in enumerate(batch["input_values"]))


def _mask(batch: Mapping[str, Tensor]) -> Tensor | None:
    return batch["attention_mask"].bool() if "attention_mask" in batch else None


def _matrix(found: Iterable[Sparse], columns: int) -> Any:
    """Convert sparse features of batches to a matrix of scipy."""
    from scipy.sparse import csr_matrix

    rows, numbers, values, start = [], [], [], 0
    for each in found:
        kept = each.values != 0
        rows.append(kept.nonzero()[:, 0] + start)
        numbers.append(each.numbers[kept])
        values.append(each.values[kept])
        start += len(kept)
    if not rows:
        return csr_matrix((0, columns))
    place = torch.cat(rows).numpy(), torch.cat(numbers).numpy()
    return csr_matrix((torch.cat(values).double().numpy(), place), shape=(start, columns))
