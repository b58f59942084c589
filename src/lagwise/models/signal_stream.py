"""Signals that are read while they are recorded, into class probabilities or another signal; and one step of them as a
function of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lagwise.mixers.state import named_tensors, rebuilt
from lagwise.models.classification import LagwiseForSequenceClassification, LagwiseForTokenClassification
from lagwise.models.layer import require_loaded
from lagwise.models.linear.modeling import LinearModel
from lagwise.models.signal_regression import LagwiseForSignalRegression
from lagwise.models.step import StreamingStep
from lagwise.tables import check_integer

_LINEAR_CHUNK = 64  # steps at once for models with fixed features, ten thousand of them per step


class SignalStream:
    """Base class that feeds a model a signal while it is recorded: samples come in chunks of any size, and the model
    reads them in whole steps. Subclasses implement `_step`, and extend `reset`.

    Args:
        model: A causal model of real values, in evaluation mode, whose weights must not change. Memory is bounded if
            its mixers stream in constant memory: moving averages, dilated convolutions, kernels with an end or as state
            spaces (`LagwisePreTrainedModel.to_recurrent`), attention in chunks.
        chunk: Largest number of steps to compute at once, which bounds the memory of a long push.

    Raises:
        ValueError: For another kind of model, one that is bidirectional or in training mode, or one with a limit of
            length.
    """

    #: whether samples may be missing (NaN), also for a model that was not trained with gaps
    takes_gaps: bool = False
    #: numbers of an output
    size: int
    #: attributes with the tensors that later steps read, beside the states of the layers
    carried: tuple[str, ...] = ()

    def __init__(self, model: Any, *, chunk: int = 4096):
        if not model.config.causal:
            raise ValueError("only causal models stream; this one has causal=False")
        if model.config.input_name != "values":
            raise ValueError(f"the model must read real values, this one reads {model.config.input_name}")
        require_loaded(model, "a stream")
        if model.training:
            raise ValueError("the model is in training mode; call model.eval() first")
        if model.length_limit is not None:
            raise ValueError(f"the model takes at most {model.length_limit} steps, but a stream is unbounded")
        self.model = model
        self.chunk = check_integer("chunk", chunk)
        inputs = model.config.input_options
        self.features: int = inputs.get("features", 1)
        self.stride: int = inputs.get("stride", 1)
        self.timed = inputs.get("time") is not None
        self.takes_gaps = self.takes_gaps or model.config.takes_gaps
        self.reset()

    def reset(self) -> None:
        """Start again: the next sample is the first of a signal."""
        #: states of the layers after the last whole step; none of a first answer
        self.cache: Any = None if isinstance(self.model, LinearModel) else self.model.model.new_cache()
        weight = next(self.model.parameters())
        kind = torch.promote_types(weight.dtype, torch.float32)  # the model standardises samples before it rounds them
        #: samples of the incomplete step, ``(n, features)``
        self.waiting = weight.new_zeros(0, self.features, dtype=kind)
        self._steps = 0
        self._time: float | None = None  # time of the last sample, if samples have times

    @property
    def samples(self) -> int:
        """Samples pushed so far."""
        return self._steps * self.stride + len(self.waiting)

    def push(self, samples: Any, times: Any = None) -> Tensor:
        """Process the next samples.

        Args:
            samples: ``(n, features)``, or ``(n,)`` or one number for a single feature; n may be 0.
            times: Times of the samples, ``(n,)`` or one number, in the unit of the training data; only for a model of
                samples with times.

        Returns:
            The outputs of the steps that these samples complete, perhaps none.

        Raises:
            ValueError: For samples of another shape, for infinite ones, for NaN where samples may not be missing, and
                for times that do not increase; the stream is then unchanged.
        """
        x, features = self._values(samples), self.features - self.timed
        if features == 1 and x.dim() < 2:
            x = x.reshape(-1, 1)
        if x.dim() != 2 or x.shape[1] != features:
            raise ValueError(f"samples must be (n, features={features}), got {tuple(x.shape)}")
        if self.takes_gaps and x.isinf().any():
            raise ValueError("samples have infinite values; push NaN where a sample is missing")
        if not self.takes_gaps and not x.isfinite().all():
            raise ValueError("samples have NaN or infinite values; fill the gap, or reset the stream after it")
        if self.timed or times is not None:
            since = self._since(times, len(x))
            x = torch.cat([self._values(since)[:, None], x], 1)
            self._time = self._time if not len(since) else float(np.reshape(times, -1)[-1])
        return self._through(x)

    def _values(self, numbers: Any) -> Tensor:
        return torch.as_tensor(numbers, dtype=self.waiting.dtype, device=self.waiting.device)

    def _since(self, times: Any, count: int) -> np.ndarray:
        """The time of each sample since the one before, 0 for the first of the signal."""
        if not self.timed:
            raise ValueError("times are for a model of samples with times of their own, which this one is not")
        if times is None:
            raise ValueError("the model reads samples with times; give those of these samples, as push(samples, times)")
        times = np.asarray(times, dtype=np.float64).reshape(-1)
        if len(times) != count:
            raise ValueError(f"times must be those of {count} samples, got {len(times)}")
        first = times[:1] if self._time is None else [self._time]
        since = np.diff(times, prepend=first if count else times)
        if not np.isfinite(times).all() or (since[self._time is None :] <= 0).any():
            raise ValueError("times must be finite and increase from sample to sample")
        return since

    @torch.inference_mode()
    def _through(self, x: Tensor) -> Tensor:
        """Compute outputs of the steps that samples (with their times, if any) complete."""
        x = torch.cat([self.waiting, x])
        whole = len(x) - len(x) % self.stride
        self.waiting = x[whole:].clone()
        parts = [self._step(part) for part in x[:whole].split(self.chunk * self.stride) if len(part)]
        return torch.cat(parts) if parts else x.new_zeros(0, self.size)

    def _step(self, samples: Tensor) -> Tensor:
        """Compute the outputs of whole steps, and add their number to `_steps`."""
        raise NotImplementedError


class StreamingClassifier(SignalStream):
    """Classifies a signal while it is recorded, sample by sample or in chunks of any size.

    ``push`` returns the model's probabilities for every step that the new samples complete. They equal those for the
    whole signal at once, up to rounding::

        stream = StreamingClassifier(model.eval())
        for samples in source:                          # (n, features), n >= 0
            for probabilities in stream.push(samples):  # (classes,), one for each step of `stride` samples
                ...

    A first answer of series (`LagwiseLinearForSequenceClassification`) streams too. With a
    `LagwiseForTokenClassification` these are the probabilities of the step; with a
    `LagwiseForSequenceClassification` those of the signal up to and including the step. Of several labels
    (``problem_type="multi_label_classification"``) each has a probability of its own. Arguments and errors are those of
    `SignalStream`.

    >>> from lagwise.models import LagwiseConfig, LagwiseForSequenceClassification
    >>> inputs = {"name": "values", "features": 2}
    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, num_labels=3, inputs=inputs)
    >>> stream = StreamingClassifier(LagwiseForSequenceClassification(config).eval())
    >>> stream.push(torch.randn(5, 2)).shape  # five samples, three classes
    torch.Size([5, 3])
    """

    def __init__(self, model: Any, *, chunk: int = 4096):
        if not isinstance(model, LagwiseForTokenClassification | LagwiseForSequenceClassification | LinearModel):
            raise ValueError(
                "model must be a LagwiseForTokenClassification or LagwiseForSequenceClassification, or a linear model "
                f"of series, got {type(model).__name__}"
            )
        self.is_linear, self.size = isinstance(model, LinearModel), model.num_labels
        self._fixed: Any = model.features if self.is_linear else getattr(model, "wide", None)
        if isinstance(model, LagwiseForSequenceClassification) and model.config.pooling != "last":
            self.carried = ("_pooled", "_count")
        super().__init__(model, chunk=chunk)
        self.chunk = self.chunk if self._fixed is None else min(self.chunk, _LINEAR_CHUNK)
        if model.config.problem_type == "regression":
            raise ValueError("the model must predict classes, this one is of problem_type 'regression'")

    def reset(self) -> None:
        """Start again: the next sample is the first of a signal."""
        super().reset()
        self._state: Any = None if self._fixed is None else self._fixed.start(1)
        weight = self.model.classifier.weight
        wide = torch.float32 if weight.device.type == "mps" else torch.float64  # a sum of 10^7 steps stays exact enough
        self._pooled = weight.new_zeros(1, 0 if self.is_linear else self.model.config.hidden_size, dtype=wide)
        self._count = weight.new_zeros(1, dtype=wide)  # steps that are pooled

    def _step(self, samples: Tensor) -> Tensor:
        """Compute probabilities ``(steps, classes)`` of whole steps."""
        fixed: Any = None
        if self._fixed is not None:
            (fixed,), self._state = self._fixed.step(samples[None], self._state)
        if self.is_linear:
            logits = self.model.classifier(fixed)
        else:
            out = self.model.model(input_values=samples[None], cache=self.cache, use_cache=True)
            hidden = out.last_hidden_state[0]
            if isinstance(self.model, LagwiseForSequenceClassification):
                logits = self.model.answer(self._pool(hidden), fixed)
            else:
                logits = self.model.classifier(hidden.to(self.model.classifier.weight.dtype))
        self._steps += len(logits)
        several = self.model.config.problem_type == "multi_label_classification"
        return logits.sigmoid() if several else logits.softmax(-1)

    def _pool(self, hidden: Tensor) -> Tensor:
        """The pooled signal, as in the model's head, up to each of these steps."""
        pooling = self.model.config.pooling
        if pooling == "last":
            return hidden
        count = self._count + torch.arange(1, len(hidden) + 1, device=hidden.device)
        began, self._count = self._count > 0, count[-1:].clone()
        if pooling in ("first", "ends"):
            self._pooled = torch.where(began, self._pooled, hidden[:1].to(self._pooled))
            first = self._pooled.to(hidden).expand(len(hidden), -1)
            return first if pooling == "first" else torch.cat([first, hidden], dim=-1)
        total = self._pooled + hidden.to(self._pooled.dtype).cumsum(0)
        self._pooled = total[-1:].clone()
        return (total / count[:, None]).to(hidden)


