"""Class probabilities while the samples of a signal arrive."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lagwise.models.classification import LagwiseForSequenceClassification
from lagwise.models.linear.modeling import LinearModel
from lagwise.models.signal_stream import SignalStream
from lagwise.models.token_classification import LagwiseForTokenClassification

_LINEAR_CHUNK = 64  # steps where each has features of fixed convolutions, ten thousand of a linear model


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
    (``problem_type="multi_label_classification"``) each has a probability of its own.

    Args:
        model: A causal model of real values, in evaluation mode, whose weights must not change. Memory is bounded if
            the model's mixers stream in constant memory: moving averages, dilated convolutions, kernels with an end or
            as state spaces (`LagwisePreTrainedModel.to_recurrent`), attention in chunks.
        chunk: Largest number of steps to compute at once, which bounds the memory of a long push.

    Raises:
        ValueError: For another kind of model, one that is bidirectional or in training mode, or one with a limit of
            length.

    >>> from lagwise.models import LagwiseConfig, LagwiseForSequenceClassification
    >>> inputs = {"name": "values", "features": 2}
    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, num_labels=3, inputs=inputs)
    >>> stream = StreamingClassifier(LagwiseForSequenceClassification(config).eval())
    >>> stream.push(torch.randn(5, 2)).shape  # five samples, three classes
    torch.Size([5, 3])
    """

    what = "a streaming classifier"

    def __init__(self, model: Any, *, chunk: int = 4096):
        if not isinstance(model, LagwiseForTokenClassification | LagwiseForSequenceClassification | LinearModel):
            raise ValueError(
                "model must be a LagwiseForTokenClassification or LagwiseForSequenceClassification, or a linear model "
                f"of series, got {type(model).__name__}"
            )
        self.is_linear = isinstance(model, LinearModel)
        super().__init__(model, chunk=chunk)
        if model.config.problem_type == "regression":
            raise ValueError("the model must predict classes, this one is of problem_type 'regression'")

    def reset(self) -> None:
        """Start again: the next sample is the first of a signal."""
        super().reset()
        linear: Any = self.model
        self._fixed: Any = linear.features if self.is_linear else getattr(self.model, "wide", None)
        self._state: Any = None if self._fixed is None else self._fixed.start(1)
        self._cache = None if self.is_linear else self.model.model.new_cache()
        weight = self.model.classifier.weight
        wide = torch.float32 if weight.device.type == "mps" else torch.float64  # a sum of 10^7 steps stays exact enough
        self._pooled = weight.new_zeros(1, 0 if self.is_linear else self.model.config.hidden_size, dtype=wide)

    def _most(self) -> int:
        return self.chunk if self._fixed is None else min(self.chunk, _LINEAR_CHUNK)

    def _nothing(self) -> Tensor:
        return self.model.classifier.weight.new_zeros(0, self.model.num_labels)

    def _step(self, samples: Tensor) -> Tensor:
        """Probabilities ``(steps, classes)`` of whole steps."""
        fixed: Any = None
        if self._fixed is not None:
            (fixed,), self._state = self._fixed.step(samples[None], self._state)
        if self.is_linear:
            self._steps += len(fixed)
            return self._probabilities(self.model.classifier(fixed))
        out = self.model.model(input_values=samples[None], cache=self._cache, use_cache=True)
        hidden, dtype = out.last_hidden_state[0], self.model.classifier.weight.dtype
        if isinstance(self.model, LagwiseForSequenceClassification):
            logits = self.model.answer(self._pool(hidden), fixed)
        else:
            logits = self.model.classifier(hidden.to(dtype))
        self._steps += len(hidden)
        return self._probabilities(logits)

    def _probabilities(self, logits: Tensor) -> Tensor:
        several = self.model.config.problem_type == "multi_label_classification"
        return logits.sigmoid() if several else logits.softmax(-1)

    def _pool(self, hidden: Tensor) -> Tensor:
        """The pooled signal, as in the model's head, up to each of these steps."""
        pooling = self.model.config.pooling
        if pooling == "last":
            return hidden
        if pooling in ("first", "ends"):
            self._pooled = hidden[:1].to(self._pooled) if self._steps == 0 else self._pooled
            first = self._pooled.to(hidden).expand(len(hidden), -1)
            return first if pooling == "first" else torch.cat([first, hidden], dim=-1)
        total = self._pooled + hidden.to(self._pooled.dtype).cumsum(0)
        self._pooled = total[-1:].clone()
        count = torch.arange(self._steps + 1, self._steps + len(hidden) + 1, device=hidden.device)
        return (total / count[:, None].to(total)).to(hidden)
