"""Linear models of fixed features, fitted in closed form to rows of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lagwise.data import spellings
from lagwise.models.configuration import LagwiseLinearConfig
from lagwise.models.linear.convolutions import LEVELS, THRESHOLDS, Convolutions
from lagwise.models.linear.modeling import inputs_of
from lagwise.models.linear.ngrams import Ngrams, Sparse
from lagwise.models.linear.patches import Patches
from lagwise.tasks.base import LinearRows
from lagwise.training.closed_form import Fit, fit_linear

#: rows with labels and perhaps weights, as the model reads them
Batches = Sequence[Mapping[str, Tensor]]

_MANY_SERIES = 5000  # for which half of the features do
_MAX_VALUES = 2 * 10**8  # dense features in memory; beyond, a random part of the rows is used
_IMAGES = 2000  # from which patches are drawn
_GAIN = 0.95  # levels are kept where they make the error so much smaller


def fit_linear_model(linear_class: Any, rows: LinearRows, seed: int) -> tuple[Any, Fit]:
    """Fit a linear model of a class of heads, and return it in evaluation mode, with its fit.

    What dense features take from rows without their labels, such as thresholds, is taken from the held-out rows too:
    the map is fitted to all rows in the end.
    """
    inputs = dict(rows.fields["inputs"])
    pairs = inputs.pop("pairs", False)
    with torch.inference_mode():
        if inputs["name"] == "tokens":
            chosen: tuple[dict[str, Any], Any] = Ngrams.chosen(spellings(rows.tokenizer), rows.train, pairs=pairs)
        elif inputs["name"] == "values":
            chosen = _of_series([*rows.train, *rows.valid], inputs, seed)
        else:
            chosen = _of_images([*rows.train, *rows.valid], seed)
        options: dict[str, Any] = chosen[0]
        features: Any = chosen[1]
        train = rows.train if inputs["name"] == "tokens" else _thinned(rows.train, features.size, seed)
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


def _of_series(batches: Batches, inputs: Mapping[str, Any], seed: int) -> tuple[dict[str, Any], Convolutions]:
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


def _of_images(batches: Batches, seed: int) -> tuple[dict[str, Any], Patches]:
    images = [image for batch in batches for image in batch["pixel_values"]]
    sample = [images[i] for i in np.random.default_rng(seed).permutation(len(images))[:_IMAGES]]
    channels, *size = sample[0].shape
    options = Patches.plan(*size)
    features = Patches(channels, **options)
    features.prepare(sample, seed)
    return {"name": "patches", **options}, features


def labels_of(batches: Batches) -> np.ndarray:
    """Concatenate the labels of all rows; several labels per row become integers 0 and 1."""
    if not batches:
        return np.zeros(0, dtype=np.int64)
    labels = torch.cat([batch["labels"] for batch in batches]).numpy()
    return labels.astype(np.int64) if labels.ndim == 2 else labels


def _thinned(batches: Batches, size: int, seed: int) -> Batches:
    """Subsample the rows of batches when the dense feature matrix would have more than `_MAX_VALUES` values."""
    limit, random = _MAX_VALUES // size, np.random.default_rng(seed)
    total = sum(len(batch["labels"]) for batch in batches)
    if total <= limit:
        return batches
    found = []
    for batch in batches:
        count = len(batch["labels"])
        kept = torch.from_numpy(np.sort(random.permutation(count)[: -(-count * limit // total)]))
        found.append({name: values[kept] for name, values in batch.items()})
    return found


def _matrix(features: Any, batches: Batches) -> Any:
    """Compute the features of rows ``(rows, features)``: an array, or of texts a sparse matrix of scipy."""
    found: Iterator[Any] = (features(*inputs_of(batch)) for batch in batches)
    if not isinstance(features, Ngrams):
        return np.concatenate([np.zeros((0, features.size), dtype=np.float32), *(each.numpy() for each in found)])
    return _sparse(found, features.size)


def _sparse(found: Iterable[Sparse], columns: int) -> Any:
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
