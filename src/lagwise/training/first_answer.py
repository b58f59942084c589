"""First answers: linear models of fixed features, fitted in closed form before a model is trained."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from lagwise.data import spellings
from lagwise.files import read_json, saved_whole, write_whole
from lagwise.models.linear.configuration import LagwiseLinearConfig
from lagwise.models.linear.convolutions import LEVELS, Convolutions
from lagwise.models.linear.ngrams import Ngrams, Sparse
from lagwise.models.linear.patches import Patches
from lagwise.models.loading import load_model, quiet
from lagwise.tasks import Task, TaskData
from lagwise.training.closed_form import Fit, fit_linear

FOLDER = "first"  # of a run, with the first answer's model
FILE = "first.json"
_HELD_OUT = "held_out.safetensors"
_MOST_CHARACTERS = 3_000_000  # of training texts whose n-grams of characters are used too: they take ten times as long
_MANY_ROWS = 1000  # for which n-grams must occur twice
_MANY_SERIES = 5000  # for which half of the features do
_MOST_VALUES = 2 * 10**8  # of dense features, in memory; of more rows a random part is used
_PICTURES = 2000  # from which patches are drawn
_GAIN = 0.95  # levels are kept where they make the error so much smaller
_RESAMPLED = 400
_SURE = 0.84  # share of resampled rows on which a trained model must be better: one standard error


class FirstAnswer(NamedTuple):
    """model: in evaluation mode, fitted to training and held-out rows. about: its ``scores`` on held-out rows when
    fitted to the others alone, the ``seconds`` that all took, its ``features`` and ``penalty``. held_out: what these
    scores are of (`TaskData.reduce`)."""

    model: Any
    about: dict[str, Any]
    held_out: np.ndarray


def require_linear(task: Task) -> Any:
    """The head of the task's first answer. ValueError for a task without one."""
    if task.linear_class is None:
        raise ValueError(
            f"{type(task).__name__} has no first answer (model=linear, training.first_answer, --baseline); tasks of "
            "labelled rows and pictures have one"
        )
    return task.linear_class


def fit_first_answer(data: TaskData, seed: int) -> FirstAnswer:
    """The first answer of a task's data. ValueError for a task without one."""
    began = time.monotonic()
    linear_class = require_linear(data.task)
    fields = data.linear_fields()
    with torch.inference_mode():
        options, features, fit = _FITTED[data.task.inputs](data, fields, seed)
    inputs = {name: value for name, value in fields["inputs"].items() if name != "pairs"}
    merged: dict[str, Any] = {**fields, "inputs": inputs, "features": options}
    model: Any = linear_class(LagwiseLinearConfig(**merged))
    model.features.load_state_dict(features.state_dict())
    with torch.no_grad():
        model.classifier.weight.copy_(torch.from_numpy(fit.weights))
        model.classifier.bias.copy_(torch.from_numpy(fit.biases))
    labels = torch.from_numpy(_labels(list(data.linear_batches("valid"))))
    kept = data.reduce(torch.from_numpy(fit.held_out).float(), labels)
    assert kept is not None
    predicted, true = (each.numpy() for each in kept)
    about = {
        "features": f"{options['name']}, {model.features.size:,}",
        "penalty": fit.penalty,
        "seconds": round(time.monotonic() - began, 2),
        "rows": len(labels),
        "metric": data.headline.name,
        "scores": data.metrics(float("nan"), predicted, true),
    }
    return FirstAnswer(model.eval(), about, predicted)


def _texts(data: TaskData, fields: Mapping[str, Any], seed: int) -> tuple[dict[str, Any], Any, Fit]:
    assert data.tokenizer is not None
    pairs, own = fields["inputs"]["pairs"], spellings(data.tokenizer)
    sizes = np.array([len(each) for each in own])
    batches = list(data.linear_batches("train"))
    characters = sum(int(sizes[batch["input_ids"].numpy()].sum()) for batch in batches)
    options, features = Ngrams.fitted(
        own,
        [(b["input_ids"], _mask(b), b.get("token_type_ids")) for b in batches],
        words=2,
        characters=[2, 3, 4, 5] if characters <= _MOST_CHARACTERS else [],
        pairs=pairs,
        least=2 if sum(len(batch["labels"]) for batch in batches) > _MANY_ROWS else 1,
    )

    def rows(batches: Iterable[Mapping[str, Tensor]]) -> tuple[Any, np.ndarray]:
        found = [features(b["input_ids"], _mask(b), b.get("token_type_ids")) for b in batches]
        return _matrix(found, features.size), _labels(batches)

    train, valid = rows(batches), rows(list(data.linear_batches("valid")))
    return {"name": "ngrams", **options}, features, fit_linear(*train, valid, _weights(data))


