"""First answers: linear models of fixed features, fitted in closed form before a model is trained; and the choice of
the model that a run ends with: its first answer, the trained model, or a mixture of both."""

from __future__ import annotations

import copy
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch.utils.data import DataLoader

from lagwise.files import read_json, saved_whole, write_json, write_whole
from lagwise.models.classification import joined
from lagwise.models.loading import load_model, quiet
from lagwise.tables import counted, refuse
from lagwise.tasks import TaskData
from lagwise.training.folder import METRICS_FILE
from lagwise.training.linear_fits import fit_linear_model, labels_of

FOLDER = "first"  # a run's folder for the model of the first answer
FILE = "first.json"
_HELD_OUT = "held_out.safetensors"
_RESAMPLED = 400
_SURE = 0.84  # share of resampled rows on which a trained model must be better: one standard error
_PRIOR_SHARE = 0.3  # mean and standard deviation of the prior of the share (docs/log.md)
_MAX_SHARE = 1.5
#: Said of a task, by the name of its class.
NO_FIRST_ANSWER = (
    "{} has no first answer (model=linear, training.first_answer, `baseline`); tasks of labelled rows and images have "
    "one"
)


def fit_first_answer(data: TaskData, seed: int) -> tuple[Any, dict[str, Any], np.ndarray]:
    """Fit the first answer to a task's data. Return the model, fitted to training and held-out rows; what is known of
    it, its scores on held-out rows when fitted to the others alone among them; and its outputs for these rows
    (`TaskData.reduce`)."""
    began = time.monotonic()
    rows = data.linear_rows()
    model, fit = fit_linear_model(data.task.linear_head, rows, seed)
    labels = labels_of(rows.valid)
    reduced = data.reduce(torch.from_numpy(fit.held_out).float(), torch.from_numpy(labels))
    assert reduced is not None
    logits, true = (each.numpy() for each in reduced)
    predicted = data.calibrate(model, logits, true)
    about = {
        "features": f"{model.config.features['name']}, {model.features.size:,}",
        "penalty": fit.penalty,
        "seconds": round(time.monotonic() - began, 2),
        "rows": len(labels),
        "metric": data.headline.name,
        "scores": data.metrics(float("nan"), predicted, true),
    }
    return model, about, logits


def save_first_answer(
    model: Any, about: dict[str, Any], held_out: np.ndarray, data: TaskData, run: Path, *, alone: bool, progress: bool
) -> None:
    """Write what `fit_first_answer` returns into a run's folder, log its score at step 0 (all scores if nothing is
    trained), and print it."""
    with quiet(), saved_whole(run / FOLDER, "the first answer", last="config.json") as part:
        model.save_pretrained(part)
        data.save_preprocessing(part, None)
        save_file({"held_out": held_out}, part / _HELD_OUT)
    scores, headline = about["scores"], data.headline
    line = {"step": 0, "first_answer": scores[headline.name], "seconds": about["seconds"]}
    if alone:
        line |= {f"eval_{name}": value for name, value in scores.items()}
    log = run / METRICS_FILE
    logged = log.read_text(encoding="utf-8") if log.is_file() else ""
    if '"first_answer"' not in logged:  # by a process that died here
        write_whole(log, logged + json.dumps(line) + "\n")
    write_json(run / FILE, about)  # last: with it, the first answer is there
    if progress:
        print(
            f"first answer ({about['features']} features): {headline.label} {line['first_answer']:.3f} of "
            f"{counted(about['rows'], 'held-out row')}, in {about['seconds']:.1f} seconds",
            file=sys.stderr,
        )


def is_perfect(about: Mapping[str, Any]) -> bool:
    """Whether a first answer makes no mistake on the held-out rows, so that no trained model can be better."""
    return about["scores"][about["metric"]] >= 1


def read_first_answer(run: Path) -> dict[str, Any] | None:
    """Read the record of a run's first answer; None if it has none."""
    return read_json(run / FILE) if (run / FILE).is_file() and (run / FOLDER / "config.json").is_file() else None


def simple_answers(run: Path, data: TaskData, seed: int) -> Iterator[tuple[str, Any]]:
    """Yield simple models to compare a run with, by name: one that gives the same answer for all rows (the most common
    class, or the mean number), and the first answer, fitted now if the run has none. ValueError for a task without
    one."""
    refuse((data.task.linear_head is None, NO_FIRST_ANSWER.format(type(data.task).__name__)))
    first = load_model(run / FOLDER)[0] if read_first_answer(run) else fit_first_answer(data, seed)[0]
    constant, labels = copy.deepcopy(first), labels_of(data.linear_rows().train)
    with torch.no_grad():
        constant.classifier.weight.zero_()
        if labels.ndim == 2:
            name, bias = "most common labels", np.log((labels.mean(0) + 1e-9) / (1 - labels.mean(0) + 1e-9))
            constant.config.threshold = None
        elif labels.dtype.kind == "i":
            name, bias = "most common class", np.log(np.bincount(labels, minlength=first.num_labels) + 1e-9)
        else:
            name, bias = "the mean of all rows", np.array([labels.mean()])
        constant.classifier.bias.copy_(torch.from_numpy(bias))
    yield name, constant
    yield "first answer", first


