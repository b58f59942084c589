"""Another signal while the samples of a signal arrive."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lagwise.models.signal_regression import LagwiseForSignalRegression
from lagwise.models.signal_stream import SignalStream


class StreamingRegressor(SignalStream):
    """Gives the output signal of a `LagwiseForSignalRegression` while its input is recorded, sample by sample or in
    chunks of any size::

        stream = StreamingRegressor(model.eval())
        for samples in source:               # (n, features), n >= 0, NaN where a sample is missing
            play(stream.push(samples))       # (m, outputs), for the samples that follow those before
        play(stream.finish())                # for the last samples

    The outputs, put together, are those for the whole signal at once, up to rounding: one for every sample, in order.
    ``push`` gives that of a sample ``latency`` samples after it at most: the model's delay, and what is left of a step.

    Args:
        model: A causal model in evaluation mode, whose weights must not change. Memory is bounded if its mixers stream
            in constant memory, as for `StreamingClassifier`.
        chunk: Largest number of steps to compute at once, which bounds the memory of a long push.

    Raises:
        ValueError: For another kind of model, one that is bidirectional or in training mode, or one with a limit of
            length.
    """

    what = "a streaming regressor"
    takes_gaps = True

    def __init__(self, model: Any, *, chunk: int = 4096):
        if not isinstance(model, LagwiseForSignalRegression):
            raise ValueError(f"model must be a LagwiseForSignalRegression, got {type(model).__name__}")
        self.delay = model.outputs.delay
        super().__init__(model, chunk=chunk)

    def reset(self) -> None:
        """Start again: the next sample is the first of a signal."""
        super().reset()
        self._cache = self.model.model.new_cache()
        self._before: Tensor | None = None
        self._early = self.delay  # outputs for samples before the first, which are left out
        self._last: Tensor | None = None

    @property
    def latency(self) -> int:
        """Samples from a sample to its output, at most."""
        return self.delay + self.stride - 1

    def finish(self) -> Tensor:
        """The outputs ``(m, outputs)`` of the last samples, whose delay has not passed: the last sample is repeated, as
        by `lagwise predict`. The next push starts another signal."""
        count, last = self.samples, self._waiting[-1:] if len(self._waiting) else self._last
        if last is None:
            return self._nothing()
        given = self._steps * self.stride - self.delay + self._early  # outputs so far
        steps = -(-(count + self.delay) // self.stride)
        made = self._through(last.expand(steps * self.stride - count, -1))[: count - given]
        self.reset()
        return made

    def _step(self, samples: Tensor) -> Tensor:
        y, self._before, _ = self.model.answer(samples[None], self._before, cache=self._cache)
        self._steps += len(samples) // self.stride
        self._last = samples[-1:]
        made, self._early = y[0, self._early :], max(0, self._early - len(samples))
        return made

    def _nothing(self) -> Tensor:
        return self._waiting.new_zeros(0, self.model.outputs.features)


@torch.inference_mode()
def whole_output(model: LagwiseForSignalRegression, samples: Tensor) -> Tensor:
    """The outputs ``(n, outputs)`` of a whole signal ``(n, features)``, one for every sample; the last sample is
    repeated until the delay has passed."""
    outputs = model.outputs
    steps = -(-(len(samples) + outputs.delay) // outputs.stride)
    more = samples[-1:].expand(steps * outputs.stride - len(samples), -1)
    y = model(input_values=torch.cat([samples, more])[None]).regression_outputs
    return y[0, outputs.delay : outputs.delay + len(samples)]
