"""Export of models to files for other programs, verified against the model."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.extras import require
from lagwise.files import one_line
from lagwise.mixers.derived import frozen
from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.classification import LagwiseForImageClassification, LagwiseForSequenceClassification
from lagwise.models.embeddings import INPUTS
from lagwise.models.linear.modeling import LinearModel
from lagwise.models.prediction import LagwiseForPrediction
from lagwise.models.signal_stream import SignalStep, outputs_of_steps, stream_of
from lagwise.models.step import StreamingStep
from lagwise.tables import known

FORMATS = ("onnx", "pt2", "c", "executorch")
TOLERANCE = 1e-4  # maximum difference of logits, relative to the largest logit
INTEGER_TOLERANCE = 0.05  # the same between two programs of 8-bit integers, which round differently
LINEAR_TOLERANCE = 1e-3  # the same for linear models, whose features are counts over thresholds
# Models with one output for each row.
_OF_ROWS = (LagwiseForSequenceClassification, LagwiseForImageClassification, LinearModel)
_BEYOND = 65  # tokens checked beyond the size of the longest ring buffer
_MAX_TOKENS = 4096  # tokens checked
_MISSING = 0.05  # share of the samples that are missing, in signals for a model that takes gaps
_STRETCH = 20  # tokens of a stretch of random ids that is repeated
_FORWARD_SIZES = ((1, 1), (3, 131), (1, 1000))  # (batch, length) of checked inputs


def require_format(format: str) -> None:
    """Raise ValueError for an unknown format, or ImportError for missing packages."""
    known(format, FORMATS, "format")
    if format in ("onnx", "c"):
        require("export", "an ONNX file" if format == "onnx" else "C code, which is made of an ONNX file,")
    if format in ("c", "executorch"):
        module, purpose = ("emx_onnx_cgen", "C code") if format == "c" else ("executorch", "a file of ExecuTorch")
        require("chip" if format == "c" else "executorch", purpose, module)


def export_step(model: Any, path: Path) -> dict[str, Any]:
    """Write a `StreamingStep` or `SignalStep` for one row, in the format of the path's suffix, and check it.

    Returns a dict: ``states`` with their types and shapes, ``checked_tokens``, the number of random tokens or samples
    compared, and ``difference``, the largest from the model's output relative to the largest output. ValueError if it
    is over 1e-4 (the file is removed), or if the model has no step of fixed shapes.
    """
    step: Any = step_of(model)
    state = step.start(1)
    examples, expected = stream_example(model, step)
    named = ("token", "logits") if isinstance(model, LagwiseForCausalLM) else ("samples", step.output)
    inputs = [named[0], *(f"past.{key}" for key in state)]
    outputs = [named[1], *(f"present.{key}" for key in state)]
    write_program(torch.export.export(step, (examples[0], state), strict=False), path, inputs, outputs)
    run = ExportedStep(path, state)
    exported = torch.stack([run(each).reshape(expected.shape[1:]) for each in examples])
    return {
        "states": {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in state.items()},
        **_checked(path, examples.numel(), [_difference(exported, expected)], TOLERANCE),
    }


def step_of(model: Any) -> StreamingStep:
    """Return one step of a model's stream. ValueError for a model that has none of fixed shapes."""
    return (StreamingStep if isinstance(model, LagwiseForCausalLM) else SignalStep)(model)


def stream_example(model: Any, step: Any) -> tuple[Tensor, Tensor]:
    """Return random inputs of consecutive steps ``(steps, ...)``, more than the longest ring buffer holds, and the
    model's outputs for them."""
    rings = [tensor for tensor in step.start(1).values() if tensor.is_floating_point() and tensor.dim() > 1]
    longest = max((tensor.shape[1] for tensor in rings), default=0)
    steps = min(longest + _BEYOND, _MAX_TOKENS)
    if isinstance(model, LagwiseForCausalLM):
        ids = _random_ids(model, steps)
        return ids.T, model(ids, use_cache=False).logits[0][:, None]
    stream, random = stream_of(model), torch.Generator().manual_seed(0)
    x = torch.randn(steps * stream.stride, stream.features, generator=random, device="cpu")
    scale = model.config.input_options
    x = x * torch.tensor(scale.get("std") or 1.0) + torch.tensor(scale.get("mean") or 0.0)
    if stream.takes_gaps:
        x = x.masked_fill(torch.rand(x.shape, generator=random) < _MISSING, float("nan"))
    expected = outputs_of_steps(model, x)
    return x.unflatten(0, (steps, stream.stride)), expected.reshape(steps, *step.shape)


