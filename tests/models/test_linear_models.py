"""Linear models of fixed features: the features, against plain references; masks, streams, and saved folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

from lagwise.data import load_tokenizer, spellings
from lagwise.models import (
    LagwiseLinearConfig,
    LagwiseLinearForImageClassification,
    LagwiseLinearForSequenceClassification,
    load_model,
)
from lagwise.models.export import export_forward
from lagwise.models.linear import convolutions as convolutions_module
from lagwise.models.linear.convolutions import KERNELS, Convolutions
from lagwise.models.linear.ngrams import Ngrams
from lagwise.models.linear.patches import Patches
from lagwise.ops import dilated_convolution

TEXTS = ["The Cat  sat, the\ncat", "Ünïcode ÉTÉ где МОСКВА 東京タワー 😀 x", "x", "so so so"]


def series(channels: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(n, channels) for n in (50, 61, 40, 9, 1)]


def convolutions(channels: int, rows: list[torch.Tensor]) -> Convolutions:
    options = Convolutions.plan([len(row) for row in rows], total=24)
    made = Convolutions(channels, **options, levels=3, mean=[0.1] * channels, std=[2.0] * channels)
    made.prepare(rows, 0)
    return made


@pytest.mark.parametrize("channels", [1, 2, 12])
def test_features_are_shares_of_dilated_convolutions_over_thresholds(channels: int) -> None:
    rows = series(channels)
    made = convolutions(channels, rows)
    taps = torch.full((KERNELS, 9), -1.0)
    triples = torch.combinations(torch.arange(9), 3)
    taps[torch.arange(KERNELS)[:, None], triples] = 2
    z = torch.nn.functional.pad((rows[1] - 0.1) / 2, (0, 1))
    expected = []
    start = 0
    for index, (dilation, count) in enumerate(zip(made.dilations, made.thresholds, strict=True)):
        summed = z[:, made.chosen[index]].sum(2)
        y = dilated_convolution(summed[None], taps, dilation)[0]
        for kernel in range(KERNELS):
            first = 8 * dilation if (kernel + index) % 2 else 0
            own = made.biases[kernel, start : start + count]
            expected.append((y[first:, kernel, None] > own).sum(0) / max(1, len(y) - first))
        start += count
    levels = z[:, :-1] @ made.signs
    expected += list((levels[..., None] > made.level_biases).float().mean(0))
    found = made(rows[1][None])[0]
    assert found.shape == (made.size,)
    torch.testing.assert_close(found, torch.cat(expected), atol=0.03, rtol=0)  # a tie may fall to either side
    assert (found - torch.cat(expected)).abs().mean() < 1e-4


@pytest.mark.parametrize("channels", [1, 2, 12])
def test_many_samples_are_counted_as_few(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel by kernel, with few comparisons at once, and all at once."""
    made = convolutions(channels, series(channels))
    x, mask = torch.randn(7, 60, channels), torch.rand(7, 1) * 60 > torch.arange(60)
    expected = made(x), made(x, mask), made(x, mask.flip(1))
    for at_once in (200, 1 << 17):
        monkeypatch.setattr(convolutions_module, "_FEW", 0)
        monkeypatch.setattr(convolutions_module, "_COMPARISONS", at_once)
        for found, own in zip((made(x), made(x, mask), made(x, mask.flip(1))), expected, strict=True):
            assert torch.equal(found, own)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("left", [False, True])
