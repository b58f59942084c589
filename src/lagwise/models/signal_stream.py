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
    reads them in whole steps. Subclasses implement `outputs`, and `first` if it needs more than the states of layers.

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
        self._carried, self._steps = self.first(), 0
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
        parts = []
        for part in x[:whole].split(self.chunk * self.stride) if whole else ():
            outputs, self._carried = self.outputs(part, self.cache, self._carried)
            self._steps += len(part) // self.stride
            parts.append(outputs)
        return torch.cat(parts) if parts else x.new_zeros(0, self.size)

    def first(self) -> dict[str, Any]:
        """Make what steps read beside the states of the layers, before the first one."""
        return {}

    def outputs(self, samples: Tensor, cache: Any, carried: Mapping[str, Any]) -> tuple[Tensor, Mapping[str, Any]]:
        """The outputs of whole steps, which continue a cache and what the steps before carried, and what they carry."""
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
        self._pools = isinstance(model, LagwiseForSequenceClassification)
        super().__init__(model, chunk=chunk)
        self.chunk = self.chunk if self._fixed is None else min(self.chunk, _LINEAR_CHUNK)
        if model.config.problem_type == "regression":
            raise ValueError("the model must predict classes, this one is of problem_type 'regression'")

    def first(self) -> dict[str, Any]:
        """The state of fixed features, and the sum of the steps that are pooled, and their number."""
        carried: dict[str, Any] = {} if self._fixed is None else {"fixed": self._fixed.start(1)}
        if self._pools and self.model.config.pooling != "last":
            weight = self.model.classifier.weight
            wide = torch.float32 if weight.device.type == "mps" else torch.float64  # 10^7 steps stay exact enough
            carried["pooled"] = weight.new_zeros(1, self.model.config.hidden_size, dtype=wide)
            carried["count"] = weight.new_zeros(1, dtype=wide)
        return carried

    def outputs(self, samples: Tensor, cache: Any, carried: Mapping[str, Any]) -> tuple[Tensor, Mapping[str, Any]]:
        """Probabilities ``(steps, classes)``."""
        fixed, after = None, dict(carried)
        if self._fixed is not None:
            (fixed,), after["fixed"] = self._fixed.step(samples[None], carried["fixed"])
        if self.is_linear:
            logits = self.model.classifier(fixed)
        else:
            hidden = self.model.model(input_values=samples[None], cache=cache, use_cache=True).last_hidden_state[0]
            if self._pools:
                logits = self.model.answer(self._pool(hidden, after), fixed)
            else:
                logits = self.model.classifier(hidden.to(self.model.classifier.weight.dtype))
        several = self.model.config.problem_type == "multi_label_classification"
        return logits.sigmoid() if several else logits.softmax(-1), after

    def _pool(self, hidden: Tensor, carried: dict[str, Any]) -> Tensor:
        """The pooled signal, as in the model's head, up to each of these steps, which are added to what is carried."""
        pooling = self.model.config.pooling
        if pooling == "last":
            return hidden
        pooled, before = carried["pooled"], carried["count"]
        count = before + torch.arange(1, len(hidden) + 1, device=hidden.device)
        carried["count"] = count[-1:].clone()
        if pooling in ("first", "ends"):
            carried["pooled"] = torch.where(before > 0, pooled, hidden[:1].to(pooled))
            first = carried["pooled"].to(hidden).expand(len(hidden), -1)
            return first if pooling == "first" else torch.cat([first, hidden], dim=-1)
        total = pooled + hidden.to(pooled.dtype).cumsum(0)
        carried["pooled"] = total[-1:].clone()
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
        super().__init__(model, chunk=chunk)

    def reset(self) -> None:
        """Start again: the next sample is the first of a signal."""
        super().reset()
        self._early = self.delay  # outputs to drop, which belong before the first sample
        self._last = self.waiting  # the last sample, if there is one

    @property
    def latency(self) -> int:
        """Samples from a sample to its output, at most."""
        return self.delay + self.stride - 1

    def finish(self) -> Tensor:
        """The outputs ``(m, outputs)`` of the last samples, whose delay has not passed: the last sample is repeated, as
        by `lagwise predict`. The next push starts another signal."""
        count = self.samples
        returned = self._steps * self.stride - self.delay + self._early  # outputs so far
        steps = -(-(count + self.delay) // self.stride) if count else 0
        outputs = self._through(self._last.expand(steps * self.stride - count, -1))[: count - returned]
        self.reset()
        return outputs

    def _through(self, x: Tensor) -> Tensor:
        self._last = x[-1:] if len(x) else self._last
        outputs = super()._through(x)
        early, self._early = self._early, max(0, self._early - len(outputs))
        return outputs[early:]

    def first(self) -> dict[str, Any]:
        """The standardised samples that the windows of later steps reach back to."""
        outputs = self.model.outputs
        if not outputs.window:
            return {}
        return {"before": self.waiting.new_zeros(1, outputs.before, self.features - self.timed)}

    def outputs(self, samples: Tensor, cache: Any, carried: Mapping[str, Any]) -> tuple[Tensor, Mapping[str, Any]]:
        """Output samples ``(samples, outputs)``, those before the first sample included."""
        y, before, _ = self.model.answer(samples[None], carried.get("before"), cache=cache)
        return y[0], {} if before is None else {"before": before}


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
        self.carried = [*self.stream.first()]  # names of states beside those of the layers
        regresses = isinstance(stream, StreamingRegressor)
        self.output = "outputs" if regresses else "probabilities"  # name of the outputs
        self.shape = (stream.stride, stream.size) if regresses else (stream.size,)  # of the outputs of a step

    @torch.no_grad()
    def start(self, batch_size: int = 1) -> dict[str, Tensor]:
        return {**super().start(batch_size), **self.stream.first()}

    def forward(self, samples: Tensor, state: Mapping[Any, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        tensors, cache = iter(state.values()), self.model.model.new_cache()
        cache.states = rebuilt(self._tree, tensors)
        carried = dict(zip(self.carried, tensors, strict=True))
        outputs, carried = self.stream.outputs(samples, cache, carried)
        return outputs.reshape(self.shape), {**dict(named_tensors(tuple(cache.states))), **carried}


def stream_of(model: Any) -> SignalStream:
    """The stream of a model of signals. ValueError for another model, and for one that does not stream."""
    return (StreamingRegressor if isinstance(model, LagwiseForSignalRegression) else StreamingClassifier)(model)


@torch.inference_mode()
def outputs_of_steps(model: Any, samples: Tensor) -> Tensor:
    """The outputs of a stream's first steps for samples ``(steps * stride, features)``, those before the first sample
    included: ``(steps * outputs of a step, size)``."""
    stream = stream_of(model)
    return stream.outputs(samples, stream.cache, stream.first())[0]
