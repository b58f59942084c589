"""The exported step of a signal model in 8-bit integers, and what they cost on held-out data."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lagwise.models.export import ExportedStep, without_warnings
from lagwise.models.signal_regression import LagwiseForSignalRegression
from lagwise.models.signal_stream import SignalStep
from lagwise.runs.evaluate import open_run, require_unchanged
from lagwise.tasks.base import TaskData

_ROWS, _STEPS = 32, 250  # training examples for the calibration, and steps of each
_MIN_PROBABILITY = 1e-7  # so that logarithms are finite
_QUANTIZED = ["MatMul", "Gemm"]  # products with weights; states and all else stay in float32


def quantize_step(run: Path, model: Any, path: Path, out: Path, *, progress: bool = True) -> TaskData:
    """Write the exported step ``path`` of a run's model with products of weights in 8-bit integers to ``out``, by
    onnxruntime's static quantisation, with the ranges of training examples. Returns the run's data, which must not
    have changed."""
    quantization = importlib.import_module("onnxruntime.quantization")
    recipe, task = open_run(run)
    require_unchanged(run, recipe)
    data = task.open(run=run, progress=progress)
    if getattr(getattr(data, "rows", None), "rates", None):
        raise ValueError("the recordings have several sampling rates, but a step has one; resample them")
    step = SignalStep(model)
    examples: Any = data.training_examples(_ROWS, 1, recipe.training.seed)
    rows = [data.collate([examples[i]], training=False)["input_values"][0] for i in range(_ROWS)]
    calls = _calls(step, path, rows)
    reader = SimpleNamespace(get_next=lambda: next(calls, None))
    integers = quantization.QuantType.QInt8
    with without_warnings("root"):  # it advises to optimise a graph first, which this one needs not
        quantization.quantize_static(
            path,
            out,
            reader,
            quant_format=quantization.QuantFormat.QOperator,
            op_types_to_quantize=_QUANTIZED,
            activation_type=integers,
            weight_type=integers,
        )
    return data


def compare(data: TaskData, model: Any, path: Path, *, progress: bool = True) -> dict[str, Any]:
    """The task's headline ``metric`` on held-out data, of a model, ``float``, and of its exported step, ``int8``."""
    name = data.headline.name
    scores = {}
    for kind, own in (("float", model), ("int8", FileModel(model, path))):
        result = data.evaluate(own, progress=progress)
        scores[kind] = float(result["test" if "test" in result else "valid"][name])
    return {"metric": name, **scores}


def _calls(step: SignalStep, path: Path, rows: list[Tensor]) -> Iterator[dict[str, np.ndarray]]:
    """The inputs of a step, by name, at every step of the rows."""
    run = ExportedStep(path, step.start(1))
    for row in rows:
        run.state = step.start(1)
        for samples in _in_steps(row, step)[:_STEPS]:
            yield {"samples": samples.numpy(), **{f"past.{name}": t.numpy() for name, t in run.state.items()}}
            run(samples)


def _in_steps(samples: Tensor, step: SignalStep) -> Tensor:
    return samples.float().unflatten(0, (-1, step.stream.stride))


class FileModel:
    """A stand-in for a model in evaluations, whose exported step streams whole recordings."""

    device = torch.device("cpu")

    def __init__(self, model: Any, path: Path):
        self.config, self.step = model.config, SignalStep(model)
        self.run = ExportedStep(path, self.step.start(1))
        self.outputs = getattr(model, "outputs", None)
        self.whole = type(model).__name__ == "LagwiseForSequenceClassification"
        self.regresses = isinstance(model, LagwiseForSignalRegression)

    def __call__(self, input_values: Tensor, attention_mask: Tensor | None = None) -> Any:
        answers = []
        for i, row in enumerate(input_values):
            steps = _in_steps(row, self.step)
            if self.whole and attention_mask is not None:
                steps = steps[: int(attention_mask[i].sum())]
            self.run.state = self.step.start(1)
            outputs = [self.run(samples) for samples in steps]
            answers.append(outputs[-1] if self.whole else torch.stack(outputs))
        y = torch.stack(answers)
        if self.regresses:
            return SimpleNamespace(regression_outputs=y.flatten(1, 2))
        several = self.config.problem_type == "multi_label_classification"
        return SimpleNamespace(logits=y.logit(_MIN_PROBABILITY) if several else y.clamp(min=_MIN_PROBABILITY).log())
