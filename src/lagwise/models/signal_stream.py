"""What the streams of signals share: samples come in chunks of any size, and the model reads them in whole steps."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from lagwise.models.offload import require_loaded
from lagwise.tables import check_integer


class SignalStream:
    """Reads a signal while it is recorded. Abstract: subclasses implement `_step` and `_nothing`, and `reset` their
    own state.

    Args:
        model: A causal model of real values, in evaluation mode, whose weights must not change.
        chunk: Largest number of steps to compute at once, which bounds the memory of a long push.

    Raises:
        ValueError: For a model that is bidirectional or in training mode, or that has a limit of length.
    """

    #: what it is, for messages
    what: ClassVar[str]
    #: whether samples may be missing (NaN); otherwise where the model was trained with gaps
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
        self.takes_gaps = self.takes_gaps or model.config.takes_gaps
        self.reset()

    def reset(self) -> None:
        """Start again: the next sample is the first of a signal."""
        weight = next(self.model.parameters())
        kind = torch.promote_types(weight.dtype, torch.float32)  # the model standardises samples before it rounds them
        self._waiting = weight.new_zeros(0, self.features, dtype=kind)  # samples of the incomplete step
        self._steps = 0

    @property
    def samples(self) -> int:
        """Samples pushed so far."""
        return self._steps * self.stride + len(self._waiting)

    @torch.inference_mode()
    def push(self, samples: Any) -> Tensor:
        """Process the next samples.

        Args:
            samples: ``(n, features)``, or ``(n,)`` or one number for a single feature; n may be 0.

        Returns:
            The outputs of the steps that these samples complete, perhaps none.

        Raises:
            ValueError: For samples of another shape, for infinite ones, and for NaN where samples may not be missing;
                the stream is then unchanged.
        """
        x = torch.as_tensor(samples, dtype=self._waiting.dtype, device=self._waiting.device)
        if self.features == 1 and x.dim() < 2:
            x = x.reshape(-1, 1)
        if x.dim() != 2 or x.shape[1] != self.features:
            raise ValueError(f"samples must be (n, features={self.features}), got {tuple(x.shape)}")
        if self.takes_gaps and x.isinf().any():
            raise ValueError("samples have infinite values; push NaN where a sample is missing")
        if not self.takes_gaps and not x.isfinite().all():
            raise ValueError("samples have NaN or infinite values; fill the gap, or reset the stream after it")
        x = torch.cat([self._waiting, x])
        whole = len(x) - len(x) % self.stride
        self._waiting = x[whole:].clone()
        parts = [self._step(part) for part in x[:whole].split(self._most() * self.stride) if len(part)]
        return torch.cat(parts) if parts else self._nothing()

    def _most(self) -> int:
        """Largest number of steps to compute at once."""
        return self.chunk

    def _step(self, samples: Tensor) -> Tensor:
        """The outputs of whole steps, which it adds to `_steps`."""
        raise NotImplementedError

    def _nothing(self) -> Tensor:
        """The outputs of no steps."""
        raise NotImplementedError
