"""First answers: linear models of fixed features, fitted in closed form before a model is trained."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from lagwise.files import read_json, saved_whole, write_whole
from lagwise.models.loading import load_model, quiet
from lagwise.tables import counted
from lagwise.tasks import Task, TaskData
from lagwise.training.linear_fits import fit_linear_model, labels_of
from lagwise.training.recipe import Recipe

FOLDER = "first"  # a run's folder for the model of the first answer
FILE = "first.json"
_HELD_OUT = "held_out.safetensors"
_RESAMPLED = 400
_SURE = 0.84  # share of resampled rows on which a trained model must be better: one standard error


class FirstAnswer(NamedTuple):
    """A model in closed form, and what is known of it.

    Attributes:
        model: the model in evaluation mode, fitted to training and held-out rows.
        about: its ``scores`` on held-out rows when fitted to the others alone, the ``seconds`` that all took, its
            ``features`` and ``penalty``.
        held_out: what the model says of these rows, fitted to the others alone (`TaskData.reduce`).
    """

    model: Any
    about: dict[str, Any]
    held_out: np.ndarray


def require_linear(task: Task) -> Any:
    """Return the head of the task's first answer. ValueError for a task without one."""
    if task.linear_head is None:
        raise ValueError(
            f"{type(task).__name__} has no first answer (model=linear, training.first_answer, `baseline`); tasks of "
            "labelled rows and images have one"
        )
    return task.linear_head


def needs_first_answer(recipe: Recipe, task: Task) -> bool:
    """Whether a training begins with a first answer."""
    return recipe.training.first_answer != "none" or task.wide


def fit_first_answer(data: TaskData, seed: int) -> FirstAnswer:
    """Fit the first answer to a task's data. ValueError for a task without one, and for images that exceed the
    memory."""
    began = time.monotonic()
    linear_head, rows = require_linear(data.task), data.linear_rows()
    model, fit = fit_linear_model(linear_head, rows, seed)
    labels = labels_of(rows.valid)
    kept = data.reduce(torch.from_numpy(fit.held_out).float(), torch.from_numpy(labels))
    assert kept is not None
    logits, true = (each.numpy() for each in kept)
    predicted = calibrated(data, model, logits, true)
    about = {
        "features": f"{model.config.features['name']}, {model.features.size:,}",
        "penalty": fit.penalty,
        "seconds": round(time.monotonic() - began, 2),
        "rows": len(labels),
        "metric": data.headline.name,
        "scores": data.metrics(float("nan"), predicted, true),
    }
    return FirstAnswer(model, about, logits)


def calibrated(data: TaskData, model: Any, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Set a model's configuration by its outputs for held-out rows, if the task does, and return these outputs."""
    return logits if data.calibrated is None else data.calibrated(model, logits, labels)


def held_out(data: TaskData, model: Any, batches: Iterable[Mapping[str, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    """Predict batches, and return what the task's metrics need of the predictions, and the labels."""
    found = []
    with torch.inference_mode():
        for batch in batches:
            inputs = {name: value.to(model.device) for name, value in batch.items() if name != "labels"}
            kept = data.reduce(model(**inputs).logits, batch["labels"])
            assert kept is not None
            found.append([each.cpu().numpy() for each in kept])
    return np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])


def is_better(data: TaskData, one: np.ndarray, other: np.ndarray, labels: np.ndarray) -> bool:
    """Whether predictions have a better headline metric than others of the same rows, and also on most resamples of
    these rows, so that a difference of a row or two does not count."""
    random, sign = np.random.default_rng(0), 1 if data.headline.greater_is_better else -1

    def gain(rows: Any) -> float:
        found = [data.metrics(float("nan"), each[rows], labels[rows])[data.headline.name] for each in (one, other)]
        return sign * (found[0] - found[1])

    if gain(slice(None)) <= 0:
        return False
    samples = (gain(random.integers(0, len(labels), len(labels))) for _ in range(_RESAMPLED))
    return float(np.mean([gained > 0 for gained in samples])) >= _SURE


def is_perfect(about: Mapping[str, Any]) -> bool:
    """Whether a first answer makes no mistake on the held-out rows."""
    return about["scores"][about["metric"]] >= 1


def save_first_answer(first: FirstAnswer, data: TaskData, run: Path) -> None:
    """Write a first answer, its held-out predictions and what is known of it into a run's folder."""
    with quiet(), saved_whole(run / FOLDER, "the first answer", last="config.json") as partial:
        first.model.save_pretrained(partial)
        data.save_preprocessing(partial, None)
        save_file({"held_out": first.held_out}, partial / _HELD_OUT)
    write_whole(run / FILE, json.dumps(first.about, indent=1) + "\n")


def held_out_of(run: Path) -> np.ndarray:
    """Read a first answer's outputs for the held-out rows, of the fit to the other rows alone."""
    return load_file(run / FOLDER / _HELD_OUT)["held_out"]


def read_first_answer(run: Path) -> dict[str, Any] | None:
    """Read the record of a run's first answer; None if it has none."""
    return read_json(run / FILE) if (run / FILE).is_file() and (run / FOLDER / "config.json").is_file() else None


def kept_first_answer(run: Path) -> dict[str, Any] | None:
    """Read the record of the first answer that a finished run ends with; None if it ends with a trained model."""
    about = read_first_answer(run)
    return about if about and about.get("kept") else None


def joined_answer(run: Path) -> dict[str, Any] | None:
    """Read the record of the first answer that is part of a finished run's model; None if it is not."""
    about = read_first_answer(run)
    return about if about and "share" in about and not about["kept"] else None


def simple_answers(run: Path, data: TaskData, seed: int) -> Iterator[tuple[str, Any]]:
    """Yield simple models to compare a run with, by name: one that gives the same answer for all rows (the most common
    class, or the mean number), and the first answer, fitted now if the run has none. ValueError for a task without
    one."""
    require_linear(data.task)
    found = load_model(run / FOLDER)[0] if read_first_answer(run) else fit_first_answer(data, seed).model
    constant, labels = copy.deepcopy(found), labels_of(data.linear_rows().train)
    with torch.no_grad():
        constant.classifier.weight.zero_()
        if labels.ndim == 2:
            name, bias = "most common labels", np.log((labels.mean(0) + 1e-9) / (1 - labels.mean(0) + 1e-9))
            constant.config.threshold = None
        elif labels.dtype.kind == "i":
            name, bias = "most common class", np.log(np.bincount(labels, minlength=found.num_labels) + 1e-9)
        else:
            name, bias = "the mean of all rows", np.array([labels.mean()])
        constant.classifier.bias.copy_(torch.from_numpy(bias))
    yield name, constant
    yield "first answer", found


def choice_sentence(about: Mapping[str, Any], label: str, *, compared: bool) -> str:
    """Say which model a run ends with, and why. compared: Whether the first answer might have been kept."""
    first, trained = (about[name][about["metric"]] for name in ("scores", "trained"))
    on = f"on {counted(about['rows'], 'held-out row')}"
    if "share" in about:
        before, after = about["losses"]
        kept = f"kept the first answer {'alone' if about['kept'] else 'and the trained layers'}"
        joined = kept if compared else "joined the first answer and the trained layers, compared with nothing"
        return (
            f"{joined}: {on} both, with a share of {about['share']:.2f} for the layers, have a loss of {after:.3f} "
            f"({label} {trained:.3f}), the first answer {before:.3f} ({first:.3f})"
        )
    kept, than = ("first answer", "is not clearly better") if about["kept"] else ("trained model", "is better")
    return f"kept the {kept}: {on} the trained model {than} ({label} {trained:.3f}, first answer {first:.3f})"