def choose_model(model: Any, trainer: Any, data: TaskData, out: Path, *, compare: bool, progress: bool) -> Any:
    """Choose the model that a run ends with, record and print the choice. Return the trained model, joined with the
    first answer if the task asks for it (`Task.wide`) and calibrated; or None for the first answer, if both are
    compared and the trained model is no better."""
    rows, size = trainer.eval_dataset, trainer.args.per_device_eval_batch_size  # the rows of all processes
    batches = []
    with torch.inference_mode():
        for batch in DataLoader(rows, batch_size=size, collate_fn=partial(data.collate, training=False)):
            inputs = {name: value.to(model.device) for name, value in batch.items() if name != "labels"}
            reduced: Any = data.reduce(model.eval()(**inputs).logits, batch["labels"])
            batches.append([each.cpu().numpy() for each in reduced])
    logits, labels = (np.concatenate(each) for each in zip(*batches, strict=True))
    about = read_first_answer(out)
    if about is None:
        data.calibrate(model, logits, labels)
        return model
    first, before = load_model(out / FOLDER)[0], load_file(out / FOLDER / _HELD_OUT)["held_out"]
    if data.task.wide:
        share = best_share(data, before, logits, labels)
        model, logits = joined(model, first, share), mixed(data, before, logits, share)
        about["share"] = round(share, 3)
    trained = data.calibrate(model, logits, labels)
    if data.task.wide:  # choose by the loss, like the mixing share
        losses = [_loss_of(data, each, labels) for each in (before, logits)]
        about["losses"], better = [round(each, 4) for each in losses], losses[1] < losses[0]
    else:
        better = is_better(data, trained, data.calibrate(first, before, labels), labels)
    about |= {"trained": data.metrics(float("nan"), trained, labels), "kept": compare and not better}
    write_json(out / FILE, about)
    if progress:
        print(_choice(about, data.headline.label, compared=compare), file=sys.stderr)
    return None if about["kept"] else model


def take_first(out: Path, partial: Path) -> None:
    """Replace the model that is being saved by the first answer's."""
    shutil.rmtree(partial)
    shutil.copytree(out / FOLDER, partial, ignore=shutil.ignore_patterns("held_out*"))


def is_better(data: TaskData, one: np.ndarray, other: np.ndarray, labels: np.ndarray) -> bool:
    """Whether predictions have a better headline metric than others of the same rows, also on most resamples of these
    rows."""
    random, sign = np.random.default_rng(0), 1 if data.headline.greater_is_better else -1

    def gain(rows: Any) -> float:
        scores = [data.metrics(float("nan"), each[rows], labels[rows])[data.headline.name] for each in (one, other)]
        return sign * (scores[0] - scores[1])

    if gain(slice(None)) <= 0:
        return False
    samples = (gain(random.integers(0, len(labels), len(labels))) for _ in range(_RESAMPLED))
    return float(np.mean([gained > 0 for gained in samples])) >= _SURE


def best_share(data: Any, first: np.ndarray, layers: np.ndarray, labels: np.ndarray) -> float:
    """The share of the layers in `mixed` with the highest posterior, for rows that neither model was fitted to. The
    prior is normal with mean and standard deviation 0.3. For numbers, the noise has the variance of the first answer's
    errors."""
    from scipy.optimize import minimize_scalar

    weight = float(len(labels))
    if data.label_names is None:
        weight /= 2 * max(_loss_of(data, first, labels), 1e-12)

    def surprise(share: float) -> float:
        loss = _loss_of(data, mixed(data, first, layers, share), labels)
        return weight * loss + (share / _PRIOR_SHARE - 1) ** 2 / 2

    return float(minimize_scalar(surprise, bounds=(0, _MAX_SHARE), method="bounded").x)


def mixed(data: Any, first: np.ndarray, layers: np.ndarray, share: float) -> np.ndarray:
    """Mix two models' outputs as `lagwise.models.classification.joined` does: ``first + share * layers``, or of numbers
    their weighted mean."""
    return (1 - share) * first + share * layers if data.label_names is None else first + share * layers


def _loss_of(data: Any, logits: np.ndarray, labels: np.ndarray) -> float:
    """Compute the training loss of logits, a mean over rows."""
    return float(data.loss(SimpleNamespace(logits=torch.from_numpy(logits)), torch.from_numpy(labels)))


def _choice(about: Mapping[str, Any], label: str, *, compared: bool) -> str:
    """Say which model a run ends with, and why. compared: Whether the first answer might have been kept."""
    first, trained = (about[name][about["metric"]] for name in ("scores", "trained"))
    on = f"on {counted(about['rows'], 'held-out row')}"
    if "share" in about:
        before, after = about["losses"]
        chosen = f"kept the first answer {'alone' if about['kept'] else 'and the trained layers'}"
        joined = chosen if compared else "joined the first answer and the trained layers, compared with nothing"
        return (
            f"{joined}: {on} both, with a share of {about['share']:.2f} for the layers, have a loss of {after:.3f} "
            f"({label} {trained:.3f}), the first answer {before:.3f} ({first:.3f})"
        )
    chosen, than = ("first answer", "is not clearly better") if about["kept"] else ("trained model", "is better")
    return f"kept the {chosen}: {on} the trained model {than} ({label} {trained:.3f}, first answer {first:.3f})"
