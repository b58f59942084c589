"""Export of models to files for other programs, verified against the model."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.extras import require
from lagwise.files import one_line
from lagwise.mixers.derived import frozen
from lagwise.models.causal_lm import LagwiseForCausalLM
from lagwise.models.step import StreamingStep
from lagwise.tables import known

FORMATS = ("onnx", "pt2")
TOLERANCE = 1e-4  # largest difference of logits, relative to the largest logit
_BEYOND = 65  # checked tokens beyond the size of the longest ring buffer
_MOST_TOKENS = 4096
_STRETCH = 20
_FORWARD_SIZES = ((1, 1), (3, 131), (1, 1000))  # batch and length


def require_format(format: str) -> None:
    """Raise ValueError for an unknown format, or ImportError for missing packages."""
    known(format, FORMATS, "format")
    if format == "onnx":
        require("export", "an ONNX file")


def export_step(model: LagwiseForCausalLM, path: Path) -> dict[str, Any]:
    """Write a language model's `StreamingStep` for one row and check it against the model.

    ONNX: inputs ``token`` (1,) and ``past.NAME`` for every tensor of the state, outputs ``logits`` (1, vocab_size) and
    ``present.NAME``. pt2: ``torch.export.load(path).module()(tokens, state)``. States are zero before the first token.

    Args:
        model: The language model.
        path: File to write; its suffix is the format.

    Returns:
        A dict: ``states`` with their types and shapes; ``checked_tokens``, the number of random tokens compared; and
        ``difference``, the largest difference from the model's logits relative to the largest logit.

    Raises:
        ValueError: If the difference is over 1e-4 (the file is removed), or if the model's state grows with the text.
    """
    step = StreamingStep(model)
    state = step.start(1)
    example = (torch.zeros(1, dtype=torch.long, device="cpu"), state)
    inputs, outputs = ["token", *(f"past.{name}" for name in state)], ["logits", *(f"present.{name}" for name in state)]
    write_program(torch.export.export(step, example, strict=False), path, inputs, outputs)
    run = (onnx_step if path.suffix == ".onnx" else _pt2_step)(path, state)
    layers = list(state.values())[: len(state) - len(step.token_attributes)]
    longest = max((tensor.shape[1] for tensor in layers if tensor.dim() > 1), default=0)
    ids = _random_ids(model, min(longest + _BEYOND, _MOST_TOKENS))
    found = torch.cat([run(token) for token in ids[0].split(1)])
    return {
        "states": {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in state.items()},
        **compared(path, found, model(ids, use_cache=False).logits[0]),
    }


def export_forward(model: LagwiseForCausalLM, path: Path) -> dict[str, Any]:
    """Write a language model's forward pass over whole texts and check it against the model.

    The input is ``input_ids`` (batch, length) of any batch size and length, the output ``logits`` (batch, length,
    vocab_size). There is no mask: pad rows of different lengths on the right, which does not affect earlier tokens. A
    long kernel is a direct convolution, so the cost per token is proportional to the kernel's reach.

    Arguments, results and errors are as in `export_step`, without ``states``. The compared lengths are one token, a
    prime number of tokens and a longer one.
    """
    forward = _Logits(model)
    shapes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    try:
        program = torch.export.export(forward, (_random_ids(model, 48, 2),), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch.export raises many types
        raise ValueError(
            f"the forward pass of this model cannot be exported with a dynamic length ({one_line(error, 200)}); try "
            "its step (`what`='step')"
        ) from error
    write_program(program, path, ["input_ids"], ["logits"])
    run = load_function(path, "input_ids")
    figures: list[dict[str, Any]] = []
    for batch, length in _FORWARD_SIZES:
        ids = _random_ids(model, length, batch)
        try:
            found = run(ids)
        except Exception as error:  # from another library, or from a guard
            path.unlink()
            raise ValueError(
                f"the exported file fails for {batch} texts of {length} tokens ({one_line(error, 200)}); it was removed"
            ) from error
        figures.append(compared(path, found.flatten(0, 1), model(ids, use_cache=False).logits.flatten(0, 1)))
    return together(figures)


class _Logits(nn.Module):
    """A language model as a function of token ids."""

    def __init__(self, model: LagwiseForCausalLM):
        super().__init__()
        self.model = frozen(model)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids, use_cache=False).logits


def write_program(program: torch.export.ExportedProgram, path: Path, inputs: list[str], outputs: list[str]) -> None:
    """Write a graph to a file, .onnx or .pt2. ValueError where ONNX lacks an operation of the model."""
    if path.suffix != ".onnx":
        torch.export.save(program, path)
        return
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")
        try:
            made = torch.onnx.export(program, input_names=inputs, output_names=outputs, verbose=False)
        except Exception as error:  # torch.onnx raises many types
            cause = one_line(error.__cause__ or error, 200)
            raise ValueError(f"this model cannot be exported to ONNX ({cause}); try `format`='pt2'") from error
    assert made is not None
    made.save(path)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Suppress a logger's warnings, such as that torchvision is missing."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _onnx_session(path: Path) -> Any:
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def onnx_step(path: Path, state: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """Load an exported ONNX step, as a function from a token to logits that keeps the state."""
    session = _onnx_session(path)
    values = {f"past.{name}": tensor.numpy() for name, tensor in state.items()}

    def run(token: Tensor) -> Tensor:
        logits, *after = session.run(None, {"token": token.numpy(), **values})
        values.update(zip(values, after, strict=True))
        return torch.from_numpy(logits)

    return run


def _pt2_step(path: Path, state: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
    module = torch.export.load(path).module()
    held = [state]

    def run(token: Tensor) -> Tensor:
        logits, held[0] = module(token, held[0])
        return logits

    return run


def load_function(path: Path, name: str) -> Any:
    """Load an exported file as a function of its only input, of this name."""
    if path.suffix != ".onnx":
        return torch.export.load(path).module()
    session = _onnx_session(path)
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def _random_ids(model: LagwiseForCausalLM, length: int, batch: int = 1) -> Tensor:
    """Ids of which every second stretch repeats the one before it, so that matches occur."""
    generator = torch.Generator().manual_seed(0)
    length = length if model.length_limit is None else min(length, model.length_limit)
    ids = torch.randint(model.config.vocab_size, (batch, length), generator=generator, device="cpu")
    place = torch.arange(length)
    return ids[:, place - _STRETCH * (place // _STRETCH % 2)]


def compared(path: Path, found: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> dict[str, Any]:
    """How far logits of a file are from the model's. ValueError, and no file, for a larger difference."""
    difference = float((found - expected).abs().max() / expected.abs().max())
    if not difference <= tolerance:
        path.unlink()
        raise ValueError(
            f"logits of the exported file differ from the model's by {difference:.1e} of the largest, more than "
            f"{tolerance:g}; the file was removed"
        )
    return {"checked_tokens": len(expected), "difference": difference}


def together(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Several results of `compared` as one."""
    return {
        "checked_tokens": sum(each["checked_tokens"] for each in figures),
        "difference": max(each["difference"] for each in figures),
    }


EXPORTS: dict[str, Callable[[LagwiseForCausalLM, Path], dict[str, Any]]] = {
    "forward": export_forward,
    "step": export_step,
}
