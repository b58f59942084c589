"""Export of linear models to files for other programs, verified against the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lagwise.files import one_line
from lagwise.models.export import compared, load_function, together, write_program
from lagwise.models.linear.modeling import LinearModel

TOLERANCE = 1e-3  # largest difference of logits, relative to the largest logit
_SIZES = ((1, 40), (3, 131))  # rows and lengths of the inputs that are compared


def export_linear(model: LinearModel, path: Path) -> dict[str, Any]:
    """Write a linear model to a file, .onnx or .pt2, as a function of whole rows. The input is the model's, of any
    batch size, without padding, and of any length (images of the size in training); the output is ``logits`` (batch,
    labels).

    Returns ``input``, its name; ``checked_tokens``, the number of random samples, bytes or pixels compared; and
    ``difference``, the largest difference from the model's logits relative to the largest logit.

    ValueError for a model of pairs of texts, if the file's logits differ (it is removed), and where the format lacks an
    operation of the model.
    """
    if getattr(model.features, "pairs", False):
        raise ValueError("a first answer of pairs of texts cannot be exported; lagwise and transformers load it")
    forward, dynamic = _Logits(model), {0: torch.export.Dim.DYNAMIC}
    if model.argument != "pixel_values":
        dynamic[1] = torch.export.Dim.DYNAMIC
    try:
        program = torch.export.export(forward, (_random(model, 2, 50),), dynamic_shapes=(dynamic,), strict=False)
    except Exception as error:  # torch.export raises many types
        raise ValueError(f"this model cannot be exported to {path.suffix} ({one_line(error, 200)})") from error
    write_program(program, path, [model.argument], ["logits"])
    run, figures = load_function(path, model.argument), []
    for rows, size in _SIZES:
        x = _random(model, rows, size)
        figures.append({**compared(path, run(x), forward(x), TOLERANCE), "checked_tokens": x.numel()})
    return {"input": model.argument, **together(figures)}


class _Logits(nn.Module):
    """A linear model as a function of its input alone."""

    def __init__(self, model: LinearModel):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(**{self.model.argument: x}).logits


def _random(model: LinearModel, rows: int, size: int) -> Tensor:
    random = torch.Generator().manual_seed(0)
    if model.argument == "input_ids":
        return torch.randint(model.config.vocab_size, (rows, size), generator=random, device="cpu")
    if model.argument == "input_values":
        return torch.randn(rows, size, model.config.inputs["features"], generator=random, device="cpu")
    return torch.randn(
        rows, model.config.inputs["channels"], *model.config.inputs["image"], generator=random, device="cpu"
    )
