"""Image classifiers that mix over the grid of patches."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForImageClassification

from lagwise.models import LagwiseConfig, LagwiseForImageClassification, LagwiseModel
from lagwise.models.presets import PRESETS
from lagwise.training import load_recipe

KERNEL = {"name": "rpe", "layers": 1, "hidden": 8}
AXES = {"rows": {"name": "ema", "dimension": 4}, "columns": {"name": "toeplitz", "kernel": KERNEL}}
MIXERS: dict[str, dict[str, Any]] = {
    "TNN": {"name": "gtu2d", "expansion": 2, "kernel": KERNEL},
    "FD-TNN": {"name": "gtu2d", "expansion": 2, "kernel": {**KERNEL, "name": "frequency", "grid": 16}},
    "SKI-TNN": {"name": "gtu2d", "expansion": 2, "kernel": {"name": "warped"}, "engine": {"name": "ski", "rank": 3}},
    "grid": {"name": "grid", **AXES},
}
VIT: dict[str, Any] = {"name": "attention", "heads": 1, "position": "none"}
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
    images = torch.where(labels[:, None, None] == 0, lying, standing) + 0.1 * torch.randn(16, height, width)
    return images[:, None], labels


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


@pytest.mark.parametrize("name", [*MIXERS, "ViT"])
def test_images_of_several_sizes_in_one_batch(name: str) -> None:
    """Padded on the right and below, with a mask over the patches."""
    model = make(VIT, position_embedding="sinusoidal_2d") if name == "ViT" else make(MIXERS[name])
    model = model.double().eval()
    sizes = ((3, 5), (1, 4), (3, 1), (2, 2))
    images = [torch.randn(1, 1, 2 * height, 2 * width, dtype=torch.float64) for height, width in sizes]
    batch, mask = torch.zeros(4, 1, 6, 10, dtype=torch.float64), torch.zeros(4, 3, 5, dtype=torch.long)
    for i, (image, (height, width)) in enumerate(zip(images, sizes, strict=True)):
        batch[i, :, : 2 * height, : 2 * width] = image[0]
        mask[i, :height, :width] = 1
    together = model(pixel_values=batch, attention_mask=mask.flatten(1)).logits
    alone = torch.cat([model(pixel_values=image).logits for image in images])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)


def positions(height: int, width: int, **fields: Any) -> Tensor:
    """What `sinusoidal_2d` adds to black images, by row and column."""
    model = make(VIT, position_embedding="sinusoidal_2d", **fields).model
    first = model(pixel_values=torch.zeros(1, 1, 2 * height, 2 * width), output_hidden_states=True).hidden_states[0]
    return first.detach().unflatten(1, (height, width))[0]


def test_positions_on_a_grid_equal_their_formula() -> None:
    found = positions(3, 5, hidden_size=11)  # 5 channels for the row and 6 for the column
    rms = 0.02 * math.sqrt(4)
    for i, j in ((0, 0), (2, 1), (1, 4)):
        row, column = 16 * (i + 0.5) / 3, 16 * (j + 0.5) / 5
        expected = [f(row * 10000 ** (-k / 2)) for f in (math.sin, math.cos) for k in range(2)] + [0.0]
        expected += [f(column * 10000 ** (-k / 3)) for f in (math.sin, math.cos) for k in range(3)]
        torch.testing.assert_close(found[i, j], math.sqrt(2) * rms * torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_positions_are_relative_to_the_sides_and_as_large_as_embeddings() -> None:
    torch.testing.assert_close(positions(12, 9)[1::3, 1::3], positions(4, 3))
    model = make(VIT, position_embedding="sinusoidal_2d", hidden_size=64).model
    embedded = model.embed_tokens(torch.randn(4, 1, 64, 64)).square().mean().sqrt().item()
    assert positions(32, 32, hidden_size=64).square().mean().sqrt().item() == pytest.approx(embedded, rel=0.1)


def test_positions_on_a_grid_need_images() -> None:
    with pytest.raises(ValueError, match="needs inputs 'patches', got 'tokens'"):
        LagwiseConfig(position_embedding="sinusoidal_2d")
    model = make(VIT, position_embedding="sinusoidal_2d").model
    with pytest.raises(ValueError, match=r"'sinusoidal_2d' needs a grid.* give images"):
        model(inputs_embeds=torch.zeros(1, 4, 8))
    with pytest.raises(ValueError, match=r"one image in each row, got packed rows \(seq_idx\)"):
        model(pixel_values=torch.zeros(1, 1, 4, 4), seq_idx=torch.tensor([[0, 0, 1, 1]]))


def test_other_inputs_are_refused() -> None:
    block = {"name": "prenorm", "token_mixer": {"name": "gtu2d"}}
    model = LagwiseModel(LagwiseConfig(hidden_size=8, num_hidden_layers=1, block=block, causal=False))
    with pytest.raises(ValueError, match="give images"):
        model(torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="causal=False"):
        LagwiseModel(LagwiseConfig(hidden_size=8, num_hidden_layers=1, block=block))
    with pytest.raises(ValueError, match="reads patches"):
        LagwiseForImageClassification(LagwiseConfig(causal=False))
    with pytest.raises(ValueError, match="'signed_pair' is for pairs of texts"):
        make(MIXERS["grid"], pooling="signed_pair")
    assert make(MIXERS["grid"], classifier_hidden_size=6).hidden[0].weight.shape == (6, 8)


def parameters(recipe: str, overrides: list[str], labels: int) -> int:
    fields = load_recipe(recipe, overrides).model
    with torch.device("meta"):
        model = LagwiseForImageClassification(LagwiseConfig(**fields, causal=False, num_labels=labels))
    return sum(p.numel() for p in model.parameters())


@pytest.mark.covers("TNN §4.2 and table 6")
@pytest.mark.parametrize(("recipe", "size"), [("tnn-deit-tiny", 6_408_232), ("tnn-deit-small", 23_373_544)])
def test_the_published_models_have_the_published_sizes(recipe: str, size: int) -> None:
    """TNN table 6: 6.4M and 23.4M parameters."""
    assert parameters(recipe, [], 1000) == size


def test_the_words_have_the_documented_sizes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "images.md").read_text()
    rows = re.findall(r"^\| `(.+)` \| .+ \| (.+)M \| (\d+) \|$", page, re.MULTILINE)
    assert {row[0] for row in rows} == set(PRESETS)
    base = parameters("tnn-cifar", [], 10)
    for word, millions, width in rows:
        assert f"{parameters('tnn-cifar', [f'model={word}'], 10) / 1e6:.2f}" == millions
        equal = parameters("tnn-cifar", [f"model={word}", f"model.hidden_size={width}"], 10)
        assert equal == pytest.approx(base, rel=0.02)
    assert round(parameters("tnn-deit-tiny", ["model=tnn"], 1000) / 1e4) == 616