def export_forward(model: Any, path: Path, sides: Sequence[int] | None = None) -> dict[str, Any]:
    """Write a model's forward pass over whole rows and check it against the model, with padding on both sides.

    Inputs are those that the model reads, with an ``attention_mask`` but for images, forecasts and causal language
    models. The number of rows, of forecast channels and the length are open; ``sides`` are the height and the width of
    images. Results are as in `export_step`, with the names of ``inputs`` and ``outputs`` instead of ``states``.
    ValueError as in `export_step`, for a model whose graph would depend on values or on the length, and for images
    without sides.
    """
    if model.config.input_name == "patches" and sides is None:
        raise ValueError("a model of images is exported for one size of images; give their `sides`")
    inputs = _example(model, 2, 48, sides)
    outputs = [name for name, value in model(**inputs).items() if isinstance(value, Tensor)]
    forward = _Forward(model, list(inputs), outputs)
    shapes = tuple(_open_axes(model, name) for name in inputs)
    try:
        program = torch.export.export(forward, tuple(inputs.values()), dynamic_shapes=(shapes,), strict=False)
    except Exception as error:  # torch.export raises many types
        hint = "; try its step (`what`='step')" if isinstance(model, LagwiseForCausalLM) else ""
        raise ValueError(
            f"the forward pass of this model cannot be exported with a dynamic length ({one_line(error, 200)}){hint}"
        ) from error
    write_program(program, path, list(inputs), outputs)
    run, tokens, differences = load_function(path), 0, list[float]()
    for rows, length in _FORWARD_SIZES:
        inputs = _example(model, rows, length, sides)
        try:
            results = run(*inputs.values())
        except Exception as error:  # from another library, or from a guard
            path.unlink()
            raise ValueError(
                f"the exported file fails for {rows} rows of length {length} ({one_line(error, 200)}); it was removed"
            ) from error
        expected = [value for value in model(**inputs).values() if isinstance(value, Tensor)]
        tokens += next(iter(inputs.values())).numel()
        mask = None if isinstance(model, _OF_ROWS) else inputs.get("attention_mask")
        differences += [_difference(*pair, mask) for pair in zip(results, expected, strict=True)]
    tolerance = LINEAR_TOLERANCE if isinstance(model, LinearModel) else TOLERANCE
    return {"inputs": list(inputs), "outputs": outputs, **_checked(path, tokens, differences, tolerance)}


class _Forward(nn.Module):
    """Module that wraps a model as a function of named inputs, with named outputs."""

    def __init__(self, model: Any, inputs: list[str], outputs: list[str]):
        super().__init__()
        self.model, self.inputs, self.outputs = frozen(model), inputs, outputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = dict(zip(self.inputs, tensors, strict=True))
        if "input_values" in inputs:  # tell the graph how many samples a step has
            x, steps = inputs["input_values"], inputs["attention_mask"].shape[1]
            stride = self.model.config.input_options.get("stride", 1)
            inputs["input_values"] = x.reshape(x.shape[0], steps, stride, x.shape[2]).flatten(1, 2)
        out = self.model(**inputs)
        return tuple(out[name] for name in self.outputs)


def write_program(program: torch.export.ExportedProgram, path: Path, inputs: list[str], outputs: list[str]) -> None:
    """Write a graph to a file, .onnx, .pt2 or .pte. ValueError where the format lacks an operation of the model."""
    if path.suffix == ".pte":
        exir = importlib.import_module("executorch.exir")
        try:
            path.write_bytes(exir.to_edge(program).to_executorch().buffer)
        except Exception as error:  # executorch raises many types
            raise ValueError(f"this model cannot be exported for ExecuTorch ({one_line(error, 200)})") from error
        return
    if path.suffix != ".onnx":
        for name, value in program.state_dict.items():
            if not value.numel():  # torch.export.save fails for empty views of a mapped file
                program.state_dict[name] = value.new_zeros(value.shape)
        torch.export.save(program, path)
        return
    with warnings.catch_warnings(), without_warnings("torch.onnx"):
        warnings.simplefilter("ignore")
        try:
            onnx = torch.onnx.export(program, input_names=inputs, output_names=outputs, verbose=False)
        except Exception as error:  # torch.onnx raises many types
            cause = one_line(error.__cause__ or error, 200)
            raise ValueError(f"this model cannot be exported to ONNX ({cause}); try `format`='pt2'") from error
    assert onnx is not None
    onnx.save(path)


@contextmanager
def without_warnings(name: str) -> Iterator[None]:
    """Suppress a logger's warnings, such as that torchvision is missing."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def load_function(path: Path) -> Callable[..., Sequence[Tensor]]:
    """Load an exported graph as a function of its inputs, in their order."""
    if path.suffix == ".pte":
        runtime = importlib.import_module("executorch.runtime").Runtime.get()
        method = runtime.load_program(path).load_method("forward")
        return lambda *inputs: method.execute(inputs)
    if path.suffix != ".onnx":
        return torch.export.load(path).module()
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        values = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        return [torch.from_numpy(each) for each in session.run(None, values)]

    return run


class ExportedStep:
    """An exported step, which keeps the state of a stream, at first that of `StreamingStep.start`."""

    def __init__(self, path: Path, state: dict[str, Tensor]):
        self.state, self._kind, self._function = state, path.suffix, load_function(path)

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs of the next step."""
        if self._kind == ".pt2":
            outputs, self.state = self._function(inputs, self.state)  # type: ignore[bad-assignment]
            return outputs
        outputs, *after = self._function(inputs, *self.state.values())
        if self._kind == ".pte":  # the runtime writes into the same memory at every step
            outputs, after = outputs.clone(), [tensor.clone() for tensor in after]
        self.state = dict(zip(self.state, after, strict=True))
        return outputs


