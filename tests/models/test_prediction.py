"""Forecasting models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lagwise import LagwiseConfig, LagwiseForPrediction
from lagwise.models.configuration import SINGLE

NAN = float("nan")


def tiny(**changes: Any) -> LagwiseForPrediction:
    torch.manual_seed(0)
    inputs = {"name": "values", "features": 8}
    fields = {"inputs": inputs, "hidden_size": 8, "num_hidden_layers": 1, "prediction_length": 3, "causal": False}
    return LagwiseForPrediction(LagwiseConfig(**{**fields, **changes})).eval()


def past(batch: int = 2, length: int = 16, channels: int = 3) -> torch.Tensor:
    return torch.randn(batch, length, channels, generator=torch.Generator().manual_seed(0), device="cpu").to(
        torch.get_default_device()
    )


def test_outputs_have_the_format_of_patchtst() -> None:
    x, future = past(), torch.randn(2, 3, 3)
    out = tiny()(past_values=x, future_values=future)
    assert out.prediction_outputs.shape == (2, 3, 3)
    torch.testing.assert_close(out.loss, (out.prediction_outputs - future).square().mean())
    torch.testing.assert_close(out.loc, x.mean(1, keepdim=True))
    torch.testing.assert_close(out.scale, (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt())
    assert tiny()(past_values=x, future_values=future, return_dict=False)[0].shape == ()
    assert all(tiny(pooling=each)(past_values=x).prediction_outputs.shape == (2, 3, 3) for each in SINGLE)


def test_forecasts_are_equivariant_to_level_and_scale_and_channels_are_independent() -> None:
    model, x = tiny().double(), past().double()
    plain = model(past_values=x).prediction_outputs
    torch.testing.assert_close(
        model(past_values=1000 * x + 7).prediction_outputs, 1000 * plain + 7, rtol=1e-3, atol=1e-2
    )
    torch.testing.assert_close(model(past_values=x[:, :, 1:2]).prediction_outputs, plain[:, :, 1:2])


def test_series_far_from_zero_lose_no_precision() -> None:
    """In float32 a million has 4 fractional bits: sixteenths are exact, but their sums are not."""
    model, x = tiny(), (past(length=64) * 16).round() / 16
    future = torch.zeros(2, 3, 3)
    near, far = model(past_values=x, future_values=future), model(past_values=x + 1e6, future_values=future + 1e6)
    torch.testing.assert_close(far.scale, near.scale)
    torch.testing.assert_close(far.loss, near.loss)
    torch.testing.assert_close(far.prediction_outputs - 1e6, near.prediction_outputs, rtol=0, atol=0.04)
    wide = model(past_values=x.double() + 1e6).prediction_outputs
    assert wide.dtype == torch.float64
    torch.testing.assert_close((wide - 1e6).float(), near.prediction_outputs)


def test_missing_values_have_no_effect() -> None:
    model, x = tiny(), past()
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(1), device="cpu").to(x.device) < 0.7
    masked = model(past_values=x.masked_fill(~mask, 99.0), past_observed_mask=mask)
    nan = model(past_values=x.masked_fill(~mask, NAN))
    torch.testing.assert_close(masked.prediction_outputs, nan.prediction_outputs)
    assert not torch.allclose(masked.prediction_outputs, model(past_values=x).prediction_outputs)
    assert model(past_values=torch.full((1, 5, 1), NAN)).prediction_outputs.isfinite().all()


def test_a_short_past_equals_one_with_a_missing_start() -> None:
    model, x = tiny(), past(length=14)
    padded = torch.cat([torch.full((2, 2, 3), NAN), x], dim=1)
    torch.testing.assert_close(model(past_values=x).prediction_outputs, model(past_values=padded).prediction_outputs)


def test_missing_targets_are_not_scored() -> None:
    model, x, future = tiny(), past(), torch.randn(2, 3, 3)
    future[0, 1] = NAN
    out = model(past_values=x, future_values=future)
    kept = ~future.isnan()
    torch.testing.assert_close(out.loss, (out.prediction_outputs - future)[kept].square().mean())
    out.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"past_values": torch.zeros(2, 4)}, "past_values must be"),
        ({"past_values": past(), "past_observed_mask": torch.ones(2, 16)}, "past_observed_mask must be"),
        ({"past_values": past(), "future_values": torch.zeros(2, 4, 3)}, "future_values must be"),
        ({"past_values": past() / 0}, "past_values has infinite values"),
    ],
)
def test_wrong_inputs(given: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny()(**given)


def test_wrong_configurations() -> None:
    with pytest.raises(ValueError, match="forecasts need inputs 'values'"):
        tiny(inputs="tokens")
    with pytest.raises(ValueError, match="two features"):
        tiny(inputs={"name": "values", "features": 3})
    with pytest.raises(ValueError, match="prediction_length must be"):
        tiny(prediction_length=0)
