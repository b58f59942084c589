"""Image classifiers that mix over the grid of patches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageClassification

from lagwise.models import LagwiseConfig, LagwiseForImageClassification, LagwiseModel
from lagwise.training import load_recipe

KERNEL = {"name": "rpe", "layers": 1, "hidden": 8}
AXES = {"rows": {"name": "ema", "dimension": 4}, "columns": {"name": "toeplitz", "kernel": KERNEL}}
MIXERS: dict[str, dict[str, Any]] = {
    "TNN": {"name": "gtu2d", "expansion": 2, "kernel": KERNEL},
    "FD-TNN": {"name": "gtu2d", "expansion": 2, "kernel": {**KERNEL, "name": "frequency", "grid": 16}},
    "SKI-TNN": {"name": "gtu2d", "expansion": 2, "kernel": {"name": "warped"}, "engine": {"name": "ski", "rank": 3}},
    "grid": {"name": "grid", **AXES},
}
every_mixer = pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)


def make(mixer: dict[str, Any], **fields: Any) -> LagwiseForImageClassification:
    torch.manual_seed(0)
    config = LagwiseConfig(
        inputs={"name": "patches", "channels": 1, "size": 2},
        block={"name": "prenorm", "token_mixer": mixer},
        **{"hidden_size": 8, "num_hidden_layers": 2, "causal": False, "num_labels": 2, **fields},
    )
    return LagwiseForImageClassification(config)


def stripes(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Images of noise and two-pixel stripes, horizontal (0) or vertical (1)."""
    labels = torch.arange(16) % 2
    wave = [((torch.arange(n) // 2) % 2).float() for n in (height, width)]
    lying, standing = wave[0][:, None].expand(height, width), wave[1].expand(height, width)
    pictures = torch.where(labels[:, None, None] == 0, lying, standing) + 0.1 * torch.randn(16, height, width)
    return pictures[:, None], labels


@pytest.mark.covers("TNN §4.2")
@every_mixer
def test_an_image_classifier_learns_and_loads(mixer: dict, tmp_path: Path) -> None:
    """It is trained on one size, saved, and used with another."""
    model = make(mixer)
    pixels, labels = stripes(12, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(pixel_values=pixels, labels=labels).loss
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path)
    others, labels = stripes(16, 20)
    logits = loaded(pixel_values=others).logits
    assert torch.equal(logits, model(pixel_values=others).logits)
    assert (logits.argmax(1) == labels).float().mean() > 0.8


@every_mixer
def test_images_of_several_sizes_in_one_batch(mixer: dict) -> None:
    """Padded on the right and below, with a mask over the patches."""
    model = make(mixer).double().eval()
    sizes = ((3, 5), (1, 4), (3, 1), (2, 2))
    pictures = [torch.randn(1, 1, 2 * height, 2 * width, dtype=torch.float64) for height, width in sizes]
    batch, mask = torch.zeros(4, 1, 6, 10, dtype=torch.float64), torch.zeros(4, 3, 5, dtype=torch.long)
    for i, (picture, (height, width)) in enumerate(zip(pictures, sizes, strict=True)):
        batch[i, :, : 2 * height, : 2 * width] = picture[0]
        mask[i, :height, :width] = 1
    together = model(pixel_values=batch, attention_mask=mask.flatten(1)).logits
    alone = torch.cat([model(pixel_values=picture).logits for picture in pictures])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)


def test_an_image_classifier_exports() -> None:
    model, pixels = make(MIXERS["SKI-TNN"], num_hidden_layers=1).model.eval(), torch.randn(2, 1, 8, 12)
    exported = torch.export.export(model, (), {"pixel_values": pixels}, strict=False).module()
    expected = model(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(exported(pixel_values=pixels)["last_hidden_state"], expected, rtol=1e-4, atol=1e-5)


def test_a_kernels_limit_applies_to_each_axis() -> None:
    model = make({"name": "gtu2d", "kernel": {"name": "free", "max_length": 6}})
    assert model.model.length_limit is None
    assert model(pixel_values=torch.randn(1, 1, 12, 12)).logits.isfinite().all()  # 36 patches
    with pytest.raises(ValueError, match="coefficients for 6 tokens, got a sequence of 7"):
        model(pixel_values=torch.randn(1, 1, 12, 14))


def test_grids_need_images_and_two_sided_mixers() -> None:
    block = {"name": "prenorm", "token_mixer": {"name": "gtu2d"}}
    model = LagwiseModel(LagwiseConfig(hidden_size=8, num_hidden_layers=1, block=block, causal=False))
    with pytest.raises(ValueError, match="give pictures"):
        model(torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="causal=False"):
        LagwiseModel(LagwiseConfig(hidden_size=8, num_hidden_layers=1, block=block))


def test_other_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="reads patches"):
        LagwiseForImageClassification(LagwiseConfig(causal=False))
    with pytest.raises(ValueError, match="'signed_pair' is for pairs of texts"):
        make(MIXERS["grid"], pooling="signed_pair")
    assert make(MIXERS["grid"], classifier_hidden_size=6).hidden[0].weight.shape == (6, 8)


@pytest.mark.covers("TNN §4.2 and table 6")
@pytest.mark.parametrize(("recipe", "size"), [("tnn-deit-tiny", 6_408_232), ("tnn-deit-small", 23_373_544)])
def test_the_published_models_have_the_published_sizes(recipe: str, size: int) -> None:
    """TNN table 6: 6.4M and 23.4M parameters."""
    fields = load_recipe(recipe).model
    with torch.device("meta"):
        model = LagwiseForImageClassification(LagwiseConfig(**fields, causal=False, num_labels=1000))
    assert sum(p.numel() for p in model.parameters()) == size
