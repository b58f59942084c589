"""Regression of a signal from a signal, such as denoising."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init
from transformers.utils.generic import ModelOutput, can_return_tuple

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.embeddings import ValueInput, check_scale
from lagwise.models.heads import Head
from lagwise.models.pretrained import is_loaded
from lagwise.tables import build, check_integer

_FLOOR = 1e-4  # added to the power of a filter before the logarithm, in standardised units
_LEVELS = 4.0  # divisor of the logarithm of powers, which gives values as large as standardised samples


@dataclass
class LagwiseSignalOutput(ModelOutput):
    """Output of `LagwiseForSignalRegression`, named as in transformers' `PatchTSTForRegressionOutput`:
    regression_outputs ``(batch, samples, outputs)``."""

    loss: Tensor | None = None
    regression_outputs: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class SignalOutputs(nn.Module):
    """The output samples of every step: the inputs through a filter bank whose gains follow the hidden states, and a
    linear map of the hidden states.

    Formula: for output j of step t, with the standardised samples ``u_{t,i}`` of feature i in the window of step t and
    the hidden state ``h_t``,

        ``y_{t,j} = S sum_i (a_{t,i,j} * A u_{t,i}) + C_j h_t + c_j``

    with the gains ``a_{t,i,j} = 2 sigmoid(G_{i,j} h_t + g_{i,j})``, less 1 where i and j differ. A has a pair of
    filters for each of ``window / 2`` frequencies, which share a gain, and S gives the samples of the step. They begin
    as Fourier transforms: with G and g of 0, output i is feature i, delayed. The powers of the filters
    are an input of the model: ``P log(power + 1e-4)`` is added to the embedding of each step. This is a filter bank
    summation (Allen & Rabiner 1977) with learned filters; gains on filtered input are those of Conv-TasNet (Luo &
    Mesgarani 2019). Without a window there are only C and c; as the last norm of a model takes their level from hidden
    states, outputs that grow with the inputs need a window, or a model without that norm.

    The window of a causal model ends with the last sample of the step; that of a two-sided one is centred. Before the
    first sample it has zeros.

    Args:
        hidden_size: Channels of the model.
        features: Number of outputs for every sample.
        delay: Samples between a sample and its output; a causal model reads them first.
        window: Samples of a filter, at least the stride and the delay together; 0 for no filters.
        mean: Mean of each output, by which it is shifted.
        std: Standard deviation of each output, by which it is scaled.
        inputs: Input layer of the model.
        causal: Whether the model is causal.

    Raises:
        ValueError: For options out of range.
    """

    def __init__(
        self,
        hidden_size: int,
        *,
        inputs: ValueInput,
        causal: bool,
        features: int = 1,
        delay: int = 0,
        window: int = 0,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ):
        super().__init__()
        self.features = check_integer("features", features)
        self.delay, self.window = check_integer("delay", delay, min=0), check_integer("window", window, min=0)
        check_scale(features, mean, std, "outputs", "outputs.")
        if delay and not causal:
            raise ValueError(f"a two-sided model reads later samples without a delay, got outputs.delay={delay}")
        self.mean, self.std, self.stride = mean, std, inputs.stride
        self.direct = nn.Linear(hidden_size, features * self.stride)
        self.bands = -(-window // 2)
        if not window:
            return
        if window < self.stride + delay:
            raise ValueError(
                f"outputs.window must be 0 or at least stride + delay = {self.stride + delay}, got {window}"
            )
        # samples of the window before the step, and after it
        self.before = window - self.stride if causal else (window - self.stride) // 2
        self.after = window - self.stride - self.before
        self.analysis = nn.Parameter(torch.empty(2 * self.bands, window))
        self.synthesis = nn.Parameter(torch.empty(2 * self.bands, self.stride))
        self.gain = nn.Linear(hidden_size, features * inputs.in_features // self.stride * self.bands)
        self.power = nn.Linear(inputs.in_features // self.stride * self.bands, hidden_size, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the filters to windowed cosines and sines of evenly spaced frequencies, and their inverse."""
        if not self.window:
            return
        kind = torch.float64
        index = torch.arange(self.window, dtype=kind)
        at = self.before + torch.arange(self.stride, dtype=kind) - self.delay  # indices of the outputs in the window
        middle, half = self.before + self.stride / 2 - self.delay, self.stride / 2

        def weight(index: Tensor) -> Tensor:
            rise, fall = middle + half, self.window - middle + half
            away = torch.where(index < middle, (middle - index) / rise, (index - middle) / fall)
            return torch.cos(math.pi / 2 * away).square()

        angles = math.pi * (torch.arange(self.bands, dtype=kind) + 0.5) / self.bands
        waves = [torch.cat([(angles[:, None] * x).cos(), (angles[:, None] * x).sin()]) for x in (index, at)]
        self.analysis.copy_(waves[0] * weight(index) / self.bands**0.5)
        self.synthesis.copy_(waves[1] / weight(at) / self.bands**0.5)

    def filtered(self, z: Tensor) -> Tensor:
        """The filters' outputs ``(batch, steps, inputs, 2 bands)`` of standardised samples with those around them,
        ``(batch, before + steps * stride + after, inputs)``."""
        frames = z.unfold(1, self.window, self.stride)
        return F.linear(frames.to(self.analysis.dtype), self.analysis)

    def levels(self, filtered: Tensor) -> Tensor:
        """The embeddings ``(batch, steps, hidden_size)`` of the powers of the filters, added to those of the steps."""
        pairs = filtered.unflatten(-1, (2, self.bands))
        pairs = pairs.to(torch.promote_types(pairs.dtype, torch.float32))
        power = pairs.square().sum(-2).add(_FLOOR).log() / _LEVELS
        return self.power(power.flatten(2).to(self.power.weight.dtype))

    def forward(self, hidden: Tensor, filtered: Tensor | None) -> Tensor:
        """Return output samples ``(batch, steps * stride, outputs)``, in at least float32."""
        y = self.direct(hidden).unflatten(-1, (self.features, self.stride))
        if filtered is not None:
            pairs = filtered.unflatten(-1, (2, self.bands))
            gain = 2 * self.gain(hidden).sigmoid().unflatten(-1, (self.features, pairs.shape[2], self.bands))
            gain = gain - 1 + torch.eye(*gain.shape[2:4], dtype=gain.dtype, device=gain.device)[..., None]
            # An einsum over i, as a matrix product for each frequency: generators of C code do not know einsums.
            passed = gain.permute(0, 1, 4, 2, 3) @ pairs.permute(0, 1, 4, 2, 3)
            y = y + passed.permute(0, 1, 3, 4, 2).flatten(-2) @ self.synthesis
        y = y.transpose(2, 3).flatten(1, 2)
        y = y.to(torch.promote_types(y.dtype, torch.float32))
        if self.std is not None:
            y = y * y.new_tensor(self.std)
        return y if self.mean is None else y + y.new_tensor(self.mean)


