"""Write a run's model to files that other programs run, also in 8-bit integers."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.utils import IMAGE_PROCESSOR_NAME

from lagwise._version import __version__
from lagwise.files import beside, file_digest, is_unused, read_json, saved_whole, write_json
from lagwise.models.c_code import export_c, generate
from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.conversion import CONVERSION_FILE
from lagwise.models.export import EXPORTS, ExportedStep, require_format, without_warnings
from lagwise.models.loading import load_model, quiet
from lagwise.models.signal_regression import LagwiseForSignalRegression
from lagwise.models.signal_stream import SignalStep, stream_of
from lagwise.runs.evaluate import open_run, require_unchanged
from lagwise.tables import known
from lagwise.tasks.base import TaskData

EXPORT_FILE = "export.json"  # marks a folder that holds exported files


@torch.no_grad()
def export_run(
    run: Path,
    out: Path | None = None,
    *,
    format: str = "onnx",
    what: str | None = None,
    quantize: str | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Write a model to ``out/WHAT.FORMAT``, by default in ``RUN-export``, beside the files of its tokenizer or image
    processor, with the names of its classes in ``export.json``.

    Args:
        format: ``onnx``, ``pt2``, ``c`` (C99 code: ``step.c``, ``step.h`` and a program ``main.c`` that checks it) or
            ``executorch`` (``step.pte``).
        what: ``forward``, of whole rows, or ``step``, of one token of a language model or one step of a signal (see
            `lagwise.models.export`). By default ``step`` of language models and of ``c`` and ``executorch``, and
            ``forward`` of others.
        quantize: ``int8`` for products of weights in 8-bit integers, of a step of a signal as ``onnx`` or
            ``c``. All else is in float32.

    Returns the content of ``out/export.json``. ValueError if the file's outputs differ from the model's, for the step
    of a model that has none, and as `export_step` and `export_forward`; ImportError for a missing package;
    FileExistsError if ``out`` holds anything but earlier exports, or those of another model. In each case nothing is
    written.
    """
    if what is not None:
        known(what, EXPORTS, "what")
    if quantize is not None:
        known(quantize, ("int8",), "quantize")
    require_format(format)
    out, run = out or beside(run, "-export"), run.resolve()
    if not is_unused(out) and not (out / EXPORT_FILE).is_file():
        raise FileExistsError(f"{str(out)!r} exists and does not contain earlier exports; choose another `out`")
    model, tokenizer = load_model(run)
    language, only_steps = isinstance(model, LagwiseForCausalLM), format in ("c", "executorch") or quantize is not None
    what = what or ("step" if language or only_steps else "forward")
    if only_steps and what == "forward":
        raise ValueError("a forward pass has no fixed shapes, which c, executorch and int8 need; export the step")
    if quantize is not None and (language or format not in ("onnx", "c")):
        raise ValueError(f"int8 is for the steps of signals as onnx or c, not for {type(model).__name__} as {format}")
    name = f"{what}.{'pte' if format == 'executorch' else format}"
    processor = run / IMAGE_PROCESSOR_NAME
    sides = {"sides": list(read_json(processor)["size"].values())} if processor.is_file() and what == "forward" else {}
    with tempfile.TemporaryDirectory() as folder, quiet():
        model, integers = model.float(), None
        graph = Path(folder, "step.onnx" if format == "c" else name)
        step = EXPORTS[what](model, graph, **sides)
        figures: dict[str, Any] = {} if format == "c" or quantize is not None else step
        if quantize is not None:
            integers = Path(folder, "integers.onnx")
            data = quantize_step(run, model, graph, integers, progress=progress)
            if format == "c":
                generate(integers, Path(folder, "step.c"))  # may refuse it, before recordings are scored
            figures["int8"] = compare(data, model, integers, progress=progress)
        if format == "c":
            title = f"One step of {run.name}, exported by lagwise {__version__}."
            figures |= export_c(model, graph, step, title, _notes(run, model, figures.get("int8")), integers)
            if integers is not None:
                integers.unlink()
        elif integers is not None:
            integers.replace(graph)
        files = list(Path(folder).iterdir())  # weights of more than 1.5 GB are beside an ONNX file
        figures["bytes"] = sum(file.stat().st_size for file in files)
        meta = _meta(run, out, name, model, tokenizer)
        with saved_whole(out, "the export", last=EXPORT_FILE) as partial:
            for file in files:
                shutil.copyfile(file, partial / file.name)
            if tokenizer is not None:
                tokenizer.save_pretrained(partial)
            if processor.is_file():
                shutil.copyfile(processor, partial / processor.name)
            write_json(partial / EXPORT_FILE, {**meta, name: figures})
    for stale in set(out.glob(f"{name}.*")) - {out / file.name for file in files}:
        stale.unlink()
    return {"out": str(out / name), **figures}


def _notes(run: Path, model: Any, integers: dict[str, Any] | None) -> list[str]:
    """Return lines about a model for the header of C code: inputs, outputs, and the certificate of its conversion."""
    lines = [f"Model: {type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters."]
    if not isinstance(model, LagwiseForCausalLM):
        stream: Any = stream_of(model)
        lines.append(f"Inputs: {stream.stride} samples of {stream.features} features, scaled as in the training data.")
        if hasattr(model, "classifier"):
            lines.append("Outputs: the probabilities of these classes, in order:")
            lines += [f"  {i}: {model.config.id2label[i]}" for i in range(model.num_labels)]
        else:
            lines.append(f"Outputs: those of the samples {stream.delay} samples earlier; none for the first of them.")
    if (run / CONVERSION_FILE).is_file():
        conversion = read_json(run / CONVERSION_FILE)
        lines.append(f"Conversion: kernels are state spaces, to {conversion['tolerance']:g} of a channel's gain:")
        for each in conversion["layers"]:
            orders = f"order {each['order'][0]} to {each['order'][2]}"
            lines.append(f"  {each['layer']}: {orders}, bound {each['bound']:.1e}, measured error {each['error']:.1e}")
    else:
        lines.append("Conversion: none; every layer streams exactly as it was trained.")
    if integers is not None:
        name, before, after = integers["metric"], integers["float"], integers["int8"]
        lines.append(f"Products of weights are in 8-bit integers: {name} {after:.4g}, in float32 {before:.4g}.")
    return lines


def _meta(run: Path, out: Path, name: str, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Collect the entries of ``out/export.json`` beside the figures of this file: those of earlier files of the same
    weights, and those about tokens and labels. FileExistsError for files of other weights."""
    before: dict[str, Any] = {}
    with suppress(FileNotFoundError):
        before = read_json(out / EXPORT_FILE)
    weights = file_digest(run / "model.safetensors").hex()
    others = [key for key, value in before.items() if isinstance(value, dict) and key != name]
    if others and before.get("weights", weights) != weights:
        raise FileExistsError(f"{str(out)!r} has {others[0]} of another model; remove it, or choose another `out`")
    meta = {**before, "weights": weights, "max_length": model.length_limit}
    if tokenizer is not None:
        meta |= {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("eos", "bos", "pad")}
        meta["vocab_size"] = model.config.vocab_size
    if hasattr(model, "classifier"):
        meta["labels"] = [model.config.id2label[i] for i in range(model.num_labels)]
        meta["problem_type"] = model.config.problem_type
    return meta


# The exported step of a signal model in 8-bit integers, and what they cost on held-out data.

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
