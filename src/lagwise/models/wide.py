"""Linear map of fixed features, fitted as a first answer, that adds to the logits of a classifier's layers."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.embeddings import filled
from lagwise.models.heads import Head
from lagwise.models.linear.convolutions import ConvolutionState
from lagwise.models.linear.modeling import LinearModel, linear_logits, made_features
from lagwise.models.pooling import hidden_layers
from lagwise.tables import check_integer


class Wide(nn.Module):
    """A linear map of fixed features of a row: the n-grams of a text, how often the random convolutions of a series
    exceed thresholds, how much the patches of an image are like those of others.

    Formula: ``W f + b`` with the features f of a first answer: `Ngrams`, `Convolutions` or `Patches`.

    Shapes: x ``(batch, length)`` of token ids, ``(batch, length * stride, channels)`` of samples or ``(batch, channels,
    height, width)`` of pixels; mask ``(batch, length)``, true at tokens or steps of samples, or None; types, of pairs
    of texts, 0 at the first and 1 at the second; result ``(batch, labels)``.

    Args:
        config: Configuration whose ``wide`` has the name and options of the features.

    Source: a "wide" linear model beside a deep one: Cheng et al. 2016, "Wide & Deep Learning for Recommender Systems";
    there both are trained together. Here `joined` takes W and b from a model that was fitted in closed form.
    """

    def __init__(self, config: LagwiseConfig):
        super().__init__()
        inputs = {} if isinstance(config.inputs, str) else config.inputs
        self.features = made_features(config.input_name, inputs, config.vocab_size, config.wide or {})
        self.stride: int = inputs.get("stride", 1)
        self.reads_types: bool = getattr(self.features, "pairs", False)
        self.linear = nn.Linear(self.features.size, check_integer("num_labels", config.num_labels))

    def forward(self, x: Tensor, mask: Tensor | None = None, types: Tensor | None = None) -> Tensor:
        if self.stride > 1:  # exclude zeros with which a collator fills the last step
            real: Tensor | None = filled(x, mask, self.stride)
        else:
            real = None if mask is None else mask.bool()
        options = {name: value for name, value in (("mask", real), ("types", types)) if value is not None}
        with torch.no_grad():
            features = self.features(x, **options)
        return linear_logits(features, self.linear)

    def start(self, batch: int) -> ConvolutionState:
        """The state before a stream's first sample."""
        return self.features.start(batch)

    @torch.no_grad()
    def step(self, samples: Tensor, state: ConvolutionState) -> tuple[Tensor, ConvolutionState]:
        """The result after each of the next steps ``(batch, n * stride, channels)``: ``(batch, n, labels)``; and the
        state after them."""
        features, state = self.features.step(samples, state)
        return linear_logits(features[:, self.stride - 1 :: self.stride], self.linear), state


class WideHead(Head):
    """A classifier of pooled hidden states, to which a first answer's map adds its logits if ``config.wide`` is
    given."""

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        self.num_labels = check_integer("num_labels", config.num_labels)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.hidden, features = hidden_layers(config)
        self.classifier = nn.Linear(features, self.num_labels)
        self.wide = None if config.wide is None else Wide(config)
        self.post_init()

    def beside(
        self, x: Tensor | None, pooled: Tensor, mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor | None:
        """The map's logits of inputs; None without a map. x: None for packed rows, and without inputs. ValueError
        unless they have a row for each pooled one."""
        if self.wide is None:
            return None
        if x is None or x.shape[0] != pooled.shape[0]:
            raise ValueError("a wide part reads inputs with one row for each answer, not packed or embedded ones")
        return self.wide(x, mask, types if self.wide.reads_types else None)

    def answer(self, pooled: Tensor, wide: Tensor | None) -> Tensor:
        """Logits of pooled hidden states, to which those of the map are added (`beside`, or for a stream
        `Wide.step`)."""
        logits = self.classifier(self.hidden(self.dropout(pooled).to(self.classifier.weight.dtype)))
        return logits if wide is None else logits + wide


M = TypeVar("M", bound=WideHead)


@torch.no_grad()
def joined(model: M, first: LinearModel, share: float) -> M:
    """A classifier with the layers of one model and the map of a first answer, on the device and in the dtype of the
    former.

    Formula: ``first(x) + share * model(x)`` of logits; of numbers ``(1 - share) * first(x) + share * model(x)``.

    Both models must be of the same task and data.
    """
    config = copy.deepcopy(model.config)
    config.wide = dict(first.config.features)
    both = type(model)(config).to(device=model.device, dtype=model.dtype)
    both.load_state_dict(model.state_dict(), strict=False)  # the source has no map
    wide: Any = both.wide
    own = dict(wide.features.named_buffers())
    for name, values in first.features.named_buffers():
        # token ids beyond those of the first answer keep zeros
        own[name][tuple(map(slice, values.shape))].copy_(values)
    weight, bias = first.classifier.weight, first.classifier.bias
    if config.problem_type == "regression":  # layers predict standardised numbers
        weight = weight * ((1 - share) / config.label_std)
        bias = (bias - config.label_mean) * ((1 - share) / config.label_std)
    wide.linear.weight.copy_(weight)
    wide.linear.bias.copy_(bias)
    both.classifier.weight.mul_(share)
    both.classifier.bias.mul_(share)
    return both.train(model.training)
