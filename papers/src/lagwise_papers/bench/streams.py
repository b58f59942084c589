"""Layers, small models and baselines for the benchmark of generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lagwise.mixers import MIXERS, Mixer
from lagwise.models import LagwiseConfig, LagwiseForCausalLM, StreamingCache
from lagwise.ops.window import Window
from lagwise.training import load_recipe
from lagwise_papers.bench.stream_peers import NStates, RingBuffer, replace_toeplitz

EXACT, RING, RECOMPUTE, N_STATES, CACHE, CONVERTED = (
    "TNN without decay",
    "ring buffer",
    "recompute",
    "n states",
    "attention",
    "converted TNN",
)


_KERNEL = {"name": "rpe", "layers": 3, "hidden": 32}
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    EXACT: ("toeplitz", {"kernel": {**_KERNEL, "decay": 1.0, "inputs": "normalized"}}),
    "TNN": ("toeplitz", {"kernel": _KERNEL}),
    "FD-TNN": ("toeplitz", {"kernel": {**_KERNEL, "name": "frequency"}}),
    "SKI-TNN": ("toeplitz", {"kernel": {"name": "warped"}, "engine": "ski"}),
    CONVERTED: ("toeplitz", {"kernel": {"name": "modal", "modes": 16}}),
    "EMA": ("ema", {}),
    "TCN": ("tcn", {}),
    "chunked attention": ("chunked_attention", {"chunk": 128}),
    CACHE: ("attention", {}),
}
MODELS = {
    "TNN": "tnn-lm",
    "FD-TNN": "fd-tnn-lm",
    "SKI-TNN": "ski-tnn-lm",
    "MEGA": "mega-lm",
    "TCNCA": "tcnca-lm",
    CACHE: "transformer-alibi-lm",
}
BASELINES = (RING, N_STATES)
CHECKED_STEPS = 70  # more than a block of the online convolution
_SPARE_TOKENS = 1000  # tokens after the context that the n states support


class Subject(Protocol):
    """A layer or model to stream through. Outputs are ``(batch, 1 or length, ...)``."""

    state: Any

    def inputs(self, length: int) -> Tensor: ...

    def fill(self, x: Tensor) -> Tensor: ...

    def forward(self, x: Tensor) -> Tensor: ...


Factory = Callable[[int], "Subject"]  # called with the batch size


class Layer:
    """A mixer fed with noise."""

    def __init__(self, mixer: Mixer, batch: int):
        self.mixer, self.batch = mixer, batch
        self.state: Any = mixer.init_state(batch)

    def inputs(self, length: int) -> Tensor:
        return torch.randn(self.batch, length, self.mixer.channels, device=next(self.mixer.parameters()).device)

    def fill(self, x: Tensor) -> Tensor:
        if x.shape[1] == 1:
            y, self.state = self.mixer.step(x[:, 0], self.state)
            return y[:, None]
        y, self.state = self.mixer.prefill(x, self.state)
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self.mixer(x)


class Model:
    """A language model fed with random tokens."""

    def __init__(self, model: LagwiseForCausalLM, batch: int):
        self.model, self.batch = model, batch
        self.state = StreamingCache(model.config.num_hidden_layers)

    def inputs(self, length: int) -> Tensor:
        return torch.randint(self.model.config.vocab_size, (self.batch, length), device=self.model.device)

    def fill(self, x: Tensor) -> Tensor:
        return self.model(x, past_key_values=self.state, use_cache=True, logits_to_keep=1).logits

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, use_cache=False, logits_to_keep=CHECKED_STEPS).logits


def layers(channels: int, length: int) -> dict[str, Factory]:
    """Make one layer of every kind, and the baselines: the kernel without decay as a ring buffer and as n states."""

    def layer(name: str) -> Mixer:
        torch.manual_seed(0)
        mixer, options = LAYERS[name]
        return MIXERS[mixer](channels, **options).to(_device()).eval()

    return {
        **{name: lambda batch, name=name: Layer(layer(name), batch) for name in LAYERS},
        RING: lambda batch: Layer(RingBuffer(layer(EXACT)), batch),
        N_STATES: lambda batch: Layer(NStates(layer(EXACT), length + _SPARE_TOKENS), batch),
    }


def models() -> dict[str, Factory]:
    """Make the small models of the recipes. TNN is included also without decay, with ring buffers, and converted."""
    exact = ["model.block.token_mixer.kernel.decay=1.0", "model.block.token_mixer.kernel.inputs=normalized"]
    converted = _model("tnn-lm").to_recurrent()
    return {
        EXACT: lambda batch: Model(_model("tnn-lm", exact), batch),
        **{name: lambda batch, recipe=recipe: Model(_model(recipe), batch) for name, recipe in MODELS.items()},
        CONVERTED: lambda batch: Model(converted, batch),
        RING: lambda batch: Model(replace_toeplitz(_model("tnn-lm", exact), RingBuffer), batch),
    }


def state_bytes(state: Any) -> int:
    """Count the bytes of all storage referenced by a streaming state, including shared parts and spare capacity."""
    return sum({s.data_ptr(): s.nbytes() for s in _storages(state, set())}.values())


def _storages(value: Any, seen: set[int]) -> Iterator[Any]:
    if id(value) in seen or callable(value) or isinstance(value, str | int | float | None):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value.untyped_storage()
        return
    if isinstance(value, Window):
        yield value.tokens.untyped_storage()
        return
    if not isinstance(value, tuple | list):
        value = (value if isinstance(value, dict) else vars(value)).values()
    for member in value:
        yield from _storages(member, seen)


def _model(recipe: str, overrides: Sequence[str] = ()) -> LagwiseForCausalLM:
    torch.manual_seed(0)
    config = LagwiseConfig(**load_recipe(recipe, overrides).model, vocab_size=257)
    model: Any = LagwiseForCausalLM(config)
    return model.to(_device()).eval()


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