class LagwiseForSignalRegression(Head):
    """Regresses output samples for every sample of a signal: the signal without noise, with its gaps filled, or the
    signal of another sensor.

    ``config.inputs`` must be ``values``; ``config.outputs`` has the options of `SignalOutputs`. Output sample n is the
    estimate for sample ``n - delay``: of the first ``delay`` outputs there is none. A causal model answers with the
    last sample of a step of ``stride`` samples, so the estimate of a sample comes at most ``delay + stride - 1``
    samples after it. `StreamingRegressor` gives the outputs while the samples arrive.

    Takes input_values ``(batch, samples, features)`` in whole steps, NaN where a sample is missing: it then counts as
    the mean, and a learned vector for each missing sample is added to the embedding of its step; states of mixers go on
    as for any other step. attention_mask is ``(batch, steps)``, and labels ``(batch, samples, outputs)``, NaN where
    they do not count, already delayed as the outputs are. The loss is the mean squared error over the outputs'
    deviations. ValueError for infinite values and other shapes.

    >>> inputs = {"name": "values", "features": 2}
    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, inputs=inputs, outputs={"features": 1})
    >>> LagwiseForSignalRegression(config)(torch.randn(3, 100, 2)).regression_outputs.shape
    torch.Size([3, 100, 1])
    """

    accepts_loss_kwargs = False

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        inputs: Any = self.model.embed_tokens
        if not isinstance(inputs, ValueInput):
            raise ValueError(f"signals need inputs 'values', got {config.inputs!r}")
        if inputs.by_row:
            raise ValueError("inputs by_row is for classes of series, not for signals, whose outputs have a scale")
        if config.scale_embeddings:
            raise ValueError("scale_embeddings is for tokens, not for signals")
        self.missing = nn.Linear(inputs.in_features, config.hidden_size, bias=False)
        self.dropout = nn.Dropout(config.classifier_dropout)
        options = {"name": "signal", **(config.outputs or {})}
        self.outputs = build(
            {"signal": SignalOutputs},
            options,
            config.hidden_size,
            what="outputs",
            inputs=inputs,
            causal=config.causal,
        )
        if (config.rate != 1 or inputs.timed) and (self.outputs.delay or self.outputs.window):
            subject = "samples with times of their own need" if inputs.timed else f"rate {config.rate:g} needs"
            raise ValueError(f"{subject} outputs without a delay and a window, which count samples")
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, SignalOutputs) and not is_loaded(module):
            module.reset_parameters()
        elif isinstance(module, nn.Linear) and any(module is each for each in (self.missing, self.outputs.direct)):
            init.zeros_(module.weight)

    @can_return_tuple
    def forward(
        self,
        input_values: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> LagwiseSignalOutput:
        y, _, out = self.answer(input_values, None, attention_mask, output_hidden_states=output_hidden_states)
        loss = None
        if labels is not None:
            if labels.shape != y.shape:
                raise ValueError(f"labels must be {tuple(y.shape)}, got {tuple(labels.shape)}")
            present = ~labels.isnan()
            errors = (y - labels).masked_fill(~present, 0)
            if self.outputs.std is not None:
                errors = errors / errors.new_tensor(self.outputs.std)
            loss = errors.square().sum() / present.sum().clamp(min=1)
        return LagwiseSignalOutput(loss=loss, regression_outputs=y, hidden_states=out.hidden_states)

    def answer(
        self, input_values: Tensor, before: Tensor | None, attention_mask: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None, Any]:
        """Return output samples, the standardised samples that the windows of later steps reach back to, and the output
        of the backbone.

        before: those samples of the part of the signal before, None for its beginning. options: of the backbone, such
        as a cache.
        """
        inputs: Any = self.model.embed_tokens
        missing = inputs.values(input_values).isnan()
        times, values = input_values[..., : inputs.timed], inputs.values(input_values).masked_fill(missing, 0)
        inputs.check(torch.cat([times, values], -1), self.config)
        z = inputs.standardized(input_values).masked_fill(missing, 0)
        if attention_mask is not None:
            z = z.masked_fill(~attention_mask.bool().repeat_interleave(inputs.stride, 1)[..., None], 0)
        h = inputs.steps(z) + self.missing(
            missing.to(self.missing.weight.dtype).unflatten(1, (-1, inputs.stride)).flatten(2)
        )
        filtered = None
        if self.outputs.window:
            earlier = z.new_zeros(z.shape[0], self.outputs.before, z.shape[2]) if before is None else before
            z = F.pad(torch.cat([earlier, z], 1), (0, 0, 0, self.outputs.after))
            filtered = self.outputs.filtered(z)
            h = h + self.outputs.levels(filtered).to(h.dtype)
            before = z[:, z.shape[1] - self.outputs.before :].clone()
        options = {"use_cache": options.get("cache") is not None, **options}
        if inputs.timed:
            options["token_time"] = inputs.token_time(input_values)
        out = self.model(inputs_embeds=h, attention_mask=attention_mask, return_dict=True, **options)
        hidden = self.dropout(out.last_hidden_state).to(self.outputs.direct.weight.dtype)
        return self.outputs(hidden, filtered), before, out
