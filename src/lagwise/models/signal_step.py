"""One step of a signal as a function of tensors, for export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lagwise.mixers.state import named_tensors, rebuilt
from lagwise.models.signal_regression import LagwiseForSignalRegression
from lagwise.models.signal_stream import SignalStream, StreamingClassifier, StreamingRegressor
from lagwise.models.step import StreamingStep


class SignalStep(StreamingStep):
    """``(samples, state) -> (outputs, state)``: one step of a `StreamingClassifier` or `StreamingRegressor`.

    Shapes: samples ``(stride, features)``, NaN where one is missing, of a model that takes gaps; outputs
    ``(classes,)``, the probabilities of a classifier, or ``(stride, outputs)`` of a regressor, of whose first ``delay``
    there is no sample; state as in `StreamingStep`, for one row.

    Args:
        model: A model that streams.

    Raises:
        ValueError: As the streams and `StreamingStep`; for samples with times of their own, whose steps differ in
            length, and for a first answer, alone or beside layers.
    """

    def __init__(self, model: Any):
        stream = stream_of(model)
        if stream.timed:
            raise ValueError("a step of fixed shapes needs equally spaced samples, not samples with times of their own")
        if getattr(stream, "_fixed", None) is not None:
            raise ValueError(
                "a first answer, alone or beside layers, has no step of fixed shapes; train a model without one"
            )
        super().__init__(model)
        self.stream: Any = stream_of(self.model)

    @torch.no_grad()
    def start(self, batch_size: int = 1) -> dict[str, Tensor]:
        self.stream.reset()
        return {**super().start(batch_size), **self._carried()}

    def forward(self, samples: Tensor, state: Mapping[Any, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        stream, tensors = self.stream, list(state.values())
        stream.reset()
        self._fill(stream._cache, rebuilt(self._tree, iter(tensors)))
        own = tensors[len(tensors) - len(stream.carried) :]
        vars(stream).update(zip(stream.carried, own, strict=True), _early=0)
        outputs = stream._step(samples)
        return outputs.reshape(self.shape), {
            **dict(named_tensors(self._cached_states(stream._cache))),
            **self._carried(),
        }

    @property
    def output(self) -> str:
        """Name of the outputs."""
        return "outputs" if isinstance(self.stream, StreamingRegressor) else "probabilities"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the outputs of a step."""
        stream = self.stream
        return (stream.stride, stream.size) if isinstance(stream, StreamingRegressor) else (stream.size,)

    def _carried(self) -> dict[str, Tensor]:
        return {name.strip("_"): getattr(self.stream, name) for name in self.stream.carried}


def stream_of(model: Any) -> SignalStream:
    """The stream of a model of signals. ValueError for another model, and for one that does not stream."""
    return (StreamingRegressor if isinstance(model, LagwiseForSignalRegression) else StreamingClassifier)(model)


def outputs_of_steps(model: Any, samples: Tensor) -> Tensor:
    """The stream's outputs for samples ``(steps * stride, features)``, those before the first sample included:
    ``(steps * outputs of a step, size)``."""
    stream = stream_of(model)
    vars(stream).update(_early=0)
    return stream.push(samples)