def _example(model: Any, rows: int, length: int, sides: Sequence[int] | None) -> dict[str, Tensor]:
    """Random inputs by name. The first row is whole; others are padded on the right, the last of three on the left."""
    inputs, random = model.config.input_options, torch.Generator().manual_seed(0)
    name = INPUTS[model.config.input_name].argument
    if name == "pixel_values":
        size = rows, inputs.get("channels", 3), *(sides or ())
        return {name: torch.randn(*size, generator=random, device="cpu")}
    pairs = _reads_pairs(model)
    length = max(length, 1 + (pairs or isinstance(model, LagwiseForPrediction)))
    length = length if model.length_limit is None else min(length, model.length_limit)
    if isinstance(model, LagwiseForPrediction):
        x = torch.randn(rows, length * model.patch, 1 + rows, generator=random, device="cpu")
        return {"past_values": x.masked_fill(x > 1.5, float("nan"))}
    if name == "input_ids":
        inputs_by_name = {name: _random_ids(model, length, rows)}
    else:
        size = length * inputs.get("stride", 1), inputs.get("features", 1)
        x = torch.randn(rows, *size, generator=random, device="cpu")
        if inputs.get("time") is not None:
            x[..., 0] = inputs["time"] * x[..., 0].abs()
        inputs_by_name = {name: x}
    if isinstance(model, LagwiseForCausalLM):
        return inputs_by_name
    lengths = torch.randint(1 + pairs, length + 1, (rows, 1), generator=random, device="cpu")
    lengths[0] = length
    position = torch.arange(length, device="cpu").expand(rows, -1)
    if rows > 2:
        position = torch.cat([position[:-1], position[-1:] - length + lengths[-1:]])
    inputs_by_name["attention_mask"] = ((position >= 0) & (position < lengths)).long()
    if pairs or getattr(model.config, "type_vocab_size", 0):
        inputs_by_name["token_type_ids"] = (position >= lengths // 2).long()
    return inputs_by_name


def _open_axes(model: Any, name: str) -> dict[int, Any]:
    """The axes of an input that a graph leaves open."""
    stride, some = model.config.input_options.get("stride", 1), torch.export.Dim.DYNAMIC
    if name == "pixel_values":
        return {0: some}
    if name == "past_values":
        patches = torch.export.Dim("patches", min=1)
        return {0: some, 1: model.patch * patches if model.patch > 1 else some, 2: some}
    if stride == 1:
        return {0: some, 1: some}
    length = torch.export.Dim("length", min=1)
    return {0: some, 1: stride * length if name == "input_values" else length}


def _reads_pairs(model: Any) -> bool:
    return bool(getattr(model, "reads_pairs", False) or getattr(getattr(model, "features", None), "pairs", False))


def _random_ids(model: LagwiseForCausalLM, length: int, batch: int = 1) -> Tensor:
    """Return random ids in which every second stretch repeats the one before it, so that matches occur."""
    generator = torch.Generator().manual_seed(0)
    length = length if model.length_limit is None else min(length, model.length_limit)
    ids = torch.randint(model.config.vocab_size, (batch, length), generator=generator, device="cpu")
    position = torch.arange(length, device="cpu")
    return ids[:, position - _STRETCH * (position // _STRETCH % 2)]


def _difference(ours: Tensor, expected: Tensor, mask: Tensor | None = None) -> float:
    """The largest difference of an output from the model's, relative to the largest number; at real tokens only."""
    if mask is not None:
        real = mask.bool().repeat_interleave(expected.shape[1] // mask.shape[1], 1)
        ours, expected = ours[real], expected[real]
    largest = expected.abs().max()  # 0 where a linear model without a bias finds none of its features
    return float((ours - expected).abs().max() / torch.where(largest > 0, largest, 1))


def _checked(path: Path, tokens: int, differences: Sequence[float], tolerance: float) -> dict[str, Any]:
    """Figures of a comparison. For a larger difference, remove the file and raise ValueError."""
    wrong = [each for each in differences if not each <= tolerance]
    if wrong:
        path.unlink()
        raise ValueError(
            f"outputs of the exported file differ from the model's by {wrong[0]:.1e} of the largest, more than "
            f"{tolerance:g}; the file was removed"
        )
    return {"checked_tokens": tokens, "difference": max(differences)}


EXPORTS: dict[str, Callable[..., dict[str, Any]]] = {"forward": export_forward, "step": export_step}