class StreamingRegressor(SignalStream):
    """Computes the output signal of a `LagwiseForSignalRegression` while its input is recorded, sample by sample or in
    chunks of any size::

        stream = StreamingRegressor(model.eval())
        for samples in source:               # (n, features), n >= 0, NaN where a sample is missing
            play(stream.push(samples))       # (m, outputs), for the samples that follow those before
        play(stream.finish())                # for the last samples

    The outputs, put together, are those for the whole signal at once, up to rounding: one for every sample, in order.
    ``push`` gives that of a sample ``latency`` samples after it at most: the model's delay, and what is left of a step.
    Arguments and errors are those of `SignalStream`.
    """

    takes_gaps = True

    def __init__(self, model: Any, *, chunk: int = 4096):
        if not isinstance(model, LagwiseForSignalRegression):
            raise ValueError(f"model must be a LagwiseForSignalRegression, got {type(model).__name__}")
        self.delay, self.size = model.outputs.delay, model.outputs.features
        self.carried = ("_before",) if model.outputs.window else ()
        super().__init__(model, chunk=chunk)

    def reset(self) -> None:
        """Start again: the next sample is the first of a signal."""
        super().reset()
        outputs, weight = self.model.outputs, next(self.model.parameters())
        before = outputs.before if outputs.window else 0
        self._before = weight.new_zeros(1, before, self.features - self.timed, dtype=self.waiting.dtype)
        self._early = self.delay  # outputs to drop, which belong before the first sample
        self._last: Tensor | None = None

    @property
    def latency(self) -> int:
        """Samples from a sample to its output, at most."""
        return self.delay + self.stride - 1

    def finish(self) -> Tensor:
        """The outputs ``(m, outputs)`` of the last samples, whose delay has not passed: the last sample is repeated, as
        by `lagwise predict`. The next push starts another signal."""
        count, last = self.samples, self.waiting[-1:] if len(self.waiting) else self._last
        if last is None:
            return self.waiting.new_zeros(0, self.size)
        returned = self._steps * self.stride - self.delay + self._early  # outputs so far
        steps = -(-(count + self.delay) // self.stride)
        outputs = self._through(last.expand(steps * self.stride - count, -1))[: count - returned]
        self.reset()
        return outputs

    def _step(self, samples: Tensor) -> Tensor:
        y, before, _ = self.model.answer(samples[None], self._before, cache=self.cache)
        self._before = self._before if before is None else before
        self._steps += len(samples) // self.stride
        self._last = samples[-1:]
        outputs, self._early = y[0, self._early :], max(0, self._early - len(samples))
        return outputs


@torch.inference_mode()
def whole_output(model: LagwiseForSignalRegression, samples: Tensor) -> Tensor:
    """The outputs ``(n, outputs)`` of a whole signal ``(n, features)``, one for every sample; the last sample is
    repeated until the delay has passed."""
    outputs = model.outputs
    steps = -(-(len(samples) + outputs.delay) // outputs.stride)
    more = samples[-1:].expand(steps * outputs.stride - len(samples), -1)
    y = model(input_values=torch.cat([samples, more])[None]).regression_outputs
    return y[0, outputs.delay : outputs.delay + len(samples)]


class SignalStep(StreamingStep):
    """``(samples, state) -> (outputs, state)``: one step of a `StreamingClassifier` or `StreamingRegressor`.

    Shapes: samples ``(stride, features)``, NaN where one is missing, of a model that takes gaps; outputs
    ``(classes,)``, the probabilities of a classifier, or ``(stride, outputs)`` of a regressor, of whose first ``delay``
    there is no sample; state as in `StreamingStep`, for one row.

    ValueError as the streams and `StreamingStep`; for samples with times of their own, whose steps differ in length,
    and for a first answer, alone or beside layers.
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
        regresses = isinstance(stream, StreamingRegressor)
        self.output = "outputs" if regresses else "probabilities"  # name of the outputs
        self.shape = (stream.stride, stream.size) if regresses else (stream.size,)  # of the outputs of a step

    @torch.no_grad()
    def start(self, batch_size: int = 1) -> dict[str, Tensor]:
        self.stream.reset()
        return {**super().start(batch_size), **self._carried()}

    def forward(self, samples: Tensor, state: Mapping[Any, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        stream, tensors = self.stream, list(state.values())
        stream.reset()
        stream.cache.states = rebuilt(self._tree, iter(tensors))
        own = tensors[len(tensors) - len(stream.carried) :]
        vars(stream).update(zip(stream.carried, own, strict=True), _early=0)
        outputs = stream._step(samples)
        return outputs.reshape(self.shape), {**dict(named_tensors(tuple(stream.cache.states))), **self._carried()}

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
