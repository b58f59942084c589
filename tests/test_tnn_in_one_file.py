"""The model of examples/tnn_in_one_file.py is the library's, in values, gradients and streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_docs import script

from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.models.presets import PRESETS

# Names of the library's parameters, and those of the example.
NAMES = {
    "model.embed_tokens": "embedding",
    "model.layers": "blocks",
    "block.token_mixer": "token_mixer",
    "toeplitz.kernel.network": "kernel",
    "block.channels.mixer": "channel_mixer",
}


@pytest.fixture(scope="module")
def example() -> Any:
    return script("tnn_in_one_file", "examples")


@pytest.fixture
def models(example: Any) -> tuple[LagwiseForCausalLM, Any]:
    """The library's model and the example's, with the same weights in float64."""
    torch.manual_seed(0)
    config = LagwiseConfig(vocab_size=256, hidden_size=16, num_hidden_layers=2, **PRESETS["tnn"])
    ours = LagwiseForCausalLM(config).double().eval()
    theirs = example.TNN(vocabulary=256, channels=16, layers=2).double()
    theirs.load_state_dict({renamed(name): value for name, value in ours.state_dict().items() if "lm_head" not in name})
    return ours, theirs


def renamed(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def test_values_and_gradients(models: tuple[LagwiseForCausalLM, Any]) -> None:
    ours, theirs = models
    ids = torch.randint(256, (2, 301))
    logits = ours(ids).logits
    torch.testing.assert_close(theirs(ids), logits, rtol=0, atol=1e-12)
    theirs.loss(ids).backward()
    F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()  # `labels` would use float32
    gradients = {name: each.grad for name, each in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(gradients.pop(renamed(name)), parameter.grad, rtol=1e-9, atol=1e-12)
    assert not gradients


def test_streams(models: tuple[LagwiseForCausalLM, Any]) -> None:
    _, theirs = models
    ids = torch.randint(256, (2, 40))
    streams, logits = theirs.stream(batch=2), []
    for token in ids.unbind(1):
        step, streams = theirs.step(token, streams)
        logits.append(step)
    torch.testing.assert_close(torch.stack(logits, 1), theirs(ids), rtol=0, atol=1e-12)


def test_a_stream_forgets_what_is_beyond_the_support(example: Any) -> None:
    kernel = example.RelativePositionEncoder(4, decay=0.5)
    assert kernel.support == 27  # 0.5 ** 27 is below 1e-8
    taps, values = kernel(100), torch.randn(1, 60, 4)
    stream = example.Stream(taps, values[:, :0])
    for value in values.unbind(1):
        stream = stream.pushed(value)
    torch.testing.assert_close(stream.values, values[:, -27:])
    torch.testing.assert_close(taps, kernel(27))


def test_trains_and_writes(example: Any) -> None:
    torch.manual_seed(0)
    model, text = example.TNN(channels=32, layers=1), b"0123456789" * 200
    assert example.train(model, text, steps=60, batch=4, length=64, rate=1e-2) < 6
    assert len(model.write(b"01", 5)) == 5