def test_padding_of_series_has_no_effect(channels: int, left: bool) -> None:
    rows = series(channels)
    made = convolutions(channels, rows)
    x, mask = torch.full((len(rows), 70, channels), 7.0), torch.zeros(len(rows), 70, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(70 - len(row), 70) if left else slice(0, len(row))
        x[i, place], mask[i, place] = row, True
    torch.testing.assert_close(made(x, mask), torch.cat([made(row[None]) for row in rows]), rtol=0, atol=1e-7)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_stream_has_exactly_the_features_of_the_series_so_far(channels: int) -> None:
    rows = series(channels)
    made = convolutions(channels, rows)
    for sizes in ([1] * 61, [1, 7, 30, 23]):
        state, found = made.start(1), []
        for part in rows[1].split(sizes):
            features, state = made.step(part[None], state)
            found.append(features[0])
        streamed = torch.cat(found)
        for n in (1, 2, 9, 40, 61):
            torch.testing.assert_close(streamed[n - 1], made(rows[1][None, :n])[0], rtol=0, atol=1e-7)


def byte_rows(texts: list[str], tokenizer: object = None) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [list(text.encode()) if tokenizer is None else tokenizer(text)["input_ids"] for text in texts]  # type: ignore
    ids = torch.zeros(len(rows), max(map(len, rows)) + 3, dtype=torch.long)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for own, real, row in zip(ids, mask, rows, strict=True):
        own[: len(row)], real[: len(row)] = torch.tensor(row), True
    return ids, mask


def test_ngrams_are_those_of_scikit_learn() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    ids, mask = byte_rows(TEXTS)
    own = spellings(load_tokenizer("bytes"))
    rows = {"input_ids": ids, "attention_mask": mask}
    options, made = Ngrams.chosen(own, [rows], words=2, characters=[2, 3], pairs=False, min_rows=1)
    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\b\w+\b", binary=True)
    characters = TfidfVectorizer(analyzer="char", ngram_range=(2, 3), binary=True)
    expected = [words.fit_transform(TEXTS), characters.fit_transform([f" {' '.join(text.split())} " for text in TEXTS])]
    assert options["kept"] == [each.shape[1] for each in expected]
    found = made(ids, mask)
    for i in range(len(TEXTS)):
        of_words = found.numbers[i] < options["kept"][0]
        for chosen, theirs in zip((of_words, ~of_words), expected, strict=True):
            values = found.values[i][chosen]
            values = np.sort(values[values > 0].cpu().numpy())
            np.testing.assert_allclose(values, np.sort(theirs[i].data), atol=1e-5)


def test_ngrams_do_not_depend_on_the_tokenizer() -> None:
    tokenizer = load_tokenizer("bpe", vocab_size=300, texts=iter(TEXTS * 5))
    found = []
    for own, (ids, mask) in (
        (spellings(load_tokenizer("bytes")), byte_rows(TEXTS)),
        (spellings(tokenizer), byte_rows(TEXTS, tokenizer)),
    ):
        rows = {"input_ids": ids, "attention_mask": mask}
        _, made = Ngrams.chosen(own, [rows], words=2, characters=[2, 5], pairs=False, min_rows=1)
        features = made(ids, mask)
        dense = torch.zeros(len(TEXTS), made.size).scatter_add(1, features.numbers, features.values)
        found.append(dense)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("texts", "start", "options"),
    [
        (["good filmgood film", "good filma bad one"], 9, {"words": 1, "characters": []}),
        (["so so so so sofar so so", "b so so so so a so a so"], 14, {"words": 2, "characters": [1, 2]}),  # repetitions
    ],
)
def test_a_pair_has_features_of_either_text_of_both_their_difference_and_cosine(
    texts: list[str], start: int, options: dict[str, Any]
) -> None:
    ids, mask = byte_rows(texts)
    types = (torch.arange(ids.shape[1]) >= start).long().expand_as(ids)
    own = spellings(load_tokenizer("bytes"))
    rows = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    _, made = Ngrams.chosen(own, [rows], **options, pairs=True, min_rows=1)
    found = made(ids, mask, types)
    dense = torch.zeros(2, made.size).scatter_add(1, found.numbers, found.values)
    first, second, both, apart = dense[:, :-2].unflatten(1, (4, made.count)).unbind(1)
    assert (both > 0).any()
    torch.testing.assert_close(both, first * second)
    torch.testing.assert_close(apart, (first - second).abs())
    if options["words"] == 1:
        torch.testing.assert_close(dense[:, -2], torch.tensor([4.0, 0.0]))
        torch.testing.assert_close(dense[:, -2], 4 * (first * second).sum(1))
    with pytest.raises(ValueError, match="token_type_ids"):
        made(ids, mask)


def test_patches_are_pooled_thresholded_products() -> None:
    torch.manual_seed(0)
    images = torch.randn(20, 3, 9, 8)
    made = Patches(3, side=3, filters=5, regions=2)
    made.prepare(images, 0)
    patch = images[0, :, 2:5, 1:4].flatten()
    patch = patch - patch.mean()
    patch = patch / (patch.square().mean() + 0.1).sqrt() - made.centre
    own = made(images[:1, :, 2:5, 1:4])[0]  # an image of one patch: all regions hold it
    likeness = made.filters @ patch
    expected = torch.cat([(s * likeness - made.threshold).clamp(min=0).sqrt() for s in (1, -1)])
    torch.testing.assert_close(own, expected.repeat_interleave(4))
    assert made(images).shape == (20, made.size)
    assert made(torch.randn(1, 3, 40, 30)).shape == (1, made.size)
    with pytest.raises(ValueError, match="at least 3 pixels"):
        made(torch.randn(1, 3, 2, 8))