def _series(data: TaskData, fields: Mapping[str, Any], seed: int) -> tuple[dict[str, Any], Any, Fit]:
    inputs, batches = fields["inputs"], list(data.linear_batches("train"))
    series = [row[: len(row) if real is None else int(real.sum())] for b in batches for row, real in _rows(b)]
    share = 1.0 if len(series) <= _MANY_SERIES else 0.5
    options: dict[str, Any] = {**Convolutions.plan([len(row) for row in series], share=share), "levels": LEVELS}
    features = Convolutions(inputs["features"], **options, mean=inputs.get("mean"), std=inputs.get("std"))
    features.prepare(series, seed)

    def rows(batches: Iterable[Mapping[str, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
        return torch.cat([features(b["input_values"], _mask(b)) for b in batches]).numpy(), _labels(batches)

    (x, y), (other, true) = rows(_thinned(batches, features.size, seed)), rows(list(data.linear_batches("valid")))
    fit, plain = fit_linear(x, y, (other, true), _weights(data)), features.without_levels()
    simple = fit_linear(x[:, :plain], y, (other[:, :plain], true), _weights(data))
    if fit.loss < _GAIN * simple.loss:
        return {"name": "convolutions", **options}, features, fit
    features.drop_levels()
    return {"name": "convolutions", **options, "levels": 0}, features, simple


def _pictures(data: TaskData, fields: Mapping[str, Any], seed: int) -> tuple[dict[str, Any], Any, Fit]:
    batches = list(data.linear_batches("train"))
    sample = torch.cat([batch["pixel_values"] for batch in batches])
    sample = sample[torch.from_numpy(np.random.default_rng(seed).permutation(len(sample))[:_PICTURES])]
    options = Patches.plan(*sample.shape[2:])
    features = Patches(sample.shape[1], **options)
    features.prepare(sample, seed)

    def rows(batches: Iterable[Mapping[str, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
        return torch.cat([features(batch["pixel_values"]) for batch in batches]).numpy(), _labels(batches)

    train, valid = rows(_thinned(batches, features.size, seed)), rows(list(data.linear_batches("valid")))
    return {"name": "patches", **options}, features, fit_linear(*train, valid, _weights(data))


_FITTED = {"tokens": _texts, "values": _series, "patches": _pictures}


def held_out(data: TaskData, model: Any, batches: Iterable[Mapping[str, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    """What the task's metrics need of a model's predictions for batches, and the labels."""
    found = []
    with torch.inference_mode():
        for batch in batches:
            inputs = {name: value.to(model.device) for name, value in batch.items() if name != "labels"}
            kept = data.reduce(model(**inputs).logits, batch["labels"])
            assert kept is not None
            found.append([each.cpu().numpy() for each in kept])
    return np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])


def is_better(data: TaskData, one: np.ndarray, other: np.ndarray, labels: np.ndarray) -> bool:
    """Whether predictions are better than others of the same rows by the task's headline: also on most samples of these
    rows with replacement, so that a difference of a row or two by chance is not taken for one."""
    random, sign = np.random.default_rng(0), 1 if data.headline.greater_is_better else -1

    def gain(rows: Any) -> float:
        found = [data.metrics(float("nan"), each[rows], labels[rows])[data.headline.name] for each in (one, other)]
        return sign * (found[0] - found[1])

    if gain(slice(None)) <= 0:
        return False
    samples = (gain(random.integers(0, len(labels), len(labels))) for _ in range(_RESAMPLED))
    return float(np.mean([gained > 0 for gained in samples])) >= _SURE


def save_first_answer(first: FirstAnswer, data: TaskData, run: Path) -> None:
    """Write a first answer, its held-out predictions and what is known of it into a run's folder."""
    with quiet(), saved_whole(run / FOLDER, "the first answer", last="config.json") as partial:
        first.model.save_pretrained(partial)
        data.save_preprocessing(partial, None)
        save_file({"held_out": first.held_out}, partial / _HELD_OUT)
    write_whole(run / FILE, json.dumps(first.about, indent=1) + "\n")


def held_out_of(run: Path) -> np.ndarray:
    """The held-out predictions of a run's first answer."""
    return load_file(run / FOLDER / _HELD_OUT)["held_out"]


def read_first_answer(run: Path) -> dict[str, Any] | None:
    """What is known of the first answer of a run, None if it has none."""
    return read_json(run / FILE) if (run / FILE).is_file() and (run / FOLDER / "config.json").is_file() else None


def simple_answers(run: Path, data: TaskData, seed: int) -> Iterator[tuple[str, Any]]:
    """What to compare a run with, by name, as models: the answer that is the same for all rows (the most common class,
    or the mean number), and the first answer, fitted now if the run has none. ValueError for a task without one."""
    require_linear(data.task)
    found = load_model(run / FOLDER)[0] if read_first_answer(run) else fit_first_answer(data, seed).model
    constant, labels = copy.deepcopy(found), _labels(list(data.linear_batches("train")))
    with torch.no_grad():
        constant.classifier.weight.zero_()
        of_class = np.log(np.bincount(labels, minlength=found.num_labels) + 1e-9) if labels.dtype.kind == "i" else None
        constant.classifier.bias.copy_(torch.from_numpy(np.array([labels.mean()]) if of_class is None else of_class))
    yield "the mean of all rows" if of_class is None else "most common class", constant
    yield "first answer", found


def kept_sentence(about: Mapping[str, Any], label: str) -> str:
    """Which model a run ends with, and why."""
    first, trained = (about[name][about["metric"]] for name in ("scores", "trained"))
    kept, than = ("first answer", "is not clearly better") if about["kept"] else ("trained model", "is better")
    scores = f"{label} {trained:.3f}, first answer {first:.3f}"
    return f"kept the {kept}: on {about['rows']:,} held-out rows the trained model {than} ({scores})"


def _thinned(batches: Sequence[Mapping[str, Tensor]], size: int, seed: int) -> list[dict[str, Tensor]]:
    """Batches with a random part of the rows, if these have too many features of a number each."""
    most, total = _MOST_VALUES // size, sum(len(batch["labels"]) for batch in batches)
    random, found = np.random.default_rng(seed), []
    for batch in batches:
        count = len(batch["labels"])
        kept = np.sort(random.permutation(count)[: count if total <= most else -(-count * most // total)])
        found.append({name: values[torch.from_numpy(kept)] for name, values in batch.items()})
    return found


def _rows(batch: Mapping[str, Tensor]) -> Iterable[tuple[Tensor, Tensor | None]]:
    mask = batch.get("attention_mask")
    return ((row, None if mask is None else mask[i]) for i, row in enumerate(batch["input_values"]))


def _mask(batch: Mapping[str, Tensor]) -> Tensor | None:
    return batch["attention_mask"].bool() if "attention_mask" in batch else None


def _labels(batches: Iterable[Mapping[str, Tensor]]) -> np.ndarray:
    return torch.cat([batch["labels"] for batch in batches]).numpy()


def _weights(data: TaskData) -> np.ndarray | None:
    return None if data.weights is None else data.weights.numpy()


def _matrix(found: Iterable[Sparse], columns: int) -> Any:
    """Sparse features of batches as a matrix of scipy."""
    from scipy.sparse import csr_matrix

    rows, numbers, values, start = [], [], [], 0
    for each in found:
        kept = each.values != 0
        rows.append(kept.nonzero()[:, 0] + start)
        numbers.append(each.numbers[kept])
        values.append(each.values[kept])
        start += len(kept)
    place = torch.cat(rows).numpy(), torch.cat(numbers).numpy()
    return csr_matrix((torch.cat(values).double().numpy(), place), shape=(start, columns))
