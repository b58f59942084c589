"""Forecasts of series."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput, can_return_tuple

from lagwise.models.configuration import LagwiseConfig
from lagwise.models.heads import Head, pool, pooled_size
from lagwise.ops.operation import surely
from lagwise.tables import check_integer


@dataclass
class LagwisePredictionOutput(ModelOutput):
    """Output with fields as in transformers' `PatchTSTForPredictionOutput`: prediction_outputs ``(batch, horizon,
    channels)``, on the scale of the series; loc and scale ``(batch, 1, channels)``, by which inputs were normalised."""

    loss: Tensor | None = None
    prediction_outputs: Tensor | None = None
    loc: Tensor | None = None
    scale: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class LagwiseForPrediction(Head):
    """Forecasts the next ``config.prediction_length`` steps of series, each channel separately with the same weights.

    A channel is normalised by the mean and deviation of its observed past (Kim et al. 2022), cut into patches of
    consecutive steps, and read by the backbone, one token per patch: the values of its steps, then whether each was
    observed. The patch length is half the ``features`` of ``config.inputs``, which must be ``values``. A past that is
    not a multiple of the patch is padded at its start with missing steps. The forecast is a linear map of the hidden
    states, pooled according to ``config.pooling``.

    Takes past_values ``(batch, length, channels)``; past_observed_mask of the same shape, 0 where a value is missing
    (NaN counts as missing too); and for the loss, the mean squared error on the scale of the series, future_values
    ``(batch, prediction_length, channels)``, NaN where they do not count, and num_items_in_batch, what to divide by
    if it is not the number of these values. Normalisation and forecasts are in the
    precision of past_values, at least float32, whatever that of the weights. ValueError for other shapes and for
    infinite values.

    >>> inputs = {"name": "values", "features": 16}  # patches of 8 steps
    >>> config = LagwiseConfig(hidden_size=8, num_hidden_layers=1, inputs=inputs, prediction_length=24)
    >>> LagwiseForPrediction(config)(torch.randn(2, 96, 3)).prediction_outputs.shape
    torch.Size([2, 24, 3])
    """

    accepts_loss_kwargs = True

    def __init__(self, config: LagwiseConfig):
        super().__init__(config)
        features = getattr(self.model.embed_tokens, "in_features", 0)
        if config.input_name != "values" or features % 2 or self.model.embed_tokens.by_row:
            raise ValueError(
                "forecasts need inputs 'values' with two features for each step of a patch (its value, and whether it "
                f"is observed), got {config.inputs}"
            )
        self.patch = features // 2
        self.horizon = check_integer("prediction_length", config.prediction_length)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.head = nn.Linear(pooled_size(config), self.horizon)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        past_values: Tensor,
        past_observed_mask: Tensor | None = None,
        future_values: Tensor | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> LagwisePredictionOutput:
        self._check(past_values, past_observed_mask, future_values)
        observed = ~past_values.isnan()
        if past_observed_mask is not None:
            observed = observed & past_observed_mask.bool()
        kind = torch.promote_types(past_values.dtype, torch.float32)
        values = past_values.to(kind).masked_fill(~observed, 0)
        count = observed.sum(1, keepdim=True).clamp(min=1)
        # For series far from 0, float32 has few digits left for a mean or a forecast. Differences from a rough mean are
        # used instead, which are exact.
        rough = values.sum(1, keepdim=True) / count
        centred = (values - rough).masked_fill(~observed, 0)
        rest = centred.sum(1, keepdim=True) / count
        centred = (centred - rest).masked_fill(~observed, 0)
        scale = (centred.square().sum(1, keepdim=True) / count + 1e-5).sqrt()
        steps = torch.stack([centred / scale, observed.to(kind)]).transpose(2, 3).flatten(1, 2)  # (2, rows, length)
        steps = nn.functional.pad(steps, (-steps.shape[2] % self.patch, 0))
        tokens = steps.unflatten(2, (-1, self.patch)).permute(1, 2, 0, 3).flatten(2)
        out = self.read(input_values=tokens.to(self.head.weight.dtype), output_hidden_states=output_hidden_states)
        forecast = self.head(self.dropout(pool(out.last_hidden_state, self.config.pooling)))
        forecast = forecast.to(kind).unflatten(0, (past_values.shape[0], -1)).transpose(1, 2) * scale + rest
        loss = None
        if future_values is not None:
            present = ~future_values.isnan()
            errors = (forecast - (future_values - rough)).masked_fill(~present, 0).square()
            loss = errors.sum() / (present.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch)
        return LagwisePredictionOutput(
            loss=loss,
            prediction_outputs=forecast + rough,
            loc=rough + rest,
            scale=scale,
            hidden_states=out.hidden_states,
        )

    def _check(self, past: Tensor, mask: Tensor | None, future: Tensor | None) -> None:
        if past.dim() != 3 or 0 in past.shape:
            raise ValueError(f"past_values must be (batch, length, channels), got {tuple(past.shape)}")
        if mask is not None and mask.shape != past.shape:
            raise ValueError(f"past_observed_mask must be {tuple(past.shape)}, got {tuple(mask.shape)}")
        expected = (past.shape[0], self.horizon, past.shape[2])
        if future is not None and tuple(future.shape) != expected:
            raise ValueError(f"future_values must be {expected}, got {tuple(future.shape)}")
        for name, x in (("past_values", past), ("future_values", future)):
            if x is not None and surely(lambda x=x: x.isinf().any()):
                raise ValueError(f"{name} has infinite values")