@pytest.mark.parametrize("patches", [1, 10, 100])
def test_images_in_bands_have_the_features_of_whole_images(patches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, images = Patches(3, side=3, filters=5, regions=2), torch.randn(4, 3, 9, 8)
    made.prepare(images, 0)
    whole = made(images)
    monkeypatch.setattr("lagwise.models.linear.patches._MAX_PATCHES", patches)
    torch.testing.assert_close(made(images), whole)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_features_of_photos_take_little_memory() -> None:
    """About as much as the libraries that they load: products of all patches of 16 images would take 260 MB each."""
    script = """
import torch
from lagwise.models.linear.patches import Patches
from lagwise.training.linear_fits import _matrix

def peak():  # in kB
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))

batches = [{"pixel_values": torch.randn(20, 3, 256, 256), "labels": torch.zeros(20)} for _ in range(4)]
features, before = Patches(3, side=6, filters=64, regions=3), peak()
features.prepare([image for batch in batches for image in batch["pixel_values"]], 0)
_matrix(features, batches)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 160_000


def test_a_saved_folder_has_no_pickle_and_loads_by_auto_classes(tmp_path: Path, device: torch.device) -> None:
    config = LagwiseLinearConfig(
        features={"name": "patches", "side": 2, "filters": 3, "regions": 2},
        inputs={"name": "patches", "channels": 1},
        num_labels=4,
    )
    model = LagwiseLinearForImageClassification(config).eval()
    model.features.prepare(torch.randn(10, 1, 6, 6), 0)
    torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors", ".py"}
    pixels = torch.randn(2, 1, 6, 6)
    expected = model(pixel_values=pixels, labels=torch.tensor([0, 3]))
    for loaded in (AutoModelForImageClassification.from_pretrained(tmp_path), load_model(tmp_path, device=device)[0]):
        assert type(loaded) is LagwiseLinearForImageClassification
        torch.testing.assert_close(loaded.eval()(pixel_values=pixels).logits, expected.logits)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "features.filters" in file.keys()  # noqa: SIM118
    with pytest.raises(ValueError, match="first answer"):
        load_model(tmp_path, block={"name": "prenorm"})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": torch.zeros(1, 4, dtype=torch.long)}, "reads input_values alone, got input_ids"),
        ({}, "got no input"),
        ({"input_values": torch.zeros(1, 5, 3)}, "features=2"),
        ({"input_values": torch.full((1, 5, 2), torch.nan)}, "NaN or infinite"),
        ({"input_values": torch.zeros(1, 5, 2), "attention_mask": torch.zeros(1, 5)}, "without anything"),
        ({"input_values": torch.zeros(1, 5, 2), "attention_mask": torch.ones(1, 4)}, "attention_mask must be"),
        ({"input_values": torch.zeros(1, 5, 2), "seq_idx": torch.zeros(1, 5)}, "seq_idx"),
    ],
)
def test_wrong_inputs_are_named(inputs: dict[str, torch.Tensor], message: str) -> None:
    config = LagwiseLinearConfig(
        features={"name": "convolutions", "dilations": [1], "thresholds": [1]},
        inputs={"name": "values", "features": 2},
    )
    model = LagwiseLinearForSequenceClassification(config)
    with pytest.raises(ValueError, match=message):
        model(**inputs)


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match="dilations and thresholds"):
        Convolutions(1, dilations=[1, 2], thresholds=[3])
    with pytest.raises(ValueError, match="kept must be"):
        Ngrams(258, kept=[1])
    with pytest.raises(ValueError, match="features must be a mapping"):
        LagwiseLinearConfig(features={"side": 2})
    table = LagwiseLinearConfig(features={"name": "columns", "levels": 3}, inputs={"name": "values", "features": 2})
    with pytest.raises(ValueError, match="unknown features: 'columns'"):
        LagwiseLinearForSequenceClassification(table)
    assert AutoModelForSequenceClassification._model_mapping[LagwiseLinearConfig]


@pytest.mark.slow
def test_loaded_series_without_levels_are_exported(tmp_path: Path) -> None:
    """Tensors without elements, which loading lays into a file's memory, are no parts of each other."""
    options = {"name": "convolutions", "dilations": [1, 2], "thresholds": [1, 1]}
    inputs = {"name": "values", "features": 2}
    LagwiseLinearForSequenceClassification(
        LagwiseLinearConfig(features=options, inputs=inputs, num_labels=3)
    ).save_pretrained(tmp_path)
    model = LagwiseLinearForSequenceClassification.from_pretrained(tmp_path).cpu()
    with torch.no_grad():
        assert export_forward(model.eval(), tmp_path / "series.pt2")["difference"] < 1e-5
