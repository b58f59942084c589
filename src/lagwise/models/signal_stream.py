"""Base class of signal streams: samples come in chunks of any size, and the model reads them in whole steps."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lagwise.models.offload import require_loaded
from lagwise.tables import check_integer


class SignalStream:
    """Base class that feeds a model a signal while it is recorded. Subclasses implement `_step` and `_nothing`, and
    extend `reset`.

    Args:
        model: A causal model of real values, in evaluation mode, whose weights must not change.
        chunk: Largest number of steps to compute at once, which bounds the memory of a long push.

    Raises:
        ValueError: For a model that is bidirectional or in training mode, or that has a limit of length.
    """

    #: noun used in error messages
    what: ClassVar[str]
    #: whether samples may be missing (NaN), also for a model that was not trained with gaps
    takes_gaps: bool = False

    def __init__(self, model: Any, *, chunk: int = 4096):
        if not model.config.causal:
            raise ValueError("only causal models stream; this one has causal=False")
        if model.config.input_name != "values":
            raise ValueError(f"the model must read real values, this one reads {model.config.input_name}")
        require_loaded(model, self.what)
        if model.training:
            raise ValueError("the model is in training mode; call model.eval() first")
        if model.length_limit is not None:
            raise ValueError(f"the model takes at most {model.length_limit} steps, but a stream is unbounded")
        self.model = model
        self.chunk = check_integer("chunk", chunk)
        inputs = model.config.inputs if isinstance(model.config.inputs, dict) else {}
        self.features: int = inputs.get("features", 1)
        self.stride: int = inputs.get("stride", 1)
        self.timed = inputs.get("time") is not None
        self.takes_gaps = self.takes_gaps or model.config.takes_gaps
        self.reset()

    def reset(self) -> None:
        """Start again: the next sample is the first of a signal."""
        weight = next(self.model.parameters())
        kind = torch.promote_types(weight.dtype, torch.float32)  # the model standardises samples before it rounds them
        self._waiting = weight.new_zeros(0, self.features, dtype=kind)  # samples of the incomplete step
        self._steps = 0
        self._time: float | None = None  # time of the last sample, if samples have times

    @property
    def samples(self) -> int:
        """Samples pushed so far."""
        return self._steps * self.stride + len(self._waiting)

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
        return torch.as_tensor(numbers, dtype=self._waiting.dtype, device=self._waiting.device)

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
        """Outputs of the steps that samples (with their times, if any) complete."""
        x = torch.cat([self._waiting, x])
        whole = len(x) - len(x) % self.stride
        self._waiting = x[whole:].clone()
        parts = [self._step(part) for part in x[:whole].split(self._max_steps() * self.stride) if len(part)]
        return torch.cat(parts) if parts else self._nothing()

    def _max_steps(self) -> int:
        """Maximum number of steps to compute at once."""
        return self.chunk

    def _step(self, samples: Tensor) -> Tensor:
        """Compute the outputs of whole steps, and add their number to `_steps`."""
        raise NotImplementedError

    def _nothing(self) -> Tensor:
        """Empty outputs, for no steps."""
        raise NotImplementedError
